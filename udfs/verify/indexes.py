"""`.index` and `.timeindex` checked against their `.log`: equal to what a broker rebuilds, or at least right for
look-ups.

An archived index can differ from the one that Kafka 4.3 and 4.4 would make, and be right. An older broker made an entry
for each append and not for each batch. A broker that was restarted while the segment was active counted from 0 again.
So an entry that is not as rebuilt is judged by its use, while the log is walked (KAFKA.md, "Indexes"):

- offset index: at its position a batch begins, and all batches before that end below its offset. Then the scan for any
  target from its offset on misses no batch.
- time index: all batches before the one that holds its offset carry smaller timestamps than the entry. Then the scan
  for any target from its timestamp on misses no batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.side_files import offset_index, time_index
from lastkey.logformat.side_files.index_builder import IndexBuilder


class EntryCheck:
    """Check of index entries, which takes a segment's batches in the order of the file.

    offsets: offset_index.ENTRY[n], times: time_index.ENTRY[m], as read, in any order and of any content.
    """

    def __init__(self, base_offset: int, offsets: NDArray[np.void], times: NDArray[np.void]) -> None:
        self.offsets, self.times = offsets, times
        self.seen_offset = np.zeros(len(offsets), np.bool_)  # its position is in the bytes that were fed
        self.wrong_offset = np.zeros(len(offsets), np.bool_)  # seen entries with a wrong offset
        self.before_batch = np.zeros(len(offsets), np.bool_)  # seen entries below all offsets of their batch
        self.wrong_time = np.zeros(len(times), np.bool_)  # entries with a wrong time, of those whose offset was reached
        self.last_offset = base_offset - 1  # the largest so far
        self.max_timestamp = -1  # the largest so far, ms
        self._by_position = np.argsort(offsets["position"], kind="stable")
        self._positions = offsets["position"][self._by_position]
        self._by_offset = np.argsort(times["offset"], kind="stable")
        self._offsets_of_times = times["offset"][self._by_offset]
        self._times_done = 0  # number of checked entries of _by_offset
        self._previous_last = base_offset - 1

    def feed(self, batches: NDArray[np.void], position: int, size: int) -> None:
        """Take the next batches, layout.BATCH[n]: bytes [position, position + size) of the log.

        Unreadable batches may be missing between two calls.
        """
        last = batches["last_offset"]
        first_here, end_here = np.searchsorted(self._positions, (position, position + size))
        if end_here > first_here:
            here = self._by_position[first_here:end_here]
            starts = batches["position"].copy()
            at = np.minimum(np.searchsorted(starts, self.offsets["position"][here]), len(batches) - 1)
            before = np.where(at > 0, last[at - 1], self._previous_last)
            self.seen_offset[here] = True
            self.wrong_offset[here] = (starts[at] != self.offsets["position"][here]) | (
                self.offsets["offset"][here] <= before
            )
            self.before_batch[here] = self.offsets["offset"][here] < batches["base_offset"][at]
        highest = int(last[-1])
        reached = int(np.searchsorted(self._offsets_of_times, highest, "right"))
        if reached > self._times_done:
            here = self._by_offset[self._times_done : reached]
            largest = np.maximum.accumulate(np.concatenate([[self.max_timestamp], batches["max_timestamp"]]))
            at = np.searchsorted(last.copy(), self.times["offset"][here])
            self.wrong_time[here] = largest[at] >= self.times["timestamp"][here]
            self._times_done = reached
        self._previous_last = highest
        self.last_offset = max(self.last_offset, highest)
        self.max_timestamp = max(self.max_timestamp, int(batches["max_timestamp"].max()))


def falls(values: NDArray[np.int64], *, may_stay: bool = False) -> NDArray[np.bool_]:
    """Return bool[n]: whether each of int64[n] is not above its predecessor; with `may_stay`, which are below it."""
    out = np.zeros(len(values), np.bool_)
    out[1:] = values[1:] < values[:-1] if may_stay else values[1:] <= values[:-1]
    return out


_OFFSET_SIZE = OFFSET_INDEX_ENTRY.itemsize
_TIME_SIZE = TIME_INDEX_ENTRY.itemsize


@dataclass(frozen=True)
class IndexFile:
    """One of a segment's two index files."""

    kind: Literal["offset", "time"]
    path: str
    data: bytes | None  # None if missing


@dataclass(frozen=True)
class Expected:
    """Demands on a segment's indexes."""

    active: bool  # the segment may still be written to
    exact: bool  # only the rebuilt index is right; else a file that is not there is a note
    damaged: bool  # not every batch of the log could be read


