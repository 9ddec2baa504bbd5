"""Which stretches of which files hold what is asked for: segments that cannot match are never opened by a task.

By offset, stretches begin and end where the offset indexes lead (logformat.search.partition_log, whose answers are held
against the log: a wrong index costs time, never a record). By time in two ways:

- A bound of the log, as Spark's Kafka source has `startingTimestamp` and `endingTimestamp`: the first record with a
  timestamp at or above it, found as a broker finds it. It is an offset from then on.
- A limit of records (`Wanted.start_ms`): every segment, and within it every batch, whose largest timestamp is below is
  passed over. Timestamps may be out of order, so nothing that comes later can be left out for an upper limit.

Where an index is missing, local segments are searched by their headers, others are read whole by the task. Cost: two
files mapped for each partition that has a bound, and for each segment with a limit by time; of other file systems a
few requests each.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from logformat.batches.bodies import BodyLoader
from logformat.batches.chunks import MAX_BATCH_BYTES, NO_END, ChunkBuffer, Tail, read_chunks
from logformat.errors import LogFormatError, readable, stopped
from logformat.listing import ListedSegment
from logformat.search.partition_log import PartitionLog
from logformat.search.segment_search import SearchableSegment
from logformat.side_files import offset_index
from udfs.data_source.log_end import OpenedLog, open_log
from udfs.data_source.plan import Bound, ListedLog, Piece, Range, SourcePartition, Wanted
from udfs.problem import Problem
from udfs.storage import Root, cached_place, cached_root, opened, read_file

_FIRST_BYTES: Final = 64 << 10
_LATER: Final = 8  # segments that a piece names; transactions seldom span more, and all of all pieces were quadratic


class OutOfRangeError(ValueError):
    """An offset that was asked for and is not there."""


class NoSuchTimeError(ValueError):
    """A starting timestamp that no record reaches, where that is not to be passed over."""


def find_pieces(partition: SourcePartition, asked: Range) -> list[Piece]:
    """The stretches to read, in the order of the log. LogFormatError, OutOfRangeError and NoSuchTimeError as `asked`
    says.
    """
    try:
        if partition.problem is not None:
            raise partition.problem.as_error()
        opened = open_log(partition, asked)
        with opened.log:
            return _pieces(partition, opened, asked)
    except (OutOfRangeError, NoSuchTimeError):
        raise
    except Exception as found:  # of whatever kind: it is told with the partition
        error = stopped(found, partition.name)
        if not asked.set_aside:
            raise error from error.__cause__
        return [Piece(partition.topic, partition.partition, problem=Problem.of(error))]


def first_to_read(partition: SourcePartition, asked: Range) -> int:
    """The offset that reading begins with. OutOfRangeError and NoSuchTimeError as `asked` says."""
    with open_log(partition, asked).log as log:
        return _offsets(partition, log, asked)[0]


def first_offset(root: Root, path: str) -> int:
    """The offset of a file's first record, whatever the file's name; 0 where there is none.

    A compressed batch of magic 0 or 1 has only its last offset in the header, and is decompressed for it; where it is
    damaged, who reads the file says so.
    """
    with opened(root, path) as file, readable(path):
        first = file.read(8)
        size = os.fstat(file.fileno()).st_size if isinstance(file, io.FileIO) else int(file.size())
        if len(first) < 8:
            return 0
        try:
            chunk = next(read_chunks(file, path, 0, size, ChunkBuffer(_FIRST_BYTES), Tail()), None)
            if chunk is not None and chunk.batches["base_offset"][0] < 0:
                wrapper, wanted = chunk.batches[:1], np.ones(1, np.bool_)
                loader = BodyLoader(max_batch_bytes=MAX_BATCH_BYTES)
                (run,) = loader.runs(chunk.raw, 0, wrapper, wanted, path, backwards=False)
                return int(run.bodies["base_offset"][0] + run.spans["offset_delta"][0])
        except LogFormatError:
            pass
    return max(int.from_bytes(first, "big", signed=True), 0)


def _pieces(partition: SourcePartition, opened: OpenedLog, asked: Range) -> list[Piece]:
    log, damage, doubtful = opened
    if damage is not None:  # no offset is known to be behind the log's end
        asked = replace(asked, start=_at_most(asked.start, log.latest), end=_at_most(asked.end, log.latest))
    start, end = _offsets(partition, log, asked)
    start, end = max(start, asked.start_offset), min(end, asked.end_offset)
    told = []  # where reading ends before the damage, it does not come by itself
    if damage is not None and start <= log.latest <= end < NO_END:
        told = [Piece(partition.topic, partition.partition, problem=Problem.of(damage))]
    if start >= end:
        return told
    segments = list(log.segments)
    first = max(int(np.searchsorted([s.base_offset for s in segments], start, "right")) - 1, 0)
    out = []
    for number, segment in enumerate(segments[first:], first):
        if segment.base_offset >= end:
            break
        following = segments[number + 1] if number + 1 < len(segments) else None
        piece = Piece(
            partition.topic,
            partition.partition,
            segment.root,
            segment.path,
            segment.base_offset,
            0,
            segment.size,
            start,
            end,
            None if following is None else following.base_offset,
            torn_tail=following is None and not partition.sealed,
            index=None if segment.index is None else (segment.beside, segment.index),
            later=_later(segments[number:]) if asked.wanted.committed else (),
            more_later=asked.wanted.committed and len(segments) - number > _LATER,
            doubtful=doubtful,
        )
        out += _cut(piece, segment, log, asked)
    return out + told


def _at_most(bound: Bound, offset: int) -> Bound:
    return Bound("offset", min(bound.value, offset)) if bound.kind == "offset" else bound


def _later(segments: Sequence[ListedSegment]) -> tuple[ListedLog, ...]:
    return tuple(ListedLog(segment.root, segment.path, segment.size) for segment in segments[:_LATER])


def _offsets(partition: SourcePartition, log: PartitionLog, asked: Range) -> tuple[int, int]:
    """[start, end) as offsets; the end is open where nothing bounds it, so that no log has to be opened for it."""
    unbounded = asked.as_stored or not (asked.wanted.committed or partition.high_watermark is not None)
    start, end = asked.start, asked.end
    first = _start(partition, log, asked) if start.kind != "earliest" else log.earliest
    if end.kind == "latest":
        return first, NO_END if unbounded and start.kind != "latest" else log.latest
    if end.kind == "timestamp":
        found = int(log.offsets_for_times([end.value])["offset"][0])
        return first, log.latest if found < 0 else found
    last = log.earliest if end.kind == "earliest" else end.value
    if asked.fail_on_data_loss and not log.earliest <= last <= log.latest:
        raise _out_of_range(partition, log, "endingOffsets", last)
    return first, min(last, log.latest)


def _start(partition: SourcePartition, log: PartitionLog, asked: Range) -> int:
    start = asked.start
    if start.kind == "latest":
        return log.latest
    if start.kind == "timestamp":
        found = int(log.offsets_for_times([start.value])["offset"][0])
        if found < 0 and asked.need_start_time:
            raise NoSuchTimeError(
                f"{partition.name}: no record with a timestamp of {start.value} ms or later;"
                " startingOffsetsByTimestampStrategy=latest passes over such partitions"
            )
        return log.latest if found < 0 else found
    if asked.fail_on_data_loss and not log.earliest <= start.value <= log.latest:
        raise _out_of_range(partition, log, "startingOffsets", start.value)
    return max(start.value, log.earliest)


def _out_of_range(partition: SourcePartition, log: PartitionLog, option: str, found: int) -> OutOfRangeError:
    return OutOfRangeError(
        f"{partition.name}: {option}: expected an offset from {log.earliest} to {log.latest}, found {found};"
        " failOnDataLoss=false reads what there is"
    )


def _cut(piece: Piece, segment: ListedSegment, log: PartitionLog, asked: Range) -> list[Piece]:
    """The part of a segment that can match, in stretches of about split_bytes."""
    borders = None
    try:
        within = _within(piece, segment, log, asked.wanted)
        if within is None:
            return []
        piece = within
        borders = _borders(piece, segment, log, asked.split_bytes)
    except LogFormatError:
        pass  # damage on the way of a search: the task that reads the segment says what is wrong with it
    if not borders:
        return [piece] if piece.end > piece.start or segment.size == 0 else []
    edges = [piece.start, *borders, piece.end]
    out = [replace(piece, start=a, end=b, torn_tail=False) for a, b in itertools.pairwise(edges)]
    return [*out[:-1], replace(out[-1], torn_tail=piece.torn_tail)]


def _within(piece: Piece, segment: ListedSegment, log: PartitionLog, wanted: Wanted) -> Piece | None:
    """The piece without what lies before its start and behind its end; None: nothing is left."""
    if segment.index is None and not cached_root(segment.root).is_local:
        return piece
    if piece.start_offset > segment.base_offset:
        found = log.lookup_offset(piece.start_offset)
        if found is None or found.segment_base_offset != segment.base_offset:
            return None  # nothing at or behind the start in this one
        piece = replace(piece, start=found.position)
    after = NO_END if piece.next_base_offset is None else piece.next_base_offset
    if piece.end_offset <= after and piece.end_offset != NO_END:
        found = log.lookup_offset(piece.end_offset)
        if found is not None and found.segment_base_offset == segment.base_offset:
            inside = found.base_offset < piece.end_offset  # -1, not known: it may begin before
            end = found.position + found.size if inside else found.position
            piece = replace(piece, end=end, torn_tail=False)
    if wanted.start_ms is not None:
        times = SearchableSegment(segment, lambda _: None, cached_place)
        if times.largest().timestamp < wanted.start_ms:
            return None
        first = times.find_times(np.array([wanted.start_ms]), piece.start_offset)
        if not len(first):
            return None
        piece = replace(piece, start=max(piece.start, int(first["position"][0])))
    return piece if piece.start < piece.end else None


def _borders(piece: Piece, segment: ListedSegment, log: PartitionLog, split_bytes: int) -> list[int]:
    """Positions inside the piece, by entries of the offset index that hold, about split_bytes apart."""
    size = piece.end - piece.start
    if size <= split_bytes or segment.index is None:
        return []
    data = read_file(cached_root(segment.beside), segment.index, segment.size)
    entries = offset_index.read(data, segment.base_offset, segment.index)
    n = -(-size // split_bytes)
    chosen = entries
    if n <= len(entries):  # else there is not one for each split
        targets = piece.start + np.arange(1, n) * (size // n)
        at = np.unique(np.searchsorted(entries["position"], targets))
        chosen = entries[at[at < len(entries)]]
    out = []
    for position, offset in zip(chosen["position"].tolist(), chosen["offset"].tolist(), strict=True):
        found = log.lookup_offset(offset)
        if found is not None and found.segment_base_offset == segment.base_offset and found.position == position:
            out.append(position)
    return [position for position in out if piece.start < position < piece.end]
