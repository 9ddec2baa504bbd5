"""Kernel that walks batch headers of all magics (FORMAT.md, "Batches").

Difference from Kafka: this walk checks CRCs and the order of offsets before anything is decided or copied; Kafka's
cleaner checks neither.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.header_kernels import (
    ATTRIBUTES_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP_OFFSET,
    COUNT,
    CRC_INVERTED,
    CRC_OFFSET,
    EPOCH_OFFSET,
    LAST_DELTA_OFFSET,
    MAX_TIMESTAMP_OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_OFFSET,
    PRODUCER_OFFSET_V3,
    control_record,
    read_trail,
)
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CODEC_ZSTD,
    CONTROL_MASK,
    CRC_START,
    END_TXN_MARKER_SIZE,
    IGNORE_ATTRIBUTES_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAX_LAST_OFFSET,
    MAX_MAGIC,
    MIN_LEGACY_SIZE,
    TIMESTAMP_TYPE_MASK,
    V3_FIXED,
    V3_SMALLEST,
)
from lastkey.logformat.primitives.crc32 import crc32_kernel
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.primitives.memory_kernels import load_i16, load_i32, load_i64

CHECK_ALL: Final = 1  # for check_crc, the same as True
CHECK_MARKERS: Final = 2  # for check_crc: only control batches, and batches that have the size of a marker
# status of a walk
FRAMED: Final = -1  # status of a batch: intact
MORE: Final = 0  # stopped before an incomplete batch, or at the end, or `out` is full
BAD_LENGTH: Final = 1
BAD_MAGIC: Final = 2
BAD_CRC: Final = 3
BAD_CODEC: Final = 4
BAD_COUNT: Final = 5
BAD_OFFSETS: Final = 6
BAD_CONTROL: Final = 7
REACHED_END: Final = 8  # the next batch ends at or above `end_offset`
BAD_LAST_OFFSET: Final = 10  # the batch ends above layout.MAX_LAST_OFFSET (9: pread_kernels.SHORT_READ)
IS_V3: Final = -2  # status of a batch: `_read_v3` reads it
BAD_TRAIL: Final = 11  # magic 3: a number in the header's trail that is too long, or runs past the batch
BAD_SECTION: Final = 12  # magic 3: a first section that does not fit the batch, or is stored plain without a codec


def walk_batches(
    buf: np.ndarray,
    length: int,
    file_position: int,
    previous_last_offset: int,
    end_offset: int,
    check_crc: int,
    out: np.ndarray,
) -> tuple[int, int, int, int, int]:
    """Walk the headers of the whole batches in `buf[:length]`.

    buf: uint8; file_position: of buf[0]; previous_last_offset: offsets must rise above it; end_offset: stop before the
    first batch whose last offset reaches it; check_crc: of all batches (true), none (false), or CHECK_MARKERS; out:
    BATCH[capacity], written.
    Returns (n, consumed bytes, status, expected, found); for a bad batch, `consumed` is its start.
    """
    given = file_position, end_offset, int(check_crc)  # for a bool numba would compile and load the kernels once more
    n, position, previous, status, expected, found = _walk_kafka(buf, 0, length, 0, previous_last_offset, given, out)
    if status == IS_V3:
        n, position, status, expected, found = _walk_any(buf, position, length, n, previous, given, out)
    return n, position, status, expected, found


@kernel
def _walk_kafka(
    buf: np.ndarray, position: int, length: int, n: int, previous: int, given: tuple[int, int, int], out: np.ndarray
) -> tuple[int, int, int, int, int, int]:
    """Walk from buf[position] and row n on, up to the first batch of magic 3: a kernel without the code for those,
    which alone would make it slower, because it needs the registers.

    given: file_position, end_offset and check_crc. Returns (n, position, last offset, status, expected, found), with
    IS_V3 at that batch.
    """
    file_position, end_offset, check_crc = given
    while n < out.shape[0]:
        status, expected, found, size = frame_batch(buf, position, length)
        if status != FRAMED:
            return n, position, previous, status, expected, found
        if length - position < size:
            return n, position, previous, MORE, size, length - position
        if buf[position + MAGIC_OFFSET] == 3:
            return n, position, previous, IS_V3, size, np.int64(0)
        row = out[n]
        row.position = file_position + position
        status, expected, found = _read_kafka(buf, position, position + size, previous, end_offset, check_crc, row)
        if status != FRAMED:
            return n, position, previous, status, expected, found
        previous = row.last_offset
        position += size
        n += 1
    return n, position, previous, MORE, np.int64(0), np.int64(0)


@kernel
def _walk_any(
    buf: np.ndarray, position: int, length: int, n: int, previous: int, given: tuple[int, int, int], out: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Walk on over batches of every magic. Returns as `walk_batches`."""
    file_position, end_offset, check_crc = given
    while n < out.shape[0]:
        status, expected, found, size = frame_batch(buf, position, length)
        if status != FRAMED:
            return n, position, status, expected, found
        if length - position < size:
            return n, position, MORE, size, length - position
        row = out[n]
        row.position = file_position + position
        status, expected, found = read_header(buf, position, position + size, previous, end_offset, check_crc, row)
        if status != FRAMED:
            return n, position, status, expected, found
        previous = row.last_offset
        position += size
        n += 1
    return n, position, MORE, np.int64(0), np.int64(0)


