"""The loop that replays transactions over columns of batches."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT

NONE: Final = -1


@kernel
def replay(
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
    """Replay transactions over batches in log order.

    rows: TXN_BATCH[n]; producer: int64[n], dense id of each row; aborted_first, aborted_producer: int64[m], sorted by
    first offset. State of each dense id, updated: open_aborted: int64[], aborted row or NONE; observed, open_committed:
    bool[]. Written: discardable: bool[n]; kept_abort: int64[n], the aborted row whose marker must stay.
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
