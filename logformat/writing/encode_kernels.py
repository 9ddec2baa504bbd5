"""Kernels from Arrow columns to batches of magic 2, the reverse of `batches.column_kernels` (`encode`); from
sections to batches of magic 3; and of batches that take the place of others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastkey.logformat.batches.header_kernels import size_of_header_v3, write_header, write_header_v3
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import BATCH_OVERHEAD, IGNORE_ATTRIBUTES_MASK
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import size_of_varlong, write_varlong

MAX_DELTA = 2**31 - 1


class Variable(NamedTuple):
    """A column of variable size without gaps; its arrays are read only, so that kernels compile once."""

    ends: np.ndarray  # int32[n + 1], Arrow's offsets: field i is data[ends[i]:ends[i + 1]]
    data: np.ndarray  # uint8
    null: np.ndarray  # bool[n]


class RecordColumns(NamedTuple):
    """Columns of n records."""

    offsets: np.ndarray  # int64[n], rising
    timestamps: np.ndarray  # int64[n], ms
    key: Variable
    value: Variable
    header_ends: np.ndarray  # int32[n + 1], Arrow's offsets of the headers
    header_key: Variable  # none is null
    header_value: Variable


class BatchLimits(NamedTuple):
    """Limits of batches, and what their headers fix."""

    first_base_offset: int  # base offset of the first batch; the others begin at their first record
    fixed_base_timestamp: bool  # deltas count from base_timestamp, not from the batch's first record
    base_timestamp: int
    max_bytes: int  # maximum size of a batch before compression, header included
    max_records: int


@inline
def _field_size(column: Variable, i: int) -> int:
    if column.null[i]:
        return 1
    size: int = column.ends[i + 1] - column.ends[i]
    return size_of_varlong(size) + size


@inline
def _write_field(out: np.ndarray, at: int, column: Variable, i: int) -> int:
    if column.null[i]:
        return write_varlong(out, at, -1)
    start: int = column.ends[i]
    size: int = column.ends[i + 1] - start
    at = write_varlong(out, at, size)
    copy_bytes(out, at, column.data, start, size)
    return at + size


@kernel
def measure_records(records: RecordColumns, out: np.ndarray) -> None:
    """Measure each record from its key length to its end, in bytes: out int64[n], written."""
    ends = records.header_ends
    for i in range(out.shape[0]):
        size = _field_size(records.key, i) + _field_size(records.value, i)
        size += size_of_varlong(ends[i + 1] - ends[i])
        for h in range(ends[i], ends[i + 1]):
            size += _field_size(records.header_key, h)
            size += _field_size(records.header_value, h)
        out[i] = size


@kernel
def plan_batches(
    records: RecordColumns, rest_bytes: np.ndarray, limits: BatchLimits, starts: np.ndarray, body_bytes: np.ndarray
) -> int:
    """Cut n records into batches, each as large as the limits allow, of at least one record. A batch also ends before a
    record whose offset delta would not fit.

    rest_bytes: int64[n] of measure_records; starts: int64[n + 1], written: first row of each batch, and n; body_bytes:
    int64[n], written: uncompressed body of each batch. Returns the number of batches.
    """
    offsets, timestamps = records.offsets, records.timestamps
    base, fixed_base_timestamp, base_timestamp, max_bytes, max_records = limits
    n = offsets.shape[0]
    batch = -1
    room = 0
    for i in range(n):
        size = 0
        if batch >= 0:
            size = _record_size(timestamps[i] - base_timestamp, offsets[i] - base, rest_bytes[i])
        if batch < 0 or size > room or i - starts[batch] >= max_records or offsets[i] - base > MAX_DELTA:
            batch += 1
            starts[batch] = i
            body_bytes[batch] = 0
            room = max_bytes - BATCH_OVERHEAD
            if batch > 0:
                base = offsets[i]
            if not fixed_base_timestamp:
                base_timestamp = timestamps[i]
            size = _record_size(timestamps[i] - base_timestamp, offsets[i] - base, rest_bytes[i])
        body_bytes[batch] += size
        room -= size
    starts[batch + 1] = n
    return batch + 1


@inline
def _record_size(timestamp_delta: int, offset_delta: int, rest: int) -> int:
    length = 1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + rest
    return size_of_varlong(length) + length


@kernel
def encode_records(
    records: RecordColumns,
    rest_bytes: np.ndarray,
    starts: np.ndarray,
    base_offsets: np.ndarray,
    base_timestamps: np.ndarray,
    out: np.ndarray,
) -> int:
    """Write the bodies of m batches one after the other, uncompressed; return the bytes written.

    starts: int64[m + 1] of plan_batches; base_offsets, base_timestamps: int64[m]; out: uint8, sum(body_bytes) or more.
    """
    ends = records.header_ends
    at = 0
    for batch in range(base_offsets.shape[0]):
        for i in range(starts[batch], starts[batch + 1]):
            timestamp_delta = records.timestamps[i] - base_timestamps[batch]
            offset_delta = records.offsets[i] - base_offsets[batch]
            length = 1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + rest_bytes[i]
            at = write_varlong(out, at, length)
            out[at] = 0  # attributes of a record: none are defined
            at = write_varlong(out, at + 1, timestamp_delta)
            at = write_varlong(out, at, offset_delta)
            at = _write_field(out, at, records.key, i)
            at = _write_field(out, at, records.value, i)
            at = write_varlong(out, at, ends[i + 1] - ends[i])
            for h in range(ends[i], ends[i + 1]):
                at = _write_field(out, at, records.header_key, h)
                at = _write_field(out, at, records.header_value, h)
    return at


@kernel
def write_batches(batches: np.ndarray, payload: np.ndarray, payload_ends: np.ndarray, out: np.ndarray) -> int:
    """Write whole batches one after the other; return the bytes written.

    batches: BATCH[m], whose position, size, crc, magic and marker fields are not read; payload: uint8, final bodies,
    ending at payload_ends (int64[m]); out: uint8[61 * m + payload_ends[-1]], written.
    """
    at = 0
    start = 0
    for i in range(batches.shape[0]):
        b = batches[i]
        size = payload_ends[i] - start
        end = at + BATCH_OVERHEAD + size
        copy_bytes(out, at + BATCH_OVERHEAD, payload, start, size)
        write_header(out, at, end, b, b, b.records_count)
        start = payload_ends[i]
        at = end
    return at


@kernel
def sizes_v3(batches: np.ndarray, which: np.ndarray, first_sections: np.ndarray, stored: np.ndarray) -> None:
    """Add the header's bytes to `stored` (int64[n]: bytes of both sections as stored) of the batches in `which`."""
    for i in range(batches.shape[0]):
        if which[i]:
            b = batches[i]
            last_delta = b.last_offset - b.base_offset
            stored[i] += size_of_header_v3(last_delta, b.base_timestamp, b.max_timestamp, first_sections[i])


