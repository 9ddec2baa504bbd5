"""Compression and decompression of a batch's body, framed as Kafka frames it.

Sources: Kafka's compress package (4.3.0), with Lz4BlockInputStream and Lz4BlockOutputStream; SnappyInputStream of
snappy-java; RFC 1952 (gzip); RFC 8878 (zstd); the LZ4 frame format 1.6.

Differences from Kafka's reader: Kafka ignores bytes after the end of a gzip or lz4 stream, and up to three after the
last snappy block; here they are an error. As in Kafka, an lz4 content checksum is skipped, an lz4 frame of magic 0 may
have any descriptor checksum (KAFKA-3160), gzip may have several members and zstd several frames.

Difference from Kafka's writer: zstd is written in one call, so that its window fits the body (one header byte); this is
a tenth faster for small bodies, and up to 1 % smaller. gzip and lz4 come out byte for byte as Kafka's.

Libraries chosen by time for a body of 1 and of 64 KiB, in microseconds: zstd by a reused context of zstandard 4.9 and
78 (cramjam 13.2, 86); gzip by zlib 6.0 and 205 (cramjam 14.4, 194); lz4 block by block 0.6 and 24, as a frame 3.7 and
31 (cramjam both); snappy 0.4 and 39 (cramjam).
"""

from __future__ import annotations

import struct
import threading
import zlib
from functools import lru_cache
from typing import Final, TypeAlias

import cramjam
import numpy as np
import zstandard
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NAMES, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from lastkey.logformat.primitives.xxhash_kernels import xxh32

Source: TypeAlias = bytes | memoryview | NDArray[np.uint8]

_U32_LE: Final = struct.Struct("<I")
_I32: Final = struct.Struct(">i")

GZIP_HEADER: Final = bytes.fromhex(
    "1f8b08 00 00000000 00 ff"
)  # no name, no time; "unknown" system, as Java 16 and later
GZIP_STEP: Final = 1 << 20  # bytes decompressed by one call of zlib; bounds the memory beside our buffer
_GZIP_PIECE: Final = 1 << 16  # bytes of the input
_GZIP_SMALLEST_PIECE: Final = 1 << 9
_GZIP_TRAILER: Final = struct.Struct("<II")  # CRC-32 and size of the content

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = struct.Struct(">8sii")  # magic, version, oldest version that can read it
XERIAL_BLOCK: Final = 1 << 15
_XERIAL_WORD: Final = _I32.unpack_from(XERIAL_MAGIC)[0]  # another header begins where a block's size should be

LZ4_MAGIC: Final = 0x184D2204
LZ4_HEADER: Final = bytes.fromhex("04224d18 60 40 82")  # version 1, independent blocks, no checksums; 64 KiB; checksum
LZ4_BLOCK: Final = 1 << 16
_LZ4_STORED: Final = 1 << 31  # set in a block's size: the block is not compressed

ZSTD_MAGIC: Final = 0xFD2FB528
ZSTD_LEVEL: Final = 3
_ZSTD_SKIPPABLE: Final = 0x184D2A50  # and the 15 after it
_ZSTD_START: Final = struct.Struct("<IBBBH")  # magic, descriptor, window, and a block's 3 bytes
_ZSTD_BLOCK: Final = 1 << 17  # most bytes that one block gives
_ZSTD_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)


