"""Kernel from record bytes (magic 2 encoding) to spans (FORMAT.md, "Records").

A span holds a record's place and the numbers in its varints; keys, values and headers stay in their array. Bodies are
in one of two uint8 arrays: the bytes of the file (uncompressed batches), or a scratch array (decompressed ones, and
magic 0 and 1 after `legacy` has transcoded them).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.siphash_kernels import LANES, siphash128, siphash128_lanes
from lastkey.logformat.primitives.varint_kernels import read_varint, read_varlong

SPAN = np.dtype(
    [
        ("key_low", "u8"),  # SipHash of the key; 0 if the key is null, or hashes are off
        ("key_high", "u8"),
        ("start", "i8"),  # start of the record (its length varint) in its array
        ("rest", "i8"),  # position of the key length; bytes from here on stay when the deltas change
        ("end", "i8"),
        ("timestamp_delta", "i8"),
        ("offset_delta", "i4"),
        ("null_key", "?"),
        ("null_value", "?"),
    ],
    align=True,
)
MIN_RECORD_SIZE: Final = 7  # seven one-byte fields

# Kinds of keys, by their number of complete eight-byte words; keys of a kind wait until LANES can be hashed at once
_KINDS: Final = 8
_ROW, _START, _END = range(3)  # fields of a waiting key

# The place of each batch's body.
BODY = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("first_span", "i8"),  # row of its first record in the spans
        ("n_records", "i8"),
        ("base_offset", "i8"),  # offset deltas are relative to it
        ("base_timestamp", "i8"),  # timestamp deltas are relative to it
        ("in_scratch", "?"),
    ],
    align=True,
)


class Run(NamedTuple):
    """Consecutive batches with the spans of the wanted ones, as kernels take them. The arrays are valid until the next
    run is made.
    """

    first: int  # row of batches[0] among the caller's batches
    batches: np.ndarray  # BATCH[n]
    wanted: np.ndarray  # bool[n]
    bodies: np.ndarray  # BODY[n]; unwanted ones have only base_offset
    spans: np.ndarray  # SPAN[records of the wanted batches]
    raw: np.ndarray  # uint8, the bytes of the file
    scratch: np.ndarray  # uint8, decompressed and transcoded bodies


# status of decode_records
OK: Final = 0
BAD_VARINT: Final = 1
BAD_RECORD: Final = 2
BAD_COUNT: Final = 3
BAD_OFFSETS: Final = 4


def room_for_keys() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrays in which `decode_records` lets keys wait; the caller has them, because a kernel that makes arrays
    is loaded with a large part of numba's compiler.
    """
    return np.empty((_KINDS, 3, LANES), np.int64), np.empty(_KINDS, np.int64), np.empty(5 * LANES, np.uint64)


