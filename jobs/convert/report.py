"""Report of `convert`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, labelled, size, table
from lastkey.udfs.problem import Problem


@dataclass
class ConvertedPartition:
    """Counts of one partition."""

    topic: str
    partition: int
    segments: int = 0
    kept: int = 0  # of these: an earlier run, which was cut off, has converted them; their batches are not counted
    batches: int = 0
    changed: int = 0  # batches that have the other format now
    bytes_before: int = 0  # of the logs
    bytes_after: int = 0


@dataclass
class ConvertReport(JobReport):
    """Report of all partitions."""

    archive: str
    output: str
    to: str
    partitions: list[ConvertedPartition] = field(default_factory=list)
    found: list[Problem] = field(default_factory=list)

    @property
    def problems(self) -> list[Any]:
        """Problems: folders that cannot be listed, and logs that cannot be read."""
        return self.found

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        partitions = [asdict(p) for p in self.partitions]
        return self.json_of(
            "convert",
            archive=self.archive,
            output=self.output,
            to=self.to,
            partitions=partitions,
            problems=self.problems_json(),
            engine=self.work_json(),
        )

    def to_text(self) -> str:
        """Return the report for people."""
        header = ("partition", "segments", "batches", f"now {self.to}", "before", "after")
        rows = [
            (
                f"{p.topic}-{p.partition}",
                count(p.segments),
                count(p.batches),
                count(p.changed),
                size(p.bytes_before),
                size(p.bytes_after),
            )
            for p in self.shown(self.partitions, lambda p: p.changed > 0)
        ]
        before, after = (sum(getattr(p, f"bytes_{side}") for p in self.partitions) for side in ("before", "after"))
        lines = [table(header, rows, left=(0,)), ""] if rows else []
        lines += labelled("problem", self.problems)
        lines += labelled("note", self.notes)
        if kept := sum(p.kept for p in self.partitions):
            lines.append(f"kept of a run that was cut off: {counted(kept, 'segment')}; batches are those of this run")
        lines.append(
            f"{counted(len(self.partitions), 'partition')}: {size(before)} became {size(after)} in {self.output}"
        )
        return "\n".join([*lines, self.last_lines()])
