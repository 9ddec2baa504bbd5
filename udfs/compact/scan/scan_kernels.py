"""Kernels of a scan: the facts that it remembers of a chunk's batches, and the replay of transactions over columns of
batches.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import (
    CODEC_MASK,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    LOG_OVERHEAD,
    MIN_LEGACY_SIZE,
    TRANSACTIONAL_MASK,
)

SMALLEST_BATCH: Final = LOG_OVERHEAD + MIN_LEGACY_SIZE
_MOST_IN_A_BYTE: Final = 1032 / SMALLEST_BATCH  # records per byte of a wrapper: gzip packs at most 1032 bytes in one

# Facts of `collect_facts`
FACTS: Final = range(8)
N_RECORDS, MOST_RECORDS, MAX_TIMESTAMP, CODECS, MAGICS, EPOCH, N_PRODUCING, N_TRANSACTIONAL = FACTS


@kernel
def collect_facts(batches: np.ndarray, previous_last_offset: int, facts: np.ndarray) -> None:
    """Collect facts of BATCH[n] after an offset, in int64[8], written.

    N_RECORDS: by their headers, a wrapper (magic 0, 1) counts as one; MOST_RECORDS: an upper bound, since no header
    states the number in a wrapper: at most one for each offset since the batch before it, and no more than its bytes
    can expand to; MAX_TIMESTAMP: ms; CODECS, MAGICS: one bit each; EPOCH: the highest leader epoch; N_PRODUCING:
    batches with a producer, and control batches; N_TRANSACTIONAL: transactional and control batches.
    """
    facts[:] = 0
    facts[MAX_TIMESTAMP] = batches[0].max_timestamp
    facts[EPOCH] = -1
    previous = previous_last_offset
    for i in range(batches.shape[0]):
        batch = batches[i]
        if batch.records_count < 0:
            wrapped = min(batch.last_offset - previous, np.int64(batch.size * _MOST_IN_A_BYTE))
            facts[N_RECORDS] += 1
            facts[MOST_RECORDS] += max(wrapped, 1)
        else:
            facts[N_RECORDS] += batch.records_count
            facts[MOST_RECORDS] += batch.records_count
        previous = batch.last_offset
        facts[MAX_TIMESTAMP] = max(facts[MAX_TIMESTAMP], batch.max_timestamp)
        facts[CODECS] |= 1 << (batch.attributes & CODEC_MASK)
        facts[MAGICS] |= 1 << batch.magic
        facts[EPOCH] = max(facts[EPOCH], batch.partition_leader_epoch)
        control = batch.attributes & CONTROL_MASK != 0
        facts[N_PRODUCING] += control or batch.producer_id >= 0
        facts[N_TRANSACTIONAL] += batch.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) != 0


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
