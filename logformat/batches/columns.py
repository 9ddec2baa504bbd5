"""Conversion of spans to Arrow: records of a run in the schema RECORDS, batch headers in the schema BATCHES.

An Arrow batch holds at most `max_rows` records. It holds at most `max_bytes` of keys, values and headers, unless a
single record is larger. So its 32-bit offsets cannot overflow. Only the requested columns are made. They have memory of
their own, because the next run uses the arrays of a run again.

Rules: Kafka's DefaultRecord, DefaultRecordBatch, AbstractLegacyRecordBatch and TimestampType (4.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches import column_kernels as kernels
from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.layout import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_PRODUCER,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from lastkey.logformat.primitives.binary_arrays import decode_text
from lastkey.logformat.schemas import HEADER, HEADERS, RECORDS, TIMESTAMP

MAX_ROWS: Final = 1 << 16
MAX_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30  # above this one Arrow batch could exceed 2^31 - 1 bytes of values
_MAX_MS: Final = (2**63 - 1) // 1000  # the largest number of ms that fits in microseconds
_SEQUENCES: Final = 2**31


@dataclass(frozen=True)
class TopicPartition:
    """Topic and partition of the records, from their file's path."""

    topic: str | None = None
    partition: int | None = None


def record_batches(
    run: Run,
    schema: Any,
    place: TopicPartition,
    *,
    start_offset: int = 0,
    end_offset: int = NO_END,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    keep: NDArray[np.bool_] | None = None,
) -> Iterator[Any]:
    """Yield records of a run's wanted batches with offsets in [start_offset, end_offset), as pa.RecordBatch of
    `schema`.

    schema: columns of RECORDS (`schemas.select`). keep: bool[spans of the run], the spans to take; None takes all.
    Raises ValueError for impossible limits.
    """
    if max_rows < 1 or not 1 <= max_bytes <= _MOST_BYTES:
        raise ValueError(f"impossible limits of an Arrow batch: {max_rows} rows, {max_bytes} bytes")
    body_row = np.repeat(np.arange(len(run.bodies)), run.bodies["n_records"])
    spans = run.spans
    if keep is not None:
        body_row, spans = body_row[keep], spans[keep]
    offset = run.bodies["base_offset"][body_row] + spans["offset_delta"]
    row, last = (int(i) for i in np.searchsorted(offset, [start_offset, end_offset]))
    ends = np.cumsum(spans["end"] - spans["rest"])
    while row < last:
        before = int(ends[row - 1]) if row else 0
        fit = int(np.searchsorted(ends, before + max_bytes, "right"))
        end = min(last, row + max_rows, max(fit, row + 1))
        part = _BatchRecords(run, place, spans[row:end], body_row[row:end], offset[row:end], "headers" in schema.names)
        yield pa.record_batch([part.column(name) for name in schema.names], schema=schema)
        row = end


def header_batch(batches: NDArray[np.void], schema: Any, place: TopicPartition) -> Any:
    """Return layout.BATCH[n] as one pa.RecordBatch of `schema`, columns of BATCHES."""
    columns = []
    for field in schema:
        column = _place_column(place, field.name, len(batches))
        columns.append((_batch_column(batches, field.name) if column is None else column).cast(field.type))
    return pa.record_batch(columns, schema=schema)


