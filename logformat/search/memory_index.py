"""Index of a segment, made in memory if its index files are of no use."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.windows import Bytes
from lastkey.logformat.side_files import index_kernels

NO_LIMIT: Final = 2**62
MOST_ENTRIES: Final = 1 << 16  # of an index made in memory: 1 MiB


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


def index_entries(batches: NDArray[np.void], state: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of the next batches (BATCH[n]) as int64[m, 2]: (offset, position) and (timestamp, offset)."""
    last, size, timestamp = (np.ascontiguousarray(batches[name]) for name in ("last_offset", "size", "max_timestamp"))
    out = np.empty((4, len(batches)), np.int64)
    n, n_times = index_kernels.build_index_entries(last, size, timestamp, state, *out)
    return out[:2, :n].T, out[2:, :n_times].T


def joined_entries(entries: list[NDArray[np.int64]]) -> tuple[Bytes, int, int]:
    """Join entries, int64[m, 2] each, to one index with wide entries."""
    joined = np.concatenate([np.empty((0, 2), np.int64), *entries]).astype(">i8")
    flat = np.ascontiguousarray(joined).view(np.uint8).reshape(-1)
    flat.flags.writeable = False
    return flat, k.WIDE_ENTRY, len(joined)
