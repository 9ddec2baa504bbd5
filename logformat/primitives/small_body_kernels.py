"""Small bodies of lz4 and snappy, many a call: the libraries take one a call, which costs more than its work.

The kernel reads whole bodies as common writers frame them, and stops at all else, damage too. The caller then asks the
library, so nothing is accepted here that the library refuses.

Sources: the LZ4 block format, https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md, and its frame format 1.6;
https://github.com/google/snappy/blob/main/format_description.txt; SnappyInputStream of snappy-java.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CODEC_LZ4
from lastkey.logformat.primitives.memory_kernels import copy_bytes, load_i32, load_i64
from lastkey.logformat.primitives.xxhash_kernels import xxh32
from lastkey.logformat.primitives.zstd_kernels import DONE, MORE_ROOM

MOST_COMPRESSED: Final = 1 << 11  # bytes of a body; the libraries are faster with larger ones
MOST: Final = 1 << 15  # bytes that it decompresses to: one block of snappy-java, and less than one of lz4

ASK_LIBRARY: Final = 4  # a status of decompress_small, beside those of zstd_kernels

_LZ4_MAGIC: Final = 0x04224D18  # big-endian, as loaded
_LZ4_PLAIN: Final = 0x60  # version 1, independent blocks, no checksums
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_LAST: Final = 6  # bytes that follow a match, at least: token, five literals
_LZ4_LEAST_MATCH: Final = 4
_XERIAL_MAGIC: Final = int.from_bytes(b"\x82SNAPPY\x00", "big", signed=True)
_XERIAL_HEADER: Final = 16
_SNAPPY_MOST_LITERALS: Final = 60  # whose length lies in the tag
_SNAPPY_LONGEST_LENGTH: Final = 4  # bytes; the library wants as many behind the tag, however many the length takes


@inline
def _copy_match(out: NDArray[np.uint8], at: int, offset: int, length: int) -> None:
    """Repeat `length` bytes from `offset` bytes before. They may overlap what they make."""
    if offset >= length:
        copy_bytes(out, at, out, at - offset, length)
    else:
        for i in range(at, at + length):
            out[i] = out[i - offset]


@inline
def _length(source: NDArray[np.uint8], pos: int, end: int, length: int) -> tuple[int, int]:
    """Return the length of which a token holds the first part, and the position behind it: -1 if it has no end."""
    more = 255 if length == 15 else 0
    while more == 255:
        if pos >= end:
            return length, -1
        more = source[pos] & 0xFF
        length += more
        pos += 1
    return length, pos


@kernel
def _lz4_block(source: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], at: int, stop: int) -> int:
    """Decompress source[pos:end] to out[at:stop]; return where it ends in `out`, -1 if that is for the library."""
    begin = at
    while pos < end:
        token = source[pos] & 0xFF
        pos += 1
        length, pos = _length(source, pos, end, token >> 4)
        if pos < 0 or length > end - pos or length > stop - at:
            return -1
        copy_bytes(out, at, source, pos, length)
        pos += length
        at += length
        if pos == end:
            return at
        if end - pos < 2:
            return -1
        offset = (source[pos] & 0xFF) | (source[pos + 1] & 0xFF) << 8
        pos += 2
        length, pos = _length(source, pos, end, token & 15)
        length += _LZ4_LEAST_MATCH
        if pos < 0 or end - pos < _LZ4_LAST:
            return -1
        if not 0 < offset <= at - begin or length > stop - at:
            return -1
        _copy_match(out, at, offset, length)
        at += length
    return -1


@inline
def _lz4_frame(source: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], at: int, stop: int) -> int:
    if end - pos < 11 or load_i32(source, pos) != _LZ4_MAGIC:  # header and end mark
        return -1
    flags, sizes = source[pos + 4] & 0xFF, source[pos + 5] & 0xFF
    if flags & ~_LZ4_CONTENT_CHECKSUM != _LZ4_PLAIN or sizes & 0x8F or sizes < 0x40:
        return -1
    if xxh32(source, pos + 4, pos + 6) >> 8 & 0xFF != source[pos + 6] & 0xFF:
        return -1
    pos += 7
    while end - pos >= 4:
        word = (source[pos] & 0xFF) | (source[pos + 1] & 0xFF) << 8 | (source[pos + 2] & 0xFF) << 16
        stored = source[pos + 3] & 0xFF == 0x80
        if not stored and source[pos + 3]:
            return -1
        pos += 4
        if word == 0:
            after = pos + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
            return -1 if stored or after != end else at
        if word > end - pos:
            return -1
        if stored:
            if word > stop - at:
                return -1
            copy_bytes(out, at, source, pos, word)
            at += word
        else:
            at = _lz4_block(source, pos, pos + word, out, at, stop)
            if at < 0:
                return -1
        pos += word
    return -1


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
def decompress_small(
    codecs: NDArray[np.int64],
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    stop: int,
    limit: int,
    out_ends: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Decompress the bodies source[starts[i]:ends[i]], one behind the other, into `out` from byte `at` on, until `stop`
    is reached.

    codecs: CODEC_LZ4 or CODEC_SNAPPY; limit: most bytes of one body; out_ends: int64[n], written: where each ends in
    `out`. Returns (bodies done, bytes of `out` in use, status). The status tells of the first body that is not done:
    MORE_ROOM (`out` needs MOST bytes more) or ASK_LIBRARY.
    """
    n = starts.shape[0]
    for i in range(n):
        if at >= stop:
            return i, at, DONE
        if out.shape[0] - at < MOST:
            return i, at, MORE_ROOM
        most = at + min(limit, MOST)
        if codecs[i] == CODEC_LZ4:
            after = _lz4_frame(source, starts[i], ends[i], out, at, most)
        else:
            after = _snappy_frame(source, starts[i], ends[i], out, at, most)
        if after < 0:
            return i, at, ASK_LIBRARY
        at = after
        out_ends[i] = at
    return n, at, DONE
