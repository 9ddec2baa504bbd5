"""State of one share partition: the start offset of its group, and the delivered offsets above it.

A ShareSnapshot has the complete state, and each following ShareUpdate has the changes. Kafka folds them one by one
(ShareCoordinatorShard.merge, PersisterStateBatchCombiner, 4.3.0): the start offset is the last one that is not -1; each
update removes the offsets below its start. Where batches overlap, the batch with the higher delivery count decides at
each offset, then the batch with the higher state. So the state of an offset is the largest (delivery count, delivery
state) of the batches that cover it. The order of the batches does not matter, so all are merged at once.

States: 0 available, 1 acquired, 2 acknowledged, 3 archiving, 4 archived. Acknowledged and archived are final: the group
is done with the record, which was processed, rejected, or given up after too many tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BATCH: Final = np.dtype([("first", "i8"), ("last", "i8"), ("state", "i8"), ("count", "i8")])
_DELIVERED: Final = (2, 4)
_STATES: Final = 256  # values of an int8
_LAST: Final = 2**63 - 2  # so that the next offset is valid for any bytes
NO_OFFSET: Final = -1
Range = tuple[int, int]  # [first, last]


class ShareStateRecord(NamedTuple):
    """A snapshot, or an update after it."""

    start_offset: int  # -1: as before; in a snapshot: not known yet
    batches: NDArray[np.void]  # BATCH[n]


def start_offset(changes: Sequence[ShareStateRecord]) -> int:
    """Return the start offset after a snapshot and its updates; -1: not known yet."""
    return next((change.start_offset for change in reversed(changes) if change.start_offset != NO_OFFSET), NO_OFFSET)


def delivered_ranges(changes: Sequence[ShareStateRecord]) -> list[Range]:
    """Return the ranges of offsets that are delivered, rising and apart, after a snapshot and its updates.

    Offsets below the start offset are delivered too, and not among them.
    """
    firsts, lasts, ranks = _cut(changes)
    edges = np.unique(np.concatenate([firsts, lasts + 1]))
    if not len(edges):
        return []
    best = _largest(np.searchsorted(edges, firsts), np.searchsorted(edges, lasts + 1), ranks, len(edges))
    done = np.isin(best % _STATES, _DELIVERED) & (best >= 0)
    turns = np.flatnonzero(np.diff(np.concatenate([[False], done, [False]]).astype(np.int8)))
    edges = np.append(edges, edges[-1])  # no batch covers offsets after the last edge
    return list(zip(edges[turns[::2]].tolist(), (edges[turns[1::2]] - 1).tolist(), strict=True))


def _cut(changes: Sequence[ShareStateRecord]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (firsts, lasts, ranks), int64[n] each, of all batches above the start offset of every update that came
    with or after them. A snapshot's own batches are not cut by its start.
    """
    said = np.array([change.start_offset for change in changes], np.int64)
    last = np.maximum.accumulate(np.where(said == NO_OFFSET, -1, np.arange(len(said))))
    starts = np.where(last < 0, NO_OFFSET, said[last])  # -1 is as before
    starts[0] = NO_OFFSET
    floors = np.maximum.accumulate(starts[::-1])[::-1]
    batches = np.concatenate([np.empty(0, BATCH), *(change.batches for change in changes)])
    floor = np.repeat(floors, [len(change.batches) for change in changes])
    firsts = np.maximum(batches["first"], floor)
    lasts = np.minimum(batches["last"], _LAST)
    kept = firsts <= lasts
    ranks = batches["count"] * _STATES + batches["state"]
    return firsts[kept], lasts[kept], ranks[kept]


def _largest(
    begins: NDArray[np.int64], ends: NDArray[np.int64], ranks: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Return int64[size]: at each place the largest rank of the ranges [begin, end) that cover it, -1 for none.

    A range is two ranges, of the largest power of two that fits, and each power is halved in turn: n log n steps for
    any number of overlapping batches.
    """
    powers = np.frexp(ends - begins)[1] - 1
    best = np.full(size, -1, np.int64)
    for power in range(int(powers.max()), -1, -1):
        here = powers == power
        np.maximum.at(best, begins[here], ranks[here])
        np.maximum.at(best, ends[here] - (1 << power), ranks[here])
        if power:
            half = 1 << (power - 1)
            moved = best[: size - half].copy()
            np.maximum(best[half:], moved, out=best[half:])
    return best
