"""Report of `convert`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lastkey.jobs.command.reporting import JobReport, TextTable, counted


@dataclass
class ConvertedPartition:
    """Counts of one partition."""

    topic: str
    partition: int
    segments: int = 0
    kept: int = 0  # segments that an earlier, interrupted run has converted; their batches are not counted
    batches: int = 0
    changed: int = 0  # batches that have the other format now
    bytes_before: int = 0  # size of the logs before
    bytes_after: int = 0


@dataclass
class ConvertReport(JobReport):
    """Report of all partitions. Problems: folders that cannot be listed, and logs that cannot be read."""

    job = "convert"
    done = "{partitions:partition} converted to {to} in {output}"
    facts = "archive output to partitions"
    text_tables = (
        TextTable(
            "partitions",
            "partition segments batches changed bytes_before:before bytes_after:after",
            total="partition",
            needs_attention=lambda p: p.changed > 0,
        ),
    )

    archive: str
    output: str
    to: str
    partitions: list[ConvertedPartition] = field(default_factory=list)

    def _lines(self) -> Iterable[str]:
        if kept := sum(p.kept for p in self.partitions):
            yield f"kept of a run that was cut off: {counted(kept, 'segment')}; batches are those of this run"
