"""Slow twin of the whole compaction: Kafka's log cleaner (4.3.0) on lists of batches, one batch and record at a time.

Read it beside Kafka's Cleaner, LogCleanerManager and MemoryRecords.filterTo: the names and the order of the rules are
theirs. A line says OURS if Lastkey differs there on purpose; nothing else may differ:

- records without a key can be kept (`keep_null_keys`); Kafka drops them;
- an output segment that is empty gives its base to the one after it (`join_empty_segments`); Kafka leaves it;
- the last batch of the range, if of magic 0 or 1 and without remaining records, leaves an empty header of magic 2;
  Kafka throws; where something of it stays, and the log ends there, its last offset stays too; Kafka takes that of the
  last record;
- the records of a transaction whose marker is lost stay, supersede nothing, and nothing supersedes them (`undecided`);
  Kafka takes the outcome of the producer's next marker;
- a rebuilt batch may hold records with timestamps below -1; Kafka throws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.reference.index_entries import index_entries
from tests.reference.log import ABORT, COMMIT, NONE, Batch, Record
from tests.reference.producer_state import State

RETAIN_EMPTY, DELETE, DELETE_EMPTY = "RETAIN_EMPTY", "DELETE", "DELETE_EMPTY"
MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(frozen=True)
class AbortedTxn:
    """An entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int  # last offset of the ABORT marker
    last_stable_offset: int


@dataclass(frozen=True)
class Segment:
    base_offset: int
    batches: tuple[Batch, ...]
    mtime_ms: int

    @property
    def size(self) -> int:
        return sum(len(b.data) for b in self.batches)

    @property
    def largest_timestamp(self) -> int:
        largest = max((b.max_timestamp for b in self.batches), default=-1)
        return largest if largest >= 0 else self.mtime_ms

    def index_bytes(self, interval: int) -> tuple[int, int]:
        """Return the bytes of the offset index and of the time index."""
        rows = [(b.last_offset, len(b.data), b.max_timestamp) for b in self.batches]
        offsets, times = index_entries(rows, self.base_offset, interval)
        return 8 * len(offsets), 12 * len(times)


@dataclass(frozen=True)
class Settings:
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    keep_null_keys: bool = False  # OURS


@dataclass(frozen=True)
class Log:
    """A loaded log."""

    segments: tuple[Segment, ...]  # the last one is the active segment, unless the log is sealed
    log_start_offset: int
    log_end_offset: int
    aborted: tuple[AbortedTxn, ...]  # all transaction indexes
    producers: State  # at the log end
    sealed: bool = False

    @property
    def last_stable_offset(self) -> int:
        open_since = [p.open_since for p in self.producers.producers.values() if p.open_since >= 0]
        unstable = max(min(open_since, default=self.log_end_offset), self.log_start_offset)
        open_offsets = (b.base_offset for s in self.segments for b in s.batches if b.last_offset >= unstable)
        return next(open_offsets, self.log_end_offset)  # the broker looks up the batch at this offset, or the next one

    @property
    def active_base_offset(self) -> int:
        return self.log_end_offset if self.sealed else self.segments[-1].base_offset

    def end_offset(self, segment: Segment) -> int:
        later = [s.base_offset for s in self.segments if s.base_offset > segment.base_offset]
        return min(later, default=self.log_end_offset)


def replay(batches: list[Batch], state: State) -> list[AbortedTxn]:
    """Load these batches into the producers' state; return the entries of the transaction index that this makes."""
    aborted = []
    for b in batches:
        done = state.append(
            {
                "producer_id": b.producer_id, "producer_epoch": b.producer_epoch, "base_sequence": b.base_sequence,
                "base_offset": b.base_offset, "last_offset": b.last_offset, "max_timestamp": b.max_timestamp,
                "attributes": b.transactional << 4 | b.control << 5, "records_count": len(b.records),
                "control_type": b.marker, "coordinator_epoch": 0,
            }
        )  # fmt: skip
        if done is not None and done[4]:
            aborted.append(AbortedTxn(*done[:4]))
    return aborted


