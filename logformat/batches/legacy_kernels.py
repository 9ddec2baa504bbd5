"""Kernels that rewrite messages of magic 0 and 1 as records of magic 2, so that one decoder serves all three.

A rewritten record's timestamp delta is relative to 0, so it is the timestamp itself; its offset delta is relative to
the first record of its batch. A record never takes more bytes than its message, prefix included.

Source: Kafka's AbstractLegacyRecordBatch and LegacyRecord (4.3.0). As there, an incomplete message at the end of a
wrapper's content is skipped, and so are bytes of a message after its value. Any negative length is null, and only the
outer checksum is checked.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MESSAGE_V0,
    MESSAGE_V1,
    MIN_LEGACY_SIZE,
    NO_TIMESTAMP,
    PREFIX,
    TIMESTAMP_TYPE_MASK,
    field_offset,
)
from lastkey.logformat.primitives.crc32 import crc32_kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes, load_i32, load_i64
from lastkey.logformat.primitives.varint_kernels import size_of_varlong, write_varlong

# status of the kernels
OK: Final = 0
BAD_SIZE: Final = 1  # an inner message is smaller than the smallest
BAD_MAGIC: Final = 2  # an inner message is neither of magic 0 nor of magic 1
NESTED: Final = 3  # an inner message is compressed
BAD_FIELD: Final = 4  # a key or value runs past its message
EMPTY: Final = 5  # no inner message
BAD_WRAPPER_OFFSET: Final = 6  # magic 1: not 0, and below the last inner offset
BAD_OFFSET: Final = 7  # an inner offset below 0, or too far from the first for an offset delta

_SIZE: Final = field_offset(PREFIX, "length")
_ATTRIBUTES: Final = LOG_OVERHEAD + field_offset(MESSAGE_V0, "attributes")
_TIMESTAMP: Final = LOG_OVERHEAD + field_offset(MESSAGE_V1, "timestamp")
_KEY_V0: Final = LOG_OVERHEAD + MESSAGE_V0.itemsize
_KEY_V1: Final = LOG_OVERHEAD + MESSAGE_V1.itemsize
_MAX_DELTA: Final = 2**31 - 1


@inline
def _write_record(
    src: NDArray[np.uint8], key: int, end: int, timestamp: int, offset_delta: int, out: NDArray[np.uint8], at: int
) -> int:
    """Write the message whose key length is at src[key] and that ends at `end`; return the position after it, or -1 for
    BAD_FIELD.
    """
    if key + 4 > end:
        return -1
    key_length: int = max(load_i32(src, key), -1)
    key += 4
    key_end = key + max(key_length, 0)
    if key_end + 4 > end:
        return -1
    value_length: int = max(load_i32(src, key_end), -1)
    value = key_end + 4
    value_end = value + max(value_length, 0)
    if value_end > end:
        return -1
    length = 2 + size_of_varlong(timestamp) + size_of_varlong(offset_delta)  # 2: attributes, and the header count
    length += size_of_varlong(key_length) + key_end - key + size_of_varlong(value_length) + value_end - value
    at = write_varlong(out, at, length)
    out[at] = 0
    at = write_varlong(out, at + 1, timestamp)
    at = write_varlong(out, at, offset_delta)
    at = write_varlong(out, at, key_length)
    copy_bytes(out, at, src, key, key_end - key)
    at = write_varlong(out, at + key_end - key, value_length)
    copy_bytes(out, at, src, value, value_end - value)
    at += value_end - value
    out[at] = 0
    return at + 1


@kernel
def transcode_messages(
    src: NDArray[np.uint8],
    start: int,
    end: int,
    wrapper_magic: int,
    wrapper_offset: int,
    wrapper_timestamp: int,
    wrapper_attributes: int,
    out: NDArray[np.uint8],
    out_at: int,
) -> tuple[int, int, int, int, int, int, int]:
    """Write the inner messages in src[start:end], a wrapper's decompressed value, as records.

    src, out: uint8[::1], not the same memory; out has end - start bytes from out_at on; wrapper_*: of the wrapper
    (offset, timestamp: int64; attributes: bits as in layout). Offsets: a wrapper of magic 0 holds absolute ones; a
    wrapper of magic 1 has relative offsets, and the last one is wrapper_offset, but wrapper_offset 0 means base 0.
    Timestamps: -1 for an inner message of magic 0 (also in a wrapper of magic 1, KAFKA-4298); the wrapper's if it has
    magic 1 and LogAppendTime; else the message's own.

    Returns (status, bytes written, records, offset of the first record, offset of the last, greatest timestamp,
    position in src of the message in error).
    """
    log_append_time = wrapper_magic == 1 and wrapper_attributes & TIMESTAMP_TYPE_MASK != 0
    at = out_at
    n = 0
    first = last = 0
    max_timestamp = NO_TIMESTAMP
    pos = start
    while end - pos >= LOG_OVERHEAD:
        offset: int = load_i64(src, pos)
        size: int = load_i32(src, pos + _SIZE)
        if size < MIN_LEGACY_SIZE:
            return BAD_SIZE, 0, 0, 0, 0, 0, pos
        if size > end - pos - LOG_OVERHEAD:
            break
        if n == 0:
            first = offset
        delta = offset - first
        if offset < 0:  # else the delta, and numbers made of it, could wrap around
            return BAD_OFFSET, 0, 0, 0, 0, 0, pos
        if delta > _MAX_DELTA or delta < -_MAX_DELTA - 1:
            return BAD_OFFSET, 0, 0, 0, 0, 0, pos
        magic = src[pos + MAGIC_OFFSET]
        if magic > 1:
            return BAD_MAGIC, 0, 0, 0, 0, 0, pos
        if src[pos + _ATTRIBUTES] & CODEC_MASK != 0:
            return NESTED, 0, 0, 0, 0, 0, pos
        timestamp: int = NO_TIMESTAMP
        key = pos + _KEY_V0
        if magic == 1:
            key = pos + _KEY_V1
            if size >= MIN_LEGACY_SIZE + 8:  # otherwise the message is too short for a key length
                timestamp = wrapper_timestamp if log_append_time else load_i64(src, pos + _TIMESTAMP)
        at = _write_record(src, key, pos + LOG_OVERHEAD + size, timestamp, delta, out, at)
        if at < 0:
            return BAD_FIELD, 0, 0, 0, 0, 0, pos
        last = offset
        max_timestamp = timestamp if n == 0 else max(max_timestamp, timestamp)
        n += 1
        pos += LOG_OVERHEAD + size
    if n == 0:
        return EMPTY, 0, 0, 0, 0, 0, start
    base = 0
    if wrapper_magic == 1 and wrapper_offset != 0:
        if wrapper_offset < last:
            return BAD_WRAPPER_OFFSET, 0, 0, 0, 0, 0, start
        base = wrapper_offset - last
    return OK, at - out_at, n, base + first, base + last, max_timestamp, 0


@kernel
def transcode_plain(
    src: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_at: int,
    out_starts: NDArray[np.int64],
    out_ends: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Write uncompressed messages, each a batch of its own, as records.

    src, out: uint8[::1], not the same memory; positions, sizes: int64[n], of each message in src, prefix included,
    whose prefix and magic have been checked; out has sum(sizes) bytes from out_at on; out_starts, out_ends: int64[n],
    written. Returns (status OK or BAD_FIELD, row in error, position in `out` after the last record).
    """
    at = out_at
    for i in range(positions.shape[0]):
        pos = positions[i]
        out_starts[i] = at
        timestamp: int = NO_TIMESTAMP
        key = pos + _KEY_V0
        if src[pos + MAGIC_OFFSET] == 1:
            key = pos + _KEY_V1
            if sizes[i] >= key - pos:
                timestamp = load_i64(src, pos + _TIMESTAMP)
        at = _write_record(src, key, pos + sizes[i], timestamp, 0, out, at)
        if at < 0:
            return BAD_FIELD, i, 0
        out_ends[i] = at
    return OK, 0, at


@kernel
def message_checksums(src: NDArray[np.uint8], end: int, crc: NDArray[np.uint32], valid: NDArray[np.bool_]) -> None:
    """Read the stored checksum of each of the n messages in src[:end], and compare it with the message's bytes.

    src: uint8[::1], messages that transcode_messages has accepted; crc: uint32[n], valid: bool[n], written.
    """
    position = 0
    for i in range(crc.shape[0]):
        after = position + LOG_OVERHEAD + load_i32(src, position + _SIZE)
        stored = np.int64(load_i32(src, position + LOG_OVERHEAD)) & 0xFFFFFFFF
        crc[i] = stored
        valid[i] = np.int64(crc32_kernel(src, position + MAGIC_OFFSET, after)) == stored
        position = after
