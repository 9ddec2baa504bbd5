"""Report of a restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lastkey.jobs.command.parse import some_of
from lastkey.jobs.command.reporting import JobReport, TextTable, count, counted, counts, labelled, size
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


def _last_record(p: RestoredPartition) -> str:
    """Return the last visible record if it is not at log end - 1."""
    if p.last_visible_offset is None:
        return "unknown"
    if p.last_visible_offset < 0:
        return "none"
    return "" if p.last_visible_offset == p.next_offset - 1 else str(p.last_visible_offset)


@dataclass
class RestoreReport(JobReport):
    """Report of `restore`."""

    job = "restore"
    done = "{partitions:partition} restored to {output}"
    facts = "output partitions beyond"
    text_tables = (
        TextTable(
            "partitions",
            "partition generation offsets last_record segments from_archive:archived bytes",
            {"offsets": lambda p: f"{p.log_start_offset}..{p.next_offset}", "last_record": _last_record},
            total="partition",
        ),
    )

    output: str
    partitions: list[RestoredPartition] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # parts of the archive that the store does not hold

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        written = {"written_bytes": sum(p.bytes for p in self.partitions)}
        return super().figures() | written | {"partitions": counts("restored" for _ in self.partitions)}

    def _lines(self) -> Iterable[str]:
        if any(map(_last_record, self.partitions)):
            yield "last record: the last that a consumer gets (read_uncommitted), if it is not at log end - 1"
        yield from labelled("in the archive, not in the store", self.beyond)
        again = (_cleaned_again(p) for p in self.partitions if p.cleaned_again_bytes)
        yield from labelled("a broker cleans again (not after --full-clean)", again)
        if reflinked := sum(p.reflinked for p in self.partitions):
            yield counted(reflinked, *_SHARED)
        if converted := sum(p.converted for p in self.partitions):
            yield f"{counted(converted, 'segment')} came from magic 3"
        yield "format the target with kafka-storage of the version that will run on it"


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


def _cleaned_again(p: RestoredPartition) -> str:
    share = f"{size(p.cleaned_again_bytes)} of {size(p.cleaned_bytes)}"
    return f"{p.topic}-{p.partition}: from offset {count(p.cleaned_until)} on, {share}"
