"""Up to where a partition's log may be read: its end, the high watermark, the last stable offset, or damage.

Damage that hides the batches behind it (a length that cannot be, and no entry of the index that leads on) hides the
log's end too. Where what is damaged is set aside, the log then ends there for all that has to know its end: limits by
offset, committed data, streams. What asks for no end reads on to the last byte, and meets the damage itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from logformat.batch_headers import NO_END, ChunkBuffer, Tail
from logformat.errors import LogFormatError
from logformat.log_files import SegmentFiles
from logformat.partition_log import PartitionLog
from logformat.sparse_headers import read_headers
from udfs.last_stable_offset import last_stable_offset
from udfs.read_plan import LATEST, Piece, Range, SourcePartition, SourceSegment, Wanted
from udfs.read_rows import cached_root
from udfs.resume_position import resume_position
from udfs.storage import opened_unbuffered

_BUFFER_BYTES: Final = 1 << 20


def open_log(partition: SourcePartition, asked: Range) -> tuple[PartitionLog, LogFormatError | None]:
    """The log up to where it may be read; with `asked.wanted.committed` up to the last stable offset.

    With `asked.set_aside` a log ends where damage hides the batches behind it, and that damage comes beside it; where
    reading goes on to the last byte, nothing is asked of the end here.
    """
    if asked.as_stored:
        return _log(replace(partition, log_start_offset=None), None), None
    end = _last_stable_offset(partition, asked) if asked.wanted.committed else partition.high_watermark
    log = _log(partition, end)
    to_the_last_byte = end is None and asked.start.kind == "earliest" and asked.end.kind == "latest"
    if not asked.set_aside or (to_the_last_byte and asked.end_offset == NO_END):
        return log, None
    try:
        log.latest  # noqa: B018 - looked for now
    except LogFormatError as error:
        cut, damage = _up_to_damage(partition)
        if damage is None:
            raise error from None
        return _log(cut, end), damage
    return log, None


def end_of(partition: SourcePartition, *, committed: bool, set_aside: bool = False) -> tuple[int, int]:
    """(log start, where reading ends): what a stream may read up to now."""
    log, _ = open_log(partition, Range(start=LATEST, wanted=Wanted(committed=committed), set_aside=set_aside))
    with log:
        return log.earliest, log.latest


def bytes_behind(partition: SourcePartition, offset: int, *, set_aside: bool = False) -> int:
    """Bytes of log from an offset on, about: whole where its segment has no index."""
    log, _ = open_log(partition, Range(start=LATEST, set_aside=set_aside))
    with log:
        found = log.lookup_offset(offset)
    if found is None:
        return 0
    behind = sum(s.size for s in partition.segments if s.base_offset >= found.segment_base_offset)
    return behind - found.position


def _log(partition: SourcePartition, end: int | None) -> PartitionLog:
    files = [segment_files(segment) for segment in partition.segments]
    return PartitionLog(
        files, log_start_offset=partition.log_start_offset, topic=partition.topic, partition=partition.partition,
        end_offset=end,
    )  # fmt: skip


def _up_to_damage(partition: SourcePartition) -> tuple[SourcePartition, LogFormatError | None]:
    """The partition without what nobody can find in its last segment, and why not; None: its headers hold."""
    if not partition.segments:
        return partition, None
    last = partition.segments[-1]
    position, buffer = 0, ChunkBuffer(_BUFFER_BYTES)
    while position < last.size:
        try:
            with opened_unbuffered(cached_root(last.root), last.path) as file:
                shown = f"{last.root}/{last.path}"
                for headers in read_headers(file, shown, position, last.size, buffer, Tail()):
                    position = headers.position + headers.size
            break
        except LogFormatError as error:
            found = _resume(last, error, position)
            if found is None:
                cut = replace(last, size=position)
                return replace(partition, segments=(*partition.segments[:-1], cut)), error
            position = found
    return partition, None


def _resume(segment: SourceSegment, error: LogFormatError, position: int) -> int | None:
    index = None if segment.index is None else (segment.beside, segment.index)
    piece = Piece(None, None, segment.root, segment.path, segment.base_offset, 0, segment.size, index=index)
    return resume_position(cached_root(segment.root), piece, error, position)


def _last_stable_offset(partition: SourcePartition, asked: Range) -> int:
    segments = partition.segments
    start = partition.log_start_offset
    if start is None:
        start = segments[0].base_offset if segments else 0
    return last_stable_offset(
        [(cached_root(segment.root), segment) for segment in segments], start, partition.high_watermark,
        [(offset, cached_root(partition.side_root), path) for offset, path in partition.snapshots],
        _resume if asked.set_aside else None,
    )  # fmt: skip


def segment_files(segment: SourceSegment) -> SegmentFiles:
    """The segment for searches. An index on another file system than its log cannot be mapped: left out."""
    root, side = cached_root(segment.root), cached_root(segment.beside)
    index, time_index = (
        None if path is None or not side.filesystem.equals(root.filesystem) else side.full(path)
        for path in (segment.index, segment.time_index)
    )
    return SegmentFiles(
        segment.base_offset, root.full(segment.path), segment.size, segment.mtime_ms, index, time_index, root.filesystem
    )
