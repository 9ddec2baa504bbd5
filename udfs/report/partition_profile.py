"""The profile of a partition as values, and counts by time whose buckets widen as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lastkey.udfs.problem import Problem
from lastkey.udfs.report.codec_sizes import CodecBytes
from lastkey.udfs.segments import Expired

MAX_BUCKETS: Final = 1024
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
# Widths of a bucket of time: each a multiple of the one before, so that buckets can be joined
WIDTHS_MS: Final = (MINUTE_MS, HOUR_MS, DAY_MS, 30 * DAY_MS, 360 * DAY_MS, 3600 * DAY_MS)
AGE_NAMES: Final = ("< 1 hour", "< 1 day", "< 7 days", "< 30 days", "< 90 days", "< 1 year", "older", "no time")
MAX_KEY_BYTES: Final = 64  # limit for a key that is shown


@dataclass(frozen=True)
class Codec:
    """Batches of one codec that were opened; those of aborted transactions are not."""

    batches: int
    stored_bytes: int  # as stored in the file, headers included
    uncompressed_bytes: int  # decompressed, headers included


@dataclass(frozen=True)
class SegmentProfile:
    """One segment. Live and dead add up to all; bytes of records are their share of their batch's bytes by size."""

    base_offset: int
    size_bytes: int
    batches: int
    records: int  # data records, aborted ones too
    cleaned: bool  # a cleaning would clean it: false above the cleanable range and for topics that are not compacted
    live_records: int
    live_bytes: int
    dead_records: int  # superseded + aborted + expired tombstones
    dead_bytes: int
    superseded: int
    aborted: int
    expired_tombstones: int
    bytes_after: int  # bytes that a compaction would leave of it
    tombstones: int  # last records of their keys, expired ones too
    tombstones_with_horizon: int  # tombstones that an earlier cleaning has given a delete horizon
    tombstone_ages: tuple[int, ...]  # tombstones by AGE_NAMES
    null_keys: int
    control_records: int  # control records that were read
    # records below the largest timestamp of all batches before, and of the records before in their own batch; largest
    # timestamps after the year 9999 do not count
    out_of_order: int
    max_lag_ms: int  # by how much, at most
    without_timestamp: int  # records without a timestamp, or with one after the year 9999
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    codecs: dict[str, Codec]


@dataclass(frozen=True)
class HotKey:
    """A key that many records have."""

    records: int
    sha256: str  # hash of the key's bytes, 16 hex digits: `printf KEY | sha256sum`
    text: str | None  # the key as text, or 0x and hex; None: too long to show


@dataclass(frozen=True)
class Times:
    """Records by time: bucket i holds timestamps from (first + i) * width on."""

    width_ms: int
    first: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class PartitionProfile:
    """Profile of a partition. With a `problem`, only the names and the size are set."""

    topic: str
    partition: int
    compacted: bool
    size_bytes: int
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    segments: tuple[SegmentProfile, ...] = ()
    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int = 0
    first_uncleanable_offset: int = 0
    dirty_ratio: float = 0.0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    due: bool = False  # by ratio, bytes and lag: a compaction would take it now
    expiring: tuple[Expired, ...] = ()  # segments that retention would delete from the log as it is
    bytes_after_is_estimate: bool = False  # recompression decides
    # bytes after a compaction, for any cleanup.policy; None: unknown, the notes have the reason
    bytes_if_compacted: int | None = None
    counters: dict[str, int] = field(default_factory=dict)  # counters of the cleaned range, as compact reports them
    distinct_keys: int = 0
    hot_keys: tuple[HotKey, ...] = ()  # most records first
    times: Times | None = None
    codec_bytes: tuple[CodecBytes, ...] = ()  # size of the whole log with each codec; none: no data batch was read
    seconds: float = 0.0
    archive: str = ""  # short name, where a report has several

    def name(self) -> str:
        """Return `<topic>-<partition>`, in a report of several archives `<archive>/<topic>-<partition>`."""
        return f"{self.topic_label()}-{self.partition}"

    def topic_label(self) -> str:
        """Return the topic, in a report of several archives `<archive>/<topic>`."""
        return f"{self.archive}/{self.topic}" if self.archive else self.topic

    def total(self, column: str) -> int:
        """Return the sum of a column of the segments."""
        return sum(getattr(s, column) for s in self.segments)


class TimeBuckets:
    """Counts of records by time: minutes while these are few enough, then hours, days, ..."""

    def __init__(self) -> None:
        self.width_ms, self.first = WIDTHS_MS[0], 0
        self.counts = np.zeros(0, np.int64)

    def cover(self, min_ms: int, max_ms: int) -> None:
        """Widen the buckets to cover min_ms to max_ms, in the narrowest width that MAX_BUCKETS allows."""
        if len(self.counts):
            min_ms = min(min_ms, self.first * self.width_ms)
            max_ms = max(max_ms, (self.first + len(self.counts)) * self.width_ms - 1)
        for width in WIDTHS_MS[WIDTHS_MS.index(self.width_ms) :]:
            first, n = min_ms // width, max_ms // width - min_ms // width + 1
            if n <= MAX_BUCKETS or width == WIDTHS_MS[-1]:
                break
        if (width, first, n) == (self.width_ms, self.first, len(self.counts)):
            return
        counts = np.zeros(n, np.int64)
        old = (np.arange(len(self.counts)) + self.first) // (width // self.width_ms) - first
        np.add.at(counts, old, self.counts)
        self.width_ms, self.first, self.counts = width, first, counts

    def trimmed(self) -> Times | None:
        """Return the counts without the empty buckets at both ends; None if no record has a time."""
        filled = np.flatnonzero(self.counts)
        if not len(filled):
            return None
        part = self.counts[filled[0] : filled[-1] + 1]
        return Times(self.width_ms, self.first + int(filled[0]), tuple(part.tolist()))


def join_times(parts: Sequence[Times | None]) -> Times | None:
    """Return the records of several partitions by time, in the widest of their buckets or wider."""
    known, out = [part for part in parts if part is not None], TimeBuckets()
    out.width_ms = max((part.width_ms for part in known), default=out.width_ms)
    for part in known:
        starts_ms = (np.arange(len(part.counts)) + part.first) * part.width_ms
        out.cover(int(starts_ms[0]), int(starts_ms[-1]) + part.width_ms - 1)
        np.add.at(out.counts, starts_ms // out.width_ms - out.first, part.counts)
    return out.trimmed()


def shown_key(key: bytes) -> str | None:
    """Return a key as text if it is printable UTF-8, else as 0x and hex; None if it is too long to show."""
    if len(key) > MAX_KEY_BYTES:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() and not text.startswith("0x") else f"0x{key.hex()}"
