"""Encoder of Arrow columns as batches of magic 2, like Kafka's MemoryRecordsBuilder and DefaultRecordBatch (4.3.0).

Kernels make two passes over the records: one measures them and cuts them into batches, one writes the bodies. Then each
body is compressed and gets its header. Differences from Kafka: this encoder takes any timestamp (Kafka refuses negative
ones other than -1). It also limits a batch by its exact size before compression, where Kafka estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.errors import unknown_name
from lastkey.logformat.layout import (
    BATCH,
    BATCH_OVERHEAD,
    CODEC_NAMES,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    MAX_RELATIVE_OFFSET,
    MAX_SEGMENT_BYTES,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds
from lastkey.logformat.primitives.codec import Scratch, pack_bodies
from lastkey.logformat.schemas import HEADERS
from lastkey.logformat.writing import encode_kernels as kernels
from lastkey.logformat.writing.encode_kernels import Variable

_SEQUENCES: Final = 2**31


@dataclass(frozen=True)
class BatchOptions:
    """Header fields of the batches that do not come from the records. Times are in ms, -1 for none."""

    codec: str = "none"
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1  # base sequence of the first batch; the others follow by their offsets
    transactional: bool = False
    control: bool = False
    leader_epoch: int = 0
    append_time_ms: int | None = None  # LogAppendTime: the time of all records; their own are stored but never read
    delete_horizon_ms: int | None = None
    base_offset: int | None = None  # base offset of the first batch; None: that of its first record
    last_offset: int | None = None  # last offset of the last batch; None: that of its last record
    max_timestamp: int = NO_TIMESTAMP  # timestamp of a batch without records
    max_batch_bytes: int = MAX_SEGMENT_BYTES  # before compression, header included
    max_batch_records: int = 2**31 - 1

    @property
    def attributes(self) -> int:
        """The attribute bits of the header, without the codec."""
        return (
            TIMESTAMP_TYPE_MASK * (self.append_time_ms is not None)
            | TRANSACTIONAL_MASK * self.transactional
            | CONTROL_MASK * self.control
            | DELETE_HORIZON_MASK * (self.delete_horizon_ms is not None)
        )


def encode_batches(records: Any, next_offset: int, options: BatchOptions) -> NDArray[np.uint8]:
    """Return the bytes of the records as one or more batches.

    records: pa.RecordBatch with any of the columns key, value, headers, offset (rising; default: from next_offset on)
    and timestamp_ms or timestamp (-1, none, if null or missing); other columns are ignored. No rows give one empty
    batch; its last offset comes from `options`. Raises ValueError for records or options that no batch can hold.
    """
    codec = _codec(options.codec)
    n = records.num_rows
    offsets = _offsets(records, next_offset)
    timestamps = _timestamps(records)
    first = options.base_offset if options.base_offset is not None else int(offsets[0]) if n else next_offset
    last = options.last_offset if options.last_offset is not None else int(offsets[-1]) if n else -1
    if n == 0:
        codec = 0
        if options.last_offset is None:
            raise ValueError("a batch without records needs a last offset")
    if first < 0 or last < first or (n and (first > offsets[0] or last < offsets[-1] or (np.diff(offsets) <= 0).any())):
        raise ValueError(f"offsets that do not rise from {first} to {last}")
    bodies, starts, rows = _bodies(records, offsets, timestamps, first, options)
    rows["last_offset"][-1] = last
    if (rows["last_offset"] - rows["base_offset"]).max() > MAX_RELATIVE_OFFSET:
        raise ValueError(f"a batch that spans more than 2^31 offsets, up to {last}")
    rows["max_timestamp"] = options.max_timestamp
    if n:
        rows["max_timestamp"] = np.maximum.reduceat(timestamps, starts[:-1])
    if options.append_time_ms is not None:
        rows["max_timestamp"] = options.append_time_ms
    rows["attributes"] = options.attributes | codec
    rows["producer_id"], rows["producer_epoch"] = options.producer_id, options.producer_epoch
    rows["partition_leader_epoch"] = options.leader_epoch
    rows["base_sequence"] = -1
    if options.base_sequence >= 0:
        rows["base_sequence"] = (options.base_sequence + rows["base_offset"] - first) % _SEQUENCES
    payload, ends = bodies.data, bodies.ends
    if codec:
        payload, ends = _compressed(codec, bodies)
    payload.flags.writeable = False
    out = np.empty(BATCH_OVERHEAD * len(rows) + int(ends[-1]), np.uint8)
    kernels.write_batches(rows, payload, ends, out)
    return out


class _Bodies(NamedTuple):
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]


def _bodies(
    records: Any, offsets: NDArray[np.int64], timestamps: NDArray[np.int64], first: int, options: BatchOptions
) -> tuple[_Bodies, NDArray[np.int64], NDArray[np.void]]:
    """Return uncompressed bodies, first row of each batch, and BATCH[m] with its offsets, count and base timestamp."""
    n = len(offsets)
    horizon = options.delete_horizon_ms
    if n == 0:
        rows = np.zeros(1, BATCH)
        rows["base_offset"], rows["base_timestamp"] = first, NO_TIMESTAMP if horizon is None else horizon
        return _Bodies(np.empty(0, np.uint8), np.zeros(1, np.int64)), np.zeros(2, np.int64), rows
    key, value = _variable(_named(records, "key", n)), _variable(_named(records, "value", n))
    columns = kernels.RecordColumns(offsets, timestamps, key, value, *_headers(records, n))
    if columns.header_key.null.any():
        raise ValueError("a header without key")
    rest, starts, sizes = np.empty(n, np.int64), np.empty(n + 1, np.int64), np.empty(n, np.int64)
    kernels.measure_records(columns, rest)
    limits = kernels.BatchLimits(
        first, horizon is not None, horizon or 0, options.max_batch_bytes, options.max_batch_records
    )
    m = kernels.plan_batches(columns, rest, limits, starts, sizes)
    starts, sizes = starts[: m + 1], sizes[:m]
    rows = np.zeros(m, BATCH)
    rows["base_offset"], rows["last_offset"] = offsets[starts[:-1]], offsets[starts[1:] - 1]
    rows["base_offset"][0] = first
    rows["base_timestamp"] = timestamps[starts[:-1]] if horizon is None else horizon
    rows["records_count"] = np.diff(starts)
    data = np.empty(int(sizes.sum()), np.uint8)
    offset, timestamp = (np.ascontiguousarray(rows[name]) for name in ("base_offset", "base_timestamp"))
    kernels.encode_records(columns, rest, starts, offset, timestamp, data)
    return _Bodies(data, np.cumsum(sizes)), starts, rows


def _compressed(codec: int, bodies: _Bodies) -> _Bodies:
    out, borders = Scratch(1), np.append(0, bodies.ends)
    ends = pack_bodies(np.full(len(bodies.ends), codec), bodies.data, borders, out, 0)
    return _Bodies(out.array[: ends[-1]], ends)


def _codec(name: str) -> int:
    if name not in CODEC_NAMES:
        raise unknown_name("codec", name, CODEC_NAMES)
    return CODEC_NAMES.index(name)


def _offsets(records: Any, next_offset: int) -> NDArray[np.int64]:
    if "offset" not in records.schema.names:
        return np.arange(next_offset, next_offset + records.num_rows)
    column = records.column("offset").cast(pa.int64())
    if column.null_count:
        raise ValueError("a record without offset")
    return np.array(column, np.int64)


def _timestamps(records: Any) -> NDArray[np.int64]:
    if "timestamp_ms" in records.schema.names:
        column = records.column("timestamp_ms").cast(pa.int64())
    elif "timestamp" in records.schema.names:
        column = records.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())  # refuses parts of a ms
    else:
        return np.full(records.num_rows, NO_TIMESTAMP, np.int64)
    return np.array(column.fill_null(NO_TIMESTAMP), np.int64)


def _named(records: Any, name: str, n: int) -> Any:
    if name not in records.schema.names:
        return pa.nulls(n, pa.binary())
    return records.column(name).cast(pa.binary())


def _variable(column: Any) -> Variable:
    """Return views of the buffers of a pa.BinaryArray, which may be a slice of another."""
    data, ends = bytes_and_bounds(column)
    variable = Variable(ends, data.view(), np.array(column.is_null(), np.bool_))
    for array in variable:
        array.flags.writeable = False
    return variable


def _headers(records: Any, n: int) -> tuple[NDArray[np.int32], Variable, Variable]:
    """Return Arrow's offsets of the headers of each record, their keys and their values."""
    none = pa.nulls(0, pa.binary())
    if "headers" not in records.schema.names or records.column("headers").null_count == n:
        return np.zeros(n + 1, np.int32), _variable(none), _variable(none)
    column = records.column("headers").cast(HEADERS)
    pairs = column.flatten()  # leaves out child values of null lists and outside of slices
    if pairs.null_count:
        raise ValueError("a header that is null")
    ends = np.zeros(n + 1, np.int32)
    np.cumsum(np.array(column.value_lengths().fill_null(0), np.int32), out=ends[1:])
    return ends, _variable(pairs.field(0).cast(pa.binary())), _variable(pairs.field(1))
