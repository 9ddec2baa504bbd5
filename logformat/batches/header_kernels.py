"""Kernels that write the headers of magic 2 and 3: the one place that lays out their fields (layout.BATCH_HEADER);
and one that reads the record of a control batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import (
    BATCH_HEADER,
    BATCH_HEADER_V3,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    V3_FIXED,
    field_offset,
)
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.primitives.memory_kernels import load_i16, load_i32, store_i16, store_i32, store_i64
from lastkey.logformat.primitives.varint_kernels import read_varint, read_varlong, size_of_varlong, write_varlong

LENGTH_OFFSET: Final = field_offset(BATCH_HEADER, "length")
EPOCH_OFFSET: Final = field_offset(BATCH_HEADER, "partition_leader_epoch")
CRC_OFFSET: Final = field_offset(BATCH_HEADER, "crc")
ATTRIBUTES_OFFSET: Final = field_offset(BATCH_HEADER, "attributes")
LAST_DELTA_OFFSET: Final = field_offset(BATCH_HEADER, "last_offset_delta")
BASE_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "base_timestamp")
MAX_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "max_timestamp")
# From the producer's id to the number of records both headers have the same fields
PRODUCER_OFFSET: Final = field_offset(BATCH_HEADER, "producer_id")
PRODUCER_OFFSET_V3: Final = field_offset(BATCH_HEADER_V3, "producer_id")
PRODUCER_EPOCH: Final = field_offset(BATCH_HEADER, "producer_epoch") - PRODUCER_OFFSET
BASE_SEQUENCE: Final = field_offset(BATCH_HEADER, "base_sequence") - PRODUCER_OFFSET
COUNT: Final = field_offset(BATCH_HEADER, "records_count") - PRODUCER_OFFSET
COUNT_OFFSET: Final = PRODUCER_OFFSET + COUNT
COUNT_OFFSET_V3: Final = PRODUCER_OFFSET_V3 + COUNT
CRC_INVERTED: Final = 0xFFFFFFFF  # magic 3: no checksum covers the magic, so the other format must not fit its own


@inline
def _write_start(out: np.ndarray, position: int, end: int, batch: Any, magic: int, attributes: int) -> None:
    store_i64(out, position, batch.base_offset)
    store_i32(out, position + LENGTH_OFFSET, end - position - LOG_OVERHEAD)
    out[position + MAGIC_OFFSET] = magic
    store_i16(out, position + ATTRIBUTES_OFFSET, attributes)


@inline
def _write_producer(out: np.ndarray, position: int, at: int, origin: Any, records_count: int) -> None:
    store_i32(out, position + EPOCH_OFFSET, origin.partition_leader_epoch)
    store_i64(out, at, origin.producer_id)
    store_i16(out, at + PRODUCER_EPOCH, origin.producer_epoch)
    store_i32(out, at + BASE_SEQUENCE, origin.base_sequence)
    store_i32(out, at + COUNT, records_count)


@inline
def write_header(out: np.ndarray, position: int, end: int, batch: Any, origin: Any, records_count: int) -> None:
    """Write the 61 bytes at out[position]; the body is already in out[position + 61:end], and the checksum covers it.

    out: uint8[::1]; batch: a row with offsets, timestamps and attributes; origin: a row with the leader epoch and the
    fields of the producer, of BATCH. Integers of any width are stored in the width of their field.
    """
    _write_start(out, position, end, batch, 2, batch.attributes)
    store_i32(out, position + LAST_DELTA_OFFSET, batch.last_offset - batch.base_offset)
    store_i64(out, position + BASE_TIMESTAMP_OFFSET, batch.base_timestamp)
    store_i64(out, position + MAX_TIMESTAMP_OFFSET, batch.max_timestamp)
    _write_producer(out, position, position + PRODUCER_OFFSET, origin, records_count)
    store_i32(out, position + CRC_OFFSET, np.int32(np.uint32(crc32c_range(out, position + CRC_START, end))))


@inline
def read_trail(buf: np.ndarray, position: int, end: int) -> tuple[int, int, int, int, int]:
    """Read the trail of a magic 3 header at buf[position].

    Returns (last offset delta, base timestamp, largest timestamp, first section, position after it). If a number is too
    long or runs past `end`, the position is -1 and the others are 0. first section: its bytes as stored; ~bytes: not
    compressed.
    """
    last_delta, after = read_varint(buf, position, end)
    if after < 0:
        return 0, 0, 0, 0, -1
    base_timestamp, after = read_varlong(buf, after, end)
    if after < 0:
        return 0, 0, 0, 0, -1
    max_delta, after = read_varlong(buf, after, end)
    if after < 0:
        return 0, 0, 0, 0, -1
    first_section, after = read_varint(buf, after, end)
    if after < 0:
        return 0, 0, 0, 0, -1
    # The difference wraps around, so that any two timestamps come back.
    return last_delta, base_timestamp, base_timestamp + max_delta, first_section, after


@kernel
def trail_v3(buf: np.ndarray, at: int, end: int) -> tuple[int, int, bool]:
    """Return the last offset delta and the largest timestamp of the magic 3 batch at buf[at]; and whether its header is
    whole.
    """
    last_delta, _, max_timestamp, _, after = read_trail(buf, at + V3_FIXED, end)
    return last_delta, max_timestamp, after >= 0


@inline
def size_of_header_v3(last_delta: int, base_timestamp: int, max_timestamp: int, first_section: int) -> int:
    """Return the bytes of a magic 3 header."""
    size = V3_FIXED + size_of_varlong(last_delta) + size_of_varlong(base_timestamp)
    return size + size_of_varlong(max_timestamp - base_timestamp) + size_of_varlong(first_section)


@inline
def write_header_v3(out: np.ndarray, position: int, end: int, batch: Any, attributes: int, first_section: int) -> None:
    """Write a header of magic 3 at out[position]; the sections are already after it, up to out[end].

    batch: a BATCH row, whose attributes are `attributes`; first_section: as in `read_trail`.
    """
    _write_start(out, position, end, batch, 3, attributes)
    _write_producer(out, position, position + PRODUCER_OFFSET_V3, batch, batch.records_count)
    at = write_varlong(out, position + V3_FIXED, batch.last_offset - batch.base_offset)
    at = write_varlong(out, at, batch.base_timestamp)
    at = write_varlong(out, at, batch.max_timestamp - batch.base_timestamp)
    write_varlong(out, at, first_section)
    crc = np.int64(crc32c_range(out, position + CRC_START, end)) ^ CRC_INVERTED
    store_i32(out, position + CRC_OFFSET, np.int32(np.uint32(crc)))


@kernel
def control_record(buf: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Read (type, coordinator epoch) of the one record of a control batch; (-1, -1) if it is not valid.

    The key is i16 version and i16 type; the value of ABORT and COMMIT is i16 version and i32 coordinator epoch
    (FORMAT.md, "Records").
    """
    length, position = read_varint(buf, start, end)
    if position < 0 or length < 0 or position + length > end:
        return -1, -1
    end = position + length
    position += 1  # attributes
    while position < end and buf[position] & 0x80:  # timestamp delta
        position += 1
    position += 1
    _, position = read_varint(buf, position, end)  # offset delta
    if position < 0:
        return -1, -1
    key_length, position = read_varint(buf, position, end)
    if position < 0 or key_length < 4 or position + key_length > end or load_i16(buf, position) < 0:
        return -1, -1
    kind: int = load_i16(buf, position + 2)
    if kind < 0:
        kind = 127  # unknown to Kafka too, so ignored
    position += key_length
    value_length, position = read_varint(buf, position, end)
    if kind > 1:
        return kind, -1
    if position < 0 or value_length < 6 or position + value_length > end:
        return -1, -1
    return kind, load_i32(buf, position + 2)
