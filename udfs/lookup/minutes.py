"""Rows of the table `time_index`: for each minute in which a segment has data, the first offset that falls into it.

The two options of the KIP-33 draft. A segment whose batches all have LogAppendTime takes the first: a batch's records
all carry its timestamp, which rises through the log, so its headers say everything and nothing is decompressed. Any
other takes the second, CreateTime: timestamps are out of order, so those of all records are decoded (not their keys and
values), and the row of a minute says where its first record in the segment is. Control records, and records without a
timestamp, are in no minute. A segment without rows has one of nulls, so that it is not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import MAX_BATCH_BYTES, ChunkBuffer, Tail, read_chunks
from logformat.batches.headers import read_headers
from logformat.errors import stopped
from logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from logformat.listing import ListedSegment
from udfs.lookup import minute_kernels as kernels
from udfs.storage import open_root, opened

LOG_APPEND_TIME: Final = "LogAppendTime"
CREATE_TIME: Final = "CreateTime"
MINUTE_MS: Final = 60_000
_MOMENT: Final = pa.timestamp("us", tz="UTC")
TIME_INDEX_ROWS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("minute", _MOMENT),  # its first moment; null: the segment has no data
        pa.field("first_offset", pa.int64()),  # of the segment's records in that minute
        pa.field("timestamps", pa.string()),  # LOG_APPEND_TIME or CREATE_TIME: how the row was found
        pa.field("path", pa.string()),  # of the .log, relative to the archive
        pa.field("size_bytes", pa.int64()),  # of the .log when it was read
        pa.field("mtime_ms", pa.int64()),
        pa.field("problem", pa.string()),  # why the rows end early; null: nothing is wrong
    ]
)
_MINUTES: Final = (2**63 - 1) // (MINUTE_MS * 1000)  # those that microseconds in 64 bits can hold
_SLOTS: Final = 1 << 10  # of a segment of up to 8 hours nothing has to grow


@dataclass(frozen=True)
class TimedSegment:
    """One `.log` to be read, and whose it is."""

    topic: str
    partition: int
    listed: ListedSegment
    max_batch_bytes: int = MAX_BATCH_BYTES


def time_index_rows(segments: Sequence[TimedSegment]) -> Any:
    """TIME_INDEX_ROWS of some segments, as pa.Table. A log that is bad has rows up to there, and says why."""
    return pa.Table.from_batches([_rows(segment) for segment in segments], TIME_INDEX_ROWS)


def _rows(segment: TimedSegment) -> Any:
    listed = segment.listed
    problem = None
    first = FirstOffsets()
    option = LOG_APPEND_TIME
    try:
        said, by_headers = _by_headers(segment, first)
        option = LOG_APPEND_TIME if by_headers else CREATE_TIME
        if not said:
            first = FirstOffsets()
            _by_records(segment, first)
    except Exception as error:  # the other segments go on; rows up to there stay
        problem = str(stopped(error, listed.path))
    minutes, offsets = first.sorted()
    n = max(len(minutes), 1)
    same = {
        "topic": segment.topic, "partition": segment.partition, "segment_base_offset": listed.base_offset,
        "timestamps": option, "path": listed.path, "size_bytes": listed.size, "mtime_ms": listed.mtime_ms,
        "problem": problem,
    }  # fmt: skip
    columns = {name: pa.repeat(pa.scalar(value, TIME_INDEX_ROWS.field(name).type), n) for name, value in same.items()}
    in_range = minutes < _MINUTES  # what microseconds cannot hold is no moment that anybody asks for
    columns["minute"] = pa.array(np.where(in_range, minutes, 0) * (MINUTE_MS * 1000), mask=~in_range).cast(_MOMENT)
    columns["first_offset"] = pa.array(offsets)
    if not len(minutes):
        columns |= {"minute": pa.nulls(1, _MOMENT), "first_offset": pa.nulls(1, pa.int64())}
    return pa.RecordBatch.from_arrays([columns[name] for name in TIME_INDEX_ROWS.names], schema=TIME_INDEX_ROWS)


def _by_headers(segment: TimedSegment, first: FirstOffsets) -> tuple[bool, bool]:
    """Note minutes from headers: whether these say it all, and whether all data has LogAppendTime."""
    listed = segment.listed
    with opened(open_root(listed.root), listed.path) as file:
        said, buffer = True, ChunkBuffer(1 << 20, segment.max_batch_bytes)
        for headers in read_headers(file, listed.path, 0, listed.size, buffer, Tail()):
            b = headers.batches
            data = (b["attributes"] & CONTROL_MASK == 0) & (b["records_count"] != 0)
            if (data & (b["attributes"] & TIMESTAMP_TYPE_MASK == 0)).any():
                return False, False
            # of a compacted batch, and of a compressed one of magic 0 or 1, the first offset is not in the header
            said = said and not (data & (b["records_count"] != b["last_offset"] - b["base_offset"] + 1)).any()
            first.note_headers(b)
    return said, True


def _by_records(segment: TimedSegment, first: FirstOffsets) -> None:
    listed, loader = segment.listed, BodyLoader(max_batch_bytes=segment.max_batch_bytes)
    with opened(open_root(listed.root), listed.path) as file:
        buffer = ChunkBuffer(max_batch_bytes=segment.max_batch_bytes)
        for chunk in read_chunks(file, listed.path, 0, listed.size, buffer, Tail()):
            wanted = chunk.batches["attributes"] & CONTROL_MASK == 0
            for run in loader.runs(chunk.raw, chunk.position, chunk.batches, wanted, listed.path, backwards=False):
                first.note_records(run)


class FirstOffsets:
    """Minute -> first offset that falls into it, noted in the log's order; grows with its minutes."""

    def __init__(self) -> None:
        self._minutes, self._offsets = np.full(_SLOTS, kernels.FREE, np.int64), np.empty(_SLOTS, np.int64)
        self._used = 0

    def note_headers(self, batches: NDArray[np.void]) -> None:
        """BATCH[n] of LogAppendTime."""
        row = 0
        while True:
            row, self._used = kernels.note_headers(batches, MINUTE_MS, row, self._minutes, self._offsets, self._used)
            if row == len(batches):
                return
            self._grow()

    def note_records(self, run: Run) -> None:
        """Data batches of a run, by their records."""
        row = record = 0
        while True:
            row, record, self._used = kernels.note_records(
                run.batches, run.bodies, run.spans, MINUTE_MS, row, record, self._minutes, self._offsets, self._used
            )
            if row == len(run.batches):
                return
            self._grow()

    def sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(minutes since 1970, first offsets), int64[n] each, by minute."""
        rows = np.flatnonzero(self._minutes != kernels.FREE)
        rows = rows[np.argsort(self._minutes[rows])]
        return self._minutes[rows], self._offsets[rows]

    def _grow(self) -> None:
        slots = 4 * len(self._minutes)
        minutes, offsets = np.full(slots, kernels.FREE, np.int64), np.empty(slots, np.int64)
        kernels.enter_all(self._minutes, self._offsets, minutes, offsets)
        self._minutes, self._offsets = minutes, offsets
