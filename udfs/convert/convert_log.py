"""One `.log` -> the same log in another message format, with the indexes of the new file (FORMAT.md, "Magic 3").

A stream: chunks are read and checked, converted (`logformat.writing.formats`), written, and counted for the indexes, in
the memory of a chunk. Bytes at the end that are no batch come along as they are.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import CHUNK_BYTES, MAX_BATCH_BYTES, Chunk, read_exactly
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_SEGMENT_BYTES
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.writing.formats import Converted, Converter, Magic
from lastkey.udfs.storage import Root, log_file, open_output

_PIECE: Final = 8 << 20
_SPARE: Final = 8  # this part of the limit is left for the way back to magic 2


@dataclass(frozen=True)
class ConvertSettings:
    """Settings that decide the bytes of the indexes, and how logs are read."""

    magic: Magic
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    time_index_interval_ms: int = 0
    chunk_bytes: int = CHUNK_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES


@dataclass(frozen=True)
class ConvertedLog:
    """A log that has been written, and what stands beside it."""

    size: int
    batches: int
    changed: int  # batches that have the other format now
    source_checksum: int  # CRC-32C of the bytes that were read
    checksum: int  # ... and of those that were written
    offset_index: bytes
    time_index: bytes


def convert_log(
    source: Root,
    path: str,
    size: int,
    target: Root,
    to: str,
    base_offset: int,
    settings: ConvertSettings,
    *,
    limit: int = MAX_SEGMENT_BYTES,
) -> ConvertedLog:
    """Write the first `size` bytes of a log to another file, in the format of the settings.

    limit: most bytes of a log. Magic 3 may take more than 2 where a producer compressed better than we do, and magic 2
    made of it again more than either: batches stay as they are where the log would else come near the limit. Raises
    LogFormatError where a log in magic 2 grows beyond it, and for damage, as a reader does; what is written then is
    worth nothing.
    """
    reader, log = LogReader(settings.chunk_bytes, settings.max_batch_bytes), log_file(source, path, size)
    converter = Converter(settings.magic, max_batch_bytes=settings.max_batch_bytes)
    indexes = IndexBuilder(
        base_offset, settings.index_interval_bytes, settings.segment_index_bytes, to, settings.time_index_interval_ms
    )
    room = limit - limit // _SPARE
    read = written = batches = changed = total = 0
    with open_output(target, to) as out:
        for chunk in reader.chunks(log):
            read = crc32c_extend(read, chunk.raw)
            for part in converter.convert(chunk.raw, chunk.position, chunk.batches, path):
                rows = chunk.batches[part.first : part.first + len(part.sizes)]
                end = int(rows["position"][-1] + rows["size"][-1])
                if settings.magic == 3 and room < total + len(part.data) + size - end:
                    part = _unchanged(part, chunk, rows)  # noqa: PLW2901
                total += len(part.data)
                if total > limit:
                    raise LogFormatError(
                        "length",
                        path,
                        chunk.position,
                        f"a log of at most {limit} bytes in magic {settings.magic}",
                        "more",
                        hint="its records take more room there: keep this log in magic 3, or the original",
                    )
                indexes.append(rows["last_offset"], part.sizes, rows["max_timestamp"])
                out.write(part.data.data)
                written = crc32c_extend(written, part.data)
                batches += len(rows)
                changed += int(part.changed.sum())
        with log.open() if reader.tail.torn_bytes else nullcontext() as file:
            for at in range(reader.tail.position, size, _PIECE):  # a torn batch, or zeros
                piece = np.empty(min(_PIECE, size - at), np.uint8)
                read_exactly(file, path, at, piece)
                out.write(piece.data)
                read, written, total = crc32c_extend(read, piece), crc32c_extend(written, piece), total + len(piece)
    return ConvertedLog(total, batches, changed, read, written, *indexes.finish())


def _unchanged(part: Converted, chunk: Chunk, rows: np.ndarray) -> Converted:
    start = int(rows["position"][0]) - chunk.position
    sizes = rows["size"].astype(np.int64)
    return Converted(chunk.raw[start : start + int(sizes.sum())], sizes, np.zeros(len(rows), np.bool_), part.first)


def holds_magic_3(root: Root, path: str, size: int) -> bool:
    """Return whether some batch has magic 3, by the headers alone. Damage ends the walk: who reads the log says it."""
    try:
        return any((chunk.batches["magic"] == 3).any() for chunk in LogReader().headers(log_file(root, path, size)))
    except LogFormatError:
        return False
