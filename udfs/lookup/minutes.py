"""Rows of the table `time_index`: for each minute in which a segment has data, the first offset that falls into it.

There are two ways, both from the KIP-33 draft. LogAppendTime, for a segment whose batches all have it: all records of a
batch carry the batch's timestamp, which rises through the log, so headers have all facts and no body is decompressed.
CreateTime, for any other segment: timestamps are out of order, so the timestamps of all records are decoded, without
keys and values. The row of a minute has the position of its first record in the segment. Control records, and records
without a timestamp, are in no minute. A segment without rows has one of nulls, so that it is not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import stopped
from lastkey.logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.storage import log_file, open_root

LOG_APPEND_TIME: Final = "LogAppendTime"
CREATE_TIME: Final = "CreateTime"
MINUTE_MS: Final = 60_000
_MOMENT: Final = pa.timestamp("us", tz="UTC")
TIME_INDEX_ROWS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("minute", _MOMENT),  # its start; null: no data, or microseconds cannot hold it
        pa.field("first_offset", pa.int64()),  # first offset of the segment's records in that minute
        pa.field("timestamps", pa.string()),  # LOG_APPEND_TIME or CREATE_TIME: how the row was found
        pa.field("path", pa.string()),  # path of the .log, relative to the archive
        pa.field("size_bytes", pa.int64()),  # size of the .log when it was read
        pa.field("mtime_ms", pa.int64()),
        pa.field("problem", pa.string()),  # why the rows end early; null: they do not
    ]
)
_MINUTES: Final = (2**63 - 1) // (MINUTE_MS * 1000)  # range of microseconds in 64 bits
# Minutes since 1970, rising, and the first offset in each, of parts of a log
_Parts = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class TimedSegment:
    """One `.log` to read, and its partition."""

    topic: str
    partition: int
    listed: Segment
    max_batch_bytes: int = MAX_BATCH_BYTES


def time_index_rows(segments: Sequence[TimedSegment]) -> Any:
    """Return TIME_INDEX_ROWS of some segments, as pa.Table. A bad log has rows up to the damage, and its problem."""
    return pa.Table.from_batches([_rows(segment) for segment in segments], TIME_INDEX_ROWS)


def _rows(segment: TimedSegment) -> Any:
    listed = segment.listed
    problem = None
    first: _Parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    option = LOG_APPEND_TIME
    try:
        log = log_file(open_root(listed.root), listed.path, listed.size_bytes)
        said, by_headers = _by_headers(log, segment.max_batch_bytes, first)
        option = LOG_APPEND_TIME if by_headers else CREATE_TIME
        if not said:
            del first[1:]
            _by_records(log, segment.max_batch_bytes, first)
    except Exception as error:  # the other segments continue; rows up to there stay
        problem = str(stopped(error, listed.path))
    minutes, at = np.unique(np.concatenate([part[0] for part in first]), return_index=True)  # the first of equal ones
    offsets = np.concatenate([part[1] for part in first])[at]
    n = max(len(minutes), 1)
    same = {
        "topic": segment.topic, "partition": segment.partition, "segment_base_offset": listed.base_offset,
        "timestamps": option, "path": listed.path, "size_bytes": listed.size_bytes, "mtime_ms": listed.mtime_ms,
        "problem": problem,
    }  # fmt: skip
    columns = {name: pa.repeat(pa.scalar(value, TIME_INDEX_ROWS.field(name).type), n) for name, value in same.items()}
    in_range = minutes < _MINUTES  # minutes that microseconds cannot hold become null
    columns["minute"] = pa.array(np.where(in_range, minutes, 0) * (MINUTE_MS * 1000), mask=~in_range).cast(_MOMENT)
    columns["first_offset"] = pa.array(offsets)
    if not len(minutes):
        columns |= {"minute": pa.nulls(1, _MOMENT), "first_offset": pa.nulls(1, pa.int64())}
    return pa.RecordBatch.from_arrays([columns[name] for name in TIME_INDEX_ROWS.names], schema=TIME_INDEX_ROWS)


def _by_headers(log: LogFile, max_batch_bytes: int, first: _Parts) -> tuple[bool, bool]:
    """Add minutes from headers to `first`. Return (whether headers suffice, whether all data has LogAppendTime)."""
    is_complete = True
    for chunk in LogReader(1 << 20, max_batch_bytes).headers(log):
        b = chunk.batches
        data = (b["attributes"] & CONTROL_MASK == 0) & (b["records_count"] != 0)
        if (data & (b["attributes"] & TIMESTAMP_TYPE_MASK == 0)).any():
            return False, False
        # headers of compacted batches, and of compressed ones of magic 0 or 1, do not hold the first offset
        is_complete = is_complete and not (data & (b["records_count"] != b["last_offset"] - b["base_offset"] + 1)).any()
        minutes, rows = _first_rows(b["max_timestamp"][data])
        first.append((minutes, b["base_offset"][data][rows]))
    return is_complete, True


def _by_records(log: LogFile, max_batch_bytes: int, first: _Parts) -> None:
    reader = LogReader(max_batch_bytes=max_batch_bytes, keys_only=True)
    for chunk in reader.chunks(log):
        for run in reader.runs(chunk, chunk.batches["attributes"] & CONTROL_MASK == 0):
            batches, bodies, n_records = run.batches, run.bodies, run.bodies["n_records"]
            append_time = (batches["magic"] >= 2) & (batches["attributes"] & TIMESTAMP_TYPE_MASK != 0)
            times = np.repeat(bodies["base_timestamp"], n_records) + run.spans["timestamp_delta"]
            if append_time.any():
                is_appended, appended = (np.repeat(of, n_records) for of in (append_time, batches["max_timestamp"]))
                times = np.where(is_appended, appended, times)
            minutes, rows = _first_rows(times)
            body = np.searchsorted(np.cumsum(n_records), rows, "right")
            first.append((minutes, bodies["base_offset"][body] + run.spans["offset_delta"][rows]))


def _first_rows(timestamps_ms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the minutes of timestamps, int64[k], rising, without those below 0, and the first row of each."""
    minutes = timestamps_ms // MINUTE_MS
    changes = np.flatnonzero(minutes[1:] != minutes[:-1]) + 1  # most records have the minute of the one before
    changes = np.append(np.zeros(min(len(minutes), 1), np.int64), changes)
    minutes, at = np.unique(minutes[changes], return_index=True)
    return minutes[minutes >= 0], changes[at[minutes >= 0]]
