"""Report of an export: what each topic's folder holds, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastkey.jobs.command.reporting import JobReport, TextTable


@dataclass
class ExportedTopic:
    """Row of the report for one topic: what was read and written."""

    topic: str
    partitions: int
    records: int = 0
    tombstones: int = 0
    problems: int = 0
    inserted: int = 0  # rows of a table with --latest
    updated: int = 0
    deleted: int = 0


@dataclass
class ExportReport(JobReport):
    """Report of `export`."""

    job = "export"
    done = "{topics:topic} as {format} in {output}"
    facts = "output format latest topics"
    text_tables = (
        TextTable("topics", "topic partitions records tombstones problems inserted updated deleted", total="topic"),
    )

    output: str
    format: str
    latest: bool = False
    topics: list[ExportedTopic] = field(default_factory=list)
