"""Conversion of magic 0 and 1 batches to records in the magic 2 encoding, in a scratch buffer (FORMAT.md, "Messages").

A compressed batch is one message, the wrapper, whose value holds the messages; an uncompressed batch is one message.
legacy_kernels has the rules; this module opens wrappers, and turns a kernel's status into an error.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import legacy_kernels
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_MASK, LOG_OVERHEAD, MESSAGE_V0, MESSAGE_V1
from lastkey.logformat.primitives.codec import BatchPlace, Scratch, decompress_into

_I32: Final = struct.Struct(">i")
_WRAPPER: Final = ">qiIBB"  # offset, size, crc, magic, attributes
_KEY_LENGTH: Final = (LOG_OVERHEAD + MESSAGE_V0.itemsize, LOG_OVERHEAD + MESSAGE_V1.itemsize)  # by magic

# status -> kind, expected, found
_PROBLEMS: Final = {
    legacy_kernels.BAD_SIZE: ("length", "inner messages of at least 14 bytes", "a smaller one"),
    legacy_kernels.BAD_MAGIC: ("magic", "inner messages of magic 0 or 1", "another magic"),
    legacy_kernels.NESTED: ("codec", "inner messages without a codec", "a compressed one"),
    legacy_kernels.BAD_FIELD: ("record", "a key and a value inside the message", "one that runs past its end"),
    legacy_kernels.EMPTY: ("count", "at least one inner message", "none"),
    legacy_kernels.BAD_WRAPPER_OFFSET: ("offsets", "a wrapper offset of 0, or its last record's", "a lower offset"),
    legacy_kernels.BAD_OFFSET: ("offsets", "inner offsets from 0 on, within 2^31 of the first", "another offset"),
}


class Transcoded(NamedTuple):
    """Records of one wrapper, in the scratch buffer."""

    n_bytes: int
    n_records: int
    base_offset: int  # base offset of the first record; offset deltas are relative to it, timestamp deltas to 0
    last_offset: int
    max_timestamp: int


def transcode_wrapper(chunk: Chunk, batch: np.void, inner: Scratch, out: Scratch, at: int, limit: int) -> Transcoded:
    """Write the records of a compressed batch, a BATCH row of the chunk, into `out` from byte `at` on.

    The batch's prefix, magic and checksum have been checked. `inner` holds the messages meanwhile, at most `limit`
    bytes decompressed. Raises LogFormatError of the kinds in _PROBLEMS and of decompress_into, and "record" if the
    wrapper's key or value runs past its end.
    """
    start = int(batch["position"]) - chunk.position
    offset, _size, _crc, magic, attributes = struct.unpack_from(_WRAPPER, chunk.raw.data, start)
    timestamp = struct.unpack_from(">q", chunk.raw.data, start + LOG_OVERHEAD + MESSAGE_V0.itemsize)[0] if magic else -1
    n = _decompress(chunk, batch, inner, limit)
    out.reserve(at + n)
    status, n_bytes, n_records, first, last, max_timestamp, where = legacy_kernels.transcode_messages(
        inner.array, 0, n, magic, offset, timestamp, attributes, out.array, at
    )
    if status != legacy_kernels.OK:
        place = BatchPlace(chunk.path, int(batch["position"]), offset)
        raise _problem(status, place, f" at byte {where} of the decompressed content")
    return Transcoded(n_bytes, n_records, first, last, max_timestamp)


def _decompress(chunk: Chunk, batch: np.void, inner: Scratch, limit: int) -> int:
    """Decompress the messages of a wrapper into `inner`; return their number of bytes."""
    position = int(batch["position"])
    start, end = position - chunk.position, position - chunk.position + int(batch["size"])
    offset, _size, _crc, magic, attributes = struct.unpack_from(_WRAPPER, chunk.raw.data, start)
    place = BatchPlace(chunk.path, position, offset, magic)
    value, end = _find_value(chunk.raw, start + _KEY_LENGTH[magic], end, place)
    return decompress_into(attributes & CODEC_MASK, chunk.raw[value:end], inner, 0, limit, place)


def message_checksums(
    chunk: Chunk, batch: np.void, limit: int, crc: NDArray[np.uint32], valid: NDArray[np.bool_]
) -> None:
    """Read the checksum of each of a wrapper's n messages, and compare it with the message's bytes.

    batch: the wrapper's BATCH row of the chunk; crc: uint32[n] and valid: bool[n], written.
    """
    inner = Scratch()
    size = _decompress(chunk, batch, inner, limit)
    legacy_kernels.message_checksums(inner.array, size, crc, valid)


def transcode_plain(chunk: Chunk, rows: NDArray[np.int64], bodies: NDArray[np.void], out: Scratch, at: int) -> int:
    """Write the records of a chunk's uncompressed batches into `out` from byte `at` on; return the position after
    them.

    rows: int64[m], of these batches; bodies: BODY[n] of all, the same rows are filled. Offset deltas are 0, timestamp
    deltas relative to 0. Raises LogFormatError "record".
    """
    batches = chunk.batches[rows]
    out.reserve(at + int(batches["size"].sum()))
    starts, ends = np.empty((2, len(rows)), np.int64)
    places = batches["position"] - chunk.position, np.ascontiguousarray(batches["size"])
    status, row, _after = legacy_kernels.transcode_plain(chunk.raw, *places, out.array, at, starts, ends)
    if status != legacy_kernels.OK:
        raise _problem(status, BatchPlace(chunk.path, int(batches["position"][row]), int(batches["last_offset"][row])))
    bodies["start"][rows], bodies["end"][rows], bodies["in_scratch"][rows] = starts, ends, True
    bodies["n_records"][rows], bodies["base_offset"][rows] = 1, batches["last_offset"]
    bodies["base_timestamp"][rows] = 0
    return int(ends[-1]) if len(ends) else at


def _find_value(raw: NDArray[np.uint8], key_length: int, end: int, place: BatchPlace) -> tuple[int, int]:
    """Return start and end of the wrapper's value. Its key is skipped; Kafka always writes null there."""
    value = key_length + 8 + max(_I32.unpack_from(raw.data, key_length)[0], 0) if key_length + 8 <= end else end + 1
    if value > end:
        raise _problem(legacy_kernels.BAD_FIELD, place)
    (size,) = _I32.unpack_from(raw.data, value - 4)
    if size < 0:
        raise place.error("compressed", "a compressed value", "a message without value")
    if value + size > end:
        raise _problem(legacy_kernels.BAD_FIELD, place)
    return value, value + size


def _problem(status: int, place: BatchPlace, where: str = "") -> LogFormatError:
    kind, expected, found = _PROBLEMS[status]
    return place.error(kind, expected, found + where)
