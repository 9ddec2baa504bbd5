"""What a task is told and what it tells: the values that cross between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from logformat.batches.chunks import MAX_BATCH_BYTES
from logformat.listing import ListedSegment
from udfs.compact.retention import Expired, RetentionLimits
from udfs.problem import Problem
from udfs.segments import LastBatch, OutputSegment, SegmentInput, SideFile

Engine = Literal["auto", "task", "blocks", "window"]
Strategy = Literal["offset", "timestamp", "header"]
NullKeys = Literal["fail", "keep", "drop"]
Gaps = Literal["fail", "accept"]


@dataclass(frozen=True)
class CleanSettings:
    """Kafka's settings that change the result, of one topic."""

    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    min_dirty_bytes: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = 86_400_000
    max_decompressed_batch_bytes: int = MAX_BATCH_BYTES
    compacts: bool = True  # cleanup.policy says so; else retention alone is done
    retention_ms: int = -1  # -1: none, or cleanup.policy does not say delete
    retention_bytes: int = -1
    compaction_strategy: Strategy = "offset"  # which record of a key stays: the last one, or that of highest version
    compaction_strategy_header: str = ""  # that holds the version, where the strategy is header
    retention_exact: bool = False  # by time records go even inside a kept segment
    null_keys: NullKeys = "fail"
    gaps: Gaps = "fail"

    @property
    def by_offset(self) -> bool:
        """Whether the last record of a key stays, as in Kafka."""
        return self.compaction_strategy == "offset"

    @property
    def retention(self) -> RetentionLimits:
        """What goes by time and size."""
        return RetentionLimits(self.retention_ms, self.retention_bytes)


@dataclass(frozen=True)
class Limits:
    """Settings that change only speed and memory."""

    chunk_bytes: int = 8 << 20
    task_memory_bytes: int = 1 << 30
    split_bytes: int = 4 << 30
    engine: Engine = "auto"  # how last offsets are found; auto: in one task or by blocks, by what it costs


@dataclass(frozen=True)
class Gap:
    """Offsets that no segment held when a generation was made, which passed over them."""

    first: int
    last: int
    before: int = -1  # base offset of the archived segment that ends there; -1: there is none
    size: int = -1  # its bytes then
    lost: bool = True  # a file is missing or short; else a cleaner took them


@dataclass(frozen=True)
class PartitionPlan:
    """All that one partition's compaction needs; made by the driver from names, sizes, checkpoints and the store."""

    topic: str
    partition: int
    archive_uri: str
    store_uri: str
    folder: str  # of the new generation, relative to the store
    segments: tuple[SegmentInput, ...]
    log_start_offset: int
    checkpoint: int | None  # first dirty offset by the store or the archive
    high_watermark: int | None
    sealed: bool
    force: bool
    dry_run: bool
    now_ms: int
    settings: CleanSettings
    limits: Limits
    secret: tuple[int, int]  # key of the key hash
    snapshots: tuple[SideFile, ...] = ()
    txn_indexes: tuple[SideFile, ...] = ()
    leader_epochs: tuple[tuple[int, int], ...] | None = None  # by the archive's checkpoint; None: lost
    known_epochs: SideFile | None = None  # leader-epoch-checkpoint of the last generation
    topic_id: str | None = None
    known_until: int | None = None  # next_offset of the last generation
    known_last_batch: LastBatch = LastBatch()
    identity_segment: SegmentInput | None = None  # of the archive, where known_last_batch lies in none of `segments`
    cleaner_checkpoint: int | None = None  # of the archive, whoever `checkpoint` is by
    log_start_checkpoint: int | None = None  # of the archive
    orphans: tuple[SideFile, ...] = ()  # indexes of the archive whose .log is not there, by offset
    known_gaps: tuple[Gap, ...] = ()  # of the last generation
    expired_until: int = 0  # by retention of earlier runs, where the last generation begins; 0: there was none
    anew: bool = False  # --reset: from what the archive holds, wherever that begins; the generation before is kept

    def is_ours(self, file: ListedSegment | SideFile) -> bool:
        """Whether a file lies in the store; else it is of the archive."""
        return file.root == self.store_uri

    @property
    def read_until(self) -> int | None:
        """Offset that the high watermark lets us read to; never below the last generation, or what the broker cleaned
        or gave up, which was safe then (the checkpoint of a high watermark may be older than the log beside it). None:
        to the end.
        """
        if self.high_watermark is None:
            return None
        return max(self.high_watermark, self.known_until or 0, self.cleaned_until, self.log_start_checkpoint or 0)

    @property
    def oldest_ms(self) -> int:
        """Timestamp before which records go one by one; -1: they do not."""
        exact = self.settings.retention_exact and self.settings.retention_ms >= 0
        return max(self.now_ms - self.settings.retention_ms, -1) if exact else -1

    @property
    def cleaned_until(self) -> int:
        """Below this offset the log was cleaned, by us or by the archive's broker."""
        return max(self.checkpoint or 0, self.cleaner_checkpoint or 0)


Status = Literal["cleaned", "not_due", "set_aside", "too_large"]


@dataclass(frozen=True)
class PartitionResult:
    """What became of one partition."""

    topic: str
    partition: int
    status: Status
    folder: str = ""
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    first_dirty_before: int = 0
    first_dirty_offset: int = 0  # of the new generation
    log_start_offset: int = 0
    next_offset: int = 0
    last_batch: LastBatch = LastBatch()
    log_end_timestamp_ms: int = -1
    dirty_ratio: float = 0.0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    segments: tuple[OutputSegment, ...] = ()
    gaps: tuple[Gap, ...] = ()  # that the new generation passes over
    compacted: bool = True  # else segments went by retention alone
    expired: tuple[Expired, ...] = ()  # whole segments that went by retention
    segments_before: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    recompressed_bytes: int = 0  # of bytes_after: an estimate in a dry run
    seconds: dict[str, float] = field(default_factory=dict)
    splits: int = 1
    several_because: str = ""  # why it was taken in several tasks; "": it was not
    peak_memory_bytes: int = 0

    def name(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.topic}-{self.partition}"


class NotDue(Exception):
    """There is nothing to do now; `result` has the sizes."""

    def __init__(self, result: PartitionResult) -> None:
        super().__init__(result)
        self.result = result
