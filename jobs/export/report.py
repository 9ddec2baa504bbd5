"""Report of an export: what each topic's folder holds, and what could not be read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, labelled, table


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

    output: str
    format: str
    latest: bool = False
    topics: list[ExportedTopic] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return self.json_of(
            "export",
            output=self.output,
            format=self.format,
            latest=self.latest,
            engine=self.work_json(),
            topics=[asdict(topic) for topic in self.topics],
            problems=self.problems_json(),
        )

    def to_text(self) -> str:
        """Return the report for people."""
        columns = ["partitions", "records", "tombstones", "problems"]
        columns += ["inserted", "updated", "deleted"] if self.latest else []
        rows = [(t.topic, *(count(getattr(t, name)) for name in columns)) for t in self.topics]
        records = sum(t.records for t in self.topics)
        return "\n".join(
            [
                table(("topic", *columns), rows, left=(0,)),
                "",
                *labelled("problem", self.problems),
                *labelled("note", self.notes),
                f"{counted(records, 'record')} of {counted(len(self.topics), 'topic')} as {self.format} "
                f"in {self.output}",
                self.last_lines(),
            ]
        )
