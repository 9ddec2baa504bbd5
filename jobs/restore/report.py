"""Report of a restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lastkey.jobs.command.parse import abbreviate_names
from lastkey.jobs.command.reporting import JobReport, TextTable, count, counted, counts, labelled, size

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
    cleaned_bytes: int = 0  # size of the logs that the runs have cleaned
    cleaned_again_bytes: int = 0  # size of the cleaned logs that are dirty for a broker
    segments: int = 0
    from_archive: int = 0
    bytes: int = 0
    reflinked: int = 0
    converted: int = 0  # segments with a batch of magic 3
    topic_id: str | None = None  # in partition.metadata; None if missing
    topic_id_is_given: bool = False  # by --topic-ids; False: it is the archive's
    is_beyond_topic: bool = False  # by --topic-ids, the topic has fewer partitions
    last_visible_offset: int | None = None  # last data record, for read_uncommitted; -1: none; None: unknown
    ends_in_empty_batch: bool = False  # in __transaction_state: the last batch of a segment has no record

    @property
    def name(self) -> str:
        """Name of the partition."""
        return f"{self.topic}-{self.partition}"


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
    topic_ids: str | None = None  # the file

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        written = {"written_bytes": sum(p.bytes for p in self.partitions)}
        return super().figures() | written | {"partitions": counts("restored" for _ in self.partitions)}

    def _lines(self) -> Iterable[str]:
        if any(map(_last_record, self.partitions)):
            yield "last record: the last that a consumer gets (read_uncommitted), if it is not at log end - 1"
        yield from labelled("in the archive, not in the store", self.beyond)
        again = (
            f"{p.name}: from offset {count(p.cleaned_until)} on, {size(p.cleaned_again_bytes)} of "
            f"{size(p.cleaned_bytes)}"
            for p in self.partitions
            if p.cleaned_again_bytes
        )
        yield from labelled("a broker cleans again (not after --full-clean)", again)
        if reflinked := sum(p.reflinked for p in self.partitions):
            yield counted(reflinked, *_SHARED)
        if converted := sum(p.converted for p in self.partitions):
            yield f"{counted(converted, 'segment')} came from magic 3"
        if self.topic_ids is None and any(p.topic_id for p in self.partitions):
            yield (
                "topic ids are those of the archive: a KRaft broker treats partitions as stray if its cluster has "
                "their topic with another id, or not at all; then restore with --topic-ids FILE"
            )
        yield "format the target with kafka-storage of the version that will run on it"


def advice(partitions: Sequence[RestoredPartition], topic_ids: str | None) -> Iterator[str]:
    """Yield notes on partitions that a broker would not take as they are. topic_ids: the file, if one was given."""
    stray = "a KRaft broker renames the folder to <partition>.<id>-stray and begins an empty log"
    if nameless := [p.name for p in partitions if p.topic_id is None]:
        yield (
            f"{counted(len(nameless), 'partition')} without a topic id: {abbreviate_names(nameless)}: {stray}; restore "
            "again with --topic-ids FILE, the text of kafka-topics --describe of its cluster"
        )
    if unnamed := [p.name for p in partitions if topic_ids and p.topic_id and not p.topic_id_is_given]:
        yield (
            f"{counted(len(unnamed), 'partition')} of topics that {topic_ids} does not name: "
            f"{abbreviate_names(unnamed)}: the topic id is the archive's; if the cluster has no topic with this id, "
            f"{stray}"
        )
    if beyond := [p.name for p in partitions if p.is_beyond_topic]:
        yield (
            f"{counted(len(beyond), 'partition')} that the topic does not have by {topic_ids}: "
            f"{abbreviate_names(beyond)}: {stray}; add partitions to the topic before the broker starts"
        )
    if stuck := [p.name for p in partitions if p.ends_in_empty_batch]:
        yield (
            f"{abbreviate_names(stuck)}: a segment ends in a batch without records: brokers before 3.9.2 and 4.0 load "
            "such a partition for ever (KAFKA-17941), and no transaction begins"
        )
