"""The plan of a partition's task and its result: the values that cross between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, ChunkBuffer
from lastkey.logformat.layout import CODEC_NAMES, DEFAULT_LEVELS, MAX_SEGMENT_BYTES, Levels
from lastkey.logformat.listing import Segment
from lastkey.udfs.compact.cleaner import CleanableRange, Compression
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import Expired, LastBatch, ReadFile, SideFile

SplitBy = Literal["auto", "none", "always"]
Strategy = Literal["offset", "timestamp", "header"]
NullKeys = Literal["fail", "keep", "drop"]
Gaps = Literal["fail", "accept"]
Schedule = Literal["full", "yield"]
CompressionType = Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"]

MOST_RANGES: Final = 1_000  # maximum of erased ranges that a run names for each partition; it counts all


@dataclass(frozen=True)
class CleanSettings:
    """Kafka's settings that change the result, for one topic."""

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
    compacts: bool = True  # cleanup.policy holds compact; False: apply retention alone
    retention_ms: int = -1  # -1: no limit, or cleanup.policy does not hold delete
    retention_bytes: int = -1
    compaction_strategy: Strategy = "offset"  # keep the last record of a key, or that of the highest version
    compaction_strategy_header: str = ""  # name of the header that holds the version, for the strategy header
    retention_exact: bool = False  # drop expired records even inside a kept segment
    null_keys: NullKeys = "fail"
    gaps: Gaps = "fail"
    compaction_schedule: Schedule = "full"
    compaction_min_yield: float = 0.2  # share of dead records from which a segment is rewritten
    compaction_full_ms: int = 30 * 86_400_000  # time from one run that cleans the whole log to the next
    compression_type: CompressionType = "producer"  # codec of rewritten batches; producer: the batch's own
    compression_gzip_level: int = DEFAULT_LEVELS.gzip
    compression_lz4_level: int = DEFAULT_LEVELS.lz4
    compression_zstd_level: int = DEFAULT_LEVELS.zstd
    recompress: bool = False  # rewrite every batch that has another codec than compression_type

    @property
    def by_offset(self) -> bool:
        """True if the last record of a key stays, as in Kafka."""
        return self.compaction_strategy == "offset"

    @property
    def levels(self) -> Levels:
        """Compression levels by codec."""
        return Levels(self.compression_gzip_level, self.compression_lz4_level, self.compression_zstd_level)

    @property
    def compression(self) -> Compression:
        """Codec and levels of rewritten batches. As in a broker, levels hold only if compression.type names the codec
        (Kafka's BrokerCompressionType.targetCompression).
        """
        if self.compression_type == "producer":
            return Compression()
        return Compression(CODEC_NAMES.index(self.compression_type), self.levels, self.recompress)

    @property
    def has_limit(self) -> bool:
        """True if retention has a limit by time or size."""
        return max(self.retention_ms, self.retention_bytes) >= 0


@dataclass(frozen=True)
class Limits:
    """Settings that change only speed and memory."""

    chunk_bytes: int = 8 << 20
    task_memory_bytes: int = 1 << 30
    split_bytes: int = 4 << 30
    split_by: SplitBy = "auto"  # share a partition among tasks of Spark; auto: if that costs less


@dataclass(frozen=True)
class Gap:
    """Offsets that no segment held when a generation was made; the generation passes over them."""

    first: int
    last: int
    before: int = -1  # base offset of the archived segment in front of the gap; -1 if missing
    size: int = -1  # bytes of that segment then
    lost: bool = True  # a file is missing or short; False: a cleaner removed the offsets


@dataclass(frozen=True)
class Erasing:
    """Keys whose records are removed, as digests in files of the store (`udfs.erased_keys`); other records stay."""

    secret: tuple[int, int] = field(repr=False)  # secret of the digests, from a key that the user holds
    files: tuple[tuple[str, int], ...]  # (path below the store, offset below which its keys go)
    digests: bytes = field(default=b"", repr=False)  # for all offsets: of an erasure that a dry run does not write
    already_applied: bool = False  # the last generation covers this erasure: write a new one only if records go


@dataclass(frozen=True)
class LastGeneration:
    """Facts of the store about the partition's last generation; the defaults: there is none."""

    next_offset: int | None = None
    last_batch: LastBatch = LastBatch()
    gaps: tuple[Gap, ...] = ()  # offsets that it lacks
    epochs: SideFile | None = None  # its leader-epoch-checkpoint
    expired_until: int = 0  # start after retention; 0: no retention so far
    cleaner_checkpoint: int | None = None  # offset below which all is clean as a broker means it (udfs.segments)


