"""Report of `erase`: erased records of each partition, and remaining places of the keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from lastkey.jobs.command.parse import abbreviate_names
from lastkey.jobs.command.reporting import JobReport, counted, labelled
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.erase.search_store import SearchReport, Sought
from lastkey.jobs.topics import EVERY_TOPIC, Key, TopicFilter
from lastkey.jobs.vacuum import GenerationRow, JudgedGeneration, OnlyCopy, VacuumReport
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem

_CURRENT = "current"


@dataclass(frozen=True, order=True)
class SearchedGeneration:
    """A generation, or files of a killed run. Earlier runs may have written files of a current generation."""

    topic: str
    partition: int
    number: int
    state: str  # as SearchFile has it

    @property
    def name(self) -> str:
        """Topic and number of its partition."""
        return partition_folder(self.topic, self.partition)

    @property
    def is_current(self) -> bool:
        """Return whether this is the current generation."""
        return self.state == _CURRENT

    def __str__(self) -> str:
        return f"{self.name}: {self.number} ({self.state})"


@dataclass
class Held:
    """Keys that were found in the files of a generation."""

    paths: set[str] = field(default_factory=set)
    keys: int = 0  # keys that remain, or may remain
    sure: int = 0  # keys that certainly remain

    def problem(self, where: SearchedGeneration, hint: str) -> Problem:
        """Return it as a problem."""
        perhaps = self.keys - self.sure
        found = counted(self.keys, "key") + (f", {perhaps:,} of them perhaps" if perhaps else "")
        expected = f"none of the keys in generation {where.number} ({where.state})"
        return Problem("erased", where.name, NO_POSITION, expected, found, hint=hint)


@dataclass
class Remains:
    """Places where the keys still are, those that may be one included."""

    facts: ClassVar[str] = "current older elsewhere archive generations=searched others=paths segments"
    current: int = 0  # keys in current generations
    older: int = 0  # keys in older generations and in files of dead runs
    elsewhere: int = 0  # keys in other files of the store
    archive: int = 0
    generations: dict[SearchedGeneration, Held] = field(default_factory=dict)  # current ones too
    others: dict[str, int] = field(default_factory=dict)  # path of another file of the store -> places in it
    segments: list[str] = field(default_factory=list)  # paths of the archive

    @classmethod
    def of(cls, sought: Sought, store: str, current: Mapping[Key, int]) -> Remains:
        """Return the generations and keys that a search found. current: the number of each partition's current
        generation.
        """
        out, numbers = cls(), dict[SearchedGeneration, int]()
        codes_by_part = [
            np.empty(0, np.int64)
        ]  # (number of the generation, row of the key, 1 for a key that may be there)
        for table, files in sought.tables():
            file_of, key, may = (np.asarray(table[name]) for name in ("file", "key", "may"))
            in_files = np.bincount(file_of, minlength=len(files))
            number_of = np.full(len(files), -1, np.int64)
            for i, (file, n) in enumerate(zip(files, in_files.tolist(), strict=True)):
                if not n:
                    continue
                if file.root != store:
                    out.archive += n
                    out.segments.append(file.path)
                elif file.generation is None or file.topic is None or file.partition is None:
                    out.elsewhere += n
                    out.others[file.path] = out.others.get(file.path, 0) + n
                else:
                    number = file.generation
                    if file.state == _CURRENT:
                        out.current += n
                        number = current.get((file.topic, file.partition), number)
                    else:
                        out.older += n
                    where = SearchedGeneration(file.topic, file.partition, number, file.state)
                    number_of[i] = numbers.setdefault(where, len(numbers))
                    out.generations.setdefault(where, Held()).paths.add(file.path)
            inside = number_of[file_of] >= 0
            of = number_of[file_of][inside]
            codes_by_part.append(np.unique((of * len(sought.keys) + key[inside]) * 2 + may[inside]))
        codes = np.unique(np.concatenate(codes_by_part))
        of_keys, of_sure = (
            np.bincount(pairs // max(len(sought.keys), 1), minlength=len(numbers)).tolist()
            for pairs in (np.unique(codes // 2), codes[codes % 2 == 0] // 2)
        )
        for where, number in numbers.items():
            held = out.generations[where]
            held.keys, held.sure = of_keys[number], of_sure[number]
        out.generations = dict(sorted(out.generations.items()))
        out.others, out.segments = dict(sorted(out.others.items())), sorted(set(out.segments))
        return out

    @property
    def searched(self) -> list[str]:
        """Generations that hold a key, as text."""
        return list(map(str, self.generations))

    @property
    def paths(self) -> list[str]:
        """Paths of the other files."""
        return list(self.others)


Row = TypeVar("Row", bound=GenerationRow)
_RESULTS: Final = {
    "erased": "the store holds none of these keys",
    "vacuum_needed": "no current generation holds these keys, but other files of the store do: follow the hint for "
    "each, then run erase --check",
    "incomplete": "not erased everywhere: see the problems",
    "unknown": "unknown, because some places could not be searched: see the problems",
    None: "nothing was searched",
}


@dataclass
class EraseReport(JobReport):
    """Report of an erasure, or of a check."""

    job = "erase"
    facts = "store erasure keys=n_keys dry_run check result=_result remains=_remains erased searched"

    store: str
    dry_run: bool
    check: bool
    who: str = ""  # requester, in the user's words
    topics: TopicFilter = EVERY_TOPIC  # from which an erasure takes the keys
    erasure: str = ""
    n_keys: int = 0
    erased: CompactReport | None = None
    searched: SearchReport | None = None
    remains: Remains = field(default_factory=Remains)
    vacuum: VacuumReport | None = None  # a dry run over the older generations; None: none is needed

    @property
    def run_id(self) -> str:
        """Id of the run that erased."""
        return "" if self.erased is None else self.erased.run_id

    @property
    def conflict(self) -> str:
        """Why another run kept this one from its commit; "": none did."""
        return (self.erased and self.erased.conflict) or ""

    @property
    def not_done(self) -> list[Any]:
        """Problems of uncleanable partitions, and of places that could not be searched."""
        parts: Iterable[JobReport] = filter(None, (self.erased, self.searched))
        return [*self.other_problems, *(problem for part in parts for problem in part.problems)]

    @property
    def problems(self) -> list[Any]:
        """Problems of both parts, and current generations that hold keys; for a check every place of the store."""
        return [*self.not_done, *self._held(), *(self._left() if self.check else ())]

    @property
    def exit_code(self) -> int:
        """0; 3 if a partition is uncleanable, something was not read, or a current generation still holds a key."""
        return (self.erased.exit_code if self.erased is not None else 0) or super().exit_code

    @property
    def result(self) -> str:
        """Result of the search of the store: a key of `_RESULTS`."""
        if self.remains.current or (self.erased is not None and self.erased.problems):
            return "incomplete"
        if self.searched is None or self.searched.problems or self.other_problems:
            return "unknown"
        return "vacuum_needed" if self.remains.older or self.remains.elsewhere else "erased"

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring and, after a search, what the store keeps of the erasure."""
        out = super().figures() | ({} if self.erased is None else self.erased.figures())
        if self.searched is None:
            return out
        left, results = self.remains, [] if self.erased is None else self.erased.results
        return out | {
            "erasure": {
                "id": self.erasure, "keys": self.n_keys, "who": self.who, "topics": asdict(self.topics),
                "not_erased": [r.name() for r in results if r.problem is not None], "found_current": left.current,
                "found_older": left.older, "found_elsewhere": left.elsewhere, "found_archive": left.archive,
                "not_read": len(self.not_done), "result": self.result,
            }
        }  # fmt: skip

    @property
    def _result(self) -> str | None:
        return None if self.searched is None else self.result

    @property
    def _remains(self) -> Remains | None:
        return None if self.searched is None else self.remains

    def _problem_texts(self) -> Sequence[object]:
        return [*self.other_problems, *self._held(), *(self._left() if self.check else ())]  # the rest is in `_lines`

    def _lines(self) -> Iterable[str]:
        for part in filter(None, (self.erased, self.searched)):
            part.show_all = self.show_all
            yield from (part.to_text().rpartition("; exit code ")[0], "")
        if self.searched is not None and not self.check:
            yield from labelled("not gone yet", self._left())
        if self.searched is not None and (segments := self.remains.segments):
            yield (
                f"{counted(len(segments), 'file')} of the archive may hold them: {abbreviate_names(segments)}; nothing "
                "here changes an archive: replace these partitions by what restore writes"
            )

    def _outcome(self) -> str:
        return f"erasure {self.erasure}: {counted(self.n_keys, 'key')}; result: {_RESULTS[self._result]}"

    def _held(self) -> list[Problem]:
        """Return a problem for each current generation that still holds a key."""
        return [held.problem(at, self._advice(at)) for at, held in self.remains.generations.items() if at.is_current]

    def _advice(self, at: SearchedGeneration) -> str:
        if self.check or not self.topics.takes(at.topic):
            return f"name the topic to erase them there: erase --topics {at.topic}"
        if self.erased is not None and any(r.problem and r.name() == at.name for r in self.erased.results):
            return "the partition is uncleanable: solve that problem, then erase again"
        return "erase again: they may have come meanwhile; if they stay, run verify --store"

    def _how_to_delete(
        self, at: SearchedGeneration, held: Held, kept: Sequence[OnlyCopy], listed: Sequence[JudgedGeneration]
    ) -> str:
        """Return the command that deletes an older generation. Another generation may need one that vacuum keeps.

        kept, listed: generations of its partition that vacuum keeps for their offsets, and all that vacuum lists.
        """
        if self.vacuum is None:
            return "vacuum --erased deletes it, once these keys are erased from its partition"
        if held.paths.issubset(self.vacuum.deleted.get((at.topic, at.partition), ())):
            return "vacuum --erased deletes it"
        if not kept:
            because = next((", ".join(g["because"]) for g in listed if g["generation"] == at.number), "")
            return (
                f"vacuum --erased leaves it{because and f' ({because})'}: erase these keys from its partition first; "
                "run `vacuum --erased --dry-run` for details"
            )
        mine = next((g for g in kept if g["generation"] == at.number), kept[0])
        which = "it" if mine["generation"] == at.number else f"generation {mine['generation']}, which needs it,"
        offsets = ", ".join(f"{first} to {last}" for first, last in mine["offsets"])
        return (
            f"vacuum --erased --give-up '{at.topic}' deletes it, though {which} is the only copy of offsets {offsets}"
        )

    def _left(self) -> list[Problem]:
        """Return a problem for each other place of the store that holds a key, or may hold one."""
        older = {at: held for at, held in self.remains.generations.items() if not at.is_current}
        kept = _by_partition(() if self.vacuum is None else self.vacuum.kept)
        listed = _by_partition(() if self.vacuum is None else self.vacuum.generations)
        hint = "vacuum --erased deletes tables of audits, once keys were erased"
        return [
            *(
                held.problem(
                    at, self._how_to_delete(at, held, kept[at.topic, at.partition], listed[at.topic, at.partition])
                )
                for at, held in older.items()
            ),
            *(
                Problem("erased", path, NO_POSITION, "none of the keys", counted(n, "place"), hint=hint)
                for path, n in self.remains.others.items()
            ),
        ]


def _by_partition(rows: Iterable[Row]) -> defaultdict[Key, list[Row]]:
    """Group rows once: a store may hold very many generations."""
    out = defaultdict[Key, list[Row]](list)
    for row in rows:
        out[row["topic"], row["partition"]].append(row)
    return out