@kernel
def decode_records(
    run: Run, k0: np.uint64, k1: np.uint64, hash_keys: bool, room: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[int, int, int]:
    """Decode the records of the wanted batches of a run into its spans: rows from first_span on of each.

    room: of `room_for_keys`, with anything in it. Returns (status, batch row, position in its body's array).
    """
    raw, scratch, batches, bodies, spans = run.raw, run.scratch, run.batches, run.bodies, run.spans
    waiting, counts, lanes = room
    for kind in range(_KINDS):
        counts[kind] = 0
    wait_in_scratch = False
    for i in range(batches.shape[0]):
        if not run.wanted[i]:
            continue
        body = bodies[i]
        last_delta = batches[i].last_offset - body.base_offset
        hashed = hash_keys and batches[i].attributes & CONTROL_MASK == 0
        if body.in_scratch != wait_in_scratch:
            _hash_waiting(run, wait_in_scratch, k0, k1, waiting, counts)
            wait_in_scratch = body.in_scratch
        if body.in_scratch:
            status, where = _decode_batch(scratch, body, last_delta, k0, k1, hashed, waiting, counts, lanes, spans)
        else:
            status, where = _decode_batch(raw, body, last_delta, k0, k1, hashed, waiting, counts, lanes, spans)
        if status != OK:
            return status, i, where
    _hash_waiting(run, wait_in_scratch, k0, k1, waiting, counts)
    return OK, 0, 0


@kernel
def _hash_waiting(
    run: Run, in_scratch: bool, k0: np.uint64, k1: np.uint64, waiting: np.ndarray, counts: np.ndarray
) -> None:
    """Hash the keys that wait, fewer than LANES of a kind, one by one."""
    raw, scratch = run.raw, run.scratch
    for kind in range(_KINDS):
        for j in range(counts[kind]):
            start, end = waiting[kind, _START, j], waiting[kind, _END, j]
            low, high = siphash128(scratch, start, end, k0, k1) if in_scratch else siphash128(raw, start, end, k0, k1)
            span = run.spans[waiting[kind, _ROW, j]]
            span.key_low = low
            span.key_high = high
        counts[kind] = 0


@kernel
def _hash_lanes(
    buf: np.ndarray, k0: np.uint64, k1: np.uint64, waiting: np.ndarray, lanes: np.ndarray, spans: np.ndarray
) -> None:
    siphash128_lanes(buf, waiting[_START], waiting[_END], k0, k1, lanes)
    for j in range(LANES):
        span = spans[waiting[_ROW, j]]
        span.key_low = lanes[j]
        span.key_high = lanes[LANES + j]


@inline
def _decode_batch(
    buf: np.ndarray,
    body: np.ndarray,
    last_delta: int,
    k0: np.uint64,
    k1: np.uint64,
    hash_keys: bool,
    waiting: np.ndarray,
    counts: np.ndarray,
    lanes: np.ndarray,
    spans: np.ndarray,
) -> tuple[int, int]:
    position = body.start
    limit = body.end
    previous = np.int64(-1)
    for row in range(body.first_span, body.first_span + body.n_records):
        span = spans[row]
        span.start = position
        length, after = read_varint(buf, position, limit)
        if after < 0:
            return BAD_COUNT if position == limit else BAD_VARINT, position
        end = after + length
        if length < MIN_RECORD_SIZE - 1 or end > limit:
            return BAD_RECORD, position
        timestamp_delta, after = read_varlong(buf, after + 1, end)
        if after < 0:
            return BAD_VARINT, position
        offset_delta, after = read_varint(buf, after, end)
        if after < 0:
            return BAD_VARINT, position
        if offset_delta <= previous or offset_delta > last_delta:
            return BAD_OFFSETS, position
        previous = np.int64(offset_delta)
        span.timestamp_delta = timestamp_delta
        span.offset_delta = offset_delta
        span.rest = after
        key_length, after = read_varint(buf, after, end)
        if after < 0:
            return BAD_VARINT, position
        span.null_key = key_length < 0
        span.key_low = np.uint64(0)
        span.key_high = np.uint64(0)
        if key_length >= 0:
            if after + key_length > end:
                return BAD_RECORD, position
            kind = key_length >> 3
            if hash_keys and kind >= _KINDS:
                low, high = siphash128(buf, after, after + key_length, k0, k1)
                span.key_low = low
                span.key_high = high
            elif hash_keys:
                j = counts[kind]
                waiting[kind, _ROW, j] = row
                waiting[kind, _START, j] = after
                waiting[kind, _END, j] = after + key_length
                counts[kind] = j + 1
                if j + 1 == LANES:
                    _hash_lanes(buf, k0, k1, waiting[kind], lanes, spans)
                    counts[kind] = 0
            after += key_length
        value_length, after = read_varint(buf, after, end)
        if after < 0:
            return BAD_VARINT, position
        span.null_value = value_length < 0
        if value_length > 0:
            after += value_length
        n_headers, after = read_varint(buf, after, end)
        if after < 0:
            return BAD_VARINT, position
        if n_headers < 0 or n_headers > end - after:
            return BAD_RECORD, position
        for _ in range(n_headers):
            size, after = read_varint(buf, after, end)
            if after < 0 or size < 0:
                return BAD_RECORD, position
            size, after = read_varint(buf, after + size, end)
            if after < 0:
                return BAD_RECORD, position
            if size > 0:
                after += size
        if after != end:
            return BAD_RECORD, position
        span.end = end
        position = end
    if position != limit:
        return BAD_COUNT, position
    return OK, 0