def undecided(log: Log) -> tuple[set[int], set[int]]:
    """Return the base offsets of the data batches whose marker is lost, and of those that show it. OURS.

    Of a producer's batches up to its next marker, only those of the last epoch are decided by that marker.
    """
    lost: set[int] = set()
    shows: set[int] = set()
    since_marker: dict[int, list[Batch]] = {}

    def settle(batches: list[Batch]) -> None:
        changes = [i for i in range(1, len(batches)) if batches[i].producer_epoch != batches[i - 1].producer_epoch]
        if changes and (here := {b.base_offset for b in batches[: changes[-1]] if b.records}):
            lost.update(here)
            shows.add(batches[changes[-1]].base_offset)

    for batch in (b for s in log.segments for b in s.batches):
        if batch.marker is not None:
            settle(since_marker.pop(batch.producer_id, []))
        elif batch.transactional and not batch.control and batch.last_offset >= log.log_start_offset:
            since_marker.setdefault(batch.producer_id, []).append(batch)
    for batches in since_marker.values():
        settle(batches)
    return lost, shows


@dataclass(frozen=True)
class Range:
    """Range of offsets that one round cleans."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int


def cleanable_range(log: Log, settings: Settings, checkpoint: int | None, now_ms: int) -> Range:
    """Return the range to clean: LogCleanerManager.cleanableOffsets and LogToClean."""
    first_dirty = log.log_start_offset
    if checkpoint is not None and checkpoint > log.log_start_offset:
        first_dirty = checkpoint
    limits = [log.last_stable_offset, log.active_base_offset]
    if settings.min_compaction_lag_ms > 0:
        for s in log.segments:
            closed = s.base_offset < log.active_base_offset
            dirty = log.end_offset(s) > first_dirty or s is log.segments[-1]
            if closed and dirty and s.largest_timestamp > now_ms - settings.min_compaction_lag_ms:
                limits.append(s.base_offset)
                break
    limit = max(first_dirty, min(limits))
    if limit < log.log_end_offset:  # only whole segments are cleaned
        limit = max(s.base_offset for s in log.segments if s.base_offset <= limit)
    return Range(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=limit,
        clean_bytes=sum(s.size for s in log.segments if s.base_offset < first_dirty),
        cleanable_bytes=sum(
            s.size for s in log.segments if s.base_offset < limit and log.end_offset(s) > min(first_dirty, limit)
        ),
    )


class Transactions:
    """State of transactions along the log: CleanedTransactionMetadata."""

    def __init__(self) -> None:
        self.known: list[AbortedTxn] = []  # transactions that have not begun yet
        self.open_aborted: dict[int, tuple[AbortedTxn, bool]] = {}  # True once one of its batches was seen
        self.open_committed: set[int] = set()
        self.kept: list[AbortedTxn] = []  # the cleaned transaction index

    def add(self, aborted: list[AbortedTxn]) -> None:
        self.known = sorted([*self.known, *aborted], key=lambda t: t.first_offset)

    def on_batch(self, batch: Batch) -> bool:
        """Return whether the batch can be discarded."""
        while self.known and self.known[0].first_offset <= batch.last_offset:
            txn = self.known.pop(0)
            self.open_aborted.setdefault(txn.producer_id, (txn, False))
        if batch.control:
            return self._on_control(batch)
        if not batch.transactional:
            return False
        if batch.producer_id in self.open_aborted:
            self.open_aborted[batch.producer_id] = (self.open_aborted[batch.producer_id][0], True)
            return True
        self.open_committed.add(batch.producer_id)
        return False

    def _on_control(self, batch: Batch) -> bool:
        if not batch.records:
            return True
        if batch.marker == ABORT:
            txn, seen = self.open_aborted.pop(batch.producer_id, (None, False))
            if txn is not None and seen:
                self.kept.append(txn)
                return False
            return True
        if batch.marker == COMMIT:
            was_open = batch.producer_id in self.open_committed
            self.open_committed.discard(batch.producer_id)
            return not was_open
        return False


def offset_map(log: Log, first_dirty: int, end: int) -> dict[bytes, int]:
    """Return the last offset of each key in [first_dirty, end): Cleaner.buildOffsetMap, without a limit."""
    newest: dict[bytes, int] = {}
    lost, _ = undecided(log)
    transactions = Transactions()
    transactions.add([t for t in log.aborted if t.last_offset >= first_dirty and t.first_offset < end])
    for segment in log.segments:
        if segment.base_offset >= end or log.end_offset(segment) <= first_dirty:
            continue
        for batch in segment.batches:
            if batch.last_offset < first_dirty:
                continue
            discardable = transactions.on_batch(batch)
            if batch.control or discardable or batch.base_offset in lost:
                continue
            for record in batch.records:
                if record.key is not None and record.offset >= first_dirty:
                    newest[record.key] = record.offset
    return newest


def is_last_of_producer(batch: Batch, producers: State) -> bool:
    """Return whether a batch is the last of its producer: Cleaner.isBatchLastRecordOfProducer."""
    producer = producers.producers.get(batch.producer_id)
    if batch.producer_id < 0 or producer is None:
        return False
    if producer.batches:
        return batch.last_offset == producer.batches[-1][1]
    return batch.control and batch.producer_epoch == producer.epoch


@dataclass(frozen=True)
class Round:
    """Facts by which a round decides."""

    log: Log
    settings: Settings
    range: Range
    now_ms: int
    newest: dict[bytes, int]
    legacy_horizon_ms: int
    undecided: set[int]
    witnesses: set[int]

    def clean_batch(self, batch: Batch, discardable: bool, mtime_ms: int) -> Batch | None:
        """Return what stays of one batch: RecordFilter.checkBatchRetention and MemoryRecords.filterTo."""
        drop_records = discardable and batch.base_offset not in self.undecided
        if batch.control:
            drop_records = discardable and batch.delete_horizon is not None and batch.delete_horizon <= self.now_ms
        if (
            is_last_of_producer(batch, self.log.producers)
            or batch.last_offset + 1 == self.range.first_uncleanable_offset
            or batch.base_offset in self.witnesses
        ):
            retention = RETAIN_EMPTY
        else:
            retention = DELETE if drop_records else DELETE_EMPTY
        kept = [] if drop_records else [r for r in batch.records if self.should_retain(batch, r, mtime_ms)]
        if kept:
            new = self.rewrite(batch, kept, batch.control and discardable)
            ends_log = self.log.segments[-1].base_offset <= batch.last_offset == self.log.log_end_offset - 1
            if ends_log and new.last_offset < batch.last_offset:
                return replace(new, last_offset=batch.last_offset).encoded()  # OURS
            return new
        if retention == RETAIN_EMPTY:
            return empty_batch(batch)
        return None

    def should_retain(self, batch: Batch, record: Record, mtime_ms: int) -> bool:
        """Return whether a record stays: Cleaner.shouldRetainRecord."""
        if batch.control:
            return True
        if record.offset >= self.range.first_uncleanable_offset:
            return True
        if record.key is None:
            return self.settings.keep_null_keys  # OURS: Kafka drops it
        if batch.base_offset not in self.undecided and record.offset < self.newest.get(record.key, -1):
            return False
        if record.value is not None or record.offset >= min(self.undecided, default=2**63):
            return True
        if batch.magic == 2:
            return batch.delete_horizon is None or self.now_ms < batch.delete_horizon
        return mtime_ms > self.legacy_horizon_ms

    def rewrite(self, batch: Batch, kept: list[Record], empty_txn_marker: bool) -> Batch:
        """Return a batch with the records that stay."""
        has_tombstone = any(r.value is None for r in kept)
        set_horizon = (has_tombstone or empty_txn_marker) and batch.delete_horizon is None
        if batch.magic == 2 and len(kept) == len(batch.records) and not set_horizon:
            return batch
        horizon = batch.delete_horizon
        if set_horizon and self.now_ms + self.settings.delete_retention_ms < 2**63:
            horizon = self.now_ms + self.settings.delete_retention_ms
        legacy = batch.magic < 2
        return replace(
            batch,
            magic=2,
            base_offset=kept[0].offset if legacy else batch.base_offset,
            last_offset=kept[-1].offset if legacy else batch.last_offset,
            records=tuple(kept),
            delete_horizon=horizon,
            base_timestamp=kept[0].timestamp if horizon is None else horizon,
            max_timestamp=batch.max_timestamp if batch.append_time else max(r.timestamp for r in kept),
        ).encoded()


def empty_batch(batch: Batch) -> Batch:
    """Return a batch without its records: DefaultRecordBatch.writeEmptyHeader."""
    legacy = batch.magic < 2  # OURS: Kafka throws
    return replace(
        batch, magic=2, base_offset=batch.last_offset if legacy else batch.base_offset, records=(), codec=NONE,
        delete_horizon=None, base_timestamp=-1,
    ).encoded()  # fmt: skip


def group_segments_by_size(segments: list[Segment], settings: Settings, end: int) -> list[list[Segment]]:
    """Return the groups that become one segment each: Cleaner.groupSegmentsBySize."""
    left, groups = list(segments), []
    while left:
        group = [left.pop(0)]
        log_bytes = group[0].size
        offset_bytes, time_bytes = group[0].index_bytes(settings.index_interval_bytes)
        while left:
            one = left[0]
            log_bytes += one.size
            more_offset, more_time = one.index_bytes(settings.index_interval_bytes)
            offset_bytes, time_bytes = offset_bytes + more_offset, time_bytes + more_time
            last_offset = (left[1].base_offset if len(left) > 1 else end) - 1
            if (
                log_bytes > settings.segment_bytes
                or offset_bytes > settings.segment_index_bytes
                or time_bytes > settings.segment_index_bytes
                or (one.size > 0 and last_offset - group[0].base_offset > MAX_RELATIVE_OFFSET)
            ):
                break
            group.append(left.pop(0))
        groups.append(group)
    return groups


@dataclass(frozen=True)
class Cleaned:
    """Result of a round."""

    range: Range
    segments: tuple[Segment, ...]  # cleaned ones, then untouched ones
    n_cleaned: int
    aborted: tuple[AbortedTxn, ...]  # transaction indexes, of all segments


def clean(log: Log, settings: Settings, checkpoint: int | None, now_ms: int) -> Cleaned:
    """Clean a log in one round: Cleaner.doClean."""
    cleanable = cleanable_range(log, settings, checkpoint, now_ms)
    end = cleanable.first_uncleanable_offset
    before = [s for s in log.segments if s.base_offset < cleanable.first_dirty_offset]
    rounds = Round(
        log, settings, cleanable, now_ms,
        newest=offset_map(log, cleanable.first_dirty_offset, end),
        legacy_horizon_ms=before[-1].mtime_ms - settings.delete_retention_ms if before else -(2**63),  # Kafka: 0
        undecided=(unknown := undecided(log))[0], witnesses=unknown[1],
    )  # fmt: skip
    sources = [s for s in log.segments if s.base_offset < end]
    transactions, queued, out = Transactions(), set(), []
    for group in group_segments_by_size(sources, settings, end):
        survivors: list[Batch] = []
        for source in group:
            new = {t for t in log.aborted if t.first_offset < log.end_offset(source)} - queued
            transactions.add(list(new))
            queued |= new
            for batch in source.batches:
                discardable = transactions.on_batch(batch)
                result = rounds.clean_batch(batch, discardable, source.mtime_ms)
                if result is not None:
                    survivors.append(result)
        out.append(Segment(group[0].base_offset, tuple(survivors), group[-1].mtime_ms))
    out = join_empty_segments(out)
    untouched = [s for s in log.segments if s.base_offset >= end]
    still = [t for t in log.aborted if t.last_offset >= end]
    return Cleaned(cleanable, (*out, *untouched), len(out), (*transactions.kept, *still))


def join_empty_segments(segments: list[Segment]) -> list[Segment]:
    """Join each empty segment to the next one, from the last to the first, if the offsets allow it. OURS."""
    out: list[Segment] = []
    for segment in reversed(segments):
        after = out[-1] if out else None
        fits = after is not None and (
            not after.batches or after.batches[-1].last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        )
        if after is not None and not segment.batches and fits:
            out[-1] = replace(after, base_offset=segment.base_offset)
        else:
            out.append(segment)
    return out[::-1]
