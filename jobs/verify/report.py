"""Report of `verify`, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, counts, labelled, problem_json, size, table
from lastkey.jobs.topics import Key
from lastkey.udfs.problem import Problem
from lastkey.udfs.verify.findings import CheckResult

_TEXT_PROBLEMS = 200  # listed in text; JSON has all


@dataclass
class VerifyReport(JobReport):
    """Report of what was checked, what is wrong, and what could not be checked."""

    side: str  # archive or store
    uri: str
    results: list[CheckResult] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    side_files: int = 0
    generations: dict[Key, int] = field(default_factory=dict)

    @property
    def problems(self) -> list[Problem]:
        """Problems of the report, including those of partitions that were checked."""
        return [*self.other_problems, *(p for r in self.results for p in r.problems)]

    @property
    def all_not_checked(self) -> list[str]:
        """Items that could not be checked, including those of partitions."""
        return [*self.not_checked, *(n for r in self.results for n in r.not_checked)]

    def _total(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.results)

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run."""
        states = ("problems" if r.problems else "not_checked" if r.not_checked else "checked" for r in self.results)
        read = {"read_bytes": self._total("bytes"), "read_records": self._total("records")}
        return super().figures() | read | {"partitions": counts(states)}

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with every problem."""
        totals = ("segments", "batches", "records", "bytes", "compared_records")
        return {
            "job": "verify",
            self.side: self.uri,
            "exit_code": self.exit_code,
            "checked": {
                "partitions": len(self.results),
                **{name: self._total(name) for name in totals},
                "log_directory_files": self.side_files,
            },
            "partitions": [self._partition(r) for r in self.results],
            "problems": self.problems_json(),
            "notes": self.notes,
            "not_checked": self.all_not_checked,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
            **self.io_json(),
        }

    def _partition(self, r: CheckResult) -> dict[str, Any]:
        out = asdict(r) | {"problems": [problem_json(p) for p in r.problems], "seconds": round(r.seconds, 4)}
        out["held_back"] = r.held_back.to_json() if r.held_back else None
        out["generation"] = self.generations.get((r.topic, r.partition))
        return out

    def to_text(self) -> str:
        """Return the report for people: what was checked, then every problem."""
        header = ("partition", "generation", "problems", "segments", "batches", "records", "bytes", "compared")
        rows = [
            (
                f"{r.topic}-{r.partition}",
                count(self.generations.get((r.topic, r.partition))),
                count(len(r.problems)),
                count(r.segments),
                count(r.batches),
                count(r.records),
                size(r.bytes),
                count(r.compared_records) if r.compared_records else "",
            )
            for r in self.shown(self.results, lambda r: bool(r.problems or r.not_checked))
        ]
        out = [table(header, rows, left=(0,))] if rows or self.results else ["no partition to check"]
        if len(rows) < len(self.results):
            out.append(f"and {counted(len(self.results) - len(rows), 'partition')} without a problem: --all lists them")
        problems = self.problems
        out += labelled("problem", problems[:_TEXT_PROBLEMS])
        if len(problems) > _TEXT_PROBLEMS:
            out.append(f"and {counted(len(problems) - _TEXT_PROBLEMS, 'more problem')}: --json lists all")
        out += labelled("note", [*self.notes, *(n for r in self.results for n in r.notes)])
        out += labelled("held back", [r.held_back for r in self.results if r.held_back])
        out += labelled("not checked", self.all_not_checked)
        compared = self._total("compared_records")
        more = f", {compared:,} of them compared with their source" if compared else ""
        beside = f", {counted(self.side_files, 'file')} of log directories" if self.side_files else ""
        out.append(
            f"checked {counted(len(self.results), 'partition')}: {counted(self._total('segments'), 'segment')}, "
            f"{size(self._total('bytes'))}, {counted(self._total('batches'), 'batch', 'batches')}, "
            f"{counted(self._total('records'), 'record')}{more}{beside}"
        )
        out.append(counted(len(problems), "problem") if problems else "no problem found")
        out.append(self.last_lines())
        return "\n".join(out)
