"""Stretches of files that hold the wanted records or batches; no task opens a segment that cannot match.

By offset, stretches begin and end where the offset indexes lead (logformat.search.partition_log checks their answers
against the log: a wrong index costs time, never a record). By time there are two ways:

- A bound of the log, like `startingTimestamp` and `endingTimestamp` of Spark's Kafka source: the first record with a
  timestamp at or above it, found as a broker finds it. From then on the bound is an offset.
- A limit of records (`Wanted.start_ms`): segments, and batches within them, whose largest timestamp is below it are
  skipped. Timestamps may be out of order, so an upper limit skips no later record.

If an index is missing, local segments are searched by their headers; tasks read others whole. Cost: two mapped files
for each partition that has a bound, and for each segment with a limit by time; on other file systems a few requests
each.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError, readable, stopped
from lastkey.logformat.listing import Segment
from lastkey.logformat.search.partition_log import PartitionLog
from lastkey.logformat.search.segment_search import SearchableSegment
from lastkey.logformat.side_files import offset_index
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.data_source.log_end import OpenedLog, open_log
from lastkey.udfs.data_source.pieces import Bound, Piece, Range, SourcePartition, Wanted
from lastkey.udfs.data_source.read_piece import GAP_HINT
from lastkey.udfs.holes import GapFinder, offsets_behind
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import Behind, ListedLog
from lastkey.udfs.storage import Root, cached_place, cached_root, opened, read_file

_FIRST_BYTES: Final = 64 << 10
_LATER: Final = 8  # segments that a piece names: transactions seldom span more, and naming all in each is quadratic


class OutOfRangeError(ValueError):
    """A start or end that was asked for and that the log does not have: an offset, or a time that no record reaches."""


def find_pieces(partition: SourcePartition, asked: Range) -> list[Piece]:
    """Return the stretches to read, in the order of the log.

    Raises LogFormatError, and OutOfRangeError as `asked` requires.
    """
    try:
        if partition.problem is not None:
            raise partition.problem.as_error()
        opened = open_log(partition, asked)
        with opened.log:
            return _pieces(partition, opened, asked)
    except OutOfRangeError:
        raise
    except Exception as found:  # any error: the problem names the partition
        error = stopped(found, partition.name)
        if not asked.quarantine:
            raise error from error.__cause__
        return [Piece(partition.topic, partition.partition, problem=Problem.of(error))]


def first_to_read(partition: SourcePartition, asked: Range) -> int:
    """Return the offset at which reading begins. Raises OutOfRangeError as `asked` requires.

    Raises LogFormatError "gap" if the offset is the first one only because a file is missing in front of it.
    """
    with open_log(partition, asked).log as log:
        start = _offsets(partition, log, asked)[0]
        _Gaps(partition, log, replace(asked, quarantine=False)).gap_before(start)
        return start


def first_offset(root: Root, path: str) -> int:
    """Return the offset of a file's first record, independent of the file's name; 0: no record.

    Decompresses a compressed batch of magic 0 or 1, whose header has only its last offset. Damage is reported later, by
    the read.
    """
    with opened(root, path) as file, readable(path):
        first = file.read(8)
        if len(first) < 8:
            return 0
        try:
            reader = LogReader(_FIRST_BYTES)
            chunk = next(reader.chunks(LogFile.opened(file, path)), None)
            if chunk is not None and chunk.batches["base_offset"][0] < 0:
                (run,) = reader.runs(replace(chunk, batches=chunk.batches[:1]))
                return int(run.bodies["base_offset"][0] + run.spans["offset_delta"][0])
        except LogFormatError:
            pass
    return max(int.from_bytes(first, "big", signed=True), 0)


def _pieces(partition: SourcePartition, opened: OpenedLog, asked: Range) -> list[Piece]:
    log, damage, doubtful = opened
    if damage is not None:  # offsets after the damage are unknown
        asked = replace(asked, start=_at_most(asked.start, log.latest), end=_at_most(asked.end, log.latest))
    start, end = _offsets(partition, log, asked)
    start, end = max(start, asked.start_offset), min(end, asked.end_offset)
    problem_pieces = []  # problems that no task meets
    if damage is not None and start <= log.latest <= end < NO_END:
        problem_pieces = [Piece(partition.topic, partition.partition, problem=Problem.of(damage))]
    gaps = _Gaps(partition, log, asked)
    in_front = gaps.gap_before(start)
    if in_front is not None:
        problem_pieces.insert(0, Piece(partition.topic, partition.partition, problem=in_front))
    if start >= end:
        return problem_pieces
    segments = list(log.segments)
    to_the_end = asked.end.kind == "latest" and (end == NO_END or (damage is None and end >= log.log_end_offset))
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
            segment.size_bytes,
            start,
            end,
            None if following is None else following.base_offset,
            torn_tail=following is None and not partition.sealed,
            index=None if segment.index is None else (segment.beside, segment.index),
            later=_later(segments[number:]) if asked.wanted.committed else (),
            more_later=asked.wanted.committed and len(segments) - number > _LATER,
            doubtful=doubtful,
            behind=gaps.behind(number) if following is not None or to_the_end else None,
        )
        cut = _cut(piece, segment, log, asked)
        out += gaps.gap_piece(piece, number) if cut is None else cut
    return out + problem_pieces


class _Gaps:
    """Gaps that no task would see: before the first requested offset, and after segments without requested records. The
    task that reads a segment finds the gap after it.
    """

    def __init__(self, partition: SourcePartition, log: PartitionLog, asked: Range) -> None:
        self.traces = None if asked.accept_gaps else partition.traces
        self.log, self.asked, self._finder = log, asked, GapFinder(GAP_HINT)

    def behind(self, number: int) -> Behind | None:
        """Return the facts about the offsets after a segment for a task; None: gaps are not checked."""
        return None if self.traces is None else offsets_behind(self.log.segments, self.traces, number)

    def gap_before(self, start: int) -> Problem | None:
        """Return the gap in front of the first offset that is read, unless that offset was asked for by its number.

        It may be the first one of all, or the first one from a time on, only because earlier segments are missing.
        """
        log, begins = self.log, self.asked.start
        if self.traces is None or not log.segments or self.asked.start_offset >= start:
            return None
        if begins.kind == "latest" or (begins.kind == "offset" and begins.value >= start):
            return None
        bases = [segment.base_offset for segment in log.segments]
        if start == bases[0]:
            return self._raise_or_return(self._finder.below(log.segments, self.traces))
        number = bisect_left(bases, start)
        if begins.kind != "timestamp" or number == len(bases) or bases[number] != start:
            return None
        try:
            end = log.segment_end(number - 1)
        except LogFormatError:
            return None  # damage in a segment without requested records
        return self._behind_unread(number - 1, end, 0, start)

    def _behind_unread(self, number: int, end: int, start: int, until: int) -> Problem | None:
        """Return the gap after a segment that no task reads to its end, offset `end`."""
        traces_behind = self.behind(number)
        if traces_behind is None:
            return None
        return self._raise_or_return(
            self._finder.behind(traces_behind, end, start, until, lambda: self.log.segments[number + 1 :])
        )

    def gap_piece(self, piece: Piece, number: int) -> list[Piece]:
        """Return the gap after a segment without wanted records, as a piece; the piece itself if its end is bad."""
        if piece.behind is None:
            return []
        try:
            end = self.log.segment_end(number)
        except LogFormatError:
            return [piece]  # as in _cut
        problem = self._behind_unread(number, end, piece.start_offset, piece.end_offset)
        return [] if problem is None else [Piece(piece.topic, piece.partition, problem=problem)]

    def _raise_or_return(self, problem: Problem | None) -> Problem | None:
        if problem is not None and not self.asked.quarantine:
            raise problem.as_error()
        return problem


def _at_most(bound: Bound, offset: int) -> Bound:
    return Bound("offset", min(bound.value, offset)) if bound.kind == "offset" else bound


def _later(segments: Sequence[Segment]) -> tuple[ListedLog, ...]:
    return tuple(ListedLog(segment.root, segment.path, segment.size_bytes) for segment in segments[:_LATER])


def _offsets(partition: SourcePartition, log: PartitionLog, asked: Range) -> tuple[int, int]:
    """Return [start, end) as offsets; end is NO_END if it has no bound, so that no log has to be opened for it."""
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
        offset = int(log.offsets_for_times([start.value])["offset"][0])
        if offset < 0 and asked.need_start_time:
            raise OutOfRangeError(
                f"{partition.name}: no record with a timestamp of {start.value} ms or later;"
                " startingOffsetsByTimestampStrategy=latest skips such partitions"
            )
        return log.latest if offset < 0 else offset
    if asked.fail_on_data_loss and not log.earliest <= start.value <= log.latest:
        raise _out_of_range(partition, log, "startingOffsets", start.value)
    return max(start.value, log.earliest)


def _out_of_range(partition: SourcePartition, log: PartitionLog, option: str, found: int) -> OutOfRangeError:
    return OutOfRangeError(
        f"{partition.name}: {option}: expected an offset from {log.earliest} to {log.latest}, found {found};"
        " failOnDataLoss=false reads what is left"
    )


def _cut(piece: Piece, segment: Segment, log: PartitionLog, asked: Range) -> list[Piece] | None:
    """Return the part of a segment that can match, in stretches of about split_bytes; None if no part can."""
    borders = None
    try:
        within = _within(piece, segment, log, asked.wanted)
        if within is None:
            return None
        piece = within
        borders = _borders(piece, segment, log, asked.split_bytes)
    except LogFormatError:
        pass  # damage met by a search: the task that reads the segment reports it
    if not borders:
        return [piece] if piece.end > piece.start or segment.size_bytes == 0 else []
    edges = [piece.start, *borders, piece.end]
    out = [replace(piece, start=a, end=b, torn_tail=False, behind=None) for a, b in itertools.pairwise(edges)]
    return [*out[:-1], replace(out[-1], torn_tail=piece.torn_tail, behind=piece.behind)]


def _within(piece: Piece, segment: Segment, log: PartitionLog, wanted: Wanted) -> Piece | None:
    """Return the piece without the bytes before its start and after its end; None if no byte is left."""
    if segment.index is None and not cached_root(segment.root).is_local:
        return piece
    if piece.start_offset > segment.base_offset:
        place = log.lookup_offset(piece.start_offset)
        if place is None or place.segment_base_offset != segment.base_offset:
            return None  # this segment has no offset at or after the start
        piece = replace(piece, start=place.position)
    after = NO_END if piece.next_base_offset is None else piece.next_base_offset
    if piece.end_offset <= after and piece.end_offset != NO_END:
        place = log.lookup_offset(piece.end_offset)
        if place is not None and place.segment_base_offset == segment.base_offset:
            inside = place.base_offset < piece.end_offset  # -1, unknown: the batch may begin earlier
            end = place.position + place.size if inside else place.position
            piece = replace(piece, end=end, torn_tail=False, behind=None)
    if wanted.start_ms is not None:
        times = SearchableSegment(segment, lambda _: None, cached_place)
        if times.largest().timestamp < wanted.start_ms:
            return None
        first = times.find_times(np.array([wanted.start_ms]), piece.start_offset)
        if not len(first):
            return None
        piece = replace(piece, start=max(piece.start, int(first["position"][0])))
    return piece if piece.start < piece.end else None


def _borders(piece: Piece, segment: Segment, log: PartitionLog, split_bytes: int) -> list[int]:
    """Return positions inside the piece, about split_bytes apart, from index entries that the log confirms."""
    size = piece.end - piece.start
    if size <= split_bytes or segment.index is None:
        return []
    data = read_file(cached_root(segment.beside), segment.index, segment.size_bytes)
    entries = offset_index.read(data, segment.base_offset, segment.index)
    n = -(-size // split_bytes)
    chosen = entries
    if n <= len(entries):  # else some splits have no entry
        targets = piece.start + np.arange(1, n) * (size // n)
        at = np.unique(np.searchsorted(entries["position"], targets))
        chosen = entries[at[at < len(entries)]]
    out = []
    for position, offset in zip(chosen["position"].tolist(), chosen["offset"].tolist(), strict=True):
        found = log.lookup_offset(offset)
        if found is not None and found.segment_base_offset == segment.base_offset and found.position == position:
            out.append(position)
    return [position for position in out if piece.start < position < piece.end]