@dataclass(frozen=True)
class _BatchRecords:
    """Records that go into one Arrow batch."""

    run: Run
    place: TopicPartition
    spans: NDArray[np.void]  # SPAN[n]
    body_row: NDArray[np.int64]  # int64[n]
    offset: NDArray[np.int64]  # int64[n]
    want_headers: bool

    def column(self, name: str) -> Any:
        make = _FROM_RECORD.get(name)
        if make is not None:
            return make(self)
        column = _place_column(self.place, name, len(self.spans))
        if column is None:  # a column that repeats its batch's value
            column = _batch_column(self.run.batches, name).take(pa.array(self.body_row))
        return column.cast(RECORDS.field(name).type)

    def base_offset(self) -> Any:
        return pa.array(self.run.bodies["base_offset"][self.body_row])

    @cached_property
    def timestamps(self) -> NDArray[np.int64]:
        """Timestamps in ms, int64[n]. The loader has already applied LogAppendTime to magic 0 and 1."""
        batches, bodies = self.run.batches, self.run.bodies
        append_time = (batches["magic"] >= 2) & (batches["attributes"] & TIMESTAMP_TYPE_MASK != 0)
        by_delta: NDArray[np.int64] = bodies["base_timestamp"][self.body_row] + self.spans["timestamp_delta"]
        if not append_time.any():
            return by_delta
        return np.where(append_time[self.body_row], batches["max_timestamp"][self.body_row], by_delta)

    def timestamp(self) -> Any:
        ms = self.timestamps
        fits = (ms <= _MAX_MS) & (ms >= -_MAX_MS)
        validity = None if fits.all() else _bitmap(fits)
        return pa.Array.from_buffers(TIMESTAMP, len(ms), [validity, pa.py_buffer(ms * 1000)])

    def sequence(self) -> Any:
        base = self.run.batches["base_sequence"][self.body_row].astype(np.int64)
        sequence = np.where(base < 0, NO_PRODUCER, (base + self.spans["offset_delta"]) % _SEQUENCES)
        return pa.array(sequence.astype(np.int32))

    @cached_property
    def _fields(self) -> tuple[NDArray[Any], ...]:
        n = len(self.spans)
        at, ends = np.empty((3, n), np.int64), np.empty((3, n + 1), np.int32)
        sizes = kernels.locate_fields(self.run, self.body_row, self.spans, self.want_headers, at, ends)
        return at, ends, np.array(sizes)

    def _binary(self, number: int, null: NDArray[np.bool_]) -> Any:
        at, ends = (rows[number] for rows in self._fields[:2])
        data = np.empty(int(ends[-1]), np.uint8)
        kernels.copy_fields(self.run, self.body_row, at, ends, data)
        return _from_buffers(pa.binary(), null, ends, data)

    def key(self) -> Any:
        return self._binary(kernels.KEY, self.spans["null_key"])

    def value(self) -> Any:
        return self._binary(kernels.VALUE, self.spans["null_value"])

    def headers(self) -> Any:
        at, ends = (rows[kernels.HEADERS] for rows in self._fields[:2])
        n = int(ends[-1])
        key_ends, value_ends, null = np.empty(n + 1, np.int32), np.empty(n + 1, np.int32), np.empty(n, np.bool_)
        keys, values = (np.empty(int(size), np.uint8) for size in self._fields[2])
        out = kernels.HeaderColumns(key_ends, value_ends, null, keys, values)
        kernels.copy_headers(self.run, self.body_row, self.spans, at, ends, out)
        key = decode_text(_from_buffers(pa.binary(), np.zeros(n, np.bool_), key_ends, keys))
        pairs = pa.StructArray.from_arrays(
            [key, _from_buffers(pa.binary(), null, value_ends, values)], fields=list(HEADER)
        )
        none = np.diff(ends) == 0
        validity = _bitmap(~none) if none.any() else None
        return pa.Array.from_buffers(
            HEADERS, len(self.spans), [validity, pa.py_buffer(ends)], int(none.sum()), children=[pairs]
        )


# Columns of batches that are not a field of the same name in their headers.
_FROM_BATCH: Final[dict[str, Callable[[NDArray[np.void]], Any]]] = {
    "size_bytes": lambda b: b["size"],
    "max_timestamp_ms": lambda b: b["max_timestamp"],
    "base_timestamp_ms": lambda b: b["base_timestamp"],
    "leader_epoch": lambda b: b["partition_leader_epoch"],
    "timestampType": lambda b: np.where(b["magic"] == 0, -1, (b["attributes"] & TIMESTAMP_TYPE_MASK) // 8),
    "transactional": lambda b: b["attributes"] & TRANSACTIONAL_MASK != 0,
    "control": lambda b: b["attributes"] & CONTROL_MASK != 0,
    "codec": lambda b: pa.array(CODEC_NAMES).take(pa.array(b["attributes"] & CODEC_MASK)),
    "delete_horizon_ms": lambda b: pa.array(b["base_timestamp"], mask=b["attributes"] & DELETE_HORIZON_MASK == 0),
}

_FROM_RECORD: Final[dict[str, Callable[[_BatchRecords], Any]]] = {
    "key": _BatchRecords.key,
    "value": _BatchRecords.value,
    "headers": _BatchRecords.headers,
    "offset": lambda part: pa.array(part.offset),
    "timestamp": _BatchRecords.timestamp,
    "timestamp_ms": lambda part: pa.array(part.timestamps),
    "sequence": _BatchRecords.sequence,
    "base_offset": _BatchRecords.base_offset,
}


def _batch_column(batches: NDArray[np.void], name: str) -> Any:
    """Return a column of BATCH[n] as a pa.Array."""
    column = _FROM_BATCH[name](batches) if name in _FROM_BATCH else batches[name]
    return pa.array(np.ascontiguousarray(column)) if isinstance(column, np.ndarray) else column


def _place_column(place: TopicPartition, name: str, n: int) -> Any:
    """Return the column topic or partition, n times the same; None for any other name."""
    if name == "topic":
        return pa.repeat(pa.scalar(place.topic, pa.string()), n)
    return pa.repeat(pa.scalar(place.partition, pa.int32()), n) if name == "partition" else None


def _bitmap(valid: NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _from_buffers(kind: Any, null: NDArray[np.bool_], ends: NDArray[np.int32], data: NDArray[np.uint8]) -> Any:
    n_null = int(null.sum())
    buffers = [_bitmap(~null) if n_null else None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(null), buffers, n_null)
