"""Report of an audit: figures and tables that every kind fills in the same way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, counted, labelled, size, table
from lastkey.jobs.errors import DONE, PROBLEMS
from lastkey.jobs.report.parts import Card, Table


@dataclass(kw_only=True)
class AuditReport(JobReport):
    """Report of one audit."""

    kind: str
    sources: list[str] = field(default_factory=list)
    audits: str = ""  # the store that holds the tables
    summary: dict[str, Any] = field(default_factory=dict)  # figures for programs; kept in `cleaner_runs`
    details: dict[str, Any] = field(default_factory=dict)  # more for programs: rows by name
    cards: list[Card] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    findings: int = 0  # what must not be; not: what could not be read
    stretches_read: int = 0
    bytes_read: int = 0

    @property
    def exit_code(self) -> int:
        """Exit code: 0, or 3 if something was found, or could not be read."""
        return PROBLEMS if self.findings or self.problems else DONE

    def figures(self) -> dict[str, Any]:
        """Return what the store keeps of the audit: a later audit of the same sources shows its summary."""
        return super().figures() | {"findings": self.findings, "sources": self.sources, "summary": self.summary}

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return self.json_of(
            f"audit {self.kind}",
            sources=self.sources,
            audits=self.audits,
            findings=self.findings,
            summary=self.summary,
            **self.details,
            problems=self.problems_json(),
            stretches_read=self.stretches_read,
            bytes_read=self.bytes_read,
            engine=self.work_json(),
        )

    def to_text(self) -> str:
        """Return the report for people."""
        out = [f"audit {self.kind}: {', '.join(self.sources)}", ""]
        width = max((len(card.label) for card in self.cards), default=0)
        out += [f"{c.label.ljust(width)}  {c.value}{f'  ({c.more})' if c.more else ''}" for c in self.cards]
        for rows in self.tables:
            if rows.rows:
                out += ["", rows.label, table(rows.header, rows.rows, left=(0, *rows.text))]
        out += ["", f"read: {counted(self.stretches_read, 'stretch', 'stretches')} of logs, {size(self.bytes_read)}"]
        out += labelled("problem", self.problems)
        out += labelled("note", self.notes)
        out.append(self.last_lines())
        return "\n".join(out)
