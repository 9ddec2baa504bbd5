"""Which transactional batches and markers may go (semantics §4.6; Kafka's Cleaner.CleanedTransactionMetadata).

Works on the batches that matter to it alone: data batches of transactions, and control batches, of the whole range that
is cleaned, in order. Differences from Kafka: aborted transactions are found by replaying the log, so a lost .txnindex
does not turn aborted data into committed data; where the index file is there its entries are used as they are.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.jit import kernel
from logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK

# What is remembered of a batch that is transactional or control.
TXN_BATCH = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("producer_id", "i8"),
        ("records_count", "i4"),
        ("control", "?"),
        ("control_type", "i1"),  # 0 abort, 1 commit, -1 not control or empty
    ],
    align=True,
)
NONE: Final = -1


def transactional_batches(batches: np.ndarray) -> np.ndarray:
    """The rows of BATCH[n] that matter to transactions, as TXN_BATCH[m]."""
    attributes = batches["attributes"]
    rows = batches[(attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) != 0]
    out = np.empty(len(rows), TXN_BATCH)
    for name in ("base_offset", "last_offset", "producer_id", "records_count", "control_type"):
        out[name] = rows[name]
    out["control"] = (rows["attributes"] & CONTROL_MASK) != 0
    return out


def discardable_batches(rows: np.ndarray, aborted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What may go, of TXN_BATCH[n] in log order, given ABORTED_TXN[m].

    Returns (discardable: bool[n]; kept_abort: int64[n], the row of `aborted` that an ABORT marker which must stay
    belongs to, else -1).
    """
    discardable = np.zeros(len(rows), np.bool_)
    kept_abort = np.full(len(rows), NONE, np.int64)
    if len(rows):
        order = np.argsort(aborted["first_offset"], kind="stable")
        known, dense = np.unique(np.concatenate([rows["producer_id"], aborted["producer_id"]]), return_inverse=True)
        _replay(
            rows,
            dense[: len(rows)],
            aborted["first_offset"][order],
            dense[len(rows) :][order],
            np.full(len(known), NONE, np.int64),
            np.zeros(len(known), np.bool_),
            np.zeros(len(known), np.bool_),
            discardable,
            kept_abort,
        )
        has = kept_abort >= 0
        kept_abort[has] = order[kept_abort[has]]
    return discardable, kept_abort


@kernel
def _replay(
    rows: np.ndarray,
    producer: np.ndarray,
    aborted_first: np.ndarray,
    aborted_producer: np.ndarray,
    open_aborted: np.ndarray,
    observed: np.ndarray,
    open_committed: np.ndarray,
    discardable: np.ndarray,
    kept_abort: np.ndarray,
) -> None:
    """producer: dense id of each row; aborted_*: sorted by first offset; open_aborted (aborted row or -1), observed,
    open_committed: state of each dense id.
    """
    queued = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        p = producer[i]
        while queued < aborted_first.shape[0] and aborted_first[queued] <= row.last_offset:
            q = aborted_producer[queued]
            if open_aborted[q] == NONE:
                open_aborted[q] = queued
                observed[q] = False
            queued += 1
        if not row.control:
            if open_aborted[p] != NONE:
                observed[p] = True
                discardable[i] = True
            else:
                open_committed[p] = True
        elif row.records_count == 0:
            discardable[i] = True
        elif row.control_type == CONTROL_ABORT:
            txn = open_aborted[p]
            if txn != NONE and observed[p]:
                kept_abort[i] = txn
            else:
                discardable[i] = True
            open_aborted[p] = NONE
        elif row.control_type == CONTROL_COMMIT:
            discardable[i] = not open_committed[p]
            open_committed[p] = False