class IndexCheck:
    """Check of a segment's two indexes, which takes its batches while the log is walked.

    builder: rebuilds the indexes from the batches.
    """

    def __init__(self, base_offset: int, offset_file: IndexFile, time_file: IndexFile, builder: IndexBuilder) -> None:
        self.base_offset = base_offset
        self.offset_file, self.time_file = offset_file, time_file
        self.problems: list[LogFormatError] = []
        self.offsets = self._read(offset_index.read, _OFFSET_SIZE, offset_file)
        self.times = self._read(time_index.read, _TIME_SIZE, time_file)
        self.builder: IndexBuilder | None = builder
        self._entries = EntryCheck(base_offset, self.offsets, self.times)

    def _read(self, read: Callable[[bytes, int, str], np.ndarray], entry_size: int, file: IndexFile) -> np.ndarray:
        data = file.data or b""
        try:
            return read(data, self.base_offset, file.path)
        except LogFormatError as error:
            self.problems.append(error)
            return read(data[: len(data) - len(data) % entry_size], self.base_offset, file.path)

    @property
    def positions(self) -> np.ndarray:
        """int64[n], rising: positions at which batches begin, by the offset index."""
        positions: np.ndarray = np.unique(self.offsets["position"])
        return positions

    def feed(self, batches: np.ndarray, position: int, size: int) -> None:
        """Take the next batches, BATCH[n]: bytes [position, position + size) of the log."""
        last, timestamp = batches["last_offset"].copy(), batches["max_timestamp"].copy()
        if self.builder is not None:
            try:
                self.builder.append(last, batches["size"], timestamp)
            except LogFormatError as error:
                self.builder = None
                if int(last.min()) >= self.base_offset:  # else the segment's name is wrong, which is a row already
                    self.problems.append(error)
        self._entries.feed(batches, position, size)

    def finish(self, expected: Expected) -> tuple[list[LogFormatError], list[str]]:
        """Judge both indexes; return (problems, notes)."""
        notes: list[str] = []
        rebuilt = self.builder.finish() if self.builder is not None and not expected.damaged else (None, None)
        self._judge(self.offset_file, rebuilt[0], expected, notes)
        self._judge(self.time_file, rebuilt[1], expected, notes)
        return self.problems, notes

    def _judge(self, file: IndexFile, rebuilt: bytes | None, expected: Expected, notes: list[str]) -> None:
        kind, path, data = file.kind, file.path, file.data
        if data is None:
            if expected.exact:
                self._add(path, 0, f"the {kind} index of the segment", "no such file")
            else:
                notes.append(f"{path}: missing; a broker would rebuild it")
            return
        if data == rebuilt:
            return
        entries = self.offsets if kind == "offset" else self.times
        entry_size = _OFFSET_SIZE if kind == "offset" else _TIME_SIZE
        used = len(entries) * entry_size
        if not any(p.path == path for p in self.problems) and len(data) > used:
            tail = data[used:]
            if tail.count(0) != len(tail) or not expected.active:
                self._add(path, used, "entries that rise, to the end of the file", f"{len(tail)} more bytes")
            else:
                notes.append(f"{path}: {len(tail)} bytes of zeros at the end, as of a segment that was being written")
        legal = self._illegal(kind, path, expected.active, expected.damaged)
        if expected.exact and legal and rebuilt is not None and not any(p.path == path for p in self.problems):
            at = next(
                (i for i in range(min(len(data), len(rebuilt))) if data[i] != rebuilt[i]), min(len(data), len(rebuilt))
            )
            self._add(path, at - at % entry_size, "the entries that a broker rebuilds from the log", "other entries")
        elif legal and rebuilt is not None and data[:used] != rebuilt and not expected.active:
            notes.append(f"{path}: not the entries that Kafka 4.3 and 4.4 would make, but right for look-ups")

    def _illegal(self, kind: str, path: str, active: bool, damaged: bool) -> bool:
        """Report entries that mislead a look-up; return True if there are none."""
        before, seen = len(self.problems), self._entries
        e = self.offsets if kind == "offset" else self.times
        beyond = (e["offset"] > seen.last_offset) & (not damaged)
        if kind == "offset":
            wrong = (seen.wrong_offset | seen.before_batch) & seen.seen_offset  # before_batch misleads no look-up, but
            # it alone shows a damaged base offset, which no checksum covers
            rules = [
                (falls(e["offset"]), "offsets that rise", e["offset"]),
                (falls(e["position"]), "positions that rise", e["position"]),
                (~seen.seen_offset & (not damaged), "a position inside the log", e["position"]),
                (wrong, "a batch that begins there and ends at the offset", e["position"]),
            ]
        else:
            wrong = seen.wrong_time & (not damaged)
            rules = [
                (falls(e["timestamp"]), "timestamps that rise", e["timestamp"]),
                (falls(e["offset"], may_stay=True), "offsets that rise", e["offset"]),
                (e["offset"] < self.base_offset, "an offset in the segment", e["offset"]),
                (wrong, "no equal or later timestamp before its offset", e["timestamp"]),
            ]
        size = _OFFSET_SIZE if kind == "offset" else _TIME_SIZE
        for wrong, expected, values in (*rules, (beyond, f"offsets up to {seen.last_offset}", e["offset"])):
            for n in np.flatnonzero(wrong)[:1].tolist():
                more = np.count_nonzero(wrong) - 1
                found = f"{int(values[n])} (and {more} more entries)" if more else f"{int(values[n])}"
                self._add(path, n * size, expected, found)
        if kind == "time" and not damaged:
            largest = int(e["timestamp"][-1]) if len(e) else -1
            if largest > seen.max_timestamp or (not active and largest != seen.max_timestamp):
                expected = f"{seen.max_timestamp}, the largest timestamp, in the last entry"
                self._add(path, max(len(e) - 1, 0) * _TIME_SIZE, expected, f"{largest}")
        return len(self.problems) == before

    def _add(self, path: str, position: int, expected: str, found: str) -> None:
        self.problems.append(LogFormatError("index", path, position, expected, found))
