"""Search in the log of one partition by offset and by time, without a broker.

    log = PartitionLog(segments)
    log.lookup_offset(1234)                                # Location: segment, position, size and offsets of the batch
    log.offsets_for_times([1_700_000_000_000, LATEST])     # TIME_ANSWER[2]
    for batch in log.records(["offset", "key"]): ...       # pyarrow.RecordBatch, over all segments

By offset: take the segment with the greatest base offset <= the target, and in it the greatest entry of the sparse
offset index <= the target. Walk from there to the first batch whose last offset is >= the target. If the segment has
none (its last batches were compacted away), take the first batch of the next segment that has any. A broker's fetch
begins there.

By time: take the first segment whose largest timestamp is >= the target. In it, take the first record with a timestamp
>= the target and an offset >= the log start. A segment without timestamps has the time of its file. If that segment has
no such record there is no answer; like a broker, the search does not try later segments. With timestamps out of order
the answer is the first such record in the log, not the one with the smallest timestamp. Headers give candidate batches,
whose records are then searched. A batch is read, checked and decompressed once for any number of targets in it.

segment_search explains how far the search trusts a segment's indexes. `notes` names the skipped files.

Sources: Kafka's LocalLog.read, LogSegment.translateOffset and findOffsetByTimestamp, FileRecords.searchForTimestamp,
UnifiedLog.fetchOffsetByTimestamp (4.3.0). Difference: the search leaves out segments that are entirely below the log
start, because a broker removes them at its next retention check.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END, Chunk, batch_problem, check_batch_size
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.listing import Segment
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.offset_kernels import LOCATION
from lastkey.logformat.search.segment_search import SearchableSegment
from lastkey.logformat.search.time_kernels import CANDIDATE, first_records
from lastkey.logformat.search.windows import Bytes, Place, located
from lastkey.logformat.side_files import checkpoints
from lastkey.logformat.storage.locations import file_system

FOUND: Final = k.FOUND  # status of a LOCATION
END: Final = 7  # the target is in the log, or is its end, but no record can be read there (yet)
OUT_OF_RANGE: Final = 8  # below the log start, or above the log end
EARLIEST: Final = -2  # targets of offsets_for_times that are not timestamps (ListOffsetsRequest)
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
TIME_ANSWER: Final = np.dtype(
    [
        ("offset", "i8"),  # offset of the record; -1: none
        ("timestamp", "i8"),  # timestamp of the record, ms; -1: none, also for EARLIEST and LATEST
        ("leader_epoch", "i4"),  # leader epoch of the record's batch; -1: unknown
        ("segment_base_offset", "i8"),  # -1: none, also for EARLIEST and LATEST
        ("position", "i8"),  # position of the batch in the segment's .log; -1: the same
    ],
    align=True,
)
NO_ANSWER: Final = np.array((-1, -1, -1, -1, -1), TIME_ANSWER)
OUT_OF_RANGE_ROW: Final = np.array((OUT_OF_RANGE, -1, -1, -1, -1, -1), LOCATION)
END_ROW: Final = np.array((END, -1, -1, -1, -1, -1), LOCATION)


class Location(NamedTuple):
    """The place of the batch for an offset."""

    segment_base_offset: int
    position: int  # position of the batch's first byte in the segment's .log
    size: int  # size of the batch, bytes
    base_offset: int  # base offset of the batch; -1: magic 0 or 1, compressed
    last_offset: int


MAX_OPEN: Final = 256  # segments kept open: up to three maps each


class PartitionLog:
    """Segments of one partition; a search opens only those that it needs. Use it from one thread at a time.

    log_start_offset: the first offset that can be read; None: the first segment's base. leader_epochs: (epoch, its
    start), rising, for the answers EARLIEST and LATEST. end_offset: answers are below it (a high watermark, or last
    stable offset); None: the log end. log_end_offset: the end of the log; None: ask the last segment. max_batch_bytes:
    refuse a batch that is larger, stored or decompressed. place: the file system of a segment's root, and the root's
    path on it.

    Raises LogFormatError with path and position: for an invalid batch before the answer, a missing or shortened file,
    and a log start above the log end. A search by time checks the checksum of batches whose records it reads; a search
    by offset does not.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        log_start_offset: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        leader_epochs: Sequence[tuple[int, int]] = (),
        end_offset: int | None = None,
        log_end_offset: int | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        place: Place = file_system,
    ) -> None:
        ordered = sorted(segments, key=lambda listed: listed.base_offset)
        bases = [listed.base_offset for listed in ordered]
        if len(set(bases)) != len(bases):
            raise ValueError(f"two segments with the same base offset: {bases}")
        start = max(log_start_offset or 0, bases[0] if bases else 0)
        below = max(bisect.bisect_right(bases, start) - 1, 0)  # segments that end at or below the log start
        self.topic, self.partition = topic, partition
        self.segments = tuple(ordered[below:])
        self.leader_epochs = tuple(leader_epochs)
        self._bases, self._base_array = bases[below:], np.array(bases[below:], np.int64)
        self._log_start, self._end_offset, self._known_end = start, end_offset, log_end_offset
        self._end: tuple[int, int] | None = None
        self._open: OrderedDict[int, SearchableSegment] = OrderedDict()
        self._place = cache(place)
        self._timestamps: list[int] = []  # the largest of each segment, as far as a search has come
        self._running: list[int] = []  # the largest up to and including each segment, file times counted
        self._max_batch_bytes = max_batch_bytes
        self._records = _RecordSearch(max_batch_bytes)
        self._notes: dict[str, None] = {}

    def __repr__(self) -> str:
        name = f"{self.topic}-{self.partition}" if self.topic is not None else "no name"
        size = sum(listed.size_bytes for listed in self.segments)
        return f"PartitionLog({name!r}, {len(self.segments)} segments, {size:,} bytes, from offset {self._log_start})"

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all maps. A later search opens again what it needs."""
        self._open.clear()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on skipped or rebuilt parts so far: bad indexes, an incomplete end of the log."""
        return tuple(self._notes)

    @property
    def earliest(self) -> int:
        """The log start offset."""
        return self._log_start

    @property
    def latest(self) -> int:
        """The end of reading: the log end offset, or end_offset if that is lower."""
        return self._ends()[1]

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record would get; never below the log start."""
        return self._ends()[0]

    def records(
        self, columns: Iterable[str] | None = None, *, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[Any]:
        """Yield records as pyarrow.RecordBatch with the schema RECORDS, or only the named columns, in the log's order.

        Takes offsets in [start_offset, end_offset); None: from the log start, up to `latest`. Includes control records
        and records of aborted transactions, as Segment.records does, and checks what that checks. ValueError for an
        unknown column, LogFormatError for damage.
        """
        schema = select(RECORDS, columns)
        start = self._log_start if start_offset is None else max(start_offset, self._log_start)
        end = self.latest if end_offset is None else min(end_offset, self.latest)
        first = max(bisect.bisect_right(self._bases, start) - 1, 0)
        until = bisect.bisect_left(self._bases, end)
        return self._read_records(self.segments[first:until], schema.names, start, end)

    def _read_records(self, segments: Sequence[Segment], columns: list[str], start: int, end: int) -> Iterator[Any]:
        for listed in segments:
            filesystem, path = located(self._place, listed.root, listed.path)
            segment = open_segment(
                path, filesystem, topic=self.topic, partition=self.partition, max_batch_bytes=self._max_batch_bytes
            )
            yield from segment.records(columns, start_offset=start, end_offset=end)

    def segment_end(self, number: int) -> int:
        """Return the last offset + 1 of one of `segments`, or its base offset if it is empty."""
        return self._segment(number).next_offset()

    def lookup_offset(self, offset: int) -> Location | None:
        """Return the batch at which a fetch from `offset` begins: the first whose last offset is >= it.

        Return None at the end of the log and outside it; `lookup_offsets` distinguishes the two.
        """
        log_end, end = self._end or self._ends()
        if not self._log_start <= offset < end:
            return None
        number = bisect.bisect_right(self._bases, offset) - 1
        while number < len(self._bases):
            segment = self._segment(number)
            status, position, size, base, last = k.find_offset(
                segment.whole, segment.end, *segment.index, segment.budget, offset
            )
            if status != k.FOUND:
                out = np.empty(1, LOCATION)
                if not segment.find_offsets(np.full(1, offset), np.zeros(1, np.int64), out):
                    number += 1
                    continue
                _, _, position, size, base, last = out[0].item()
            if end < log_end and (last if base < 0 else base) >= end:
                return None
            return Location(segment.base_offset, position, size, base, last)
        return None

    def lookup_offsets(self, offsets: ArrayLike) -> NDArray[np.void]:
        """Return LOCATION[n] for int64[n] offsets in any order. Raise TypeError for anything but whole numbers.

        The status is FOUND; END if there is no record to read there (yet); or OUT_OF_RANGE if a broker would answer
        with that error. For the last two, all other fields are -1.
        """
        targets = _whole_numbers(offsets)
        out = np.full(len(targets), OUT_OF_RANGE_ROW)
        log_end, end = self._ends()
        order = _order(targets)
        ordered = targets if order is None else targets[order]
        rows = np.arange(len(targets)) if order is None else order
        first, beyond = (int(i) for i in np.searchsorted(ordered, [self._log_start, end]))
        last = int(np.searchsorted(ordered, log_end, "right"))
        out["status"][rows[first:last]] = END
        numbers = np.searchsorted(self._base_array, ordered[first:beyond], "right") - 1
        borders = first + np.append(np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers))
        for at, until in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            number = int(numbers[at - first])
            while at < until and number < len(self._bases):  # targets without a batch in one segment go to the next
                at += self._segment(number).find_offsets(ordered[at:until], rows[at:until], out)  # noqa: PLW2901
                number += 1
        if end < log_end:
            found = out["status"] == FOUND
            begin = np.where(out["base_offset"] < 0, out["last_offset"], out["base_offset"])
            out[found & (begin >= end)] = END_ROW
        return out

    def offsets_for_times(self, timestamps: ArrayLike) -> NDArray[np.void]:
        """Return TIME_ANSWER[n] for int64[n] timestamps in ms in any order, and for EARLIEST, LATEST, MAX_TIMESTAMP.

        Raise ValueError for other negative numbers, TypeError for anything but whole numbers.
        """
        targets = _whole_numbers(timestamps)
        if len(targets) and targets.min() < MAX_TIMESTAMP:
            raise ValueError(f"not a timestamp: {int(targets.min())}")
        out = np.full(len(targets), NO_ANSWER)
        for special, offset, epochs in self._edges() if (targets < 0).any() else ():
            out[targets == special] = np.array((offset, -1, epochs[-1][0] if epochs else -1, -1, -1), TIME_ANSWER)
        if (targets == MAX_TIMESTAMP).any():
            out[targets == MAX_TIMESTAMP] = self._at_largest()
        order = np.argsort(targets, kind="stable")
        order = order[np.searchsorted(targets[order], 0) :]
        ordered = targets[order]
        done = 0
        while done < len(ordered):
            number = self._first_with(int(ordered[done]))
            if number is None:
                break
            until = int(np.searchsorted(ordered, self._running[number], "right"))
            self._find(number, ordered[done:until], order[done:until], out)
            done = until
        return out

    def _find(self, number: int, targets: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[np.void]) -> None:
        """Answer targets (not falling) whose segment is `number`, into rows of `out` (TIME_ANSWER)."""
        if self._timestamps[number] >= int(targets[0]):  # else only the file's time is large enough
            found = self._records.find(self._segment(number), targets, self._log_start)
            self._put(number, found, rows, out)

    def _put(self, number: int, answers: NDArray[np.void], rows: Any, out: NDArray[np.void]) -> None:
        """Write RECORD[m] into m rows of `out` (TIME_ANSWER); a record that cannot be read yet is no answer."""
        is_readable = answers["offset"] >= 0
        if self._end_offset is not None:
            is_readable &= answers["offset"] < self.latest
        answer = np.full(len(answers), NO_ANSWER)
        answer["segment_base_offset"][is_readable] = self._bases[number]
        for name in ("offset", "timestamp", "leader_epoch", "position"):
            answer[name][is_readable] = answers[name][is_readable]
        out[rows] = answer

    def _first_with(self, timestamp: int) -> int | None:
        """Return the number of the first segment whose largest timestamp is >= this one."""
        while len(self._running) < len(self._bases) and (not self._running or self._running[-1] < timestamp):
            self._look_at_next()
        number = bisect.bisect_left(self._running, timestamp)
        return number if number < len(self._running) else None

    def _look_at_next(self) -> None:
        """Note the largest timestamp of one more segment."""
        number = len(self._running)
        largest = self._segment(number).largest()[0]
        counts = largest if largest >= 0 else self.segments[number].mtime_ms
        self._timestamps.append(largest)
        self._running.append(max(counts, self._running[-1]) if self._running else counts)

    def _edges(self) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield target, answer and leader epochs for EARLIEST and LATEST; the last epoch is that of the answer."""
        yield EARLIEST, self._log_start, [entry for entry in self.leader_epochs if entry[1] <= self._log_start]
        yield LATEST, self.latest, checkpoints.truncate_from_end(self.leader_epochs, self.latest)

    def _at_largest(self) -> NDArray[np.void]:
        """Return the answer to MAX_TIMESTAMP, TIME_ANSWER[1]."""
        out = np.full(1, NO_ANSWER)
        while len(self._running) < len(self._bases):
            self._look_at_next()
        if self._timestamps:
            number = int(np.argmax(self._timestamps))  # the first of several
            segment = self._segment(number)
            timestamp, position, size = segment.largest()
            if size:
                self._put(number, self._records.find_exact(segment, position, size, timestamp), slice(None), out)
        return out

    def _ends(self) -> tuple[int, int]:
        """Return the log end offset, and the end of reading."""
        if self._end is None:
            end = self._known_end
            if end is None:
                end = self._segment(len(self._bases) - 1).next_offset() if self._bases else 0
            if end < self._log_start and self._bases:
                last = self.segments[-1]
                _, path = located(self._place, last.root, last.path)
                expected, found = f"a log start of at most {end}, the log end", f"{self._log_start} in its checkpoint"
                raise LogFormatError(
                    "side_file", path, 0, expected, found, hint="the checkpoint belongs to another log"
                )
            log_end = max(end, self._log_start)
            bound = log_end if self._end_offset is None else min(self._end_offset, log_end)
            self._end = log_end, max(bound, self._log_start)
        return self._end

    def _segment(self, number: int) -> SearchableSegment:
        segment = self._open.get(number)
        if segment is None:
            segment = self._open[number] = SearchableSegment(self.segments[number], self._notes.setdefault, self._place)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return segment


