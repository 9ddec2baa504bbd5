"""Where reading committed data ends: the first offset of the oldest transaction that is still open."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from logformat.batches.chunks import ChunkBuffer, Tail, read_chunks
from logformat.batches.headers import read_headers
from logformat.errors import LogFormatError
from logformat.listing import ListedSegment
from logformat.side_files import producer_snapshot
from logformat.side_files.producer_kernels import MARKER
from logformat.side_files.producer_state import ProducerState
from udfs.storage import cached_root, opened, read_file

_BUFFER_BYTES: Final = 1 << 20


def last_stable_offset(
    segments: Sequence[ListedSegment],
    log_start_offset: int | None,
    high_watermark: int | None = None,
    snapshots: Sequence[tuple[int, str, str]] = (),
    resume: Callable[[ListedSegment, LogFormatError, int], int | None] | None = None,
) -> int:
    """Of a log, by the headers of its batches from the newest of the `snapshots` on (offset, URI of the root, path;
    rising) that can be read and lies at a segment's base; without one, of all batches. Nothing is decompressed. A
    snapshot also knows the transactions that began in segments that are not there any more. log_start_offset: None, or
    below the first segment: its base.

    Rule: that of a broker that has just loaded the log (KAFKA.md, "Offsets of a log"): a producer's transaction begins
    with its first batch that is not below the log start, and is open until its marker is below the high
    watermark (None: the log end). Raises LogFormatError for a bad log, unless there is `resume`: of a segment, what is
    wrong with its batch at a position, and that position it gives the next batch's, None: go on in the next segment.
    What was open before the damage is then not known to be open; who reads it finds no marker this side of the damage.
    Checksums of markers are checked, and that of the batch that is open, the latter without `resume` only.
    """
    log_start_offset = max(log_start_offset or 0, segments[0].base_offset if segments else 0)
    state, first = _loaded(segments, snapshots, high_watermark)
    completed, end = [np.empty(0, MARKER)], log_start_offset
    buffer = ChunkBuffer(_BUFFER_BYTES)
    for segment in segments[first:]:
        end = max(end, segment.base_offset)
        position: int | None = 0
        while position is not None and position < segment.size:
            try:
                with opened(cached_root(segment.root), segment.path) as file:
                    shown = f"{segment.root}/{segment.path}"
                    for headers in read_headers(
                        file, shown, position, segment.size, buffer, Tail(), check_markers=True
                    ):
                        batches = headers.batches
                        position = headers.position + headers.size
                        end = int(batches["last_offset"][-1]) + 1
                        counts = (batches["producer_id"] >= 0) & (batches["last_offset"] >= log_start_offset)
                        completed.append(state.append(batches[counts], shown))
                break
            except LogFormatError as error:
                if resume is None:
                    raise
                state, position = ProducerState(), resume(segment, error, position)
    end = max(end, log_start_offset)
    known = end if high_watermark is None else min(end, high_watermark)
    found = state.last_stable_offset(known, np.concatenate(completed).view(MARKER))
    found = min(max(found, log_start_offset), known)
    if resume is None and found < known:
        damage = damage_at(segments, found)
        if damage is not None:
            raise damage
    return found


def damage_at(segments: Sequence[ListedSegment], offset: int) -> LogFormatError | None:
    """What is wrong with the batch that an offset lies in; None: nothing, or there is no such batch.

    For the one that opens the oldest open transaction: a bit in its producer opens one that nothing ever ends, and no
    reader comes as far as to notice.
    """
    bases = [segment.base_offset for segment in segments]
    number = bisect.bisect_right(bases, offset) - 1
    if number < 0:
        return None
    segment, tail, buffer = segments[number], Tail(), ChunkBuffer(_BUFFER_BYTES)
    shown = f"{segment.root}/{segment.path}"
    try:
        with opened(cached_root(segment.root), segment.path) as file:
            for _ in read_headers(file, shown, 0, segment.size, buffer, tail, end_offset=offset):
                pass
            if tail.reached_end_offset:
                next(read_chunks(file, shown, tail.position, segment.size, buffer, Tail()), None)
    except LogFormatError as error:
        return error
    return None


def _loaded(
    segments: Sequence[ListedSegment],
    snapshots: Sequence[tuple[int, str, str]],
    high_watermark: int | None,
) -> tuple[ProducerState, int]:
    """Producers at the base of a segment, and its number. Of a snapshot above the high watermark it would not be known
    which transactions were decided below it.
    """
    bases = {segment.base_offset: number for number, segment in enumerate(segments)}
    for offset, root, path in reversed(snapshots):
        if offset in bases and (high_watermark is None or offset <= high_watermark):
            try:
                entries = producer_snapshot.read(read_file(cached_root(root), path), f"{root}/{path}")
            except LogFormatError:
                continue  # an older one, or the log itself
            return ProducerState.from_snapshot(entries), bases[offset]
    return ProducerState(), 0
