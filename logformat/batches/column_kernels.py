"""Kernels from spans to Arrow buffers: find keys, values and headers of decoded records, and copy them (`columns`).

The kernels check nothing, because decode_records has checked that every length fits its record. Records of a run lie in
one of two uint8 arrays, as `span_kernels` says; `body_row` gives the row of each record's body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import read_varint


@kernel
def locate_fields(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    body_row: np.ndarray,
    spans: np.ndarray,
    want_headers: bool,
    key_at: np.ndarray,
    key_ends: np.ndarray,
    value_at: np.ndarray,
    value_ends: np.ndarray,
    header_at: np.ndarray,
    header_ends: np.ndarray,
) -> tuple[int, int]:
    """Find the fields of n records, and compute their places in Arrow's buffers.

    bodies: BODY[]; body_row: int64[n]; spans: SPAN[n]; key_at, value_at, header_at: int64[n], written: first byte of
    the key, of the value, and behind the header count; *_ends: int32[n + 1], written: Arrow's offsets, [0] is 0, for
    headers counted in headers. Returns the bytes of all header keys and of all header values (0, 0 if not wanted).
    """
    key_ends[0] = 0
    value_ends[0] = 0
    header_ends[0] = 0
    key_bytes = 0
    value_bytes = 0
    for i in range(spans.shape[0]):
        if bodies[body_row[i]].in_scratch:
            sizes = _locate(
                scratch, spans[i], i, want_headers, key_at, key_ends, value_at, value_ends, header_at, header_ends
            )
        else:
            sizes = _locate(
                raw, spans[i], i, want_headers, key_at, key_ends, value_at, value_ends, header_at, header_ends
            )
        key_bytes += sizes[0]
        value_bytes += sizes[1]
    return key_bytes, value_bytes


@inline
def _locate(
    buf: np.ndarray,
    span: Any,
    i: int,
    want_headers: bool,
    key_at: np.ndarray,
    key_ends: np.ndarray,
    value_at: np.ndarray,
    value_ends: np.ndarray,
    header_at: np.ndarray,
    header_ends: np.ndarray,
) -> tuple[int, int]:
    end = span.end
    size, at = read_varint(buf, span.rest, end)
    size = max(size, 0)
    key_at[i] = at
    key_ends[i + 1] = key_ends[i] + size
    size, at = read_varint(buf, at + size, end)
    size = max(size, 0)
    value_at[i] = at
    value_ends[i + 1] = value_ends[i] + size
    count, at = read_varint(buf, at + size, end)
    header_at[i] = at
    header_ends[i + 1] = header_ends[i] + count
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
def copy_fields(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    body_row: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    out: np.ndarray,
) -> None:
    """Copy the bytes of one field of n records, one after the other.

    starts: int64[n], a *_at of locate_fields; ends: int32[n + 1], its *_ends; out: uint8[ends[n]], written.
    """
    for i in range(starts.shape[0]):
        size = np.int64(ends[i + 1] - ends[i])
        if bodies[body_row[i]].in_scratch:
            copy_bytes(out, np.int64(ends[i]), scratch, starts[i], size)
        else:
            copy_bytes(out, np.int64(ends[i]), raw, starts[i], size)


@kernel
def copy_headers(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    body_row: np.ndarray,
    spans: np.ndarray,
    header_at: np.ndarray,
    header_ends: np.ndarray,
    key_ends: np.ndarray,
    value_ends: np.ndarray,
    null_value: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
) -> bool:
    """Copy the h headers of n records; return whether a key has a byte above 127.

    header_at, header_ends: of locate_fields; key_ends, value_ends: int32[h + 1], null_value: bool[h], keys, values:
    uint8 of the sizes that locate_fields returned; all five written.
    """
    key_ends[0] = 0
    value_ends[0] = 0
    high = np.uint8(0)
    for i in range(spans.shape[0]):
        first = header_ends[i]
        last = header_ends[i + 1]
        if bodies[body_row[i]].in_scratch:
            high |= _copy_record_headers(
                scratch, header_at[i], spans[i].end, first, last, key_ends, value_ends, null_value, keys, values
            )
        else:
            high |= _copy_record_headers(
                raw, header_at[i], spans[i].end, first, last, key_ends, value_ends, null_value, keys, values
            )
    return bool(high >= 0x80)


@inline
def _copy_record_headers(
    buf: np.ndarray,
    at: int,
    end: int,
    first: int,
    last: int,
    key_ends: np.ndarray,
    value_ends: np.ndarray,
    null_value: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
) -> np.uint8:
    high = np.uint8(0)
    for h in range(first, last):
        size, at = read_varint(buf, at, end)
        to = np.int64(key_ends[h])
        for j in range(size):
            keys[to + j] = buf[at + j]
            high |= buf[at + j]
        key_ends[h + 1] = to + size
        size, at = read_varint(buf, at + size, end)
        null_value[h] = size < 0
        size = max(size, 0)
        to = np.int64(value_ends[h])
        copy_bytes(values, to, buf, at, size)
        value_ends[h + 1] = to + size
        at += size
    return high
