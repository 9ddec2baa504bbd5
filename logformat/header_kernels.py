"""The header of a magic 2 batch, written by kernels: the one place that lays out its fields (layout.BATCH_HEADER)."""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.crc32c import crc32c_range
from logformat.jit import inline
from logformat.layout import BATCH_HEADER, CRC_START, LOG_OVERHEAD, MAGIC_OFFSET, field_offset
from logformat.memory_kernels import store_i16, store_i32, store_i64

_LENGTH: Final = field_offset(BATCH_HEADER, "length")
_EPOCH: Final = field_offset(BATCH_HEADER, "partition_leader_epoch")
_CRC: Final = field_offset(BATCH_HEADER, "crc")
_ATTRIBUTES: Final = field_offset(BATCH_HEADER, "attributes")
_LAST_DELTA: Final = field_offset(BATCH_HEADER, "last_offset_delta")
_BASE_TIMESTAMP: Final = field_offset(BATCH_HEADER, "base_timestamp")
_MAX_TIMESTAMP: Final = field_offset(BATCH_HEADER, "max_timestamp")
_PRODUCER_ID: Final = field_offset(BATCH_HEADER, "producer_id")
_PRODUCER_EPOCH: Final = field_offset(BATCH_HEADER, "producer_epoch")
_BASE_SEQUENCE: Final = field_offset(BATCH_HEADER, "base_sequence")
_COUNT: Final = field_offset(BATCH_HEADER, "records_count")


@inline
def write_header(
    out: np.ndarray,
    position: int,
    end: int,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
) -> None:
    """Write the 61 bytes at out[position]; out[position + 61:end] is the body, there already: the checksum covers it.

    out: uint8[::1]; the other arguments are integers of any width, stored in that of their field.
    """
    store_i64(out, position, base_offset)
    store_i32(out, position + _LENGTH, end - position - LOG_OVERHEAD)
    store_i32(out, position + _EPOCH, leader_epoch)
    out[position + MAGIC_OFFSET] = 2
    store_i16(out, position + _ATTRIBUTES, attributes)
    store_i32(out, position + _LAST_DELTA, last_offset - base_offset)
    store_i64(out, position + _BASE_TIMESTAMP, base_timestamp)
    store_i64(out, position + _MAX_TIMESTAMP, max_timestamp)
    store_i64(out, position + _PRODUCER_ID, producer_id)
    store_i16(out, position + _PRODUCER_EPOCH, producer_epoch)
    store_i32(out, position + _BASE_SEQUENCE, base_sequence)
    store_i32(out, position + _COUNT, records_count)
    store_i32(out, position + _CRC, np.int32(np.uint32(crc32c_range(out, position + CRC_START, end))))
