"""Search for a segment's first record from a timestamp on: candidate batches by their headers, then their records.

A batch is read, checked and decompressed once for any number of targets in it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, Chunk, batch_problem, check_batch_size
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.search.segment_search import SearchableSegment
from lastkey.logformat.search.time_kernels import CANDIDATE, first_records
from lastkey.logformat.search.windows import Bytes

RECORD: Final = np.dtype(
    [
        ("offset", "i8"),  # -1: none
        ("timestamp", "i8"),  # ms
        ("leader_epoch", "i8"),  # leader epoch of its batch, -1 none
        ("position", "i8"),  # position of its batch in the .log
    ]
)
_CHUNK_BYTES: Final = 8 << 20  # bytes of batches that are processed at a time; one batch may be larger


class RecordSearch:
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
