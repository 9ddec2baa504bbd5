"""Sizes of a log's indexes in bytes at several granularities: counted from its batch headers, no body is decompressed.

| granularity | an entry for | bytes |
|---|---|---|
| interval | each `index.interval.bytes` of log, as Kafka makes them: offset and time index | 8, 12 |
| batch | each batch, in both | 8, 12 |
| minute, second | each minute or second of a segment in which a batch's largest timestamp falls: a time index | 12 |

The last two come from the KIP-33 draft. The functions at the end give its tables, and those of the proposal of the
offset index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import stopped
from lastkey.logformat.layout import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, log_file

OFFSET_ENTRY: Final = OFFSET_INDEX_ENTRY.itemsize
TIME_ENTRY: Final = TIME_INDEX_ENTRY.itemsize
_SECOND, _MINUTE, _DAY = 1000, 60_000, 86_400_000
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class IndexSizesPlan:
    """One partition, and the settings of its topic's indexes."""

    log: SourcePartition
    index_interval_bytes: int
    segment_index_bytes: int


@dataclass(frozen=True)
class IndexSizes:
    """Counts of one partition, or the sum of several."""

    topic: str = ""
    partitions: int = 1
    segments: int = 0
    log_bytes: int = 0
    batches: int = 0
    now_bytes: int = 0  # size of the .index and .timeindex files that exist
    interval_bytes: int = 0
    batch_bytes: int = 0
    minute_bytes: int = 0
    second_bytes: int = 0
    days: int = 0  # in which a partition has data, summed
    bytes_read: int = 0
    problem: Problem | None = None

    def __add__(self, other: IndexSizes) -> IndexSizes:
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return IndexSizes(self.topic, **counts)


COUNTS = (
    "partitions", "segments", "log_bytes", "batches", "now_bytes", "interval_bytes", "batch_bytes", "minute_bytes",
    "second_bytes", "days", "bytes_read",
)  # fmt: skip


def index_sizes(plan: IndexSizesPlan) -> IndexSizes:
    """Return the counts of one partition; batches after a bad one are not counted, and `problem` states that."""
    log = plan.log
    reader = LogReader(_CHUNK_BYTES)
    total = IndexSizes(log.key[0])
    days: set[int] = set()
    problem = log.problem
    for segment in log.segments if problem is None else ():
        now = 0
        for path in filter(None, (segment.index, segment.time_index)):
            index_root = cached_root(segment.beside)
            now += int(index_root.filesystem.get_file_info(index_root.full(path)).size or 0)
        builder = IndexBuilder(segment.base_offset, plan.index_interval_bytes, plan.segment_index_bytes, segment.path)
        seconds = np.empty(0, np.int64)
        batches = bytes_read = n_bytes = 0
        try:
            for chunk in reader.headers(log_file(cached_root(segment.root), segment.path, segment.size_bytes)):
                rows = chunk.batches
                builder.append(rows["last_offset"], rows["size"], rows["max_timestamp"])
                known = rows["max_timestamp"][rows["max_timestamp"] >= 0]
                seconds = np.unique(np.concatenate([seconds, known // _SECOND]))
                batches, bytes_read = batches + len(rows), bytes_read + chunk.bytes_read
                n_bytes += chunk.size
        except Exception as error:  # the other segments continue
            problem = problem or Problem.of(stopped(error, segment.path))
        offset_index, time_index = builder.finish()
        minutes = np.unique(seconds // (_MINUTE // _SECOND))
        days |= set((np.unique(minutes // (_DAY // _MINUTE))).tolist())
        total += IndexSizes(
            partitions=0,
            segments=1,
            log_bytes=n_bytes,
            batches=batches,
            now_bytes=now,
            interval_bytes=len(offset_index) + len(time_index),
            batch_bytes=batches * (OFFSET_ENTRY + TIME_ENTRY),
            minute_bytes=TIME_ENTRY * len(minutes),
            second_bytes=TIME_ENTRY * len(seconds),
            bytes_read=bytes_read,
        )
    return replace(total, days=len(days), problem=problem)


def time_index_bytes_per_day(seconds_per_entry: int, partitions: int = 1) -> int:
    """Return the bytes of a day's time index with an entry every `seconds_per_entry`: the table of the KIP-33 draft
    (3,500 partitions: each second 3.4 GiB, each minute 57 MiB).
    """
    return _DAY // _SECOND // seconds_per_entry * TIME_ENTRY * partitions


def offset_index_bytes(log_bytes: int, interval_bytes: int = 4096, partitions: int = 1) -> int:
    """Return the bytes of an offset index with an entry every `interval_bytes` of log: the estimate of the offset
    index's proposal (512 MiB: 1 MiB; 1,000 partitions: about 1 GiB).
    """
    return log_bytes // interval_bytes * OFFSET_ENTRY * partitions
