"""The cleaning of one source segment, from its end or from its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer
from lastkey.logformat.primitives.codec import Scratch
from lastkey.udfs.compact.clean.clean_batches import CleanedRun, MarkLast, Room, Tally, VerdictsOf, clean_chunk
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.scan.read_again import chunks_again
from lastkey.udfs.compact.scan.scan_segment import ScannedChunk, SegmentScan

ChunksOf = Callable[[Any], Iterator[Chunk]]  # called with the segment's open log


def clean_backwards(
    one: SegmentScan,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
    room: Room,
    *,
    chunks: Sequence[ScannedChunk] | None = None,
) -> Iterator[tuple[CleanedRun, Chunk]]:
    """Clean one source segment, or some consecutive chunks of it, from its end; yield (piece, in memory of `room`; its
    chunk), last first.
    """
    taken = (one.chunks if chunks is None else chunks)[::-1]

    def again(file: Any) -> Iterator[Chunk]:
        return chunks_again(file, one.path, taken, buffer)

    return _pieces(one, rules, loader, mark_last, tally, again, room, backwards=True)


def clean_forwards(
    one: SegmentScan,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
    *,
    chunks_of: ChunksOf | None = None,
    verdicts_of: VerdictsOf | None = None,
) -> Iterator[tuple[CleanedRun, np.ndarray]]:
    """Clean one source segment, or those chunks of it that `chunks_of` gives, from its start; yield (piece, its bytes:
    uint8[], valid until the next; no bytes in a dry run if a batch changed).
    """
    memory = Scratch()

    def room(size: int) -> np.ndarray:
        memory.reserve(size)
        return memory.array[:size]

    again = chunks_of or (lambda file: chunks_again(file, one.path, one.chunks, buffer))
    for piece, chunk in _pieces(
        one, rules, loader, mark_last, tally, again, room, backwards=False, verdicts_of=verdicts_of
    ):
        if piece.data is not None:
            yield piece, piece.data
        elif piece.position >= 0:
            start = piece.position - chunk.position
            yield piece, chunk.raw[start : start + piece.size]
        else:
            yield piece, np.empty(0, np.uint8)


def _pieces(
    one: SegmentScan,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    chunks_of: ChunksOf,
    room: Room,
    *,
    backwards: bool,
    verdicts_of: VerdictsOf | None = None,
) -> Iterator[tuple[CleanedRun, Chunk]]:
    keep_legacy = one.mtime_ms > rules.legacy_horizon_ms
    with one.open_log() as file:
        for chunk in chunks_of(file):
            for piece in clean_chunk(
                chunk,
                one.path,
                loader,
                rules,
                keep_legacy,
                mark_last,
                tally,
                backwards=backwards,
                verdicts_of=verdicts_of,
                room=room,
            ):
                yield piece, chunk
