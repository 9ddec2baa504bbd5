"""Slow twin of logformat.search.partition_log: Kafka's searches step by step, over decoded records, without any index.

LocalLog.read, UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp
and RecordBatch.offsetOfMaxTimestamp (4.3.0), as plain loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Batch:
    position: int
    size: int
    base_offset: int  # -1: of a wrapper
    last_offset: int
    max_timestamp: int
    magic: int
    leader_epoch: int
    records: tuple[tuple[int, int], ...]  # (offset, timestamp)


@dataclass(frozen=True)
class Segment:
    base_offset: int
    mtime_ms: int
    batches: tuple[Batch, ...]

    @cached_property
    def max_timestamp(self) -> int:
        return max([-1, *(batch.max_timestamp for batch in self.batches)])


@dataclass(frozen=True)
class Log:
    segments: tuple[Segment, ...]
    log_start: int

    @property
    def log_end(self) -> int:
        last = self.segments[-1]
        end = last.batches[-1].last_offset + 1 if last.batches else last.base_offset
        return max(end, self.log_start)

    def read(self, offset: int, end_offset: int | None = None):
        """Return ("out_of_range" | "end", None, None), or ("found", the segment, the batch)."""
        end = self.log_end if end_offset is None else end_offset
        if not self.log_start <= offset <= self.log_end:
            return "out_of_range", None, None
        if offset >= end:
            return "end", None, None
        floor = [s.base_offset for s in self.segments if s.base_offset <= offset][-1]
        for segment in self.segments:
            if segment.base_offset < floor:
                continue
            for batch in segment.batches:
                if batch.last_offset >= offset:
                    first = batch.last_offset if batch.base_offset < 0 else batch.base_offset
                    return ("end", None, None) if first >= end else ("found", segment, batch)
        return "end", None, None

    def offset_for_time(self, timestamp: int, end_offset: int | None = None):
        """Return (offset, timestamp, leader epoch, segment base, position); None: no such record."""
        answer = self._max_timestamp() if timestamp == -3 else self._search(timestamp)
        return None if answer is None or (end_offset is not None and answer[0] >= end_offset) else answer

    def _search(self, timestamp):
        for segment in self.segments:
            largest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.mtime_ms
            if largest >= timestamp:
                for batch in segment.batches:
                    if batch.max_timestamp >= timestamp:
                        for offset, time in batch.records:
                            if time >= timestamp and offset >= self.log_start:
                                return offset, time, batch.leader_epoch, segment.base_offset, batch.position
                return None
        return None

    def _max_timestamp(self):
        latest = None
        for segment in self.segments:
            if latest is None or segment.max_timestamp > latest.max_timestamp:
                latest = segment
        for batch in latest.batches:
            if batch.max_timestamp == latest.max_timestamp:
                for offset, time in batch.records if batch.magic else ():
                    if time == batch.max_timestamp:
                        return offset, time, batch.leader_epoch, latest.base_offset, batch.position
                return None
        return None
