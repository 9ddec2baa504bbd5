"""Kernels that write the header of a batch, the one place that lays out its fields (layout.BATCH_HEADER), and read the
record of a control batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import (
    BATCH_HEADER,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    field_offset,
)
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.primitives.memory_kernels import load_i16, load_i32, store_i16, store_i32, store_i64
from lastkey.logformat.primitives.varint_kernels import read_varint

LENGTH_OFFSET: Final = field_offset(BATCH_HEADER, "length")
EPOCH_OFFSET: Final = field_offset(BATCH_HEADER, "partition_leader_epoch")
CRC_OFFSET: Final = field_offset(BATCH_HEADER, "crc")
ATTRIBUTES_OFFSET: Final = field_offset(BATCH_HEADER, "attributes")
LAST_DELTA_OFFSET: Final = field_offset(BATCH_HEADER, "last_offset_delta")
BASE_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "base_timestamp")
MAX_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "max_timestamp")
PRODUCER_OFFSET: Final = field_offset(BATCH_HEADER, "producer_id")
PRODUCER_EPOCH_OFFSET: Final = field_offset(BATCH_HEADER, "producer_epoch")
BASE_SEQUENCE_OFFSET: Final = field_offset(BATCH_HEADER, "base_sequence")
COUNT_OFFSET: Final = field_offset(BATCH_HEADER, "records_count")


@inline
def write_header(out: np.ndarray, position: int, end: int, batch: Any, origin: Any, records_count: int) -> None:
    """Write the 61 bytes at out[position]; the body is already in out[position + 61:end], and the checksum covers it.

    out: uint8[::1]; batch: a row with offsets, timestamps and attributes; origin: a row with the leader epoch and the
    fields of the producer, of BATCH. Integers of any width are stored in the width of their field.
    """
    store_i64(out, position, batch.base_offset)
    store_i32(out, position + LENGTH_OFFSET, end - position - LOG_OVERHEAD)
    store_i32(out, position + EPOCH_OFFSET, origin.partition_leader_epoch)
    out[position + MAGIC_OFFSET] = 2
    store_i16(out, position + ATTRIBUTES_OFFSET, batch.attributes)
    store_i32(out, position + LAST_DELTA_OFFSET, batch.last_offset - batch.base_offset)
    store_i64(out, position + BASE_TIMESTAMP_OFFSET, batch.base_timestamp)
    store_i64(out, position + MAX_TIMESTAMP_OFFSET, batch.max_timestamp)
    store_i64(out, position + PRODUCER_OFFSET, origin.producer_id)
    store_i16(out, position + PRODUCER_EPOCH_OFFSET, origin.producer_epoch)
    store_i32(out, position + BASE_SEQUENCE_OFFSET, origin.base_sequence)
    store_i32(out, position + COUNT_OFFSET, records_count)
    store_i32(out, position + CRC_OFFSET, np.int32(np.uint32(crc32c_range(out, position + CRC_START, end))))


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
