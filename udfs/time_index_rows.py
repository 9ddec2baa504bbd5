"""Rows of the table `time_index`: for each minute in which a segment has data, the first offset that falls into it.

The two options of the KIP-33 draft. A segment whose batches all have LogAppendTime takes the first: a batch's records
all carry its timestamp, which rises through the log, so its headers say everything and nothing is decompressed. Any
other takes the second, CreateTime: timestamps are out of order, so those of all records are decoded (not their keys and
values), and the row of a minute says where its first record in the segment is. Control records, and records without a
timestamp, are in no minute. A segment without rows has one of nulls, so that it is not read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logformat.batch_headers import ChunkBuffer, Tail, read_chunks
from logformat.bodies import BodyLoader
from logformat.errors import LogFormatError
from logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from logformat.records import Place, record_batches
from logformat.schemas import RECORDS, select
from logformat.sparse_headers import read_headers
from udfs.storage import Root, open_root, opened, opened_unbuffered

LOG_APPEND_TIME: Final = "LogAppendTime"
CREATE_TIME: Final = "CreateTime"
MINUTE_MS: Final = 60_000
TIME_INDEX_ROWS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("minute", pa.timestamp("us", tz="UTC")),  # its first moment; null: the segment has no data
        pa.field("first_offset", pa.int64()),  # of the segment's records in that minute
        pa.field("timestamps", pa.string()),  # LOG_APPEND_TIME or CREATE_TIME: how the row was found
        pa.field("path", pa.string()),  # of the .log, relative to the archive
        pa.field("size_bytes", pa.int64()),  # of the .log when it was read
        pa.field("mtime_ms", pa.int64()),
        pa.field("problem", pa.string()),  # why the rows end early; null: nothing is wrong
    ]
)
_COLUMNS: Final = select(RECORDS, ["offset", "timestamp_ms", "control"])


@dataclass(frozen=True)
class TimedSegment:
    """One `.log` to be read."""

    topic: str
    partition: int
    archive_uri: str
    base_offset: int
    path: str
    size: int
    mtime_ms: int
    max_batch_bytes: int = 256 << 20


def time_index_rows(segments: tuple[TimedSegment, ...]) -> Any:
    """TIME_INDEX_ROWS of some segments, as pa.Table. A log that is bad has rows up to there, and says why."""
    return pa.Table.from_batches([_rows(segment) for segment in segments], TIME_INDEX_ROWS)


def _rows(segment: TimedSegment) -> Any:
    root = open_root(segment.archive_uri)
    problem = None
    first: dict[int, int] = {}
    option = LOG_APPEND_TIME
    try:
        said, by_headers = _by_headers(root, segment, first)
        option = LOG_APPEND_TIME if by_headers else CREATE_TIME
        if not said:
            first = {}
            _by_records(root, segment, first)
    except LogFormatError as error:
        problem = str(error)
    minutes = sorted(first)
    n = max(len(minutes), 1)
    moments: list[int | None] = [minute * MINUTE_MS * 1000 for minute in minutes]
    offsets: list[int | None] = [first[minute] for minute in minutes]
    same = {
        "topic": segment.topic, "partition": segment.partition, "segment_base_offset": segment.base_offset,
        "timestamps": option, "path": segment.path, "size_bytes": segment.size, "mtime_ms": segment.mtime_ms,
        "problem": problem,
    }  # fmt: skip
    columns = {name: pa.repeat(pa.scalar(value, TIME_INDEX_ROWS.field(name).type), n) for name, value in same.items()}
    columns["minute"] = pa.array(moments or [None], pa.timestamp("us", tz="UTC"))
    columns["first_offset"] = pa.array(offsets or [None], pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in TIME_INDEX_ROWS.names], schema=TIME_INDEX_ROWS)


def _by_headers(root: Root, segment: TimedSegment, first: dict[int, int]) -> tuple[bool, bool]:
    """Fill minute -> first offset from headers: whether they say it all, and whether all data has LogAppendTime."""
    with opened_unbuffered(root, segment.path) as file:
        said = True
        for headers in read_headers(file, segment.path, 0, segment.size, ChunkBuffer(1 << 20), Tail()):
            b = headers.batches
            data = (b["attributes"] & CONTROL_MASK == 0) & (b["records_count"] != 0)
            if (data & (b["attributes"] & TIMESTAMP_TYPE_MASK == 0)).any():
                return False, False
            # of a compacted batch, and of a compressed one of magic 0 or 1, the first offset is not in the header
            said = said and not (data & (b["records_count"] != b["last_offset"] - b["base_offset"] + 1)).any()
            _note(first, b["max_timestamp"][data], b["base_offset"][data])
    return said, True


def _by_records(root: Root, segment: TimedSegment, first: dict[int, int]) -> None:
    loader = BodyLoader(max_batch_bytes=segment.max_batch_bytes)
    with opened(root, segment.path) as file:
        for chunk in read_chunks(file, segment.path, 0, segment.size, ChunkBuffer(), Tail()):
            wanted = chunk.batches["attributes"] & CONTROL_MASK == 0
            for run in loader.runs(chunk.raw, chunk.position, chunk.batches, wanted, segment.path, backwards=False):
                for records in record_batches(run, _COLUMNS, Place()):
                    _note(first, np.asarray(records.column("timestamp_ms")), np.asarray(records.column("offset")))


def _note(first: dict[int, int], timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    """Note the first offset of each minute that is not known yet; timestamps, offsets: int64[n] in the log's order."""
    minutes = timestamps // MINUTE_MS
    changes = np.flatnonzero(np.diff(minutes, prepend=minutes[:1] - 1))  # few: time goes on minute by minute, mostly
    found, at = np.unique(minutes[changes], return_index=True)
    for minute, offset in zip(found.tolist(), offsets[changes[at]].tolist(), strict=True):  # a loop over minutes
        if minute >= 0:
            first.setdefault(minute, offset)


def groups(segments: list[TimedSegment], most_bytes: int) -> Iterator[tuple[TimedSegment, ...]]:
    """Consecutive segments of about so many bytes, for a task each."""
    group: list[TimedSegment] = []
    for segment in segments:
        if group and sum(s.size for s in group) + segment.size > most_bytes:
            yield tuple(group)
            group = []
        group.append(segment)
    if group:
        yield tuple(group)
