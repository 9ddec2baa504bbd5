"""Field tables of Kafka's log structures; integers are big-endian. Sizes and offsets are derived, never typed again.

Source: Kafka's DefaultRecordBatch, LegacyRecord, OffsetIndex, TimeIndex, AbortedTxn and ProducerStateManager (4.3.0).
The prose is in FORMAT.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np


def field_offset(dtype: np.dtype[np.void], name: str) -> int:
    """Byte offset of a field in its structure."""
    fields = dtype.fields
    if fields is None or name not in fields:
        raise KeyError(name)
    return int(fields[name][1])


# Common to every magic: a batch of magic 2, or a message of magic 0 and 1.
PREFIX = np.dtype(
    [
        ("offset", ">i8"),  # magic 2: base offset; magic 0, 1: offset of the message, or of the last inner message
        ("length", ">i4"),  # bytes after this field
    ]
)
LOG_OVERHEAD: Final = PREFIX.itemsize  # the bytes that `length` does not count
MAGIC_OFFSET: Final = 16  # the same place in all formats
MAX_MAGIC: Final = 3  # brokers know formats up to 2; 3 is Lastkey's own
MIN_LEGACY_SIZE: Final = 14  # smallest `length` of any format: a magic 0 message with null key and value

# Magic 2 batch header.
BATCH_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),  # offset of the first record ever in the batch; kept by compaction
        ("length", ">i4"),  # size - 12
        ("partition_leader_epoch", ">i4"),  # not covered by the CRC; -1 unknown
        ("magic", "i1"),  # 2
        ("crc", ">u4"),  # CRC-32C of all bytes from `attributes` to the end
        ("attributes", ">i2"),  # bits below
        ("last_offset_delta", ">i4"),  # also the last sequence's delta; kept by compaction
        ("base_timestamp", ">i8"),  # or the delete horizon, where that bit is set
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),  # -1 none
        ("producer_epoch", ">i2"),  # -1 none
        ("base_sequence", ">i4"),  # -1 none; also of control batches
        ("records_count", ">i4"),  # may be 0, may be below last_offset_delta + 1
    ]
)
BATCH_OVERHEAD: Final = BATCH_HEADER.itemsize  # 61
CRC_START: Final = field_offset(BATCH_HEADER, "attributes")  # 21

# Magic 3 batch header, Lastkey's own: these fields, then its trail of varints (FORMAT.md, "Magic 3").
BATCH_HEADER_V3 = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),  # 3
        ("crc", ">u4"),  # up to here as in BATCH_HEADER
        ("attributes", ">i2"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
V3_FIXED: Final = BATCH_HEADER_V3.itemsize  # 41
V3_SMALLEST: Final = V3_FIXED + 4  # four varints of a byte, no sections
V3_LARGEST_HEADER: Final = V3_FIXED + 5 + 10 + 10 + 5

# attributes, magic 2 and 3 (legacy: codec and timestamp type only)
CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08  # 1: LogAppendTime
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40  # base_timestamp is the delete horizon
IGNORE_ATTRIBUTES_MASK: Final = 0x80  # magic 3: the records have no attributes; no row of BATCH shows it

CODEC_NONE: Final = 0
CODEC_GZIP: Final = 1
CODEC_SNAPPY: Final = 2
CODEC_LZ4: Final = 3
CODEC_ZSTD: Final = 4  # magic 2 and 3 only
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Levels(NamedTuple):
    """Compression levels, in the ranges of Kafka's compression.*.level (GzipCompression, Lz4Compression and
    ZstdCompression of 4.3.0).
    """

    gzip: int = -1  # 1 to 9; -1: zlib's default, 6
    lz4: int = 9  # 1 to 17: levels of the high compressor, except 9: the fast compressor
    zstd: int = 3  # -131072 to 22


DEFAULT_LEVELS: Final = Levels()


# Legacy message, after the 12-byte prefix; then i32 key length (-1 null), key, i32 value length, value.
MESSAGE_V0 = np.dtype([("crc", ">u4"), ("magic", "i1"), ("attributes", "i1")])
MESSAGE_V1 = np.dtype([("crc", ">u4"), ("magic", "i1"), ("attributes", "i1"), ("timestamp", ">i8")])

CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1
END_TXN_MARKER_SIZE: Final = 78  # a marker batch of magic 2

OFFSET_INDEX_ENTRY = np.dtype(
    [
        ("relative_offset", ">i4"),  # LAST offset of the indexed batch, from the segment's base
        ("position", ">i4"),  # its START in the .log
    ]
)
TIME_INDEX_ENTRY = np.dtype(
    [
        ("timestamp", ">i8"),  # largest so far in the segment
        ("relative_offset", ">i4"),  # last offset of the earliest batch that carries it
    ]
)
TXN_INDEX_ENTRY = np.dtype(
    [
        ("version", ">i2"),  # 0
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),  # last offset of the ABORT marker
        ("last_stable_offset", ">i8"),
    ]
)
SNAPSHOT_HEADER = np.dtype(
    [
        ("version", ">i2"),  # 1
        ("crc", ">u4"),  # CRC-32C of all bytes after this field
        ("count", ">i4"),
    ]
)
SNAPSHOT_ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),  # -1 none
        ("last_offset", ">i8"),  # last offset of the last data batch, -1 none
        ("offset_delta", ">i4"),  # last_offset - base offset of that batch
        ("timestamp", ">i8"),  # timestamp of the last data batch or marker
        ("coordinator_epoch", ">i4"),  # -1 none
        ("current_txn_first_offset", ">i8"),  # -1 none
    ]
)
SNAPSHOT_CRC_START: Final = field_offset(SNAPSHOT_HEADER, "count")  # 6

MAX_LAST_OFFSET: Final = 2**63 - 2  # largest offset of a record: the log end, one higher, must be an offset too
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
MAX_SEGMENT_BYTES: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1
NO_PRODUCER: Final = -1

# One row per batch as the batch scanner returns it, in native byte order, the same for all magics.
BATCH = np.dtype(
    [
        ("position", "i8"),  # position of the batch's first byte in the file
        ("size", "i8"),  # bytes, prefix included
        ("base_offset", "i8"),  # magic 0, 1 compressed: -1, known only after decompression
        ("last_offset", "i8"),
        ("max_timestamp", "i8"),  # magic 0: -1
        ("base_timestamp", "i8"),  # magic 0, 1: the message's timestamp
        ("producer_id", "i8"),
        ("crc", "u4"),
        ("partition_leader_epoch", "i4"),  # magic 0, 1: -1
        ("base_sequence", "i4"),
        ("records_count", "i4"),  # magic 0, 1: 1 if uncompressed, else -1 (unknown)
        ("producer_epoch", "i2"),
        ("attributes", "i2"),  # low byte only, as Kafka reads it; magic 3: without IGNORE_ATTRIBUTES_MASK
        ("magic", "i1"),
        ("control_type", "i1"),  # 0 abort, 1 commit, other: as stored; -1: not a control batch, or an empty one
        ("coordinator_epoch", "i4"),  # coordinator epoch of a marker, else -1
    ],
    align=True,
)

assert BATCH_OVERHEAD == 61 and CRC_START == 21
assert all(
    field_offset(BATCH_HEADER, name) - field_offset(BATCH_HEADER_V3, name) == BATCH_OVERHEAD - V3_FIXED
    for name in ("producer_id", "producer_epoch", "base_sequence", "records_count")
)
assert V3_FIXED == 41 and field_offset(BATCH_HEADER_V3, "attributes") == CRC_START
assert field_offset(BATCH_HEADER, "magic") == MAGIC_OFFSET
assert MESSAGE_V0.itemsize + 8 == MIN_LEGACY_SIZE
assert (OFFSET_INDEX_ENTRY.itemsize, TIME_INDEX_ENTRY.itemsize, TXN_INDEX_ENTRY.itemsize) == (8, 12, 34)
assert SNAPSHOT_ENTRY.itemsize == 46