@inline
def frame_batch(buf: np.ndarray, position: int, length: int) -> tuple[int, int, int, int]:
    """Read the size of the batch that begins at buf[position], and check size and magic; buf holds only buf[:length].

    Returns (FRAMED, 0, 0, its bytes), or (status, expected, found, 0), with MORE if the first 17 bytes are not all
    there.
    """
    if length - position < LOG_OVERHEAD:
        return MORE, 0, 0, 0
    body_length = np.int64(load_i32(buf, position + 8))
    if body_length < MIN_LEGACY_SIZE:
        return BAD_LENGTH, MIN_LEGACY_SIZE, body_length, 0
    size = LOG_OVERHEAD + body_length
    if length - position <= MAGIC_OFFSET:
        return MORE, 0, 0, 0
    magic = np.int64(np.int8(buf[position + MAGIC_OFFSET]))
    if magic == 2:
        if size < BATCH_OVERHEAD:
            return BAD_LENGTH, BATCH_OVERHEAD, size, 0
    elif magic < 0 or magic > MAX_MAGIC:
        return BAD_MAGIC, MAX_MAGIC, magic, 0
    elif magic == 3 and size < V3_SMALLEST:
        return BAD_LENGTH, V3_SMALLEST, size, 0
    return FRAMED, 0, 0, size


@inline
def read_header(
    buf: np.ndarray, position: int, end: int, previous: int, end_offset: int, check_crc: int, row: Any
) -> tuple[int, int, int]:
    """Read the header of the framed batch buf[position:end] into `row`, a BATCH without its position.

    Returns (FRAMED, 0, 0), or (status, expected, found). check_crc: as in `walk_batches`; without the check, only a
    control batch's body is read. (A marker whose damaged attributes hide it still has the size of a marker.)
    """
    if buf[position + MAGIC_OFFSET] == 3:
        return _read_v3(buf, position, end, previous, end_offset, check_crc, row)
    return _read_kafka(buf, position, end, previous, end_offset, check_crc, row)