@dataclass(frozen=True)
class PartitionInput:
    """Files that a partition's compaction reads, and what is known of its log."""

    topic: str
    partition: int
    segments: tuple[Segment, ...]
    log_start_offset: int
    first_dirty_offset: int | None  # from the store or the archive; None: no offset was cleaned
    high_watermark: int | None = None
    topic_id: str | None = None
    snapshots: tuple[SideFile, ...] = ()
    txn_indexes: tuple[SideFile, ...] = ()
    orphans: tuple[SideFile, ...] = ()  # indexes of the archive without their .log, by offset
    leader_epochs: tuple[tuple[int, int], ...] | None = None  # the archive's checkpoint; None: lost
    cleaner_checkpoint: int | None = None  # the archive's, for every source of `first_dirty_offset`
    log_start_checkpoint: int | None = None  # the archive's
    identity_segment: Segment | None = None  # archived; holds the last known batch if `segments` do not
    generation: LastGeneration = LastGeneration()
    reset: bool = False  # --reset: start over at the beginning of the archive; keep the old generation

    @property
    def name(self) -> str:
        """Name of the partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def log_bytes(self) -> int:
        """Bytes of the segments' logs."""
        return sum(s.size_bytes for s in self.segments)


@dataclass(frozen=True)
class CleanPolicy:
    """Rules of what stays: settings, erased keys, and how a run by yield chooses segments."""

    settings: CleanSettings
    erasing: Erasing | None = None  # erase, and do not compact
    by_yield: bool = False  # leave in the store what the next run needs to choose segments by their yield
    partial: bool = False  # clean new records, and older segments with enough yield; False: the whole log
    io_budget_bytes: int | None = None  # for rewrites by yield, read and written; None: no limit


@dataclass(frozen=True)
class RunContext:
    """Place of a partition's result, clock, limits and flags of its run."""

    store_uri: str
    now_ms: int
    limits: Limits
    secret: tuple[int, int] = field(repr=False)  # key of the key hash
    secret_ms: int = 0  # --now of the run that drew the secret
    folder: str = ""  # folder of the new generation, relative to the store
    sealed: bool = False
    force: bool = False
    dry_run: bool = False
    max_log_bytes: int = MAX_SEGMENT_BYTES  # maximum size of a .log; larger output begins another segment


class Extent(Enum):
    """Part of a log that a pass cleans. The plan states what to try first; the pass itself may need more."""

    PARTIAL = 1  # new segments, and older ones with enough yield
    WHOLE = 2  # the whole log, if enough of it is dirty
    FORCED = 3  # the whole log, from the log start on


