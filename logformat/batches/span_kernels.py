"""Kernels between record bytes (magic 2 encoding) and spans, and back to batches (FORMAT.md, "Records").

A span says where a record lies and what its varints say; keys, values and headers stay where they are. Bodies lie in
one of two uint8 arrays: the bytes of the file (uncompressed batches), or a scratch array (decompressed ones, and magic
0 and 1 after `legacy` has transcoded them).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.batches.header_kernels import write_header
from logformat.jit import inline, kernel
from logformat.layout import BATCH_OVERHEAD, CONTROL_MASK, TIMESTAMP_TYPE_MASK
from logformat.primitives.crc32c import crc32c_range
from logformat.primitives.memory_kernels import copy_bytes
from logformat.primitives.siphash_kernels import siphash128
from logformat.primitives.varint_kernels import read_varint, read_varlong, size_of_varlong, write_varlong

SPAN = np.dtype(
    [
        ("key_low", "u8"),  # SipHash of the key; 0 where the key is null, or hashes were not asked for
        ("key_high", "u8"),
        ("start", "i8"),  # of the record (its length varint) in its array
        ("rest", "i8"),  # of the key length: what is copied as it is when the deltas change
        ("end", "i8"),
        ("timestamp_delta", "i8"),
        ("offset_delta", "i4"),
        ("null_key", "?"),
        ("null_value", "?"),
    ],
    align=True,
)
MIN_RECORD_SIZE: Final = 7  # seven one-byte fields

# Where the body of each batch lies.
BODY = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("first_span", "i8"),  # row of its first record in the spans
        ("n_records", "i8"),
        ("base_offset", "i8"),  # what offset deltas are relative to
        ("base_timestamp", "i8"),  # what timestamp deltas are relative to
        ("in_scratch", "?"),
    ],
    align=True,
)

# status of decode_records
OK: Final = 0
BAD_VARINT: Final = 1
BAD_RECORD: Final = 2
BAD_COUNT: Final = 3
BAD_OFFSETS: Final = 4


@kernel
def decode_records(
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    k0: np.uint64,
    k1: np.uint64,
    hash_keys: bool,
    spans: np.ndarray,
) -> tuple[int, int, int]:
    """Spans of the records of the `wanted` batches.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n]; spans: SPAN[], rows first_span.. of each wanted batch are
    filled. Returns (status, batch row, position in its body's array).
    """
    for i in range(batches.shape[0]):
        if not wanted[i]:
            continue
        body = bodies[i]
        last_delta = batches[i].last_offset - body.base_offset
        control = batches[i].attributes & CONTROL_MASK != 0
        if body.in_scratch:
            status, where = _decode_batch(scratch, body, last_delta, k0, k1, hash_keys and not control, spans)
        else:
            status, where = _decode_batch(raw, body, last_delta, k0, k1, hash_keys and not control, spans)
        if status != OK:
            return status, i, where
    return OK, 0, 0


@inline
def _decode_batch(
    buf: np.ndarray, body: np.ndarray, last_delta: int, k0: np.uint64, k1: np.uint64, hash_keys: bool, spans: np.ndarray
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
            if hash_keys:
                low, high = siphash128(buf, after, after + key_length, k0, k1)
                span.key_low = low
                span.key_high = high
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


# What becomes of a batch.
DROPPED: Final = 0
COPIED: Final = 1  # all its bytes, as they are
REBUILT: Final = 2  # records encoded anew
EMPTIED: Final = 3  # its header alone

CLEANED = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),  # of the result: the delete horizon where its bit is set
        ("max_timestamp", "i8"),
        ("n_kept", "i4"),
        ("attributes", "i2"),  # of the result
        ("outcome", "i1"),
        ("tombstones", "i4"),  # kept ones
    ],
    align=True,
)


@kernel
def encode_bodies(
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    cleaned: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    out: np.ndarray,
    out_ends: np.ndarray,
) -> int:
    """Encode the kept records of the REBUILT batches, one body after the other, uncompressed.

    cleaned: CLEANED[n]; kept: bool[len(spans)]; out: uint8 with room for every kept record and 20 bytes more for each;
    out_ends: int64[n], end of each batch's body in `out` (equal to the end before it for the others).
    Returns the bytes written. (Timestamps: semantics §4.9; LogAppendTime records take the batch's maximum.)
    """
    position = 0
    for i in range(batches.shape[0]):
        if cleaned[i].outcome == REBUILT:
            if bodies[i].in_scratch:
                position = _encode_batch(scratch, bodies[i], cleaned[i], spans, kept, out, position)
            else:
                position = _encode_batch(raw, bodies[i], cleaned[i], spans, kept, out, position)
        out_ends[i] = position
    return position


@inline
def _encode_batch(
    buf: np.ndarray,
    body: np.ndarray,
    result: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    out: np.ndarray,
    position: int,
) -> int:
    append_time = result.attributes & TIMESTAMP_TYPE_MASK != 0
    for row in range(body.first_span, body.first_span + body.n_records):
        if not kept[row]:
            continue
        span = spans[row]
        timestamp = result.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
        timestamp_delta = timestamp - result.base_timestamp
        offset_delta = body.base_offset + span.offset_delta - result.base_offset
        rest = span.end - span.rest
        length = 1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + rest
        position = write_varlong(out, position, length)
        out[position] = 0
        position = write_varlong(out, position + 1, timestamp_delta)
        position = write_varlong(out, position, offset_delta)
        copy_bytes(out, position, buf, span.rest, rest)
        position += rest
    return position


@kernel
def digest_records(
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    which: np.ndarray,
) -> np.uint64:
    """A sum over the kept records (bool[len(spans)]) of the batches in `which` (bool[n]): of each its offset, timestamp
    and all bytes from the key on. Equal sums before and after a rewrite say that these are unchanged.
    """
    total = np.uint64(0)
    for i in range(batches.shape[0]):
        if not which[i]:
            continue
        body = bodies[i]
        append_time = batches[i].magic > 0 and batches[i].attributes & TIMESTAMP_TYPE_MASK != 0
        for row in range(body.first_span, body.first_span + body.n_records):
            if not kept[row]:
                continue
            span = spans[row]
            timestamp = batches[i].max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
            if body.in_scratch:
                crc = crc32c_range(scratch, span.rest, span.end)
            else:
                crc = crc32c_range(raw, span.rest, span.end)
            word = _mix(np.uint64(body.base_offset + span.offset_delta))
            word = _mix(word ^ np.uint64(timestamp))
            total += _mix(word ^ np.uint64(crc) ^ (np.uint64(span.end - span.rest) << np.uint64(32)))
    return total


@inline
def _mix(word: np.uint64) -> np.uint64:
    """Finaliser of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def assemble_batches(
    raw: np.ndarray,
    raw_position: int,
    batches: np.ndarray,
    cleaned: np.ndarray,
    payload: np.ndarray,
    payload_ends: np.ndarray,
    out: np.ndarray,
) -> int:
    """Write the surviving batches one after the other.

    raw: bytes of the file from `raw_position` on; payload: final (compressed) bodies of the REBUILT batches, ending at
    payload_ends[i]; out: uint8 with room for all. Returns the bytes written.
    """
    position = 0
    for i in range(batches.shape[0]):
        result = cleaned[i]
        if result.outcome == DROPPED:
            continue
        batch = batches[i]
        if result.outcome == COPIED:
            copy_bytes(out, position, raw, batch.position - raw_position, batch.size)
            position += batch.size
            continue
        payload_start = payload_ends[i - 1] if i > 0 else np.int64(0)
        n = payload_ends[i] - payload_start if result.outcome == REBUILT else np.int64(0)
        end = position + BATCH_OVERHEAD + n
        copy_bytes(out, position + BATCH_OVERHEAD, payload, payload_start, n)
        write_header(
            out, position, end, result.base_offset, result.last_offset, batch.partition_leader_epoch, result.attributes,
            result.base_timestamp, result.max_timestamp, batch.producer_id, batch.producer_epoch, batch.base_sequence,
            result.n_kept,
        )  # fmt: skip
        position = end
    return position
