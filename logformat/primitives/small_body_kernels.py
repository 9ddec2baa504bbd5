"""Small bodies of snappy, many per call: a library call per body costs more than the decompression. The kernel reads
complete bodies in the framing of common writers, and stops at any other body, including damaged ones. The caller passes
these to the library, so this kernel accepts no body that the library refuses.

Sources: https://github.com/google/snappy/blob/main/format_description.txt; SnappyInputStream of snappy-java.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes, load_i32, load_i64
from lastkey.logformat.primitives.zstd_kernels import DONE, MORE_ROOM

MOST_COMPRESSED: Final = 1 << 11  # bytes of a body; the library is faster with larger ones
MOST: Final = 1 << 15  # bytes that it decompresses to: one block of snappy-java

ASK_LIBRARY: Final = 4  # a status of decompress_bodies, beside those of zstd_kernels

_XERIAL_MAGIC: Final = int.from_bytes(b"\x82SNAPPY\x00", "big", signed=True)
_XERIAL_HEADER: Final = 16
_SNAPPY_MOST_LITERALS: Final = 60  # longest literal whose length the tag itself encodes
_SNAPPY_LONGEST_LENGTH: Final = 4  # bytes; the library wants as many after the tag, however many the length takes


@inline
def _copy_match(out: NDArray[np.uint8], at: int, offset: int, length: int) -> None:
    """Copy `length` bytes from `offset` bytes back. Source and target may overlap."""
    if offset >= length:
        copy_bytes(out, at, out, at - offset, length)
    else:
        for i in range(at, at + length):
            out[i] = out[i - offset]


@kernel
def _snappy_block(source: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], at: int, stop: int) -> int:
    """Decompress source[pos:end] to out[at:stop]; return where it ends in `out`, -1 if that is for the library."""
    begin, size, shift = at, 0, 0
    while True:
        if pos >= end or shift > 14:  # MOST takes three bytes
            return -1
        byte = source[pos] & 0xFF
        pos += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > stop - at:
        return -1
    stop = at + size
    while pos < end:
        tag = source[pos] & 0xFF
        pos += 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > _SNAPPY_MOST_LITERALS:
                n = length - _SNAPPY_MOST_LITERALS
                if n > 2 or end - pos < _SNAPPY_LONGEST_LENGTH:
                    return -1
                length = 1 + (source[pos] & 0xFF)
                if n == 2:
                    length += (source[pos + 1] & 0xFF) << 8
                pos += n
            if length > end - pos or length > stop - at:
                return -1
            copy_bytes(out, at, source, pos, length)
            pos += length
        else:
            n = 1 if kind == 1 else 2
            if kind == 3 or n > end - pos:
                return -1
            offset = source[pos] & 0xFF
            if kind == 1:
                offset |= tag >> 5 << 8
                length = (tag >> 2 & 7) + 4
            else:
                offset |= (source[pos + 1] & 0xFF) << 8
            pos += n
            if not 0 < offset <= at - begin or length > stop - at:
                return -1
            _copy_match(out, at, offset, length)
        at += length
    return at if at == stop else -1


@inline
def _snappy_frame(source: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], at: int, stop: int) -> int:
    if end - pos < _XERIAL_HEADER or load_i64(source, pos) != _XERIAL_MAGIC:
        return _snappy_block(source, pos, end, out, at, stop) if pos < end else -1
    if load_i32(source, pos + 8) < 1:
        return -1
    pos += _XERIAL_HEADER
    while pos < end:
        if end - pos < 4:
            return -1
        size = load_i32(source, pos)
        pos += 4
        if not 0 < size <= end - pos:
            return -1
        at = _snappy_block(source, pos, pos + size, out, at, stop)
        if at < 0:
            return -1
        pos += size
    return at


@kernel
def decompress_bodies(
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    stop: int,
    limit: int,
    out_ends: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Decompress the bodies source[starts[i]:ends[i]] one after the other, as `zstd_kernels.decompress_bodies` does
    and returns; but all that it does not read has the status ASK_LIBRARY.
    """
    n = starts.shape[0]
    for i in range(n):
        if at >= stop:
            return i, at, DONE, 0
        if out.shape[0] - at < MOST:
            return i, at, MORE_ROOM, at + MOST
        most = at + min(limit, MOST)
        after = _snappy_frame(source, starts[i], ends[i], out, at, most)
        if after < 0:
            return i, at, ASK_LIBRARY, 0
        at = after
        out_ends[i] = at
    return n, at, DONE, 0
