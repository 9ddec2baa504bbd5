"""The end of what may be read of a partition's log: the log end, the high watermark, the last stable offset, or damage.

Damage hides the log's end if it hides the following batches: the length field is invalid, and no index entry points to
a later batch. If damage is quarantined, the log ends there for all uses that need an end: limits by offset, committed
data, streams. A read without an end continues to the last byte and meets the damage itself.

The last stable offset, at which reading committed data ends, is the first offset of the oldest open transaction.

Only headers are read here, and only markers' checksums are checked: a wrong header with possible values is believed.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.search.partition_log import PartitionLog
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_kernels import MARKER
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.data_source.pieces import LATEST, Piece, Range, SourcePartition, Wanted
from lastkey.udfs.data_source.read_piece import resume_position
from lastkey.udfs.storage import cached_place, cached_root, log_file, read_file

_BUFFER_BYTES: Final = 1 << 20


class OpenedLog(NamedTuple):
    """A log to search, and what is not known of it."""

    log: PartitionLog
    damage: LogFormatError | None = None  # after its last known batch; what follows is not known
    doubtful: bool = False  # markers may be lost in damage: a batch without one may be committed or aborted


def open_log(partition: SourcePartition, asked: Range) -> OpenedLog:
    """Open the log up to where it may be read; with `asked.wanted.committed`, up to the last stable offset.

    Raises LogFormatError for damage on the way to its end, unless `asked.quarantine`. Does not look for the end if
    reading continues to the last byte.
    """
    if asked.as_stored:
        return OpenedLog(searchable(replace(partition, log_start_offset=None), None))
    end, lost, doubtful = partition.high_watermark, None, False
    if asked.wanted.committed:
        end, lost, doubtful = _last_stable_offset(partition, asked)
    log = searchable(partition, end)
    if partition.segments and log.earliest > partition.segments[-1].base_offset:
        log.latest  # noqa: B018 - raises where the log does not reach its start: else it would be read as empty
    to_the_last_byte = end is None and asked.start.kind == "earliest" and asked.end.kind == "latest"
    if not asked.quarantine or (to_the_last_byte and asked.end_offset == NO_END):
        return OpenedLog(log, None, doubtful)
    try:
        log.latest  # noqa: B018 - looked for now
    except LogFormatError:
        known, damage = _end_across_damage(partition)
        return OpenedLog(searchable(partition, end, known), damage or lost, doubtful)
    return OpenedLog(log, lost, doubtful)


class Ends(NamedTuple):
    """Offsets between which a stream may read now."""

    first: int  # log start
    end: int
    log_end: int  # above `end` if the high watermark or an open transaction bounds reading; both may fall
    certain: bool = True  # no damage hides batches after the end


def find_ends(partition: SourcePartition, *, committed: bool, quarantine: bool = False) -> Ends:
    """Return the offsets at which reading begins and ends."""
    asked = Range(start=LATEST, wanted=Wanted(committed=committed), quarantine=quarantine)
    log, damage, doubtful = open_log(partition, asked)
    with log:
        return Ends(log.earliest, log.latest, log.log_end_offset, damage is None and not doubtful)


def bytes_behind(partition: SourcePartition, offset: int, *, quarantine: bool = False) -> int:
    """Return roughly the bytes of log from an offset on; a segment without an index counts whole."""
    with open_log(partition, Range(start=LATEST, quarantine=quarantine)).log as log:
        try:
            place = log.lookup_offset(offset)
        except LogFormatError:
            if not quarantine:
                raise
            return sum(s.size_bytes for s in partition.segments[-1:])
    if place is None:
        return 0
    behind = sum(s.size_bytes for s in partition.segments if s.base_offset >= place.segment_base_offset)
    return behind - place.position


def searchable(partition: SourcePartition, end: int | None, log_end: int | None = None) -> PartitionLog:
    """Return the log to search, up to the offset `end`; log_end: its end, if that is known."""
    return PartitionLog(
        partition.segments,
        log_start_offset=partition.log_start_offset,
        topic=partition.topic,
        partition=partition.partition,
        leader_epochs=partition.epochs,
        end_offset=end,
        log_end_offset=log_end,
        max_batch_bytes=partition.max_batch_bytes,
        place=cached_place,
    )


def _end_across_damage(partition: SourcePartition) -> tuple[int, LogFormatError | None]:
    """Return (offset after the last batch that can be found, error that hides later ones; None: no error does)."""
    last = partition.segments[-1]
    end, position, reader = last.base_offset, 0, LogReader(_BUFFER_BYTES)
    log = _file(last)
    while position < last.size_bytes:
        try:
            for chunk in reader.headers(log, position):
                position, end = chunk.end, chunk.last_offset + 1  # not the largest, which may be the damage
            break
        except LogFormatError as error:
            resumed = _resume(last, error, position)
            if resumed is None:
                return end, error
            position = resumed
    return end, None


def _resume(segment: Segment, error: LogFormatError, position: int) -> int | None:
    index = None if segment.index is None else (segment.beside, segment.index)
    piece = Piece(None, None, segment.root, segment.path, segment.base_offset, 0, segment.size_bytes, index=index)
    return resume_position(cached_root(segment.root), piece, error, position)


def _last_stable_offset(partition: SourcePartition, asked: Range) -> tuple[int, LogFormatError | None, bool]:
    """Return (last stable offset, error that hides the batches after it or None, whether the way to it met damage)."""
    segments, met, ends = partition.segments, False, None

    def resume(segment: Segment, error: LogFormatError, position: int) -> int | None:
        nonlocal met, ends
        resumed, met = _resume(segment, error, position), True
        if resumed is None and segment is segments[-1]:
            ends = error
        return resumed

    resumed = last_stable_offset(partition, resume if asked.quarantine else None)
    if asked.quarantine and ends is None and (partition.high_watermark is None or resumed < partition.high_watermark):
        ends = _damage_at(segments, resumed)
    return resumed, ends, met


def last_stable_offset(
    partition: SourcePartition, resume: Callable[[Segment, LogFormatError, int], int | None] | None = None
) -> int:
    """Return the last stable offset of a log, by the headers of its batches; no body is decompressed.

    Reading begins at the newest of the snapshots that can be read and is at a segment's base; without one, at the first
    batch. A snapshot also contains transactions that began in deleted segments.

    Rule: that of a broker that has just loaded the log (KAFKA.md, "Offsets of a log"). A producer's transaction begins
    with its first batch that is not below the log start. The transaction is open until its marker is below the high
    watermark (None: the log end).

    Raises LogFormatError for a bad log, unless there is `resume`. It gets a segment, the error and the bad batch's
    position, and returns the next batch's; None: continue in the next segment. A transaction that was open before the
    damage is then not recognized as open, and a reader finds no marker for it before the damage. Checks the checksums
    of markers, and without `resume` that of the open batch.
    """
    segments, high_watermark = partition.segments, partition.high_watermark
    log_start_offset = max(partition.log_start_offset or 0, segments[0].base_offset if segments else 0)
    state, first = _loaded(partition)
    completed, end = [np.empty(0, MARKER)], log_start_offset
    reader = LogReader(_BUFFER_BYTES)
    for segment in segments[first:]:
        end, log = max(end, segment.base_offset), _file(segment)
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
        damage = _damage_at(segments, offset)
        if damage is not None:
            raise damage
    return offset


def _file(segment: Segment) -> LogFile:
    return log_file(cached_root(segment.root), segment.path, segment.size_bytes, f"{segment.root}/{segment.path}")


def _damage_at(segments: Sequence[Segment], offset: int) -> LogFormatError | None:
    """Return the damage of the batch that holds an offset; None: no damage, or no such batch.

    For the batch that opens the oldest open transaction: a flipped bit in its producer id opens a transaction that
    never ends, and no reader gets far enough to detect it.
    """
    bases = [segment.base_offset for segment in segments]
    number = bisect.bisect_right(bases, offset) - 1
    if number < 0:
        return None
    log, reader = _file(segments[number]), LogReader(_BUFFER_BYTES)
    try:
        for _ in reader.headers(log, end_offset=offset):
            pass
        if reader.tail.reached_end_offset:
            next(reader.chunks(log, reader.tail.position), None)
    except LogFormatError as error:
        return error
    return None


def _loaded(partition: SourcePartition) -> tuple[ProducerState, int]:
    """Return the producers at the base of a segment, and the segment's number.

    Snapshots above the high watermark are ignored: they do not show which transactions ended below it.
    """
    bases = {segment.base_offset: number for number, segment in enumerate(partition.segments)}
    root, most = partition.side_root, partition.high_watermark
    for offset, path in reversed(partition.snapshots):
        if offset in bases and (most is None or offset <= most):
            try:
                entries = producer_snapshot.read(read_file(cached_root(root), path), f"{root}/{path}")
            except LogFormatError:
                continue  # try an older one, or read the log itself
            return ProducerState.from_snapshot(entries), bases[offset]
    return ProducerState(), 0
