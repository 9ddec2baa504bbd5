"""A scanned segment of the input, and its chunks read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logformat.batches.chunks import NO_END, Chunk, ChunkBuffer
from logformat.batches.walk_kernels import walk_batches
from udfs.compact.scan_segment import ScannedChunk, SegmentScan, read_again
from udfs.storage import Root


@dataclass(frozen=True)
class Source:
    """A scanned segment with the file system it lies on."""

    root: Root
    path: str
    scan: SegmentScan
    mtime_ms: int


def chunk_at(file: Any, path: str, scanned: ScannedChunk, buffer: ChunkBuffer) -> Chunk:
    """A chunk that a scan saw, read again: the same bytes, or LogFormatError kind "changed"."""
    if scanned.size > len(buffer.raw):
        buffer.grow_raw(scanned.size, path, scanned.position, -1)
    while scanned.batches > len(buffer.rows):
        buffer.grow_rows()
    raw = buffer.raw[: scanned.size]
    read_again(file, path, scanned, raw)
    walk_batches(raw, scanned.size, scanned.position, -1, NO_END, False, buffer.rows)  # as the scan did
    return Chunk(scanned.position, raw, buffer.rows[: scanned.batches], scanned.offset_before)
