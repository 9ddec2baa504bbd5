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
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_MASK, LOG_OVERHEAD, MESSAGE_V0, MESSAGE_V1
from lastkey.logformat.primitives.codec import Scratch, decompress_into

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
    base_offset: int  # of the first record; offset deltas are relative to it, timestamp deltas to 0
    last_offset: int
    max_timestamp: int


def transcode_wrapper(
    raw: NDArray[np.uint8],
    start: int,
    size: int,
    inner: Scratch,
    out: Scratch,
    at: int,
    limit: int,
    *,
    path: str,
    position: int,
) -> Transcoded:
    """Write the records of the compressed batch raw[start:start + size] into `out` from byte `at` on.

    The batch's prefix, magic and checksum have been checked. `inner` holds the messages meanwhile, at most `limit`
    bytes decompressed; `path` and `position` (of the batch in the file) are for errors. Raises LogFormatError of the
    kinds in _PROBLEMS and of decompress_into, and "record" if the wrapper's key or value runs past its end.
    """
    offset, _size, _crc, magic, attributes = struct.unpack_from(_WRAPPER, raw.data, start)
    (timestamp,) = struct.unpack_from(">q", raw.data, start + LOG_OVERHEAD + MESSAGE_V0.itemsize) if magic else (-1,)
    n = _decompress(raw, start, size, inner, limit, path, position)
    out.reserve(at + n)
    status, n_bytes, n_records, first, last, max_timestamp, where = legacy_kernels.transcode_messages(
        inner.array, 0, n, magic, offset, timestamp, attributes, out.array, at
    )
    if status != legacy_kernels.OK:
        raise _problem(status, path, position, offset, f" at byte {where} of the decompressed content")
    return Transcoded(n_bytes, n_records, first, last, max_timestamp)


def _decompress(
    raw: NDArray[np.uint8], start: int, size: int, inner: Scratch, limit: int, path: str, position: int
) -> int:
    """Decompress the messages of a wrapper into `inner`; return their number of bytes."""
    offset, _size, _crc, magic, attributes = struct.unpack_from(_WRAPPER, raw.data, start)
    value, end = _find_value(raw, start + _KEY_LENGTH[magic], start + size, path, position, offset)
    return decompress_into(
        attributes & CODEC_MASK,
        raw[value:end],
        inner,
        0,
        limit,
        path=path,
        position=position,
        base_offset=offset,
        magic=magic,
    )


def message_checksums(
    raw: NDArray[np.uint8],
    raw_position: int,
    batch: np.void,
    limit: int,
    path: str,
    crc: NDArray[np.uint32],
    valid: NDArray[np.bool_],
) -> None:
    """Read the checksum of each of a wrapper's n messages, and compare it with the message's bytes.

    raw: uint8, bytes of the file from raw_position on; batch: the wrapper's BATCH row; crc: uint32[n] and valid:
    bool[n], written.
    """
    inner, position = Scratch(), int(batch["position"])
    size = _decompress(raw, position - raw_position, int(batch["size"]), inner, limit, path, position)
    legacy_kernels.message_checksums(inner.array, size, crc, valid)


def transcode_plain(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: Scratch,
    at: int,
    *,
    path: str,
    raw_position: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Write the records of n uncompressed batches into `out` from byte `at` on; return their starts and ends there.

    starts, sizes: int64[n], of each batch in `raw`, prefix included; raw_position: of raw[0] in the file, for errors.
    Offset deltas are 0, timestamp deltas relative to 0. Raises LogFormatError "record".
    """
    out.reserve(at + int(sizes.sum()))
    out_starts, out_ends = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    status, row, _after = legacy_kernels.transcode_plain(raw, starts, sizes, out.array, at, out_starts, out_ends)
    if status != legacy_kernels.OK:
        start = int(starts[row])
        (offset,) = struct.unpack_from(">q", raw.data, start)
        raise _problem(status, path, raw_position + start, offset, "")
    return out_starts, out_ends


def unpack_wrapper(
    raw: NDArray[np.uint8],
    raw_position: int,
    batch: np.void,
    body: NDArray[np.void],
    inner: Scratch,
    out: Scratch,
    at: int,
    limit: int,
    path: str,
) -> int:
    """Write the records of the wrapper `batch` (a BATCH row) by transcode_wrapper; return the position in `out` after
    them.

    raw: uint8, bytes of the file from raw_position on; body: BODY[1], written.
    """
    position = int(batch["position"])
    records = transcode_wrapper(
        raw, position - raw_position, int(batch["size"]), inner, out, at, limit, path=path, position=position
    )
    body["start"], body["end"], body["in_scratch"] = at, at + records.n_bytes, True
    body["n_records"], body["base_offset"], body["base_timestamp"] = records.n_records, records.base_offset, 0
    return at + records.n_bytes


def transcode_plain_batches(
    raw: NDArray[np.uint8],
    raw_position: int,
    batches: NDArray[np.void],
    rows: NDArray[np.int64],
    bodies: NDArray[np.void],
    out: Scratch,
    at: int,
    path: str,
) -> int:
    """Write the records of uncompressed batches by transcode_plain; return the position in `out` after them.

    batches: BATCH[n], of which `rows` are written; bodies: BODY[n], the same rows are filled.
    """
    starts, ends = transcode_plain(
        raw,
        batches["position"][rows] - raw_position,
        batches["size"][rows],
        out,
        at,
        path=path,
        raw_position=raw_position,
    )
    bodies["start"][rows], bodies["end"][rows], bodies["in_scratch"][rows] = starts, ends, True
    bodies["n_records"][rows], bodies["base_offset"][rows] = 1, batches["last_offset"][rows]
    bodies["base_timestamp"][rows] = 0
    return int(ends[-1]) if len(ends) else at


def _find_value(
    raw: NDArray[np.uint8], key_length: int, end: int, path: str, position: int, offset: int
) -> tuple[int, int]:
    """Return start and end of the wrapper's value. Its key is skipped; Kafka always writes null there."""
    value = key_length + 8 + max(_I32.unpack_from(raw.data, key_length)[0], 0) if key_length + 8 <= end else end + 1
    if value > end:
        raise _problem(legacy_kernels.BAD_FIELD, path, position, offset, "")
    (size,) = _I32.unpack_from(raw.data, value - 4)
    if size < 0:
        raise LogFormatError(
            "compressed", path, position, "a compressed value", "a message without value", base_offset=offset
        )
    if value + size > end:
        raise _problem(legacy_kernels.BAD_FIELD, path, position, offset, "")
    return value, value + size


def _problem(status: int, path: str, position: int, offset: int, where: str) -> LogFormatError:
    kind, expected, found = _PROBLEMS[status]
    return LogFormatError(kind, path, position, expected, found + where, base_offset=offset)
