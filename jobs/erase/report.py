"""Report of `erase`: what went from each partition, and where the keys still are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from lastkey.jobs.command.parse import abbreviate_names
from lastkey.jobs.command.reporting import JobReport, counted, labelled
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.erase.remains import Held, Remains, SearchedGeneration
from lastkey.jobs.erase.search_store import SearchReport
from lastkey.jobs.topics import EVERY_TOPIC, Key, TopicFilter
from lastkey.jobs.vacuum import GenerationRow, JudgedGeneration, OnlyCopy, VacuumReport
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.problem import Problem

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
    vacuum: VacuumReport | None = None  # a dry run over the older generations; None: nothing to ask of it

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
        """Return how to delete an older generation. One that vacuum keeps may be needed by another one.

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
