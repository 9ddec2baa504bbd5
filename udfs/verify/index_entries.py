"""Entries of a `.index` and a `.timeindex`, judged by what look-ups make of them, while a log is walked.

An archived index can differ from the one that Kafka 4.3 and 4.4 would make, and be right: an older broker made an entry
for each append and not for each batch, and a broker that was restarted while the segment was active counted from 0
again. So an entry is judged by its use (KAFKA.md, "Indexes"):

- offset index: at its position a batch begins, and all batches before that end below its offset. Then the scan for any
  target from its offset on misses nothing.
- time index: all batches before the one that holds its offset carry smaller timestamps than the entry. Then the scan
  for any target from its timestamp on misses nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class EntryCheck:
    """Check of index entries, which takes a segment's batches in the order of the file.

    offsets: offset_index.ENTRY[n], times: time_index.ENTRY[m], as read, in any order and of any content.
    """

    def __init__(self, base_offset: int, offsets: NDArray[np.void], times: NDArray[np.void]) -> None:
        self.offsets, self.times = offsets, times
        self.seen_offset = np.zeros(len(offsets), np.bool_)  # its position lies in what was fed
        self.wrong_offset = np.zeros(len(offsets), np.bool_)  # of those that were seen
        self.before_batch = np.zeros(len(offsets), np.bool_)  # of those that were seen: below all offsets of the batch
        self.wrong_time = np.zeros(len(times), np.bool_)  # of those whose offset was reached
        self.last_offset = base_offset - 1  # the largest so far
        self.max_timestamp = -1  # the largest so far, ms
        self._by_position = np.argsort(offsets["position"], kind="stable")
        self._positions = offsets["position"][self._by_position]
        self._by_offset = np.argsort(times["offset"], kind="stable")
        self._offsets_of_times = times["offset"][self._by_offset]
        self._times_done = 0  # of _by_offset
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
    """Return bool[n]: which of int64[n] are not above the one before; with `may_stay`, which are below it."""
    out = np.zeros(len(values), np.bool_)
    out[1:] = values[1:] < values[:-1] if may_stay else values[1:] <= values[:-1]
    return out
