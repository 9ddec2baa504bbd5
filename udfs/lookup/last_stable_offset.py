"""The last stable offset, at which reading committed data ends: the first offset of the oldest open transaction."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_kernels import MARKER
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.storage import cached_root, log_file, read_file

_BUFFER_BYTES: Final = 1 << 20


def last_stable_offset(
    segments: Sequence[Segment],
    log_start_offset: int | None,
    high_watermark: int | None = None,
    snapshots: Sequence[tuple[int, str, str]] = (),
    resume: Callable[[Segment, LogFormatError, int], int | None] | None = None,
) -> int:
    """Return the last stable offset of a log, by the headers of its batches; no body is decompressed.

    Reading begins at the newest of the `snapshots` (offset, URI of the root, path; rising) that can be read and is at
    a segment's base; without one, at the first batch. A snapshot also contains transactions that began in deleted
    segments. log_start_offset: None, or below the first segment: its base.

    Rule: that of a broker that has just loaded the log (KAFKA.md, "Offsets of a log"). A producer's transaction begins
    with its first batch that is not below the log start. The transaction is open until its marker is below the high
    watermark (None: the log end).

    Raises LogFormatError for a bad log, unless there is `resume`. It gets a segment, the error and the bad batch's
    position, and returns the next batch's; None: continue in the next segment. A transaction that was open before the
    damage is then not recognized as open, and a reader finds no marker for it before the damage. Checks the checksums
    of markers, and without `resume` that of the open batch.
    """
    log_start_offset = max(log_start_offset or 0, segments[0].base_offset if segments else 0)
    state, first = _loaded(segments, snapshots, high_watermark)
    completed, end = [np.empty(0, MARKER)], log_start_offset
    reader = LogReader(_BUFFER_BYTES)
    for segment in segments[first:]:
        end, log = max(end, segment.base_offset), _log(segment)
        position: int | None = 0
        while position is not None and position < segment.size_bytes:
            try:
                for chunk in reader.headers(log, position, check_markers=True):
                    batches, position, end = chunk.batches, chunk.end, chunk.last_offset + 1
                    counts = (batches["producer_id"] >= 0) & (batches["last_offset"] >= log_start_offset)
                    completed.append(state.append(batches[counts], log.path))
                break
            except LogFormatError as error:
                if resume is None:
                    raise
                state, position = ProducerState(), resume(segment, error, position)
    end = max(end, log_start_offset)
    limit = end if high_watermark is None else min(end, high_watermark)
    offset = state.last_stable_offset(limit, np.concatenate(completed).view(MARKER))
    offset = min(max(offset, log_start_offset), limit)
    if resume is None and offset < limit:
        damage = damage_at(segments, offset)
        if damage is not None:
            raise damage
    return offset


def _log(segment: Segment) -> LogFile:
    return log_file(cached_root(segment.root), segment.path, segment.size_bytes, f"{segment.root}/{segment.path}")


def damage_at(segments: Sequence[Segment], offset: int) -> LogFormatError | None:
    """Return the damage of the batch that holds an offset; None: no damage, or no such batch.

    For the batch that opens the oldest open transaction: a flipped bit in its producer id opens a transaction that
    never ends, and no reader gets far enough to detect it.
    """
    bases = [segment.base_offset for segment in segments]
    number = bisect.bisect_right(bases, offset) - 1
    if number < 0:
        return None
    log, reader = _log(segments[number]), LogReader(_BUFFER_BYTES)
    try:
        for _ in reader.headers(log, end_offset=offset):
            pass
        if reader.tail.reached_end_offset:
            next(reader.chunks(log, reader.tail.position), None)
    except LogFormatError as error:
        return error
    return None


def _loaded(
    segments: Sequence[Segment],
    snapshots: Sequence[tuple[int, str, str]],
    high_watermark: int | None,
) -> tuple[ProducerState, int]:
    """Return the producers at the base of a segment, and the segment's number.

    Snapshots above the high watermark are ignored: they do not show which transactions ended below it.
    """
    bases = {segment.base_offset: number for number, segment in enumerate(segments)}
    for offset, root, path in reversed(snapshots):
        if offset in bases and (high_watermark is None or offset <= high_watermark):
            try:
                entries = producer_snapshot.read(read_file(cached_root(root), path), f"{root}/{path}")
            except LogFormatError:
                continue  # try an older one, or read the log itself
            return ProducerState.from_snapshot(entries), bases[offset]
    return ProducerState(), 0
