"""The end of what may be read of a partition's log: the log end, the high watermark, the last stable offset, or damage.

Damage hides the log's end if it hides the following batches: the length field is invalid, and no index entry points to
a later batch. If damage is quarantined, the log ends there for all uses that need an end: limits by offset, committed
data, streams. A read without an end continues to the last byte and meets the damage itself.

Only headers are read here, and only markers' checksums are checked: a wrong header with possible values is believed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.search.partition_log import PartitionLog
from lastkey.udfs.data_source.pieces import LATEST, Piece, Range, SourcePartition, Wanted
from lastkey.udfs.data_source.read_piece import resume_position
from lastkey.udfs.lookup.last_stable_offset import damage_at, last_stable_offset
from lastkey.udfs.storage import cached_place, cached_root, log_file

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
        return OpenedLog(_log(replace(partition, log_start_offset=None), None))
    end, lost, doubtful = partition.high_watermark, None, False
    if asked.wanted.committed:
        end, lost, doubtful = _last_stable_offset(partition, asked)
    log = _log(partition, end)
    if partition.segments and log.earliest > partition.segments[-1].base_offset:
        log.latest  # noqa: B018 - raises where the log does not reach its start: else it would be read as empty
    to_the_last_byte = end is None and asked.start.kind == "earliest" and asked.end.kind == "latest"
    if not asked.quarantine or (to_the_last_byte and asked.end_offset == NO_END):
        return OpenedLog(log, None, doubtful)
    try:
        log.latest  # noqa: B018 - looked for now
    except LogFormatError:
        known, damage = _end_across_damage(partition)
        return OpenedLog(_log(partition, end, known), damage or lost, doubtful)
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


def _log(partition: SourcePartition, end: int | None, log_end: int | None = None) -> PartitionLog:
    return PartitionLog(
        partition.segments,
        log_start_offset=partition.log_start_offset,
        topic=partition.topic,
        partition=partition.partition,
        end_offset=end,
        log_end_offset=log_end,
        place=cached_place,
    )


def _end_across_damage(partition: SourcePartition) -> tuple[int, LogFormatError | None]:
    """Return (offset after the last batch that can be found, error that hides later ones; None: no error does)."""
    last = partition.segments[-1]
    end, position, reader = last.base_offset, 0, LogReader(_BUFFER_BYTES)
    log = log_file(cached_root(last.root), last.path, last.size_bytes, f"{last.root}/{last.path}")
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

    resumed = last_stable_offset(
        segments,
        partition.log_start_offset,
        partition.high_watermark,
        [(offset, partition.side_root, path) for offset, path in partition.snapshots],
        resume if asked.quarantine else None,
    )
    if asked.quarantine and ends is None and (partition.high_watermark is None or resumed < partition.high_watermark):
        ends = damage_at(segments, resumed)
    return resumed, ends, met
