"""Kernel of the rules of `failover`: the state of each record of A, and the kind of each copy in B."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.udfs.audit.group_kernels import Links

NONE: Final = -1  # no offset, no state
# States of B's records; of A's records only LOST
DELIVERED, UNDELIVERED, REPEATED, UNMATCHED, LOST = range(5)
# Columns of figures: counts, then the least ones, then the largest ones
COUNTED: Final = ("a_records", "b_records", "matched", "undelivered", "lost", "superseded")
LEAST: Final = ("a_first", "b_first", "first_undelivered", "first_unmatched", "first_copy", "undelivered_from_ms")
MOST: Final = ("a_end", "b_end", "delivered_to_ms")
FIGURES: Final = (*COUNTED, *LEAST, *MOST)
(
    _A_RECORDS, _B_RECORDS, _MATCHED, _UNDELIVERED, _LOST, _SUPERSEDED, _A_FIRST, _B_FIRST, _FIRST_UNDELIVERED,
    _FIRST_UNMATCHED, _FIRST_COPY, _UNDELIVERED_FROM_MS, _A_END, _B_END, _DELIVERED_TO_MS,
) = range(len(FIGURES))  # fmt: skip


class Records(NamedTuple):
    """Records of both sides, in the order of their groups: arrays of n."""

    unit: np.ndarray  # int32
    in_b: np.ndarray  # bool
    keyless: np.ndarray  # bool, of all records of a group
    offset: np.ndarray  # int64
    time: np.ndarray  # int64


@kernel
def find_states(
    starts: np.ndarray,
    records: Records,
    links: Links,
    committed: np.ndarray,
    delivered: np.ndarray,
    states: np.ndarray,
    newer: np.ndarray,
    figures: np.ndarray,
) -> None:
    """Write the state of each record into states: int8[n], and into newer: bool[n] whether a copy of a record of its
    key is after it in B; add to figures: int64[units, FIGURES].

    starts: int64[groups], where the groups begin; committed: int64[units]; delivered: int64[n], memory.
    """
    n, n_groups = records.unit.shape[0], starts.shape[0]
    for group in range(n_groups):
        begin, end = starts[group], starts[group + 1] if group + 1 < n_groups else n
        last_copy, last_copied = np.int64(NONE), np.int64(NONE)
        delivered[begin:end] = 0  # count of the equal records, at the first of them
        for i in range(begin, end):
            offset = records.offset[i]
            if records.in_b[i]:
                if links.n_a[i] > 0:
                    last_copy = max(last_copy, offset)
                continue
            if links.n_b[i] > 0:
                last_copied = max(last_copied, offset)
            if offset < committed[records.unit[i]]:
                delivered[links.first[i]] += 1
        for i in range(begin, end):
            offset, time, keyed = records.offset[i], records.time[i], not records.keyless[i]
            found, done = figures[records.unit[i]], delivered[links.first[i]]
            open_, rank = links.n_a[i] - done, links.occurrence[i] + 1
            newer[i] = records.in_b[i] and keyed and last_copy > offset
            if not records.in_b[i]:
                states[i] = NONE
                found[_A_RECORDS] += 1
                found[_MATCHED] += links.copy[i] >= 0
                found[_A_FIRST], found[_A_END] = min(found[_A_FIRST], offset), max(found[_A_END], offset + 1)
                if offset < committed[records.unit[i]]:
                    found[_DELIVERED_TO_MS] = max(found[_DELIVERED_TO_MS], time)
                    continue
                found[_UNDELIVERED] += 1
                found[_UNDELIVERED_FROM_MS] = min(found[_UNDELIVERED_FROM_MS], time)
                if rank - done > open_ - links.n_b[i]:
                    continue
                if keyed and last_copied > offset:
                    found[_SUPERSEDED] += 1
                else:
                    found[_LOST] += 1
                    states[i] = LOST
                continue
            found[_B_RECORDS] += 1
            found[_B_FIRST], found[_B_END] = min(found[_B_FIRST], offset), max(found[_B_END], offset + 1)
            if links.n_a[i] == 0:
                states[i] = UNMATCHED
                found[_FIRST_UNMATCHED] = min(found[_FIRST_UNMATCHED], offset)
                continue
            found[_FIRST_COPY] = min(found[_FIRST_COPY], offset)
            # Copies of B before the first that may be undelivered: as many as were delivered, fewer if B has lost some
            before = max(min(done, links.n_b[i] - open_), 0)
            if open_ == 0 or rank <= before:
                states[i] = DELIVERED
            elif rank - before <= open_:
                states[i] = UNDELIVERED
                found[_FIRST_UNDELIVERED] = min(found[_FIRST_UNDELIVERED], offset)
            else:
                states[i] = REPEATED
