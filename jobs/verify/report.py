"""What verify found, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.command.reporting import ShownInNotebooks, count, seconds, size, table
from jobs.errors import DONE, PROBLEMS
from udfs.problem import Problem
from udfs.verify.findings import CheckResult

Key = tuple[str, int]
_TEXT_PROBLEMS = 200  # listed in text; JSON has all


@dataclass
class VerifyReport(ShownInNotebooks):
    """What was checked, what is wrong, what could not be checked."""

    side: str  # archive or store
    uri: str
    results: list[CheckResult] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # of no partition that was checked
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    side_files: int = 0
    generations: dict[Key, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def all_problems(self) -> list[Problem]:
        """Every row."""
        return [*self.problems, *(p for r in self.results for p in r.problems)]

    @property
    def exit_code(self) -> int:
        """0, or 3 where anything is wrong."""
        return PROBLEMS if self.all_problems else DONE

    def _total(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """For programs; every problem."""
        totals = ("segments", "batches", "records", "bytes", "compared_records")
        return {
            "job": "verify",
            self.side: self.uri,
            "exit_code": self.exit_code,
            "checked": {"partitions": len(self.results), **{name: self._total(name) for name in totals},
                        "log_directory_files": self.side_files},
            "partitions": [self._partition(r) for r in self.results],
            "problems": [_problem(p) for p in self.problems],
            "notes": self.notes,
            "not_checked": [*self.not_checked, *(n for r in self.results for n in r.not_checked)],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }  # fmt: skip

    def _partition(self, r: CheckResult) -> dict[str, Any]:
        out = asdict(r) | {"problems": [_problem(p) for p in r.problems], "seconds": round(r.seconds, 4)}
        out["generation"] = self.generations.get((r.topic, r.partition))
        return out

    def to_text(self) -> str:
        """For people: what was checked, then every problem."""
        header = ("partition", "generation", "problems", "segments", "batches", "records", "bytes", "compared")
        rows = [
            (f"{r.topic}-{r.partition}", count(self.generations.get((r.topic, r.partition))), count(len(r.problems)),
             count(r.segments), count(r.batches), count(r.records), size(r.bytes),
             count(r.compared_records) if r.compared_records else "")
            for r in self.results
        ]  # fmt: skip
        out = [table(header, rows, left=(0,))] if rows else ["no partition to check"]
        problems = self.all_problems
        out += [f"problem: {p}" for p in problems[:_TEXT_PROBLEMS]]
        if len(problems) > _TEXT_PROBLEMS:
            out.append(f"and {len(problems) - _TEXT_PROBLEMS} more problems: --json lists all")
        out += [f"note: {note}" for note in [*self.notes, *(n for r in self.results for n in r.notes)]]
        out += [f"not checked: {n}" for n in [*self.not_checked, *(n for r in self.results for n in r.not_checked)]]
        compared = self._total("compared_records")
        more = f", {compared:,} of them against what they were made of" if compared else ""
        beside = f", {self.side_files} files of log directories" if self.side_files else ""
        out.append(
            f"checked {len(self.results)} partitions: {self._total('segments'):,} segments, "
            f"{size(self._total('bytes'))}, {self._total('batches'):,} batches, "
            f"{self._total('records'):,} records{more}{beside}"
        )
        out.append(f"{len(problems)} problems" if problems else "no problem found")
        out.append("seconds: " + ", ".join(f"{name} {seconds(value)}" for name, value in self.seconds.items()))
        return "\n".join(out)


def _problem(p: Problem) -> dict[str, Any]:
    out = asdict(p)
    del out["state"]
    return out
