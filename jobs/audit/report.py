"""Report of an audit: figures and tables that every kind fills in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import Card, JobReport, Table, counted, size, table
from lastkey.jobs.errors import DONE, PROBLEMS


@dataclass(kw_only=True)
class AuditReport(JobReport):
    """Report of one audit."""

    job = "audit"
    facts = "sources audits findings summary *=details stretches_read bytes_read partitions_answered partitions_kept"

    kind: str
    sources: list[str] = field(default_factory=list)
    audits: str = ""  # the store that holds the tables
    summary: dict[str, Any] = field(default_factory=dict)  # figures for programs; kept in `cleaner_runs`
    details: dict[str, Any] = field(default_factory=dict)  # more for programs: rows by name
    cards: list[Card] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    findings: int = 0  # number of findings, without unreadable places
    stretches_read: int = 0
    bytes_read: int = 0
    partitions_answered: int = 0
    partitions_kept: int = 0  # their results follow from what an earlier audit read

    @property
    def exit_code(self) -> int:
        """Exit code: 0, or 3 if something was found, or could not be read."""
        return PROBLEMS if self.findings or self.problems else DONE

    def figures(self) -> dict[str, Any]:
        """Return what the store keeps of the audit: a later audit of the same sources shows its summary."""
        return super().figures() | {"findings": self.findings, "sources": self.sources, "summary": self.summary}

    def _name(self) -> str:
        return f"audit {self.kind}"

    def _lines(self) -> Iterable[str]:
        width = max((len(card.label) for card in self.cards), default=0)
        yield from (f"{c.label.ljust(width)}  {c.value}{f'  ({c.more})' if c.more else ''}" for c in self.cards)
        for rows in self.tables:
            if rows.rows:
                yield from ("", rows.label, table(rows.header, rows.rows))

    def _outcome(self) -> str:
        read = f"{counted(self.stretches_read, 'stretch', 'stretches')} of logs, {size(self.bytes_read)}"
        answered = f"answered {counted(self.partitions_answered, 'partition')}, kept {self.partitions_kept:,}"
        found = counted(self.findings, "finding")
        return f"{self._name()}: {', '.join(self.sources)}: read {read}; {answered}; {found}"