@inline
def _read_kafka(
    buf: np.ndarray, position: int, end: int, previous: int, end_offset: int, check_crc: int, row: Any
) -> tuple[int, int, int]:
    """Read a header of magic 0 to 2, as `read_header`."""
    size = end - position
    first = load_i64(buf, position)
    magic = np.int64(buf[position + MAGIC_OFFSET])
    row.size = size
    row.magic = magic
    row.control_type = -1
    row.coordinator_epoch = -1
    if magic == 2:
        crc = np.int64(load_i32(buf, position + CRC_OFFSET)) & 0xFFFFFFFF
        attributes = np.int64(buf[position + ATTRIBUTES_OFFSET + 1])
        marker = attributes & CONTROL_MASK != 0 or size == END_TXN_MARKER_SIZE
        if check_crc == CHECK_ALL or (check_crc == CHECK_MARKERS and marker):
            actual = np.int64(crc32c_range(buf, position + CRC_START, end))
            if actual != crc:
                return BAD_CRC, crc, actual
        last_delta = np.int64(load_i32(buf, position + LAST_DELTA_OFFSET))
        count = np.int64(load_i32(buf, position + PRODUCER_OFFSET + COUNT))
        status, expected, found = _read_fields(
            buf, position, position + PRODUCER_OFFSET, first, last_delta, count, crc, row
        )
        if status != FRAMED:
            return status, expected, found
        row.base_timestamp = load_i64(buf, position + BASE_TIMESTAMP_OFFSET)
        row.max_timestamp = load_i64(buf, position + MAX_TIMESTAMP_OFFSET)
        if attributes & CONTROL_MASK and count > 0:
            kind, epoch = control_record(buf, position + BATCH_OVERHEAD, end)
            if kind < 0 or attributes & CODEC_MASK:
                return BAD_CONTROL, 0, kind
            row.control_type = min(kind, 127)
            row.coordinator_epoch = epoch
    else:
        crc = np.int64(load_i32(buf, position + LOG_OVERHEAD)) & 0xFFFFFFFF
        if magic == 1 and size - LOG_OVERHEAD < MIN_LEGACY_SIZE + 8:
            return BAD_LENGTH, MIN_LEGACY_SIZE + 8, size - LOG_OVERHEAD
        if check_crc == CHECK_ALL:
            actual = np.int64(crc32_kernel(buf, position + MAGIC_OFFSET, end))
            if actual != crc:
                return BAD_CRC, crc, actual
        attributes = np.int64(buf[position + MAGIC_OFFSET + 1]) & (CODEC_MASK | TIMESTAMP_TYPE_MASK)
        compressed = attributes & CODEC_MASK != 0
        timestamp = load_i64(buf, position + MAGIC_OFFSET + 2) if magic == 1 else np.int64(-1)
        row.base_offset = -1 if compressed else first
        row.last_offset = first
        row.crc = crc
        row.partition_leader_epoch = -1
        row.base_timestamp = timestamp
        row.max_timestamp = timestamp
        row.producer_id = -1
        row.producer_epoch = -1
        row.base_sequence = -1
        row.records_count = -1 if compressed else 1
        status, expected, found = check_range(first, np.int64(0))
        if status != FRAMED:
            return status, expected, found
    row.attributes = attributes
    return _check_place(first, attributes, magic, previous, end_offset, row)


@inline
def _check_place(
    first: int, attributes: int, magic: int, previous: int, end_offset: int, row: Any
) -> tuple[int, int, int]:
    if first <= previous:
        return BAD_OFFSETS, previous + 1, first
    codec = attributes & CODEC_MASK
    if codec > CODEC_ZSTD or (magic < 2 and codec == CODEC_ZSTD):
        return BAD_CODEC, CODEC_ZSTD, codec
    if row.last_offset >= end_offset:
        return REACHED_END, end_offset, row.last_offset
    return FRAMED, np.int64(0), np.int64(0)


