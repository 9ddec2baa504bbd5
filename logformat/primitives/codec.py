"""Compression and decompression of a batch's body, framed as Kafka frames it.

Sources: Kafka's compress package (4.3.0), with Lz4BlockInputStream and Lz4BlockOutputStream; SnappyInputStream of
snappy-java; RFC 1952 (gzip); RFC 8878 (zstd); the LZ4 frame format 1.6.

Differences from Kafka's reader: Kafka ignores bytes after the end of a gzip or lz4 stream, and up to three after the
last snappy block; here they are an error. As in Kafka, an lz4 content checksum is skipped, and an lz4 frame of magic 0
may have any descriptor checksum (KAFKA-3160). Also as in Kafka, gzip may have several members and zstd several frames.
As in Java, flags of a gzip header without a meaning are ignored.

Difference from Kafka's writer: zstd is written in one call, so that its window fits the body (one header byte); this is
a tenth faster for small bodies, and up to 1 % smaller. gzip and lz4 come out byte for byte as Kafka's. Levels have the
ranges and defaults of Kafka's compression.*.level (`Levels`).

Libraries chosen by time for a body of 1 and of 64 KiB, in microseconds: zstd by a reused context of zstandard 4.9 and
78 (cramjam 13.2, 86; `zstd_kernels` takes the library of backports.zstd without its bytes objects: the same version,
built so that it decompresses in 0.85 to 0.95 of the time); gzip is decompressed by
ISA-L in 0.8 (16 KiB) to 0.4 (128 KiB) of zlib's time, and compressed by zlib, as Kafka does; lz4 by blocks 0.6 and
24 (its own library, in kernels too: `lz4_kernels`); snappy 0.4 and 39 (cramjam).
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

import cramjam
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import (
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_NAMES,
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    DEFAULT_LEVELS,
    Levels,
)
from lastkey.logformat.primitives import lz4_kernels as lz4
from lastkey.logformat.primitives import small_body_kernels as small
from lastkey.logformat.primitives import zstd_kernels as zstd

Source: TypeAlias = bytes | memoryview | NDArray[np.uint8]

MANY_A_CALL: Final = (CODEC_LZ4, CODEC_ZSTD)  # their libraries are called from kernels: `unpack_many`

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


class Scratch:
    """A growing byte buffer, reused from batch to batch; for one thread.

    A growing buffer replaces `array` (uint8) and `view` (over the same bytes): take them again after each call.
    """

    __slots__ = ("array", "view")

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.array: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.view = self.array.data

    def reserve(self, size: int) -> None:
        """Make the buffer at least `size` bytes long; its contents stay."""
        if size > len(self.view):
            grown = np.empty(max(size, len(self.view) * 3 // 2), np.uint8)
            grown[: len(self.array)] = self.array
            self.array, self.view = grown, grown.data


class BatchPlace(NamedTuple):
    """The place and format of a batch, for errors."""

    path: str
    position: int  # in the file
    base_offset: int = -1  # -1: unknown
    magic: int = 2

    def error(self, kind: str, expected: str, found: str) -> LogFormatError:
        """Return the error for this batch."""
        return LogFormatError(kind, self.path, self.position, expected, found, base_offset=self.base_offset)


class BombError(Exception):
    """A stream that decompresses to more than the limit."""


_GzipError: Final = cast("type[Exception]", isal_zlib.error)  # its stubs declare an instance
UNREADABLE: Final = (_GzipError, cramjam.DecompressionError, struct.error)


def decompress_into(codec: int, source: Source, out: Scratch, at: int, limit: int, place: BatchPlace) -> int:
    """Decompress the body `source` of one batch into `out` from byte `at` on; return the number of bytes written.

    `out` grows as needed. A body of codec 0 is copied. Raises LogFormatError: "codec" (unknown, or zstd before magic
    2), "bomb" (more than `limit` bytes; it allocated no more than the limit and one block), "compressed" (broken, cut
    short, or with bytes left over).
    """
    if not CODEC_NONE <= codec <= CODEC_ZSTD or (codec == CODEC_ZSTD and place.magic < 2):
        found = CODEC_NAMES[codec] if 0 <= codec < len(CODEC_NAMES) else f"codec {codec}"
        raise place.error("codec", f"a codec of magic {place.magic}", found)
    try:
        return read_body(codec, _view(source), out, at, limit, place.magic)
    except BombError:
        expected = f"at most {limit} bytes (max.decompressed.batch.bytes) from {CODEC_NAMES[codec]}"
        raise place.error("bomb", expected, "more") from None
    except UNREADABLE as error:
        raise place.error("compressed", f"one {CODEC_NAMES[codec]} stream", str(error)) from error


def read_body(codec: int, view: memoryview, out: Scratch, at: int, limit: int, magic: int = 2) -> int:
    """Decompress as `decompress_into` does, but faster: raises BombError or UNREADABLE, with less detail."""
    if codec in MANY_A_CALL:
        return _read_frames(codec, view, out, at, limit, magic)
    if codec == CODEC_SNAPPY:
        return _read_snappy(view, out, at, limit)
    if codec == CODEC_GZIP:
        return _read_gzip(view, out, at, limit)
    return _append(view, out, at, 0, limit)


def _view(source: Source) -> memoryview:
    if isinstance(source, memoryview):
        return source
    return source.data if isinstance(source, np.ndarray) else memoryview(source)


def _append(chunk: bytes | memoryview, out: Scratch, at: int, written: int, limit: int) -> int:
    after = written + len(chunk)
    if after > limit:
        raise BombError
    out.reserve(at + after)
    out.view[at + written : at + after] = chunk
    return after


def _read_gzip(view: memoryview, out: Scratch, at: int, limit: int) -> int:
    # In pieces: at every step the library copies the rest of its input, so a whole body would cost its square.
    written, pos, end, piece = 0, 0, len(view), _GZIP_PIECE
    while True:
        member = isal_zlib.decompressobj(31)
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
                raise cramjam.DecompressionError("its end is missing")
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
            raise cramjam.DecompressionError(f"a block of {size} bytes where {end - pos} are left")
        written = _read_snappy_block(view[pos : pos + size], out, at, written, limit)
        pos += size
    return written


def _is_xerial_header(view: memoryview, pos: int) -> bool:
    magic, version, _oldest_reader = XERIAL_HEADER.unpack_from(view, pos)
    if magic != XERIAL_MAGIC:
        return False
    if version < 1:
        raise cramjam.DecompressionError(f"version {version} of the block stream")
    return True


def _read_snappy_block(block: memoryview, out: Scratch, at: int, written: int, limit: int) -> int:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > 32 * len(block):  # three bytes decompress to 64 at most
        raise cramjam.DecompressionError(f"a block of {len(block)} bytes that says it holds {size}")
    after = written + size
    if after > limit:
        raise BombError
    out.reserve(at + after)
    if cramjam.snappy.decompress_raw_into(block, out.view[at + written : at + after]) != size:
        raise cramjam.DecompressionError("a block of another size than it says")
    return after


def _read_frames(codec: int, view: memoryview, out: Scratch, at: int, limit: int, magic: int) -> int:
    place, ends = np.array([0, len(view)]), np.empty(1, np.int64)
    _, end, status, error = unpack_many(
        codec, np.asarray(view), place[:1], place[1:], out, at, at + 1, limit, ends, any_lz4_descriptor=magic == 0
    )
    if status == zstd.TOO_LARGE:
        raise BombError
    if status == zstd.BROKEN:
        raise cramjam.DecompressionError(zstd.error_text(error) if codec == CODEC_ZSTD else lz4.error_text(error))
    return end - at


def unpack_many(
    codec: int,
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: Scratch,
    at: int,
    stop: int,
    limit: int,
    out_ends: NDArray[np.int64],
    *,
    any_lz4_descriptor: bool = False,
) -> tuple[int, int, int, int]:
    """Decompress many bodies of one codec in one call: `decompress_bodies` of its kernels, but `out` grows.

    codec: one of MANY_A_CALL, or snappy: small bodies, as `small_body_kernels` reads them.
    """
    done = 0
    while True:
        places = source, starts[done:], ends[done:], out.array, at, stop, limit, out_ends[done:]
        if codec == CODEC_ZSTD:
            n, at, status, detail = zstd.decompress_bodies(_KEPT.reader.address, *places)
        elif codec == CODEC_LZ4:
            n, at, status, detail = lz4.decompress_bodies(*places, any_lz4_descriptor)
        else:
            n, at, status, detail = small.decompress_bodies(*places)
        done += n
        if status != zstd.MORE_ROOM:
            return done, at, status, detail
        out.reserve(detail)


class _Kept(threading.local):
    """Contexts of zstd, and a buffer for compress(), which a thread keeps from call to call."""

    def __init__(self) -> None:
        self.reader = zstd.Context("D")
        self.writer = zstd.Context("C")
        self.scratch = Scratch()
        self._level = zstd.LEVEL  # level of the writer

    def zstd_writer(self, level: int) -> int:
        """Return the address of the context that compresses at a level."""
        if level != self._level:
            self.writer.set_level(level)
            self._level = level
        return self.writer.address


_KEPT: Final = _Kept()


def compress(codec: int, source: Source, levels: Levels = DEFAULT_LEVELS) -> bytes:
    """Compress a batch's records as Kafka's writer does, for magic 2. Codec 0 returns a copy.

    Raises ValueError for an unknown codec, because the caller chose it.
    """
    body = np.asarray(_view(source))
    (end,) = pack_bodies(np.array([codec]), body, np.array([0, len(body)]), _KEPT.scratch, 0, levels)
    return _KEPT.scratch.array[:end].tobytes()


def pack_bodies(
    codecs: NDArray[np.integer[Any]],
    source: NDArray[np.uint8],
    borders: NDArray[np.int64],
    out: Scratch,
    at: int,
    levels: Levels = DEFAULT_LEVELS,
) -> NDArray[np.int64]:
    """Compress the bodies source[borders[i]:borders[i + 1]] as compress() does, one after the other, into `out` from
    byte `at` on. Return int64[n]: where each ends in `out`. codecs: one a body.
    """
    n = len(codecs)
    ends = np.empty(n, np.int64)
    steps = np.concatenate([[0], np.flatnonzero(np.diff(codecs)) + 1, [n]]).tolist() if n else []
    for first, last in pairwise(steps):  # bodies of one codec
        codec = int(codecs[first])
        if codec in MANY_A_CALL:
            begin, end = borders[first:last], borders[first + 1 : last + 1]
            out.reserve(at + (zstd if codec == CODEC_ZSTD else lz4).most_compressed(end - begin))
            places = source, begin, end, out.array, at, ends[first:last]
            if codec == CODEC_LZ4:
                lz4.compress_bodies(*places, levels.lz4)
            elif zstd.compress_bodies(_KEPT.zstd_writer(levels.zstd), *places) < last - first:
                raise MemoryError("zstd could not compress a batch")
            at = int(ends[last - 1])
            continue
        if codec not in _WRITERS:
            raise ValueError(f"no such codec: {codec}")
        places = borders[first : last + 1].tolist()
        for i in range(last - first):
            at = _WRITERS[codec](source.data[places[i] : places[i + 1]], out, at, levels)
            ends[first + i] = at
    return ends


def _write_gzip(view: memoryview, out: Scratch, at: int, levels: Levels) -> int:
    member = zlib.compressobj(levels.gzip, wbits=-15)  # the header and trailer here are written instead of zlib's
    trailer = _GZIP_TRAILER.pack(isal_zlib.crc32(view), len(view) & 0xFFFFFFFF)
    packed = b"".join((GZIP_HEADER, member.compress(view), member.flush(), trailer))
    return at + _append(packed, out, at, 0, len(packed))


def _write_plain(view: memoryview, out: Scratch, at: int, _levels: Levels) -> int:
    return at + _append(view, out, at, 0, len(view))


def _write_snappy(view: memoryview, scratch: Scratch, at: int, _levels: Levels) -> int:
    pos = at + XERIAL_HEADER.size
    scratch.reserve(pos + len(view) * 7 // 6 + (len(view) // XERIAL_BLOCK + 1) * 64)  # 32 + n + n/6 a block, at worst
    out = scratch.view
    XERIAL_HEADER.pack_into(out, at, XERIAL_MAGIC, 1, 1)
    for start in range(0, len(view), XERIAL_BLOCK):
        size = cramjam.snappy.compress_raw_into(view[start : start + XERIAL_BLOCK], out[pos + 4 :])
        _I32.pack_into(out, pos, size)
        pos += 4 + size
    return pos


_WRITERS: Final[dict[int, Callable[[memoryview, Scratch, int, Levels], int]]] = {
    CODEC_NONE: _write_plain,
    CODEC_GZIP: _write_gzip,
    CODEC_SNAPPY: _write_snappy,
}
