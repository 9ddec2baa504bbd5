"""Second reads, and reads of files that an earlier run wrote: they return the very bytes that were checked or written,
or raise an error.

A chunk must match the checksum of its scan, a side file the checksum in a manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import google_crc32c
import numpy as np

from lastkey.logformat.batches.chunks import NO_END, Chunk, ChunkBuffer, read_exactly
from lastkey.logformat.batches.walk_kernels import MORE, REACHED_END, walk_batches
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.read_ahead import will_read
from lastkey.udfs.compact.scan.batch_kernels import SMALLEST_BATCH
from lastkey.udfs.compact.scan.scan_segment import ScannedChunk
from lastkey.udfs.segments import SideFile
from lastkey.udfs.storage import open_root, read_file

CHANGED_HINT: Final = "something writes to this file, or the disk is faulty: find out which, then run again"


def chunks_again(file: Any, path: str, chunks: Sequence[ScannedChunk], buffer: ChunkBuffer) -> Iterator[Chunk]:
    """Read scanned chunks again, in the order given, as `chunk_at` does; in an object store the next ones meanwhile."""
    for i, one in enumerate(chunks):
        chunk = chunk_at(file, path, one, buffer)
        will_read(file, ((chunks[k].position, chunks[k].size) for k in range(i + 1, len(chunks))))
        yield chunk


def chunk_at(file: Any, path: str, scanned: ScannedChunk, buffer: ChunkBuffer) -> Chunk:
    """Read a scanned chunk again. Raises LogFormatError kind "changed" if its bytes differ."""
    if scanned.size > len(buffer.raw):
        buffer.grow_raw(scanned.size, path, scanned.position, -1)
    while scanned.batches > len(buffer.rows):
        buffer.grow_rows()
    raw = buffer.raw[: scanned.size]
    read_again(file, path, scanned, raw)
    walk_batches(raw, scanned.size, scanned.position, -1, NO_END, False, buffer.rows)  # as the scan did
    return Chunk(scanned.position, raw, buffer.rows[: scanned.batches], scanned.offset_before)


def read_again(file: Any, path: str, chunk: ScannedChunk, out: np.ndarray) -> None:
    """Fill `out` (uint8[chunk.size]) with a scanned chunk. Raises LogFormatError kind "changed" if its bytes differ."""
    read_exactly(file, path, chunk.position, out)
    found = crc32c_extend(chunk.before, out)
    if found != chunk.checksum:
        raise LogFormatError(
            "changed",
            path,
            _first_bad(out, chunk.position),
            f"CRC-32C {chunk.checksum:#010x} up to byte {chunk.position + chunk.size}, as first read",
            f"{found:#010x} when read again",
            hint=CHANGED_HINT,
        )


def _first_bad(raw: np.ndarray, position: int) -> int:
    """Return the position of the first malformed batch in `raw`; that of `raw` itself if each batch, taken alone, is
    well formed.
    """
    rows = np.empty(len(raw) // SMALLEST_BATCH + 1, BATCH)
    _, consumed, status, _, _ = walk_batches(raw, len(raw), position, -1, NO_END, True, rows)
    return position + (consumed if status not in (MORE, REACHED_END) else 0)


def read_side_file(file: SideFile) -> bytes:
    """Return a side file's bytes. Raises LogFormatError kind "side_file" if they differ from what the manifest says was
    written.
    """
    data: bytes = read_file(open_root(file.root), file.path)
    if file.checksum not in (None, found := int(google_crc32c.value(data))):
        expected = f"CRC-32C {file.checksum:#010x}, as it was written"
        raise LogFormatError("side_file", file.path, 0, expected, f"{found:#010x}")
    return data
