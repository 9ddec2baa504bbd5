"""Kernel that writes the header of a magic 2 batch: the one place that lays out its fields (layout.BATCH_HEADER)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import inline
from lastkey.logformat.layout import BATCH_HEADER, CRC_START, LOG_OVERHEAD, MAGIC_OFFSET, field_offset
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.primitives.memory_kernels import store_i16, store_i32, store_i64

LENGTH_OFFSET: Final = field_offset(BATCH_HEADER, "length")
EPOCH_OFFSET: Final = field_offset(BATCH_HEADER, "partition_leader_epoch")
CRC_OFFSET: Final = field_offset(BATCH_HEADER, "crc")
ATTRIBUTES_OFFSET: Final = field_offset(BATCH_HEADER, "attributes")
LAST_DELTA_OFFSET: Final = field_offset(BATCH_HEADER, "last_offset_delta")
BASE_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "base_timestamp")
MAX_TIMESTAMP_OFFSET: Final = field_offset(BATCH_HEADER, "max_timestamp")
PRODUCER_ID_OFFSET: Final = field_offset(BATCH_HEADER, "producer_id")
PRODUCER_EPOCH_OFFSET: Final = field_offset(BATCH_HEADER, "producer_epoch")
BASE_SEQUENCE_OFFSET: Final = field_offset(BATCH_HEADER, "base_sequence")
COUNT_OFFSET: Final = field_offset(BATCH_HEADER, "records_count")


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
    """Write the 61 bytes at out[position]; the body is already in out[position + 61:end], and the checksum covers it.

    out: uint8[::1]; the other arguments are integers of any width, stored in the width of their field.
    """
    store_i64(out, position, base_offset)
    store_i32(out, position + LENGTH_OFFSET, end - position - LOG_OVERHEAD)
    store_i32(out, position + EPOCH_OFFSET, leader_epoch)
    out[position + MAGIC_OFFSET] = 2
    store_i16(out, position + ATTRIBUTES_OFFSET, attributes)
    store_i32(out, position + LAST_DELTA_OFFSET, last_offset - base_offset)
    store_i64(out, position + BASE_TIMESTAMP_OFFSET, base_timestamp)
    store_i64(out, position + MAX_TIMESTAMP_OFFSET, max_timestamp)
    store_i64(out, position + PRODUCER_ID_OFFSET, producer_id)
    store_i16(out, position + PRODUCER_EPOCH_OFFSET, producer_epoch)
    store_i32(out, position + BASE_SEQUENCE_OFFSET, base_sequence)
    store_i32(out, position + COUNT_OFFSET, records_count)
    store_i32(out, position + CRC_OFFSET, np.int32(np.uint32(crc32c_range(out, position + CRC_START, end))))
