"""Report of a restore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lastkey.jobs.command.parse import some_of
from lastkey.jobs.command.reporting import JobReport, count, counted, counts, labelled, seconds, size, table
from lastkey.logformat import names

TRANSACTION_STATE: Final = "__transaction_state"
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
    has_topic_id: bool = True  # there is a partition.metadata
    last_visible_offset: int | None = None  # of the last data record, for read_uncommitted; -1: none; None: not known
    ends_in_empty_batch: bool = False  # of __transaction_state: the last batch of a segment has no record


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
        header = ("partition", "generation", "offsets", "last record", "segments", "of the archive", "bytes")
        rows = [
            (
                f"{p.topic}-{p.partition}",
                str(p.generation),
                f"{p.log_start_offset}..{p.next_offset}",
                _last_record(p),
                count(p.segments),
                count(p.from_archive),
                size(p.bytes),
            )
            for p in self.partitions
        ]
        lines = [table(header, rows, left=(0,)), ""]
        if any(map(_last_record, self.partitions)):
            lines += ["last record: the last that a consumer gets (read_uncommitted), if it is not at log end - 1", ""]
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
        lines.append("format the target with kafka-storage of the version that will run on it")
        return "\n".join(lines)


def advice(partitions: Sequence[RestoredPartition]) -> Iterator[str]:
    """Yield notes on partitions that a broker would not take as they are."""
    if nameless := [f"{p.topic}-{p.partition}" for p in partitions if not p.has_topic_id]:
        yield (
            f"{counted(len(nameless), 'partition')} without a topic id: {some_of(nameless)}: before a broker starts, "
            f"write {names.PARTITION_METADATA} into each folder: a line 'version: 0' and a line 'topic_id: ID', with "
            "the ID of kafka-topics --describe; else the broker renames the folder to <partition>.<id>-stray, and "
            "begins an empty log"
        )
    if stuck := [f"{p.topic}-{p.partition}" for p in partitions if p.ends_in_empty_batch]:
        yield (
            f"{some_of(stuck)}: a segment ends in a batch without records: brokers before 3.9.2 and 4.0 load such a "
            "partition for ever (KAFKA-17941), and no transaction begins"
        )


def _last_record(p: RestoredPartition) -> str:
    """Return the last visible record if it is not at log end - 1."""
    if p.last_visible_offset is None:
        return "unknown"
    if p.last_visible_offset < 0:
        return "none"
    return "" if p.last_visible_offset == p.next_offset - 1 else str(p.last_visible_offset)


def _cleaned_again(p: RestoredPartition) -> str:
    share = f"{size(p.cleaned_again_bytes)} of {size(p.cleaned_bytes)}"
    return f"{p.topic}-{p.partition}: from offset {count(p.cleaned_until)} on, {share}"
