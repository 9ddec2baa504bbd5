"""Report of `erase`: what went from each partition, and where the keys still are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lastkey.jobs.audit.erasure_search import Sought
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.parse import some_of
from lastkey.jobs.command.reporting import JobReport, counted, labelled
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import DONE, PROBLEMS


@dataclass
class Remains:
    """Places where the keys still are, those that may be one included."""

    current: int = 0  # of current generations
    older: int = 0  # of older ones, and of what dead runs left
    elsewhere: int = 0  # of other files of the store
    archive: int = 0
    generations: list[str] = field(default_factory=list)  # the older ones
    others: list[str] = field(default_factory=list)  # paths of other files of the store
    segments: list[str] = field(default_factory=list)  # paths of the archive

    @classmethod
    def of(cls, sought: Sought, store: str) -> Remains:
        """Return what a search found."""
        out, generations = cls(), set[tuple[str, int, str]]()
        for table, files in sought.tables():
            in_files = np.bincount(np.asarray(table["file"]), minlength=len(files))
            for file, n in zip(files, in_files.tolist(), strict=True):
                if not n:
                    continue
                if file.root != store:
                    out.archive += n
                    out.segments.append(file.path)
                elif file.generation is None:
                    out.elsewhere += n
                    out.others.append(file.path)
                elif file.state == "current":
                    out.current += n
                else:
                    out.older += n
                    generations.add((f"{file.topic}-{file.partition}", file.generation, file.state))
        out.generations = [f"{name}: {number} ({state})" for name, number, state in sorted(generations)]
        out.others, out.segments = sorted(set(out.others)), sorted(set(out.segments))
        return out


@dataclass
class EraseReport(JobReport):
    """Report of an erasure, or of a check."""

    store: str
    dry_run: bool
    check: bool
    erasure: str = ""
    n_keys: int = 0
    erased: CompactReport | None = None
    searched: AuditReport | None = None
    remains: Remains = field(default_factory=Remains)

    @property
    def run_id(self) -> str:
        """Id of the run that erased."""
        return "" if self.erased is None else self.erased.run_id

    @property
    def conflict(self) -> str:
        """Why another run kept this one from its commit; "": none did."""
        return "" if self.erased is None else self.erased.conflict

    @property
    def problems(self) -> list[Any]:
        """Partitions that were set aside, and places that could not be searched."""
        parts: Iterable[JobReport] = filter(None, (self.erased, self.searched))
        return [*self.other_problems, *(problem for part in parts for problem in part.problems)]

    @property
    def exit_code(self) -> int:
        """0; 3 if a partition was set aside, something was not read, or a current generation still holds a key."""
        if self.erased is not None and self.erased.exit_code:
            return self.erased.exit_code
        held = self.remains.current or (self.check and self.result != "gone")
        return PROBLEMS if held or self.problems else DONE

    @property
    def result(self) -> str:
        """Result of the search of the store: gone, older (only what `vacuum --erased` deletes), held, unknown."""
        if self.remains.current or (self.erased is not None and self.erased.problems):
            return "held"
        if self.searched is None or self.searched.problems or self.other_problems:
            return "unknown"
        return "older" if self.remains.older or self.remains.elsewhere else "gone"

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run."""
        return super().figures() | ({} if self.erased is None else self.erased.figures())

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return self.json_of(
            "erase",
            store=self.store,
            erasure=self.erasure,
            keys=self.n_keys,
            dry_run=self.dry_run,
            check=self.check,
            result=None if self.searched is None else self.result,
            remains=None if self.searched is None else asdict(self.remains),
            problems=self.problems_json(),
            erased=None if self.erased is None else self.erased.to_json(),
            searched=None if self.searched is None else self.searched.to_json(),
        )

    def to_text(self) -> str:
        """Return the report for people."""
        out = [f"erasure {self.erasure}: {counted(self.n_keys, 'key')}"]
        if self.erased is not None:
            self.erased.show_all = self.show_all
            out += ["", self.erased.to_text()]
        if self.searched is not None:
            out += ["", self.searched.to_text(), *self._what_is_left()]
        out += labelled("problem", self.other_problems)
        out += labelled("note", self.notes)
        return "\n".join(out)

    def _what_is_left(self) -> list[str]:
        left = self.remains
        out = labelled("older generation that may hold them; vacuum --erased deletes it", left.generations)
        out += labelled(
            "other file of the store that may hold them; vacuum --erased deletes tables of audits", left.others
        )
        if left.segments:
            out.append(
                f"{counted(len(left.segments), 'file')} of the archive may hold them: {some_of(left.segments)}; "
                "nothing here changes an archive: replace these partitions by what restore writes"
            )
        said = {
            "gone": "the store holds none of these keys",
            "older": "not gone yet: no current generation holds these keys, but other files of the store do: run "
            "vacuum --erased, then erase --check",
            "held": "not erased everywhere: see the problems",
            "unknown": "not known: some places could not be searched, or keys not found by hashes: see the problems",
        }
        return [*out, f"result: {said[self.result]}"]
