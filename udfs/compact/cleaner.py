"""Kafka's rules for cleaning as pure functions: what is cleanable, due, grouped, retained (COMPACTION.md, "Rules"); and
those of retention, which removes whole segments from the oldest on (KAFKA.md, "Retention").

These functions read no file. They take segments as arrays, one element a segment, ascending by base offset, and batches
as BATCH rows. `decide_kernels` decides about single records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from lastkey.logformat.layout import (
    CODEC_MASK,
    CONTROL_MASK,
    DEFAULT_LEVELS,
    DELETE_HORIZON_MASK,
    MAX_RELATIVE_OFFSET,
    Levels,
)
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.verdicts import DELETE, DELETE_EMPTY, RETAIN_EMPTY
from lastkey.udfs.segments import Expired, Reason

OWN_CODEC: Final = -1  # a batch keeps its codec
NO_LEGACY_HORIZON: Final = -(2**63)  # no segment is clean yet, so legacy tombstones stay in files of any age


@dataclass(frozen=True)
class SegmentTimes:
    """Facts about the segments of a log that the rules need; arrays of one element a segment."""

    base_offset: np.ndarray  # int64
    size: np.ndarray  # int64, bytes
    max_timestamp: np.ndarray  # int64, ms; -1: none
    first_timestamp: np.ndarray  # int64, ms: the largest of the segment's first batch; -1: none
    mtime_ms: np.ndarray  # int64
    bytes_above: int = 0  # bytes of the log above the high watermark, which were not read

    def largest_timestamp(self) -> np.ndarray:
        """Return int64[n] as Kafka's LogSegment.largestTimestamp does: the mtime of a file whose records have no
        timestamp.
        """
        return np.where(self.max_timestamp >= 0, self.max_timestamp, self.mtime_ms)

    def with_young_rest(self) -> SegmentTimes:
        """Return the facts as if all segments but the first were young, because their times are unknown."""
        largest = np.full(len(self.base_offset), 2**63 - 1, np.int64)
        largest[:1] = self.largest_timestamp()[:1]
        return replace(self, max_timestamp=largest)


@dataclass(frozen=True)
class CleanableRange:
    """The range of a cleaning, and how many bytes it would read (KAFKA.md, "Cleanable range" and "Due")."""

    first_dirty_offset: int
    first_uncleanable_offset: int  # a segment's base, or the log end
    clean_bytes: int
    cleanable_bytes: int

    @property
    def ratio(self) -> float:
        """Dirty part of the bytes that would be cleaned."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Return the offset at which the dirty section begins. The caller must refuse a checkpoint beyond the log end
    (`diverged`): Kafka would begin at the log start, which hides that the log was replaced.
    """
    if checkpoint is None or checkpoint < log_start_offset:
        return log_start_offset
    return min(checkpoint, log_end_offset)


def last_stable_offset(
    first_unstable: int, log_start_offset: int, base_offset: np.ndarray, last_offset: np.ndarray, log_end_offset: int
) -> int:
    """Return the last stable offset of a broker that loads the log. If no batch of its segment reaches that far, it is
    the base of the next segment with batches (KAFKA.md, "Cleanable range").

    first_unstable: first offset of the oldest open transaction, or the log end; base_offset, last_offset: int64[n] of
    the segments, the latter -1 for an empty one.
    """
    stable = max(first_unstable, log_start_offset)
    reaching = np.flatnonzero(last_offset >= stable)
    return max(stable, int(base_offset[reaching[0]])) if len(reaching) else log_end_offset


def cleanable_range(
    segments: SegmentTimes,
    *,
    first_dirty: int,
    log_end_offset: int,
    active_base_offset: int,
    last_stable_offset: int,
    min_compaction_lag_ms: int,
    now_ms: int,
) -> CleanableRange:
    """Return the range that a cleaning may cover (KAFKA.md, "Cleanable range").

    active_base_offset: base of the active segment; for a sealed archive the log end.
    """
    limit = min(last_stable_offset, active_base_offset)
    bases = segments.base_offset
    if min_compaction_lag_ms > 0 and len(bases):
        start = max(int(np.searchsorted(bases, first_dirty, "right")) - 1, 0)
        young = (segments.largest_timestamp() > now_ms - min_compaction_lag_ms) & (bases < active_base_offset)
        later = np.flatnonzero(young[start:])
        if len(later):
            limit = min(limit, int(bases[start + later[0]]))
    limit = max(limit, first_dirty)
    if limit < log_end_offset and len(bases):
        limit = int(bases[max(int(np.searchsorted(bases, limit, "right")) - 1, 0)])
    ends = np.append(bases[1:], log_end_offset)
    first = min(first_dirty, limit)
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=limit,
        clean_bytes=int(segments.size[bases < first_dirty].sum()),
        cleanable_bytes=int(segments.size[(ends > first) & (bases < limit)].sum()),
    )


def compaction_delay_ms(
    segments: SegmentTimes, first_dirty: int, active_base_offset: int, max_lag_ms: int, now_ms: int
) -> int:
    """Return the ms by which the oldest dirty record exceeds max.compaction.lag.ms, at least 0 (KAFKA.md, "Due")."""
    if max_lag_ms <= 0 or max_lag_ms >= 2**63 - 1:
        return 0
    ends = np.append(segments.base_offset[1:], active_base_offset)
    dirty = (ends > first_dirty) & (segments.base_offset < active_base_offset) & (segments.first_timestamp > 0)
    if not dirty.any():
        return 0
    return max(now_ms - max_lag_ms - int(segments.first_timestamp[dirty].min()), 0)


def is_due(cleanable: CleanableRange, delay_ms: int, min_dirty_ratio: float, min_dirty_bytes: int, force: bool) -> bool:
    """Return whether to clean now: the lag has passed, or both the ratio (strictly) and the volume are reached.
    `--force` cleans the whole cleanable range.
    """
    if cleanable.cleanable_bytes <= 0:
        return False
    if force or delay_ms > 0:
        return True
    return cleanable.ratio > min_dirty_ratio and cleanable.cleanable_bytes >= min_dirty_bytes


def group_segments_by_size(
    base_offsets: Sequence[int],
    sizes: Sequence[int],
    offset_index_bytes: Sequence[int],
    time_index_bytes: Sequence[int],
    *,
    end_offset: int,
    max_bytes: int,
    max_index_bytes: int,
) -> list[range]:
    """Return the groups of segments that become one, as ranges of segment numbers, by sizes before cleaning (KAFKA.md,
    "Segment groups").
    """
    groups: list[range] = []
    start = 0
    n = len(base_offsets)
    while start < n:
        log, offset_index, time_index = sizes[start], offset_index_bytes[start], time_index_bytes[start]
        end = start + 1
        while end < n:
            last = (base_offsets[end + 1] if end + 1 < n else end_offset) - 1
            if (
                log + sizes[end] > max_bytes
                or offset_index + offset_index_bytes[end] > max_index_bytes
                or time_index + time_index_bytes[end] > max_index_bytes
                or (sizes[end] > 0 and last - base_offsets[start] > MAX_RELATIVE_OFFSET)
            ):
                break
            log += sizes[end]
            offset_index += offset_index_bytes[end]
            time_index += time_index_bytes[end]
            end += 1
        groups.append(range(start, end))
        start = end
    return groups


def expired_segments(
    segments: SegmentTimes,
    *,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    now_ms: int,
    last_may_go: bool,
) -> dict[Reason, int]:
    """Return the number of segments that each rule removes, in the order of UnifiedLog.deleteOldSegments.
    Without a limit it removes none, not even those below the log start: no setting asks for that, and there they do no
    harm.

    retention_ms, retention_bytes: -1: no limit; last_may_go: whether no batch will be appended to the last segment; an
    empty last segment stays even then.
    """
    if max(retention_ms, retention_bytes) < 0:
        return {"log_start": 0, "size": 0, "time": 0}
    n = len(segments.base_offset)
    may_go = n if last_may_go and n and segments.size[-1] > 0 else max(n - 1, 0)
    by_start = min(int(np.searchsorted(segments.base_offset[1:], log_start_offset, "right")), may_go)
    left = slice(by_start, may_go)
    by_size = 0
    too_much = int(segments.size[by_start:].sum()) + segments.bytes_above - retention_bytes
    if retention_bytes >= 0 and too_much >= 0:
        by_size = int(np.searchsorted(np.cumsum(segments.size[left]), too_much, "right"))
    left = slice(by_start + by_size, may_go)
    by_time = 0
    if retention_ms >= 0:
        young = np.flatnonzero(now_ms - segments.largest_timestamp()[left] <= retention_ms)
        by_time = int(young[0]) if len(young) else may_go - left.start
    return {"log_start": by_start, "size": by_size, "time": by_time}


def summarize_expired(
    by_rule: Mapping[Reason, int], segments: Sequence[tuple[int, int, int, int]], bytes_above: int
) -> tuple[Expired, ...]:
    """Return the segments that each rule removed.

    segments: (base offset, end of its range, records, bytes) of the removed ones, in order.
    """
    out, first = [], 0
    for reason, n in by_rule.items():
        rows = segments[first : first + n]
        first += n
        if rows:
            records, size = sum(row[2] for row in rows), sum(row[3] for row in rows)
            above = bytes_above if reason == "size" else 0
            out.append(Expired(reason, rows[0][0], rows[-1][1], n, records, size, above))
    return tuple(out)


@dataclass(frozen=True)
class LastBatches:
    """The last batch of each active producer, sorted by producer id (Kafka's lastRecordsOfActiveProducers)."""

    producer_id: np.ndarray  # int64[m]
    last_offset: np.ndarray  # int64[m]; -1: the producer wrote only markers
    producer_epoch: np.ndarray  # int16[m]


def is_last_of_producer(batches: np.ndarray, producers: LastBatches) -> np.ndarray:
    """Return bool[n]: the batches that must leave at least their header (KAFKA.md, "Batches")."""
    if not len(producers.producer_id):
        return np.zeros(len(batches), np.bool_)
    at = np.searchsorted(producers.producer_id, batches["producer_id"])
    at = np.minimum(at, len(producers.producer_id) - 1)
    has_producer = (producers.producer_id[at] == batches["producer_id"]) & (batches["producer_id"] >= 0)
    last = producers.last_offset[at]
    control = (batches["attributes"] & CONTROL_MASK) != 0
    marker = control & (producers.producer_epoch[at] == batches["producer_epoch"])
    is_last: np.ndarray = has_producer & np.where(last >= 0, batches["last_offset"] == last, marker)
    return is_last


def batch_retention(
    batches: np.ndarray, discardable: np.ndarray, producers: LastBatches, first_uncleanable_offset: int, now_ms: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (retention: int8[n], drop_records: bool[n]) for BATCH[n], with Kafka 4.0's rule for the last batch of a
    round.
    """
    drop = np.zeros(len(batches), np.bool_)
    if discardable.any():
        control = (batches["attributes"] & CONTROL_MASK) != 0
        has_horizon = (batches["magic"] >= 2) & ((batches["attributes"] & DELETE_HORIZON_MASK) != 0)
        drop = discardable & (~control | (has_horizon & (batches["base_timestamp"] <= now_ms)))
    stays = is_last_of_producer(batches, producers) | (batches["last_offset"] + 1 == first_uncleanable_offset)
    retention = np.where(stays, RETAIN_EMPTY, np.where(drop, DELETE, DELETE_EMPTY)).astype(np.int8)
    return retention, drop


@dataclass(frozen=True)
class Compression:
    """Compression of rewritten batches. Control batches keep their codec; their transaction markers are never
    compressed by a broker.
    """

    codec: int = OWN_CODEC
    levels: Levels = DEFAULT_LEVELS
    every_batch: bool = False  # rewrite each batch that has another codec, even if it loses no record

    def changes_codec(self, batches: np.ndarray) -> np.ndarray:
        """Return bool[n] for BATCH[n]: the batches that are rewritten for their codec alone."""
        if not self.every_batch:
            return np.zeros(len(batches), np.bool_)
        attributes: np.ndarray = batches["attributes"]
        changed: np.ndarray = (attributes & CODEC_MASK != self.codec) & (attributes & CONTROL_MASK == 0)
        return changed


@dataclass(frozen=True)
class Rules:
    """Inputs of all decisions about batches, except the last offsets; a kind of run may change some for a segment."""

    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    legacy_horizon_ms: int  # drop tombstones of magic 0, 1 if their segment's mtime is not above it
    keep_null_keys: bool
    producers: LastBatches
    txn_base_offsets: np.ndarray  # int64[m], ascending: bases of transactional and control batches
    txn_discardable: np.ndarray  # bool[m]: the batch may be removed
    oldest_ms: int = -1  # drop data records with an earlier timestamp
    keeps_end: bool = True  # keep the last offset of a last batch of magic 0 or 1: no later segment may show it
    by_key: bool = True  # False: drop only records before oldest_ms, and those of erased keys
    keep_batches: bool = False  # leave at least the header of every batch
    dry_run: bool = False
    compression: Compression = Compression()
    # tombstones from this offset on are retained: records that they delete may still exist
    tombstones_from: int = MAX_OFFSET
    # int64[k], ascending: bases of data batches whose marker is lost; their records stay, and supersede no record
    undecided: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    # int64[m], ascending: bases of the batches that show this; at least their headers stay
    witnesses: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def new_horizon_ms(self) -> int:
        """Delete horizon for batches that get one now; -1 if it overflows."""
        horizon = self.now_ms + self.delete_retention_ms
        return horizon if horizon < 2**63 else -1

    def discardable(self, batches: np.ndarray) -> np.ndarray:
        """Return bool[n] for BATCH[n]: the transactional and control batches that may go."""
        out = np.zeros(len(batches), np.bool_)
        if len(self.txn_base_offsets):
            at = np.searchsorted(self.txn_base_offsets, batches["base_offset"])
            at = np.minimum(at, len(self.txn_base_offsets) - 1)
            out = (self.txn_base_offsets[at] == batches["base_offset"]) & self.txn_discardable[at]
        return out


def begin_at(batches: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bool[n] for BATCH[n]: the batches whose base offset is one of `offsets`, int64[m], ascending."""
    at = np.searchsorted(offsets, batches["base_offset"])
    found: np.ndarray = np.append(offsets, -1)[at] == batches["base_offset"]
    return found & (at < len(offsets))


def key_candidates(batches: np.ndarray, rules: Rules) -> np.ndarray:
    """Return bool[n] for BATCH[n]: the batches whose records may be the last of their key, so no control, aborted or
    undecided ones.
    """
    _, drop = batch_retention(
        batches, rules.discardable(batches), rules.producers, rules.first_uncleanable_offset, rules.now_ms
    )
    candidates: np.ndarray = ~drop & ((batches["attributes"] & CONTROL_MASK) == 0) & ~begin_at(batches, rules.undecided)
    return candidates