class Scratch:
    """A growing byte buffer and the decompression context that fills it, reused from batch to batch; for one thread.

    A growing buffer replaces `array` (uint8) and `view` (over the same bytes): take them again after each call.
    """

    __slots__ = ("array", "view", "zstd")

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.array: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.view = self.array.data
        self.zstd = zstandard.ZstdDecompressor()

    def reserve(self, size: int) -> None:
        """Make the buffer at least `size` bytes long; its contents stay."""
        if size > len(self.view):
            grown = np.empty(max(size, len(self.view) * 3 // 2), np.uint8)
            grown[: len(self.array)] = self.array
            self.array, self.view = grown, grown.data


class _BrokenError(Exception):
    """A stream that cannot be read; the text says why."""


class _BombError(Exception):
    """A stream that decompresses to more than the limit."""


def decompress_into(
    codec: int,
    source: Source,
    out: Scratch,
    at: int,
    limit: int,
    *,
    path: str,
    position: int,
    base_offset: int = -1,
    magic: int = 2,
) -> int:
    """Decompress the body `source` of one batch into `out` from byte `at` on; return the number of bytes written.

    `out` grows as needed. `magic` is the batch's; `path`, `position` and `base_offset` only go into errors. A body of
    codec 0 is copied. Raises LogFormatError: "codec" (unknown, or zstd before magic 2), "bomb" (more than `limit`
    bytes; it allocated no more than the limit and one block), "compressed" (broken, cut short, or with bytes left
    over).
    """
    if not CODEC_NONE <= codec <= CODEC_ZSTD or (codec == CODEC_ZSTD and magic < 2):
        found = CODEC_NAMES[codec] if 0 <= codec < len(CODEC_NAMES) else f"codec {codec}"
        raise LogFormatError("codec", path, position, f"a codec of magic {magic}", found, base_offset=base_offset)
    view = _view(source)
    try:
        if codec == CODEC_ZSTD:
            return _read_zstd(view, out, at, limit)
        if codec == CODEC_LZ4:
            return _read_lz4(view, out, at, limit, magic)
        if codec == CODEC_SNAPPY:
            return _read_snappy(view, out, at, limit)
        if codec == CODEC_GZIP:
            return _read_gzip(view, out, at, limit)
        return _append(view, out, at, 0, limit)
    except _BombError:
        raise LogFormatError(
            "bomb",
            path,
            position,
            f"at most {limit} bytes (max.decompressed.batch.bytes) from {CODEC_NAMES[codec]}",
            "more",
            base_offset=base_offset,
        ) from None
    except (_BrokenError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, struct.error) as error:
        raise LogFormatError(
            "compressed", path, position, f"one {CODEC_NAMES[codec]} stream", str(error), base_offset=base_offset
        ) from error


def _view(source: Source) -> memoryview:
    if isinstance(source, memoryview):
        return source
    return source.data if isinstance(source, np.ndarray) else memoryview(source)


def _append(chunk: bytes | memoryview, out: Scratch, at: int, written: int, limit: int) -> int:
    after = written + len(chunk)
    if after > limit:
        raise _BombError
    out.reserve(at + after)
    out.view[at + written : at + after] = chunk
    return after


def _read_gzip(view: memoryview, out: Scratch, at: int, limit: int) -> int:
    # In pieces: at every step zlib copies the rest of its input, so a whole body would cost its square.
    written, pos, end, piece = 0, 0, len(view), _GZIP_PIECE
    while True:
        member = zlib.decompressobj(31)
        rest: bytes | memoryview = b""
        while not member.eof:
            if not rest:
                rest = view[pos : pos + piece]
                pos += len(rest)
                piece = min(2 * piece, _GZIP_PIECE)
            ended = pos == end
            chunk = member.decompress(rest, min(GZIP_STEP, limit - written + 1))
            rest = member.unconsumed_tail
            if not chunk and not rest and not member.eof and ended:
                raise _BrokenError("its end is missing")
            written = _append(chunk, out, at, written, limit)
        pos -= len(member.unused_data)
        if pos == end:
            return written
        piece = _GZIP_SMALLEST_PIECE  # there may be very many members


def _read_snappy(view: memoryview, out: Scratch, at: int, limit: int) -> int:
    end = len(view)
    if end < XERIAL_HEADER.size or not _is_xerial_header(view, 0):
        return _read_snappy_block(view, out, at, 0, limit)  # one block, as clients other than Java's write it
    pos, written = XERIAL_HEADER.size, 0
    while pos < end:
        (size,) = _I32.unpack_from(view, pos)
        if size == _XERIAL_WORD and _is_xerial_header(view, pos):
            pos += XERIAL_HEADER.size
            continue
        pos += 4
        if not 0 < size <= end - pos:
            raise _BrokenError(f"a block of {size} bytes where {end - pos} are left")
        written = _read_snappy_block(view[pos : pos + size], out, at, written, limit)
        pos += size
    return written


def _is_xerial_header(view: memoryview, pos: int) -> bool:
    magic, version, _oldest_reader = XERIAL_HEADER.unpack_from(view, pos)
    if magic != XERIAL_MAGIC:
        return False
    if version < 1:
        raise _BrokenError(f"version {version} of the block stream")
    return True


def _read_snappy_block(block: memoryview, out: Scratch, at: int, written: int, limit: int) -> int:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > 32 * len(block):  # three bytes decompress to 64 at most
        raise _BrokenError(f"a block of {len(block)} bytes that says it holds {size}")
    after = written + size
    if after > limit:
        raise _BombError
    out.reserve(at + after)
    if cramjam.snappy.decompress_raw_into(block, out.view[at + written : at + after]) != size:
        raise _BrokenError("a block of another size than it says")
    return after


@lru_cache(maxsize=1024)
def _lz4_descriptor_checksum(descriptor: bytes) -> int:
    return xxh32(np.frombuffer(descriptor, np.uint8), 0, len(descriptor)) >> 8 & 0xFF


def _read_lz4(view: memoryview, out: Scratch, at: int, limit: int, magic: int) -> int:
    end = len(view)
    if view[: len(LZ4_HEADER)] == LZ4_HEADER:
        flags, largest, pos = LZ4_HEADER[4], LZ4_BLOCK, len(LZ4_HEADER)
    else:
        flags, largest, pos = _read_lz4_header(view, magic)
    written = 0
    while True:
        (word,) = _U32_LE.unpack_from(view, pos)
        pos += 4
        size = word & ~_LZ4_STORED
        if size == 0:
            break
        if size > largest or size > end - pos:
            raise _BrokenError(f"a block of {size} bytes where {min(largest, end - pos)} can be")
        block = view[pos : pos + size]
        pos += size
        if word & _LZ4_STORED:
            written = _append(block, out, at, written, limit)
        else:
            start = at + written
            out.reserve(start + largest)
            # Without output_len cramjam takes a block's first four bytes for its size if they could be one.
            written += cramjam.lz4.decompress_block_into(block, out.view[start : start + largest], output_len=largest)
            if written > limit:
                raise _BombError
        if flags & 0x10:
            if _U32_LE.unpack_from(view, pos)[0] != xxh32(np.frombuffer(block, np.uint8), 0, size):
                raise _BrokenError("a wrong block checksum")
            pos += 4
    pos += flags & 0x04  # the content checksum's four bytes
    if pos != end:
        raise _BrokenError(f"{end - pos} bytes after its end" if pos < end else "its end is missing")
    return written


def _read_lz4_header(view: memoryview, magic: int) -> tuple[int, int, int]:
    """Parse an lz4 header: return its flags, the bytes of the largest block, and the first block's position."""
    if _U32_LE.unpack_from(view)[0] != LZ4_MAGIC:
        raise _BrokenError("not an lz4 frame")
    if len(view) < 15:  # descriptor with content size; a shorter frame can hold nothing but its end mark
        view = memoryview(bytes(view) + bytes(15))
    flags, size_code = view[4], view[5]
    if flags & 0xE3 != 0x60:
        raise _BrokenError(f"flags {flags:#04x}: Kafka reads version 1 with independent blocks only")
    if size_code & 0x8F or size_code < 0x40:
        raise _BrokenError(f"a block size code of {size_code:#04x}")
    end = 14 if flags & 0x08 else 6  # after the content's size, which is not needed
    if magic > 0 and view[end] != _lz4_descriptor_checksum(bytes(view[4:end])):
        raise _BrokenError("a wrong descriptor checksum")
    return flags, 1 << (2 * (size_code >> 4) + 8), end + 1


def _read_zstd(view: memoryview, out: Scratch, at: int, limit: int) -> int:
    pos, written, end = 0, 0, len(view)
    if end >= _ZSTD_START.size:
        word, descriptor, _window, low, high = _ZSTD_START.unpack_from(view)
        size, repeated = low >> 3 | high << 5, low >> 1 & 3 == 1  # size then counts decompressed bytes
        if word == ZSTD_MAGIC and descriptor == 0 and not repeated and size == end - (9 if low & 1 else 12):
            # A header, one block and perhaps an empty last one, as nearly all are. One call copies, yet is faster than
            # a reader; but it would not notice bytes after the frame.
            return _append(out.zstd.decompress(view, max_output_size=_ZSTD_BLOCK), out, at, 0, limit)
    while True:
        after, most = _measure_zstd_frame(view, pos)
        # One byte more than needed: the library checks the frame's end only while there is room.
        room = min(most, limit - written) + 1
        start = at + written
        out.reserve(start + room)
        if most >= 0:
            # It reads one frame to its end: the whole frame is there, and the room is not filled.
            written += out.zstd.stream_reader(view[pos:after]).readinto(out.view[start : start + room])
        if written > limit:
            raise _BombError
        pos = after
        if pos == end:
            return written


def _measure_zstd_frame(view: memoryview, pos: int) -> tuple[int, int]:
    """Return the position after the frame at `pos`, and the most bytes it can give (-1: skippable). RFC 8878, 3.1."""
    end = len(view)
    (word,) = _U32_LE.unpack_from(view, pos)
    if word & ~0xF == _ZSTD_SKIPPABLE:
        after, most = pos + 8 + _U32_LE.unpack_from(view, pos + 4)[0], -1
    elif word != ZSTD_MAGIC:
        raise _BrokenError(f"no zstd frame at byte {pos}")
    else:
        descriptor = view[pos + 4] if pos + 4 < end else 0
        single_segment = descriptor >> 5 & 1  # has no window byte, and a content size of at least a byte
        size_bytes = _ZSTD_CONTENT_SIZE_BYTES[descriptor >> 6] or single_segment
        after = pos + 6 - single_segment + _ZSTD_DICTIONARY_BYTES[descriptor & 3] + size_bytes
        most = last = 0
        while not last:
            if after + 3 > end:
                raise _BrokenError("its end is missing")
            block = view[after] | view[after + 1] << 8 | view[after + 2] << 16
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            after += 3 + (1 if kind == 1 else size)  # kind 0: as it is; 1: one byte repeated; 2: compressed
            most += _ZSTD_BLOCK if kind >= 2 else size
        after += descriptor & 4  # the content checksum's four bytes
    if after > end:
        raise _BrokenError("its end is missing")
    return after, most


class _Writers(threading.local):
    """Compressors and buffers that compress() keeps between calls, for each thread."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False, write_checksum=False)


_WRITERS: Final = _Writers()


def compress(codec: int, source: Source) -> bytes:
    """Compress a batch's records as Kafka's writer does at its default level, for magic 2. Codec 0 returns a copy.

    Raises ValueError for an unknown codec, because the caller chose it.
    """
    view = _view(source)
    if codec == CODEC_ZSTD:
        return _WRITERS.zstd.compress(view)
    if codec == CODEC_LZ4:
        return _write_lz4(view)
    if codec == CODEC_SNAPPY:
        return _write_snappy(view)
    if codec == CODEC_GZIP:
        member = zlib.compressobj(wbits=-15)  # the header and trailer above are written instead of zlib's
        trailer = _GZIP_TRAILER.pack(zlib.crc32(view), len(view) & 0xFFFFFFFF)
        return b"".join((GZIP_HEADER, member.compress(view), member.flush(), trailer))
    if codec == CODEC_NONE:
        return bytes(view)
    raise ValueError(f"no such codec: {codec}")


def _write_snappy(view: memoryview) -> bytes:
    scratch, pos = _WRITERS.scratch, XERIAL_HEADER.size
    scratch.reserve(pos + len(view) * 7 // 6 + (len(view) // XERIAL_BLOCK + 1) * 64)  # 32 + n + n/6 a block, at worst
    out = scratch.view
    XERIAL_HEADER.pack_into(out, 0, XERIAL_MAGIC, 1, 1)
    for start in range(0, len(view), XERIAL_BLOCK):
        size = cramjam.snappy.compress_raw_into(view[start : start + XERIAL_BLOCK], out[pos + 4 :])
        _I32.pack_into(out, pos, size)
        pos += 4 + size
    return bytes(out[:pos])


def _write_lz4(view: memoryview) -> bytes:
    scratch, pos = _WRITERS.scratch, len(LZ4_HEADER)
    scratch.reserve(pos + len(view) + (len(view) // LZ4_BLOCK + 1) * 512)  # n + n/255 + 16 a block, at worst
    out = scratch.view
    out[:pos] = LZ4_HEADER
    for start in range(0, len(view), LZ4_BLOCK):
        block = view[start : start + LZ4_BLOCK]
        size = cramjam.lz4.compress_block_into(block, out[pos + 4 :], store_size=False)
        if size >= len(block):
            size = len(block)
            out[pos + 4 : pos + 4 + size] = block
            _U32_LE.pack_into(out, pos, size | _LZ4_STORED)
        else:
            _U32_LE.pack_into(out, pos, size)
        pos += 4 + size
    _U32_LE.pack_into(out, pos, 0)
    return bytes(out[: pos + 4])