@dataclass(frozen=True)
class PartitionPlan:
    """Input of one partition's compaction; the driver makes it from names, sizes, checkpoints and the store."""

    input: PartitionInput
    policy: CleanPolicy
    run: RunContext

    @property
    def name(self) -> str:
        """Name of the partition."""
        return self.input.name

    def loader(self, secret: tuple[int, int] | None, *, keys_only: bool = False) -> BodyLoader:
        """Return a decoder of the partition's batches. secret: of the key hashes; None: none are needed."""
        most = self.policy.settings.max_decompressed_batch_bytes
        return BodyLoader(max_batch_bytes=most, secret=secret, keys_only=keys_only)

    @property
    def log_bytes(self) -> int:
        """Bytes of the segments' logs."""
        return self.input.log_bytes

    @property
    def is_due_anyway(self) -> bool:
        """Return whether the partition is due independent of its records: a partition that starts over, which would be
        uncleanable in the next run; an empty log without a generation: only its log start, log end and leader epochs
        are kept.
        """
        return self.input.reset or (
            self.input.generation.next_offset is None and not self.log_bytes and self.policy.erasing is None
        )

    @property
    def least_bytes(self) -> int:
        """Bytes of logs that the run reads in any case: by yield, those of new segments."""
        dirty = self.input.first_dirty_offset or 0
        return sum(s.size_bytes for s in self.input.segments if not self.policy.partial or s.first_offset >= dirty)

    @property
    def extent(self) -> Extent:
        """Part of the log to clean first."""
        if self.run.force:
            return Extent.FORCED
        return Extent.PARTIAL if self.policy.partial else Extent.WHOLE

    def clean_from(self, extent: Extent) -> int | None:
        """Return the offset below which all is clean for a pass; None: the log start."""
        if extent is Extent.FORCED:
            return None
        before = self.input.generation.cleaner_checkpoint
        return self.input.first_dirty_offset if extent is Extent.PARTIAL or before is None else before

    def is_ours(self, file: Segment | SideFile) -> bool:
        """Return whether a file is in the store, not in the archive."""
        return file.root == self.run.store_uri

    @property
    def read_until(self) -> int | None:
        """Offset that the high watermark lets us read to; None: to the end. It is never below the end of the last
        generation, or below offsets that the broker cleaned or deleted: those were below a high watermark. A
        high-watermark checkpoint may be older than the log beside it.
        """
        if self.input.high_watermark is None:
            return None
        return max(
            self.input.high_watermark,
            self.input.generation.next_offset or 0,
            self.cleaned_until,
            self.input.log_start_checkpoint or 0,
        )

    @property
    def oldest_ms(self) -> int:
        """Timestamp before which single records expire; -1: they do not."""
        exact = self.policy.settings.retention_exact and self.policy.settings.retention_ms >= 0
        return max(self.run.now_ms - self.policy.settings.retention_ms, -1) if exact else -1

    def may_hold_old(self, segment: Segment) -> bool:
        """Return whether a scanned segment may hold records that are too old; one without any timestamp does not."""
        return segment.min_timestamp_ms < self.oldest_ms and segment.max_timestamp_ms >= 0

    @property
    def cleaned_until(self) -> int:
        """Offset below which we or the archive's broker cleaned the log."""
        return max(self.input.first_dirty_offset or 0, self.input.cleaner_checkpoint or 0)


@dataclass(frozen=True)
class ScheduledSegment:
    """Older segment in a run by yield, and the decision about it."""

    number: int  # number of the source
    base_offset: int
    size_bytes: int
    records: int
    dead_records: int  # as filters show
    reason: str  # kept, must, yield or merged (`schedule.REASONS`)


# stopped: the run ended first
Status = Literal["cleaned", "not_due", "uncleanable", "stopped"]


@dataclass(frozen=True)
class CleanedLog:
    """The log of a partition as a run leaves it; of a dry run, as a run would."""

    folder: str = ""  # folder of the new generation; "": none was made
    first_dirty_offset: int = 0  # first dirty offset of the new generation
    log_start_offset: int = 0
    next_offset: int = 0
    last_batch: LastBatch = LastBatch()
    log_end_timestamp_ms: int = -1
    segments: tuple[Segment, ...] = ()
    segments_before: int = 0
    gaps: tuple[Gap, ...] = ()  # gaps that the new generation passes over
    compacted: bool = True  # False: retention alone removed segments, or the run erased
    erases: bool = False  # only records of erased keys were removed
    expired: tuple[Expired, ...] = ()  # whole segments that retention removed
    archived_files: tuple[ReadFile, ...] = ()  # files of the archive that this run has read as a whole


@dataclass(frozen=True)
class Work:
    """The work of a run on one partition, in figures."""

    counters: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    recompressed_bytes: int = 0  # part of bytes_after; an estimate in a dry run
    seconds: dict[str, float] = field(default_factory=dict)
    splits: int = 1  # parts of the log in each of which the last record of a key was found first
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class PartitionResult:
    """Result of one partition's compaction."""

    topic: str
    partition: int
    status: Status
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    cleanable: CleanableRange = CleanableRange(0, 0, 0, 0)
    log: CleanedLog = CleanedLog()
    work: Work = field(default_factory=Work)
    erased_offsets: tuple[tuple[int, int], ...] = ()  # first and last of each range of theirs; the first MOST_RANGES
    schedule: tuple[ScheduledSegment, ...] = ()  # decisions of a run by yield
    held_back: tuple[HeldBack, ...] = ()  # the rules by which no work is due

    def name(self) -> str:
        """Return `<topic>-<partition>`."""
        return f"{self.topic}-{self.partition}"


def chunk_buffer(plan: PartitionPlan) -> ChunkBuffer:
    """Return a buffer through which one task reads all its segments."""
    return ChunkBuffer(plan.run.limits.chunk_bytes, plan.policy.settings.max_decompressed_batch_bytes)
