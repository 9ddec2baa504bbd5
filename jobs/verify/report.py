"""Report of `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, TextTable, counted, counts, labelled
from lastkey.udfs.verify.findings import CheckResult


@dataclass
class VerifyReport(JobReport):
    """Report of what was checked, what is wrong, and what could not be checked."""

    job = "verify"
    results_at = "results"
    facts = "archive store checked partitions=results not_checked=all_not_checked"
    text_tables = (
        TextTable(
            "results",
            "partition generation n_problems:problems segments batches records bytes compared_records:compared",
            {"n_problems": lambda r: len(r.problems)},
            total="partition",
            needs_attention=lambda r: bool(r.problems or r.not_checked),
        ),
    )

    archive: str | None = None
    store: str | None = None
    results: list[CheckResult] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    side_files: int = 0

    @property
    def all_not_checked(self) -> list[str]:
        """Items that could not be checked, including those of partitions."""
        return [*self.not_checked, *(n for r in self.results for n in r.not_checked)]

    @property
    def checked(self) -> dict[str, int]:
        """Sums of what was checked."""
        names = ("segments", "batches", "records", "bytes", "compared_records")
        sums = {name: sum(getattr(r, name) for r in self.results) for name in names}
        return {"partitions": len(self.results), **sums, "log_directory_files": self.side_files}

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        states = ("problems" if r.problems else "not_checked" if r.not_checked else "checked" for r in self.results)
        read = {"read_bytes": self.checked["bytes"], "read_records": self.checked["records"]}
        return super().figures() | read | {"partitions": counts(states)}

    def _lines(self) -> Iterable[str]:
        held_back = [r.held_back for r in self.results if r.held_back]
        return [*labelled("held back", held_back), *labelled("not checked", self.all_not_checked)]

    def _outcome(self) -> str:
        n, problems = self.checked, len(self.problems)
        beside = f", {counted(self.side_files, 'file')} of log directories" if self.side_files else ""
        what = f"checked {counted(n['partitions'], 'partition')}, {counted(n['records'], 'record')}{beside}"
        return f"{what}: {counted(problems, 'problem') if problems else 'no problem found'}"
