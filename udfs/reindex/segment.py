"""Reindex, first half: makes the `.index` and `.timeindex` of segments from their `.log`.

One pass over each log, front to back, checks checksums (or reads headers alone, if checksums are trusted) and compares
offsets with the names. The index builder, the judge of the archived indexes and the producers' summary see every batch.
The second half (side_files.py) needs no more than the result, which a segment's producers and aborted transactions
bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import check_offsets
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.checkpoints import EpochEntry, assign_batches
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerSummary, merge, no_producers, summarize
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.reindex.judge import IndexJudge, SideBytes, Verdict, read_bounded, unparsed
from lastkey.udfs.reindex.write import FileReport, SideFilePlace, Target, finish_folder, impossible, new_folder, settle
from lastkey.udfs.segments import LogSettings
from lastkey.udfs.storage import Root, log_file, open_root
from lastkey.udfs.verify.transactions import TXN_ROW, previous_markers, transaction_rows

_OURS: Final = (names.INDEX, names.TIME_INDEX)
_MORE: Final = 4096  # bytes of an index that are read beyond the most that can be right


@dataclass(frozen=True)
class ReindexTask:
    """Consecutive segments of one partition."""

    target: Target
    folder: str  # folder of the partition
    segments: tuple[Segment, ...]
    settings: LogSettings
    next_base_offset: int | None = None  # base offset of the next segment; None: none, and the last may end torn
    check_crc: bool = True


@dataclass(frozen=True)
class SegmentOutcome:
    """Findings in one log, and the reports on its two indexes."""

    base_offset: int
    log: str
    problem: Problem | None = None  # the log is bad: of the fields below only `files` is set
    producer_problem: Problem | None = None  # the fields that depend on producers are not complete
    files: tuple[FileReport, ...] = ()
    end_position: int = 0  # bytes that are batches
    torn_bytes: int = 0  # after them
    n_batches: int = 0
    first_offset: int = -1  # offset of the first batch; -1: empty
    last_offset: int = -1
    dense: bool = True  # each batch begins where the one before it ends, and each marker has its record
    producers: ProducerSummary = field(default_factory=no_producers)  # markers: those that abort only
    aborts: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TXN_ROW))  # every ABORT marker ...
    # ... of each the offset of its producer's marker before it, in this log; -1: none
    previous: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    last_markers: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TXN_ROW))  # last marker of each producer
    epochs: tuple[EpochEntry, ...] = ()  # (leader epoch, base offset of its first batch)
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0

    @property
    def next_offset(self) -> int:
        """Offset at which the log continues after this segment."""
        return max(self.base_offset, self.last_offset + 1)


def reindex_segments(task: ReindexTask) -> list[SegmentOutcome]:
    """Rebuild the two indexes of each segment, and put them at the places of the task.

    A failure of a segment becomes its problem; only a full disk raises OSError.
    """
    reader = LogReader(task.settings.chunk_bytes, task.settings.max_batch_bytes)
    made = attempt(task.folder, lambda: new_folder(task.target, task.folder))
    if isinstance(made, Problem):
        return [_stopped(task, segment, made) for segment in task.segments]
    outcomes = []
    for number, segment in enumerate(task.segments):
        started = time.perf_counter()
        done = attempt(segment.path, lambda i=number: _reindex(task, i, reader))  # type: ignore[misc]
        outcome = _stopped(task, segment, done) if isinstance(done, Problem) else done
        outcomes.append(replace(outcome, seconds=time.perf_counter() - started))
    files = [file for outcome in outcomes for file in outcome.files]
    flushed = attempt(task.folder, lambda: finish_folder(task.target, task.folder, files))
    if isinstance(flushed, Problem):
        return [_stopped(task, segment, flushed) for segment in task.segments]
    return outcomes


def _stopped(task: ReindexTask, segment: Segment, problem: Problem) -> SegmentOutcome:
    places = [_place(task.folder, segment, kind) for kind in _OURS]
    files = tuple(impossible(place.path, place.kind, problem) for place in places)
    return SegmentOutcome(segment.base_offset, segment.path, problem, files=files)


def _reindex(task: ReindexTask, number: int, reader: LogReader) -> SegmentOutcome:
    segment, settings = task.segments[number], task.settings
    after = task.segments[number + 1].base_offset if number + 1 < len(task.segments) else task.next_base_offset
    root = open_root(segment.root)
    places = [_place(task.folder, segment, kind) for kind in _OURS]
    archived = [_read_index(root, place, settings.segment_index_bytes) for place in places]
    files_read = [file if isinstance(file, SideBytes) else None for file in archived]
    judge = IndexJudge(segment.base_offset, files_read[0], files_read[1])
    builder = settings.index_builder(segment.base_offset, segment.path)
    scanned = scan(segment, after, task.check_crc, reader, builder, judge)
    rebuilt = builder.finish()
    limit = settings.segment_index_bytes
    verdicts = judge.offset_index(rebuilt[0], limit), judge.time_index(rebuilt[1], limit)
    files, written = [], 0
    for place, file, verdict, data in zip(places, archived, verdicts, rebuilt, strict=True):
        report, n = settle(task.target, place, file if isinstance(file, Verdict) else verdict, data)
        files.append(report)
        written += n
    read = sum(len(file.head) for file in files_read if file is not None)
    return replace(scanned, files=tuple(files), bytes_read=scanned.bytes_read + read, bytes_written=written)


def _place(folder: str, segment: Segment, kind: str) -> SideFilePlace:
    archived = segment.index if kind == names.INDEX else segment.time_index
    return SideFilePlace(folder, names.segment_file(segment.base_offset, kind), kind, archived, segment.path)


def _read_index(root: Root, place: SideFilePlace, max_bytes: int) -> SideBytes | Verdict | None:
    """Return an archived index, or None if missing; its verdict if it is unreadable, which is no fault of the
    log.
    """
    if place.archived is None:
        return None
    try:
        return read_bounded(root, place.archived, max_bytes + _MORE)
    except LogFormatError as error:
        return unparsed(error)


def scan(
    segment: Segment,
    next_base_offset: int | None,
    check_crc: bool,
    reader: LogReader,
    builder: IndexBuilder,
    judge: IndexJudge,
) -> SegmentOutcome:
    """Scan a log in one pass. next_base_offset: as in ReindexTask.

    Raises LogFormatError for data that a broker would cut off, or refuse to load.
    """
    base, path, producers = segment.base_offset, segment.path, _Producers(segment.path)
    epochs: list[EpochEntry] = []
    first, last, n_batches, bytes_read, dense = -1, -1, 0, 0, True
    root = open_root(segment.root)
    log = log_file(root, path, segment.size_bytes)
    headers_only = not check_crc and root.is_local
    for chunk in reader.headers(log) if headers_only else reader.chunks(log, check_crc=check_crc):
        batches = chunk.batches
        check_offsets(path, base, next_base_offset, batches)
        builder.append(batches["last_offset"], batches["size"], batches["max_timestamp"])
        judge.feed(batches, chunk.position, chunk.size)
        producers.see(batches[batches["producer_id"] >= 0])
        epochs = assign_batches(epochs, batches["partition_leader_epoch"], batches["base_offset"])
        starts, ends = batches["base_offset"], batches["last_offset"]
        dense = dense and (n_batches == 0 or int(starts[0]) == last + 1)
        dense = dense and bool((starts[1:] == ends[:-1] + 1).all()) and int(starts[0]) >= 0
        dense = dense and not (((batches["attributes"] & CONTROL_MASK) != 0) & (batches["records_count"] == 0)).any()
        first = int(starts[0]) if n_batches == 0 else first
        last = int(ends[-1])
        n_batches += len(batches)
        bytes_read += chunk.bytes_read
    tail = reader.tail
    if tail.torn_bytes and next_base_offset is not None:
        expected = "whole batches up to the end of the file, because another segment follows"
        found = f"{tail.torn_bytes} bytes that are not a whole batch"
        raise LogFormatError("torn_tail", path, tail.position, expected, found)
    return SegmentOutcome(
        base,
        path,
        producer_problem=producers.problem,
        end_position=tail.position,
        torn_bytes=tail.torn_bytes,
        n_batches=n_batches,
        first_offset=first,
        last_offset=last,
        dense=dense,
        producers=producers.summary,
        aborts=np.concatenate(producers.aborts),
        previous=np.concatenate(producers.previous),
        last_markers=producers.last_markers,
        epochs=tuple(epochs),
        bytes_read=bytes_read,
    )


class _Producers:
    """Batches of producers in one log, up to a problem."""

    def __init__(self, path: str) -> None:
        self.path, self.summary, self.last_markers = path, no_producers(), np.empty(0, TXN_ROW)
        self.problem: Problem | None = None
        self.aborts: list[NDArray[np.void]] = [np.empty(0, TXN_ROW)]
        self.previous: list[NDArray[np.int64]] = [np.empty(0, np.int64)]

    def see(self, owned: NDArray[np.void]) -> None:
        """Take the next batches that have a producer, layout.BATCH[n]."""
        if not len(owned) or self.problem is not None:
            return
        try:
            self.summary = merge(self.summary, only_aborts(summarize(owned, self.path)), self.path)
        except LogFormatError as error:
            self.problem = Problem.of(error)
        rows = transaction_rows(owned[(owned["attributes"] & CONTROL_MASK) != 0])
        previous, self.last_markers = previous_markers(rows, self.last_markers)
        self.aborts.append(rows[rows["marker"] == CONTROL_ABORT])
        self.previous.append(previous[rows["marker"] == CONTROL_ABORT])


def only_aborts(summary: ProducerSummary) -> ProducerSummary:
    """Return the summary without the markers that commit: no file needs those."""
    return ProducerSummary(summary.producers, summary.markers[summary.markers["aborted"]])
