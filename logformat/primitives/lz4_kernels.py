"""lz4 by the C library inside the lz4 wheel, called from kernels: many bodies a call, each straight into place.

The library takes blocks; the frames around them are read and written here, as Kafka does it.

Sources: Kafka's Lz4BlockInputStream and Lz4BlockOutputStream (4.3.0); the LZ4 frame format 1.6.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from lastkey.logformat.jit import CHECKED, inline, kernel
from lastkey.logformat.layout import DEFAULT_LEVELS
from lastkey.logformat.primitives import c_library
from lastkey.logformat.primitives.memory_kernels import copy_bytes, load_u32_le, store_u32_le
from lastkey.logformat.primitives.zstd_kernels import BROKEN, DONE, MORE_ROOM, TOO_LARGE

HEADER: Final = bytes.fromhex("04224d18 60 40 82")  # version 1, independent blocks, no checksums; 64 KiB; checksum
BLOCK: Final = 1 << 16
FAST: Final = DEFAULT_LEVELS.lz4  # means the fast compressor, as in Kafka's Lz4BlockOutputStream

_MAGIC: Final = 0x184D2204
_INDEPENDENT: Final = 0x60  # flags: version 1, and blocks that do not refer to those before
_BLOCK_CHECKSUMS: Final = 0x10
_CONTENT_SIZE: Final = 0x08
_CONTENT_CHECKSUM: Final = 0x04
_SMALLEST_SIZE_CODE: Final = 0x40  # code of the smallest block size: 64 KiB; each next one is four times as large
_STORED: Final = 1 << 31  # set in a block's size: the block is not compressed
_LEAST: Final = 11  # bytes of a frame: header and end mark
_BEST_RATIO: Final = 255  # a byte of a block gives no more
_BLOCK_OVERHEAD: Final = 4 + 16  # its size, and LZ4_compressBound but for a 255th

# Why a body is BROKEN
_REASONS: Final = (
    "not an lz4 frame",
    "wrong flags: Kafka reads version 1 with independent blocks only",
    "a wrong block size code",
    "a wrong descriptor checksum",
    "a block longer than its frame allows, or than what is left",
    "a block that does not decompress to what its frame allows",
    "a wrong block checksum",
    "its end is missing",
    "bytes after its end",
)
_NO_FRAME, _FLAGS, _SIZE_CODE, _DESCRIPTOR, _SIZE, _BLOCK, _CHECKSUM, _NO_END, _LEFT_OVER = range(len(_REASONS))

_SYMBOLS: Final = ("LZ4_decompress_safe", "LZ4_compress_default")
_LIBRARY: Final = c_library.load("lz4", "_version", "lz4", _SYMBOLS)
_decompress: Any = types.ExternalFunction(_SYMBOLS[0], types.int32(types.uintp, types.uintp, types.int32, types.int32))
_compress: Any = types.ExternalFunction(_SYMBOLS[1], types.int32(types.uintp, types.uintp, types.int32, types.int32))

_HIGH: Final = c_library.load("lz4.block", "_block", "lz4", ("LZ4_compress_HC",))  # the same version of the library
_compress_high: Any = types.ExternalFunction(
    "LZ4_compress_HC", types.int32(types.uintp, types.uintp, types.int32, types.int32, types.int32)
)


# For the checksums of a frame: every frame holds one byte of its descriptor's. Kafka writes no block checksums, but
# reads them.
_HASHES: Final = c_library.load("lz4.frame", "_frame", "xxhash", ("XXH32",))
_hash: Any = types.ExternalFunction("XXH32", types.uint32(types.uintp, types.uintp, types.uint32))


@inline
def _xxh32(source: NDArray[np.uint8], start: int, end: int) -> int:
    """Return xxHash32 (seed 0) of source[start:end], as int64."""
    if CHECKED and not 0 <= start <= end <= source.shape[0]:
        raise IndexError("bytes outside of the array")
    address = np.uintp(source.ctypes.data) + np.uintp(start)
    return np.int64(_hash(address, np.uintp(end - start), np.uint32(0)))  # type: ignore[return-value]


def error_text(reason: int) -> str:
    """Return why a body is BROKEN."""
    return _REASONS[reason]


@inline
def _header(source: NDArray[np.uint8], pos: int, end: int, any_descriptor: bool) -> tuple[int, int, int]:
    """Return (flags, bytes of the largest block, position of the first block), or (-1, reason, 0)."""
    if end - pos < 4 or load_u32_le(source, pos) != _MAGIC:
        return -1, _NO_FRAME, 0
    if end - pos < _LEAST:
        return -1, _NO_END, 0
    flags, sizes = source[pos + 4] & 0xFF, source[pos + 5] & 0xFF  # int64
    if flags & ~(_BLOCK_CHECKSUMS | _CONTENT_SIZE | _CONTENT_CHECKSUM) != _INDEPENDENT:
        return -1, _FLAGS, 0
    if sizes & 0x8F or sizes < _SMALLEST_SIZE_CODE:
        return -1, _SIZE_CODE, 0
    checksum = pos + (14 if flags & _CONTENT_SIZE else 6)  # the content's size is not needed
    if checksum >= end:
        return -1, _NO_END, 0
    if not any_descriptor and source[checksum] != (_xxh32(source, pos + 4, checksum) >> 8 & 0xFF):
        return -1, _DESCRIPTOR, 0
    return flags, 1 << (2 * (sizes >> 4) + 8), checksum + 1


@inline
def _bound(source: NDArray[np.uint8], pos: int, end: int, flags: int, largest: int) -> int:
    """Return the largest decompressed size of the blocks in source[pos:end], up to the first broken one."""
    bound = 0
    while end - pos >= 4:
        word: int = load_u32_le(source, pos)
        size = word & ~_STORED
        if size == 0 or size > largest:
            break
        bound += size if word & _STORED else min(largest, _BEST_RATIO * size)
        pos += 4 + size + (4 if flags & _BLOCK_CHECKSUMS else 0)
    return bound


@kernel
def _read_blocks(
    source: NDArray[np.uint8], pos: int, end: int, flags: int, largest: int, out: NDArray[np.uint8], at: int, limit: int
) -> tuple[int, int]:
    """Decompress the blocks of source[pos:end] into `out` from byte `at` on; return (DONE, where they end in `out`),
    (TOO_LARGE, 0) or (BROKEN, reason).
    """
    begin = at
    while True:
        if end - pos < 4:
            return BROKEN, _NO_END
        word: int = load_u32_le(source, pos)
        size = word & ~_STORED
        pos += 4
        if size == 0:
            break
        if size > largest or size > end - pos:
            return BROKEN, _SIZE
        if word & _STORED:
            if size > limit - (at - begin):
                return TOO_LARGE, 0
            copy_bytes(out, at, source, pos, size)
            at += size
        else:
            written: int = _decompress(
                np.uintp(source.ctypes.data) + np.uintp(pos),
                np.uintp(out.ctypes.data) + np.uintp(at),
                np.int32(size),
                np.int32(min(largest, out.shape[0] - at)),
            )
            if written < 0:
                return BROKEN, _BLOCK
            at += written
            if at - begin > limit:
                return TOO_LARGE, 0
        if flags & _BLOCK_CHECKSUMS:
            if end - pos - size < 4:
                return BROKEN, _NO_END
            if load_u32_le(source, pos + size) != _xxh32(source, pos, pos + size):
                return BROKEN, _CHECKSUM
            pos += 4
        pos += size
    if flags & _CONTENT_CHECKSUM:
        pos += 4
    if pos != end:
        return BROKEN, _LEFT_OVER if pos < end else _NO_END
    return DONE, at


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
    any_descriptor: bool,
) -> tuple[int, int, int, int]:
    """Decompress the bodies source[starts[i]:ends[i]] one after the other, as `zstd_kernels.decompress_bodies` does
    and returns.

    A body is exactly one whole frame. Not more than `limit` and one block is asked for. any_descriptor: the checksum of
    a frame's descriptor may be wrong. The detail of a BROKEN body is for error_text.
    """
    n = starts.shape[0]
    for i in range(n):
        if at >= stop:
            return i, at, DONE, 0
        start, end = starts[i], ends[i]
        if CHECKED and not (0 <= start <= end <= source.shape[0] and 0 <= at <= out.shape[0]):
            raise IndexError("bytes outside of the array")
        flags, largest, pos = _header(source, start, end, any_descriptor)
        if flags < 0:
            return i, at, BROKEN, largest
        room = min(_bound(source, pos, end, flags, largest), limit + largest)
        if room > out.shape[0] - at:
            return i, at, MORE_ROOM, at + room
        status, detail = _read_blocks(source, pos, end, flags, largest, out, at, limit)
        if status != DONE:
            return i, at, status, detail
        at = detail
        out_ends[i] = at
    return n, at, DONE, 0


@kernel
def compress_bodies(
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    out_ends: NDArray[np.int64],
    level: int,
) -> None:
    """Compress each source[starts[i]:ends[i]] as a frame, one after the other, into `out` from byte `at` on.

    out: has room for most_compressed(ends - starts); out_ends: int64[n], written: where each frame ends; level:
    FAST, or of the high compressor. A block that would not get smaller is stored.
    """
    for i in range(starts.shape[0]):
        if CHECKED and not (0 <= starts[i] <= ends[i] <= source.shape[0] and 0 <= at <= out.shape[0]):
            raise IndexError("bytes outside of the array")
        for k in range(len(HEADER)):
            out[at + k] = HEADER[k]
        at += len(HEADER)
        for pos in range(starts[i], ends[i], BLOCK):
            size = min(BLOCK, ends[i] - pos)
            block = np.uintp(source.ctypes.data) + np.uintp(pos)
            place = np.uintp(out.ctypes.data) + np.uintp(at + 4)
            room = np.int32(min(size + size // 255 + 16, out.shape[0] - at - 4))
            written: int
            if level == FAST:
                written = _compress(block, place, np.int32(size), room)
            else:
                written = _compress_high(block, place, np.int32(size), room, np.int32(level))
            word = written
            if not 0 < written < size:
                copy_bytes(out, at + 4, source, pos, size)
                written, word = size, size | _STORED
            store_u32_le(out, at, word)
            at += 4 + written
        store_u32_le(out, at, 0)
        at += 4
        out_ends[i] = at


@kernel
def most_compressed(sizes: NDArray[np.int64]) -> int:
    """Return the bytes that bodies of these sizes (int64[n]) take at the most when they are compressed."""
    total = 0
    for i in range(sizes.shape[0]):
        blocks = (sizes[i] + BLOCK - 1) // BLOCK
        total += _LEAST + sizes[i] + blocks * (_BLOCK_OVERHEAD + BLOCK // 255)
    return total