@kernel
def _read_v3(
    buf: np.ndarray, position: int, end: int, previous: int, end_offset: int, check_crc: int, row: Any
) -> tuple[int, int, int]:
    """Read a header of magic 3, as `read_header`."""
    row.size = end - position
    row.magic = 3
    row.control_type = -1
    row.coordinator_epoch = -1
    crc = np.int64(load_i32(buf, position + CRC_OFFSET)) & 0xFFFFFFFF
    marker = end - position == END_TXN_MARKER_SIZE  # one of magic 2 whose magic is damaged
    if check_crc == CHECK_ALL or (check_crc == CHECK_MARKERS and marker):
        actual = np.int64(crc32c_range(buf, position + CRC_START, end)) ^ CRC_INVERTED
        if actual != crc:
            return BAD_CRC, crc, actual
    last_delta, base_timestamp, max_timestamp, first_section, after = read_trail(buf, position + V3_FIXED, end)
    if after < 0:
        return BAD_TRAIL, np.int64(0), np.int64(0)
    attributes = np.int64(buf[position + ATTRIBUTES_OFFSET + 1])
    stored = first_section if first_section >= 0 else ~first_section
    if stored > end - after or (first_section < 0 and attributes & CODEC_MASK == 0):
        return BAD_SECTION, end - after, first_section
    if attributes & CONTROL_MASK:
        return BAD_CONTROL, np.int64(0), np.int64(0)
    first, producer = load_i64(buf, position), position + PRODUCER_OFFSET_V3
    count = np.int64(load_i32(buf, producer + COUNT))
    status, expected, found = _read_fields(buf, position, producer, first, last_delta, count, crc, row)
    if status != FRAMED:
        return status, expected, found
    row.base_timestamp = base_timestamp
    row.max_timestamp = max_timestamp
    attributes &= ~IGNORE_ATTRIBUTES_MASK
    row.attributes = attributes
    return _check_place(first, attributes, 3, previous, end_offset, row)


@inline
def _read_fields(
    buf: np.ndarray, position: int, producer: int, first: int, last_delta: int, count: int, crc: int, row: Any
) -> tuple[int, int, int]:
    """Read the fields that magic 2 and 3 store alike into `row`, and check offsets and count. Returns as `read_header`.

    producer: position of the producer's id.
    """
    status, expected, found = check_range(first, last_delta)
    if status != FRAMED:
        return status, expected, found
    if count < 0 or count > last_delta + 1:
        return BAD_COUNT, last_delta + 1, count
    row.base_offset = first
    row.last_offset = first + last_delta
    row.crc = crc
    row.partition_leader_epoch = load_i32(buf, position + EPOCH_OFFSET)
    row.producer_id = load_i64(buf, producer)
    row.producer_epoch = load_i16(buf, producer + PRODUCER_EPOCH)
    row.base_sequence = load_i32(buf, producer + BASE_SEQUENCE)
    row.records_count = count
    return FRAMED, np.int64(0), np.int64(0)


@inline
def check_range(first: int, last_delta: int) -> tuple[int, int, int]:
    """Check that a batch can have these offsets in any log: (FRAMED, 0, 0), or (status, expected, found).

    The checksum does not cover the base offset. Every walk rejects an offset above MAX_LAST_OFFSET here. So no data
    offset equals a sentinel such as NO_END (2^63 - 1), and last offset + 1 never overflows.
    """
    if last_delta < 0 or first < 0:
        return BAD_OFFSETS, np.int64(0), min(last_delta, first)
    if first > MAX_LAST_OFFSET - last_delta:
        return BAD_LAST_OFFSET, np.int64(MAX_LAST_OFFSET - last_delta), first
    return FRAMED, np.int64(0), np.int64(0)


@kernel
def checksums_fit(buf: np.ndarray, file_position: int, batches: np.ndarray, fit: np.ndarray) -> None:
    """Compare the bytes of each batch with the checksum in its header. buf: uint8, bytes of the file from file_position
    on; batches: BATCH[n] within them; fit: bool[n], written.
    """
    for i in range(batches.shape[0]):
        start = batches[i].position - file_position
        end = start + batches[i].size
        if batches[i].magic >= 2:
            crc = np.int64(crc32c_range(buf, start + CRC_START, end))
            fit[i] = (crc ^ CRC_INVERTED if batches[i].magic == 3 else crc) == np.int64(batches[i].crc)
        else:
            fit[i] = np.int64(crc32_kernel(buf, start + MAGIC_OFFSET, end)) == np.int64(batches[i].crc)
