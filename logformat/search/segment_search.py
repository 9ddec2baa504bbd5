"""Searchable segment: its log, its two indexes, and the faults found in them.

The search uses the log up to the first malformed header. It checks an index before use:

  .index      The batch that an entry points at must exist, and the walk from it must come to a batch that ends at
              exactly the entry's offset (see offset_kernels). So a wrong index is noticed before it answers, unless it
              points at bytes inside a record that are themselves a batch with these offsets.
  .timeindex  Its entries must rise, and the batch that an entry names must have exactly its timestamp as its largest
              one. Like a broker, the search takes from the index that no earlier batch has a larger one: a check would
              read all the headers that the index exists to skip. The largest timestamp of the segment never comes from
              the last entry alone: the headers from its batch to the end of the log are read too. So an index that is
              truncated, or older than the log, gives the same answer as a complete index
              (LogSegment.readLargestTimestamp does the same).

If an index is missing, torn or fails these checks, the search reads the segment's headers once and indexes them in
memory; `notes` states that. It does the same if an index has entries too far apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, batch_problem, only_zeros
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import TIME_INDEX_ENTRY
from lastkey.logformat.listing import Segment
from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.offset_kernels import LOCATION
from lastkey.logformat.search.time_kernels import CANDIDATE, find_times
from lastkey.logformat.search.windows import Bytes, Place, before_zeros, located, open_window, read_index
from lastkey.logformat.side_files import index_kernels
from lastkey.logformat.side_files.index_builder import INDEX_INTERVAL_BYTES, index_entries
from lastkey.logformat.storage.locations import file_system
from lastkey.logformat.storage.regular_files import LogFile, open_regular

NO_LIMIT: Final = 2**62
MOST_ENTRIES: Final = 1 << 16  # limit for an index built in memory: 1 MiB


class Largest(NamedTuple):
    """Largest timestamp of a segment and its batch; see SearchableSegment.largest."""

    timestamp: int
    position: int
    size: int


def larger(largest: Largest | None, batches: NDArray[np.void]) -> Largest:
    """Return the largest timestamp up to and including the next batches (BATCH[n], at least one)."""
    timestamps = batches["max_timestamp"]
    row = int(timestamps.argmax())
    if largest is not None and timestamps[row] <= largest.timestamp:
        return largest
    return Largest(int(timestamps[row]), int(batches["position"][row]), int(batches["size"][row]))


def joined_entries(entries: list[NDArray[np.int64]], base: int) -> k.Index:
    """Join entries, int64[m, 2] each, to one index with wide entries."""
    joined = np.concatenate([np.empty((0, 2), np.int64), *entries]).astype(">i8")
    flat = np.ascontiguousarray(joined).view(np.uint8).reshape(-1)
    flat.flags.writeable = False
    return k.Index(flat, k.WIDE_ENTRY, len(joined), base)


BUDGET: Final = 4096  # batches to walk over from an entry: more than 4 KiB of the smallest hold, or 1 MiB of usual ones
SMALL_BUDGET: Final = 256  # without entries
_SMALLEST_BATCH: Final = 26
_BUFFER_BYTES: Final = 1 << 20

Note = Callable[[str], object]


class SearchableSegment:
    """A segment whose files are mapped as long as this object lives. For one thread at a time."""

    def __init__(self, listed: Segment, note: Note, place: Place = file_system) -> None:
        self.listed, self.base_offset = listed, listed.base_offset
        self.end = listed.size_bytes  # end of the log, without an incomplete batch or zeros that were found there
        self._note, self._place = note, place
        self._filesystem, self.path = located(place, listed.root, listed.path)
        self._window = open_window(self._filesystem, self.path, listed.size_bytes)
        self.whole = self._window.whole
        self.index = self._open(listed.index, k.OFFSET_ENTRY)
        self.budget = BUDGET if self.index.n else SMALL_BUDGET
        self._times: k.Index | None = None
        self._largest: Largest | None = None
        self._made_anew = False
        self._damage: LogFormatError | None = None  # the error that ended the reading of headers

    def find_offsets(self, targets: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[np.void]) -> int:
        """Answer targets (int64[n], not falling) in order as long as there are batches for them; return their number.

        rows, out: see offset_kernels.find_offsets. Raises LogFormatError for an impossible batch on the way.
        """
        return int(self._find_offsets(targets, rows, out)[k.ROW])

    def next_offset(self) -> int:
        """Return the last offset + 1, or the base offset of an empty segment."""
        beyond, row = np.full(1, NO_END), np.zeros(1, np.int64)
        return int(self._find_offsets(beyond, row, np.empty(1, LOCATION))[k.PREVIOUS]) + 1

    def find_times(
        self, targets: NDArray[np.int64], start_offset: int, after: NDArray[np.int64] | None = None
    ) -> NDArray[np.void]:
        """Return CANDIDATE[m] for the first m targets (int64[n] ms, not falling); the others have none.

        See time_kernels.find_times. after: int64[n], not falling: for each target begin at this position, a batch
        border.
        """
        out = np.empty(len(targets), CANDIDATE)
        begin = np.zeros(len(targets), np.int64) if after is None else after

        def find(seen: k.Window, state: NDArray[np.int64]) -> int:
            # With `after` a search may start after an entry's own batch, and could then not check the entry.
            times = self.times if after is None else k.Index(self.whole[:0], k.TIME_ENTRY, 0, self.base_offset)
            return find_times(seen, self.index, times, start_offset, targets, begin, state, out)

        return out[: int(self._search(find)[k.ROW])]

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """Copy n batches one after the other: from positions (int64[n], in the file) to starts (int64[n + 1])."""
        return self._window.copy(positions, starts)

    @property
    def times(self) -> k.Index:
        """The time index; opened on first use."""
        if self._times is None:
            self._times = self._rising(self._open(self.listed.time_index, k.TIME_ENTRY))
        return self._times

    def largest(self) -> Largest:
        """Return the largest timestamp of any batch in ms, with position and size of the first batch that carries it.

        Return -1 and the first batch if none has a timestamp; -1, 0, 0 for an empty segment. The result equals
        LogSegment.maxTimestampSoFar after a recovery of the segment.
        """
        if self._largest is None:
            times = self.times
            behind = self._largest_behind(times) if times.n else None
            if behind is None and not self._made_anew:
                self._make_anew(self.listed.time_index, "the last entry does not fit the log" if times.n else "")
            self._largest = self._largest or behind  # _make_anew set it, unless the headers end before
        if self._largest is None:
            raise self._damage or self._moved()
        return self._largest

    def _find_offsets(
        self, targets: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[np.void]
    ) -> NDArray[np.int64]:
        return self._search(
            lambda seen, state: k.find_offsets(seen, self.index, self.budget, targets, rows, state, out)
        )

    def _search(self, find: Callable[[k.Window, NDArray[np.int64]], int]) -> NDArray[np.int64]:
        """Return the state in which a search ends; `find` searches a window from a state on, and returns the status."""
        state = k.new_state(self.base_offset)
        window, origin = self.whole, 0
        while True:
            status = find(k.Window(window, origin, self.end), state)
            if status == k.NONE:
                self._end_at(int(state[k.POSITION]))
            if status in (k.FOUND, k.NONE):
                return state
            window, origin = self._resume_search(status, state)

    def _largest_behind(self, times: k.Index) -> Largest | None:
        """Return the largest by the last entry and the headers from its batch on; None if the entry does not fit its
        batch.
        """
        entries, entry_size, n, _ = times
        entry = entries[(n - 1) * entry_size : n * entry_size].tobytes()
        timestamp, offset = (int.from_bytes(part, "big", signed=True) for part in (entry[:8], entry[8:]))
        offset += self.base_offset if entry_size == k.TIME_ENTRY else 0
        location = np.empty(1, LOCATION)
        if not self.find_offsets(np.full(1, offset), np.zeros(1, np.int64), location):
            return None
        start, largest = (
            int(location["position"][0]),
            Largest(timestamp, int(location["position"][0]), int(location["size"][0])),
        )
        reader = LogReader(_BUFFER_BYTES)
        for chunk in reader.headers(self._log(), start):
            if chunk.position == start and chunk.batches["max_timestamp"][0] != timestamp:
                return None
            largest = larger(largest, chunk.batches)
        self._end_at(reader.tail.position)
        return largest

    def _open(self, path: str | None, entry_size: int) -> k.Index:
        """Return an index file, up to its zeros; without entries if the file is of no use."""
        none = np.empty(0, np.uint8)
        none.flags.writeable = False
        nothing = k.Index(none, entry_size, 0, self.base_offset)
        if path is None:
            if self.end:
                kind = "offset" if entry_size == k.OFFSET_ENTRY else "time"
                self._note(f"{self.path}: it has no {kind} index; headers are read instead")
            return nothing
        most = (self.listed.size_bytes // _SMALLEST_BATCH + 1) * entry_size  # no log holds more batches
        filesystem, path = located(self._place, self.listed.beside, path)
        try:
            entries, size = read_index(filesystem, path, most)
        except LogFormatError as error:
            self._note(f"{error}; headers are read instead")
            return nothing
        if size % entry_size:
            self._note(f"{path}: {size} bytes are not entries of {entry_size}; headers are read instead")
            return nothing
        n = before_zeros(entries, entry_size)
        if n * entry_size < len(entries):
            self._note(f"{path}: zeros from byte {n * entry_size} on, as of a segment that was being written")
        return k.Index(entries, entry_size, n, self.base_offset)

    def _rising(self, index: k.Index) -> k.Index:
        """Return a time index; without entries if they do not rise, because a binary search could then miss the right
        one.
        """
        entries, entry_size, n, base = index
        stored = entries[: n * entry_size].view(TIME_INDEX_ENTRY)
        timestamps, offsets = stored["timestamp"], stored["relative_offset"]
        if (timestamps[1:] > timestamps[:-1]).all() and (offsets[1:] >= offsets[:-1]).all():
            return index
        self._note(f"{self._pair(self.listed.time_index)}: its entries do not rise; headers are read instead")
        return k.Index(entries[:0], entry_size, 0, base)

    def _resume_search(self, status: int, state: NDArray[np.int64]) -> tuple[Bytes, int]:
        """Prepare a search that stopped with `status` to continue: return its window, rebuild an index, or raise."""
        if status == k.NEED:
            return self._window.at(int(state[k.NEEDED]))
        if status == k.BAD_BATCH:
            position, found = int(state[k.POSITION]), int(state[k.FOUND_VALUE])
            raw, origin = self._window.at(position)
            if state[k.PROBLEM] == walk.BAD_LENGTH and found == 0 and self._only_zeros(position):
                self._end_at(position)
                return raw, origin
            if self._made_anew:
                problem, expected = int(state[k.PROBLEM]), int(state[k.EXPECTED])
                raise batch_problem(self.path, position, problem, expected, found, raw[position - origin :])
        if self._made_anew:
            raise self._moved()
        self._make_anew(
            self.listed.time_index if status == k.WRONG_TIMES else self.listed.index,
            {
                k.WRONG_INDEX: "an entry does not fit the log",
                k.WRONG_TIMES: "an entry does not fit the log",
                k.LONG_WALK: "entries lie far apart" if self.index.n else "",
                k.BAD_BATCH: "no batch after one that an entry points at" if self.index.n else "",
            }[status],
        )
        row = int(state[k.ROW])
        state[:] = k.new_state(self.base_offset)  # a walk from a wrong index entry may end at any position
        state[k.ROW] = row
        return self.whole, 0

    def _pair(self, index: str | None) -> str:
        """Name an index file and its log for a note: either may be wrong; they may have different folders."""
        return self.path if index is None else f"{located(self._place, self.listed.beside, index)[1]} of {self.path}"

    def _make_anew(self, index: str | None, why: str) -> None:
        """Index the segment in memory as far as its headers hold together. Remember the error for the first search that
        reaches it.
        """
        if why:
            self._note(f"{self._pair(index)}: {why}; headers are read instead")
        # Near enough for a short walk between two entries, far enough apart for a small index.
        interval = max(INDEX_INTERVAL_BYTES, self.listed.size_bytes // MOST_ENTRIES)
        state = index_kernels.new_state(self.base_offset, interval, NO_LIMIT, NO_LIMIT)
        offsets, times = [], []
        largest: Largest | None = None
        reader = LogReader(_BUFFER_BYTES)
        try:
            for chunk in reader.headers(self._log(), previous_last_offset=self.base_offset - 1):
                batches = chunk.batches
                entries, time_entries = index_entries(
                    batches["last_offset"], batches["size"], batches["max_timestamp"], state
                )
                offsets.append(entries)
                times.append(time_entries)
                largest = larger(largest, batches)
            self._end_at(reader.tail.position)
            self._largest = largest or Largest(-1, 0, 0)
        except LogFormatError as error:
            if error.kind in ("unreadable", "changed"):
                raise
            self._damage = error
        self._made_anew, self.budget = True, NO_LIMIT
        self.index = joined_entries(offsets, self.base_offset)
        self._times = joined_entries(times, self.base_offset)

    def _log(self) -> LogFile:
        return LogFile(lambda: open_regular(self._filesystem, self.path), self.path, self.end)

    def _end_at(self, position: int) -> None:
        if position < self.end:
            rest = self.end - position
            self._note(f"{self.path}: the last {rest} bytes, from byte {position} on, are not a whole batch")
            self.end = position

    def _only_zeros(self, position: int) -> bool:
        with open_regular(self._filesystem, self.path) as file:
            return only_zeros(file, self.path, position, self.end)

    def _moved(self) -> LogFormatError:
        return LogFormatError("changed", self.path, 0, "an unchanged log", "other batches than before")
