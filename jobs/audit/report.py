"""Report of an audit: figures and tables that every kind fills in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lastkey.jobs.command.reporting import Card, JobReport, TextTable, counted, size
from lastkey.jobs.errors import DONE, PROBLEMS
from lastkey.logformat.control_characters import visible


def shown_key(key: bytes | None, hidden: bool = False) -> str:
    """Return a key for people: UTF-8 in one line, else 0x and hex; hidden: # and the first half of its hash."""
    if key is None:
        return "(none)"
    if hidden:
        return f"#{key[:8].hex()}"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return visible(text) if text.isprintable() and text and not text.startswith(("0x", "#")) else f"0x{key.hex()}"


@dataclass(kw_only=True)
class AuditReport(JobReport):
    """Report of one audit. A kind adds its own facts, whose rows have the columns of an Arrow schema."""

    facts = "sources audits findings summary keys_hidden stretches_read bytes_read partitions_answered partitions_kept"
    result_tables: ClassVar[Sequence[TextTable]] = ()  # below the figures

    sources: list[str] = field(default_factory=list)
    audits: str = ""  # the store that holds the tables
    summary: dict[str, Any] = field(default_factory=dict)  # figures for programs; kept in `cleaner_runs`
    keys_hidden: bool = False
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

    def show_keys(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with keys as text; null for a record without a key."""
        return [
            row | {"key": None if row.get("without_key") else shown_key(row["key"], self.keys_hidden)} for row in rows
        ]

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        return ()

    def _lines(self) -> Iterable[str]:
        cards = list(self.cards())
        width = max((len(card.label) for card in cards), default=0)
        yield from (f"{c.label.ljust(width)}  {c.value}{f'  ({c.more})' if c.more else ''}" for c in cards)
        for of in self.result_tables:
            if lines := list(self._table(of)):
                yield from ("", *lines)

    def _outcome(self) -> str:
        read = f"{counted(self.stretches_read, 'stretch', 'stretches')} of logs, {size(self.bytes_read)}"
        answered = f"answered {counted(self.partitions_answered, 'partition')}, kept {self.partitions_kept:,}"
        found = counted(self.findings, "finding")
        return f"{self._name()}: {', '.join(self.sources)}: read {read}; {answered}; {found}"