def _whole_numbers(values: ArrayLike) -> NDArray[np.int64]:
    """Return int64[n], a copy, because kernels are compiled for writable arrays. Raise TypeError for other types."""
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"expected offsets, or timestamps in ms, as whole numbers, found {given.dtype}")
    return given.astype(np.int64, order="C").reshape(-1)


def _order(targets: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the rows of targets in rising order; None if they rise already."""
    return None if (targets[1:] >= targets[:-1]).all() else np.argsort(targets)


RECORD: Final = np.dtype(
    [
        ("offset", "i8"),  # -1: none
        ("timestamp", "i8"),  # ms
        ("leader_epoch", "i8"),  # leader epoch of its batch, -1 none
        ("position", "i8"),  # position of its batch in the .log
    ]
)
_CHUNK_BYTES: Final = 8 << 20  # bytes of batches that are processed at a time; one batch may be larger


class _RecordSearch:
    """Search whose buffers are used again from segment to segment. For one thread at a time."""

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._reader = LogReader(max_batch_bytes=max_batch_bytes, keys_only=True)

    def find(self, segment: SearchableSegment, targets: NDArray[np.int64], start_offset: int) -> NDArray[np.void]:
        """Return RECORD[n]: the first with a timestamp >= each target (int64[n] ms, not falling), offset >=
        start_offset.

        Raises LogFormatError for a batch that cannot be read.
        """
        out = np.full(len(targets), np.array((-1, -1, -1, -1), RECORD))
        asked, after = np.arange(len(targets)), None
        while len(asked):
            candidates = segment.find_times(targets[asked], start_offset, after)
            asked = asked[: len(candidates)]
            places = self._first(segment, candidates, targets[asked], start_offset, exact=False)
            out[asked] = places
            # A header may promise a timestamp that no record has, or only one below the start: continue after it.
            missed = places["offset"] < 0
            asked, after = asked[missed], (candidates["position"] + candidates["size"])[missed]
        return out

    def find_exact(self, segment: SearchableSegment, position: int, size: int, timestamp: int) -> NDArray[np.void]:
        """Return RECORD[1]: the first one with this timestamp in the batch at `position`."""
        candidate = np.array([(position, size)], CANDIDATE)
        return self._first(segment, candidate, np.full(1, timestamp), 0, exact=True)

    def _first(
        self,
        segment: SearchableSegment,
        candidates: NDArray[np.void],
        targets: NDArray[np.int64],
        start_offset: int,
        *,
        exact: bool,
    ) -> NDArray[np.void]:
        """Return RECORD[n], the answer to each target in its own candidate (CANDIDATE[n], positions not falling)."""
        out = np.full(len(targets), np.array((-1, -1, -1, -1), RECORD))
        positions, first_rows, which = np.unique(candidates["position"], return_index=True, return_inverse=True)
        sizes = candidates["size"][first_rows]
        for i in np.flatnonzero(sizes > self._max_batch_bytes)[:1]:
            check_batch_size(int(sizes[i]), self._max_batch_bytes, segment.path, int(positions[i]), -1)
        ends = np.cumsum(sizes)
        done = 0
        while done < len(positions):
            before = int(ends[done - 1]) if done else 0
            until = max(int(np.searchsorted(ends, before + _CHUNK_BYTES, "right")), done + 1)
            starts = np.append(0, ends[done:until] - before)
            try:
                raw = segment.copy(positions[done:until], starts)
                batches = _headers(raw, until - done, segment.path)
                for run in self._reader.runs(Chunk(0, raw, batches, path=segment.path)):
                    first = done + run.first
                    rows = slice(*(int(i) for i in np.searchsorted(which, [first, first + len(run.batches)])))
                    in_run, part, found = which[rows] - first, out[rows], np.empty((2, len(which[rows])), np.int64)
                    first_records(run, in_run, targets[rows], start_offset, exact, found)
                    part["offset"], part["timestamp"] = found
                    part["leader_epoch"] = run.batches["partition_leader_epoch"][in_run]
                    part["position"] = positions[which[rows]]
            except LogFormatError as error:
                at = int(np.searchsorted(starts, error.position, "right")) - 1
                error.position += int(positions[done + at] - starts[at])
                raise
            done = until
        return out


def _headers(raw: Bytes, n: int, path: str) -> NDArray[np.void]:
    """Return BATCH[n] of n batches, and check their checksums."""
    rows = np.empty(n, BATCH)
    seen, at, status, expected, found = walk.walk_batches(raw, len(raw), 0, -1, NO_END, walk.CHECK_ALL, rows)
    if seen < n:
        if status == walk.MORE:
            raise LogFormatError("changed", path, at, "the batch that was there before", "an incomplete one")
        raise batch_problem(path, at, status, expected, found, raw[at:])
    return rows
