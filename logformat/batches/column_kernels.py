"""Kernels from spans to Arrow buffers: find keys, values and headers of decoded records, and copy them (`columns`).

The kernels do no checks, because decode_records has checked that every length fits its record. Records of a run are in
one of two uint8 arrays, as `span_kernels` describes; `body_row` gives the row of each record's body, and `spans` may be
a part of the run's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import read_varint

KEY, VALUE, HEADERS = range(3)  # rows of the places of fields


@kernel
def locate_fields(
    run: Run, body_row: np.ndarray, spans: np.ndarray, want_headers: bool, at: np.ndarray, ends: np.ndarray
) -> tuple[int, int]:
    """Find the fields of n records, and compute their places in Arrow's buffers.

    body_row: int64[n]; spans: SPAN[n]; at: int64[3, n], written: first byte of the key, of the value, and after the
    header count; ends: int32[3, n + 1], written: Arrow's offsets, [:, 0] is 0, for headers counted in headers. Returns
    the bytes of all header keys and of all header values (0, 0 if not wanted).
    """
    for field in range(3):
        ends[field, 0] = 0
    key_bytes = 0
    value_bytes = 0
    for i in range(spans.shape[0]):
        if run.bodies[body_row[i]].in_scratch:
            sizes = _locate(run.scratch, spans[i], i, want_headers, at, ends)
        else:
            sizes = _locate(run.raw, spans[i], i, want_headers, at, ends)
        key_bytes += sizes[0]
        value_bytes += sizes[1]
    return key_bytes, value_bytes


@inline
def _locate(
    buf: np.ndarray, span: Any, i: int, want_headers: bool, starts: np.ndarray, ends: np.ndarray
) -> tuple[int, int]:
    end = span.end
    at = span.rest
    for field in range(HEADERS):
        size, at = read_varint(buf, at, end)
        size = max(size, 0)
        starts[field, i] = at
        ends[field, i + 1] = ends[field, i] + size
        at += size
    count, at = read_varint(buf, at, end)
    starts[HEADERS, i] = at
    ends[HEADERS, i + 1] = ends[HEADERS, i] + count
    keys = 0
    values = 0
    if want_headers:
        for _ in range(count):
            size, at = read_varint(buf, at, end)
            keys += size
            size, at = read_varint(buf, at + size, end)
            size = max(size, 0)
            values += size
            at += size
    return keys, values


@kernel
def copy_fields(run: Run, body_row: np.ndarray, starts: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    """Copy the bytes of one field of n records, one after the other.

    starts, ends: int64[n] and int32[n + 1], the field's rows of locate_fields; out: uint8[ends[n]], written.
    """
    for i in range(starts.shape[0]):
        size = np.int64(ends[i + 1] - ends[i])
        if run.bodies[body_row[i]].in_scratch:
            copy_bytes(out, np.int64(ends[i]), run.scratch, starts[i], size)
        else:
            copy_bytes(out, np.int64(ends[i]), run.raw, starts[i], size)


class HeaderColumns(NamedTuple):
    """Arrow's buffers of h headers."""

    key_ends: np.ndarray  # int32[h + 1]
    value_ends: np.ndarray  # int32[h + 1]
    null_value: np.ndarray  # bool[h]
    keys: np.ndarray  # uint8 of the sizes that locate_fields returned
    values: np.ndarray


@kernel
def copy_headers(
    run: Run, body_row: np.ndarray, spans: np.ndarray, at: np.ndarray, ends: np.ndarray, out: HeaderColumns
) -> None:
    """Copy the headers of n records to `out`. at, ends: the rows of locate_fields for headers."""
    out.key_ends[0] = 0
    out.value_ends[0] = 0
    for i in range(spans.shape[0]):
        if run.bodies[body_row[i]].in_scratch:
            _copy_record_headers(run.scratch, at[i], spans[i].end, ends[i], ends[i + 1], out)
        else:
            _copy_record_headers(run.raw, at[i], spans[i].end, ends[i], ends[i + 1], out)


@inline
def _copy_record_headers(buf: np.ndarray, at: int, end: int, first: int, last: int, out: HeaderColumns) -> None:
    for h in range(first, last):
        size, at = read_varint(buf, at, end)
        to = np.int64(out.key_ends[h])
        copy_bytes(out.keys, to, buf, at, size)
        out.key_ends[h + 1] = to + size
        size, at = read_varint(buf, at + size, end)
        out.null_value[h] = size < 0
        size = max(size, 0)
        to = np.int64(out.value_ends[h])
        copy_bytes(out.values, to, buf, at, size)
        out.value_ends[h + 1] = to + size
        at += size
