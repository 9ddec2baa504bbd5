"""Report of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, counts, labelled, seconds, size, table

_SHARED = ("file shares its blocks with the original", "files share their blocks with the originals")


@dataclass
class RestoredPartition:
    """Counts of one restored partition."""

    topic: str
    partition: int
    generation: int
    log_start_offset: int
    next_offset: int
    cleaned_until: int = 0  # the cleaner checkpoint
    cleaned_bytes: int = 0  # of the logs: what the runs have cleaned
    cleaned_again_bytes: int = 0  # of these: what is dirty for a broker
    segments: int = 0
    from_archive: int = 0
    bytes: int = 0
    reflinked: int = 0
    converted: int = 0  # segments of which a batch had magic 3


@dataclass
class RestoreReport(JobReport):
    """Report of `restore`."""

    output: str
    partitions: list[RestoredPartition] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # parts of the archive that the store does not hold

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run."""
        written = {"written_bytes": sum(p.bytes for p in self.partitions)}
        return super().figures() | written | {"partitions": counts("restored" for _ in self.partitions)}

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        partitions = [vars(p) for p in self.partitions]
        problems = self.problems_json()
        return self.json_of("restore", output=self.output, partitions=partitions, beyond=self.beyond, problems=problems)

    def to_text(self) -> str:
        """Return the report for people."""
        header = ("partition", "generation", "offsets", "segments", "of the archive", "bytes")
        rows = [
            (
                f"{p.topic}-{p.partition}",
                str(p.generation),
                f"{p.log_start_offset}..{p.next_offset}",
                count(p.segments),
                count(p.from_archive),
                size(p.bytes),
            )
            for p in self.partitions
        ]
        lines = [table(header, rows, left=(0,)), ""]
        if self.beyond:
            lines += ["In the archive, not in the store:", *(f"  {line}" for line in self.beyond), ""]
        again = [p for p in self.partitions if p.cleaned_again_bytes]
        if again:
            lines += ["A broker cleans again (not after --full-clean):", *(f"  {_cleaned_again(p)}" for p in again), ""]
        lines += [*labelled("left out", self.problems), *labelled("note", self.notes), *self.io_lines()]
        total = sum(p.bytes for p in self.partitions)
        reflinked = sum(p.reflinked for p in self.partitions)
        shared = ", " + counted(reflinked, *_SHARED) if reflinked else ""
        converted = sum(p.converted for p in self.partitions)
        shared += f"; {counted(converted, 'segment')} came from magic 3" if converted else ""
        lines.append(
            f"{counted(len(self.partitions), 'partition')}, {size(total)} restored to {self.output} "
            f"in {seconds(self.seconds.get('total', 0.0))}{shared}"
        )
        return "\n".join(lines)


def _cleaned_again(p: RestoredPartition) -> str:
    share = f"{size(p.cleaned_again_bytes)} of {size(p.cleaned_bytes)}"
    return f"{p.topic}-{p.partition}: from offset {count(p.cleaned_until)} on, {share}"