@kernel
def write_batches_v3(
    batches: np.ndarray,
    attributes: np.ndarray,
    first_sections: np.ndarray,
    sizes: np.ndarray,
    sections: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write batches as magic 3, one after the other.

    batches: BATCH[n]; attributes: bool[n], whether the records have any; first_sections: int64[n], as in `read_trail`;
    sizes: int64[n], of each result, 0 of those that are not written; sections: uint8, the stored ones; out:
    uint8[sum(sizes)], written.
    """
    at = 0
    taken = 0
    for i in range(batches.shape[0]):
        if sizes[i] > 0:
            b = batches[i]
            end = at + sizes[i]
            header = size_of_header_v3(
                b.last_offset - b.base_offset, b.base_timestamp, b.max_timestamp, first_sections[i]
            )
            copy_bytes(out, at + header, sections, taken, sizes[i] - header)
            taken += sizes[i] - header
            bits: int = b.attributes if attributes[i] else b.attributes | IGNORE_ATTRIBUTES_MASK
            write_header_v3(out, at, end, b, bits, first_sections[i])
            at = end


@kernel
def copy_around(
    run: Run, raw_position: int, which: np.ndarray, replaced: np.ndarray, sizes: np.ndarray, out: np.ndarray
) -> None:
    """Put `replaced` (uint8: the batches in `which`, one after the other) among the others of a run, which are copied.

    raw_position: of the run's bytes in the file; sizes: int64[n], of each result; out: uint8[sum(sizes)], written.
    """
    batches = run.batches
    at = 0
    taken = 0
    for i in range(batches.shape[0]):
        if which[i]:
            copy_bytes(out, at, replaced, taken, sizes[i])
            taken += sizes[i]
        else:
            copy_bytes(out, at, run.raw, batches[i].position - raw_position, sizes[i])
        at += sizes[i]
