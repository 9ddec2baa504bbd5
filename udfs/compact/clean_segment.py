"""One source segment cleaned, from its end or from its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from logformat.batches.bodies import BodyLoader
from logformat.batches.chunks import ChunkBuffer
from udfs.compact.clean_batches import FatesOf, MarkLast, Piece, Tally, clean_chunk
from udfs.compact.cleaner import Rules
from udfs.compact.piece_stack import PieceStack
from udfs.compact.scan_segment import ScannedChunk
from udfs.compact.sources import Source, chunk_at
from udfs.storage import opened


def clean_backwards(
    source: int,
    sources: list[Source],
    stack: PieceStack,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
) -> None:
    """Clean one source segment from its end and push what survives."""
    one = sources[source]
    keep_legacy = one.mtime_ms > rules.legacy_horizon_ms
    with opened(one.root, one.path) as file:
        for scanned in reversed(one.scan.chunks):
            chunk = chunk_at(file, one.path, scanned, buffer)
            for piece in clean_chunk(chunk, one.path, loader, rules, keep_legacy, mark_last, tally, backwards=True):
                stack.push(source, piece, chunk)


def clean_forwards(
    one: Source,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
    *,
    chunks: Sequence[ScannedChunk] | None = None,
    fates_of: FatesOf | None = None,
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Clean one source segment, or some consecutive chunks of it, from its start; (piece, its bytes)."""
    keep_legacy = one.mtime_ms > rules.legacy_horizon_ms
    with opened(one.root, one.path) as file:
        for scanned in one.scan.chunks if chunks is None else chunks:
            chunk = chunk_at(file, one.path, scanned, buffer)
            for piece in clean_chunk(
                chunk, one.path, loader, rules, keep_legacy, mark_last, tally, backwards=False, fates_of=fates_of
            ):
                if piece.data is not None:
                    yield piece, piece.data
                elif piece.position >= 0:
                    start = piece.position - chunk.position
                    yield piece, chunk.raw[start : start + piece.size]
                else:
                    yield piece, np.empty(0, np.uint8)
