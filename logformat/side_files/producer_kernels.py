"""Kernel that summarizes a run of batches in one pass: its effect on any earlier state of the producers.

Rules: Kafka's ProducerAppendInfo and ProducerStateEntry (4.3.0; KAFKA.md, "Producers"), as a replica applies them: it
accepts epochs and sequences as they come. The kernel does not decide facts that depend on the state before the run: see
ProducerSummary in producer_state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK

OK: Final = 0
NOT_A_MARKER: Final = 1  # a control batch with a producer that is neither COMMIT nor ABORT
PLAIN_IN_TRANSACTION: Final = 2  # a batch outside of a transaction while its producer's transaction is open

# One row a producer: the effect of a run of batches on it. All offsets are absolute; -1 none.
PRODUCER_SUMMARY: Final = np.dtype(
    [
        ("producer_id", "i8"),
        ("last_offset", "i8"),  # last offset of the last data batch; -1 also after a later change of epoch
        ("timestamp", "i8"),  # ms, of the last data batch or marker
        ("current_txn_first_offset", "i8"),  # first offset of the transaction open at the end, as far as the run knows
        ("first_marker", "i8"),  # offset of the first marker
        ("plain_offset", "i8"),  # base offset of the first data batch outside of a transaction, before any marker
        ("plain_position", "i8"),  # its byte in the file
        ("last_sequence", "i4"),  # last sequence of the last data batch, like last_offset
        ("offset_delta", "i4"),  # last_offset - base offset of that batch
        ("coordinator_epoch", "i4"),  # coordinator epoch of the last marker
        ("producer_epoch", "i2"),  # producer epoch of the last data batch or marker
        ("first_epoch", "i2"),  # epoch of the first data batch or marker
        ("changes", "?"),  # there was a data batch or marker, not only empty control batches
        ("has_data", "?"),
        ("epoch_changed", "?"),  # two data batches or markers differ in epoch
    ],
    align=True,
)
# One row a marker that closes a transaction, or may close one.
MARKER: Final = np.dtype(
    [
        ("producer_id", "i8"),
        ("first_offset", "i8"),  # start of the transaction in this run; -1: closes one only if it was open before
        ("last_offset", "i8"),  # last offset of the marker
        ("last_stable_offset", "i8"),  # first offset of the oldest other open transaction, else marker + 1
        ("aborted", "?"),
    ],
    align=True,
)


@kernel
def summarize(
    batches: NDArray[np.void],
    row: NDArray[np.int64],
    newer: NDArray[np.int64],
    older: NDArray[np.int64],
    out: NDArray[np.void],
    markers: NDArray[np.void],
) -> tuple[int, int, int]:
    """Fill `out` and `markers`; return (status, batch in error, number of markers).

    batches: BATCH[n] in offset order, read only; those with a producer_id below 0 are skipped.
    row: int64[n], the row of `out` for each batch's producer; any value for a batch without one.
    newer, older: int64[len(out)], scratch: a list of the producers with an open transaction, oldest first.
    out: PRODUCER_SUMMARY[p], one row a producer of `batches`, written; the caller sets producer_id.
    markers: MARKER[m], written; m at least the number of control batches.
    """
    for p in range(len(out)):
        out[p]["last_offset"] = -1
        out[p]["timestamp"] = -1
        out[p]["current_txn_first_offset"] = -1
        out[p]["first_marker"] = -1
        out[p]["plain_offset"] = -1
        out[p]["plain_position"] = -1
        out[p]["last_sequence"] = -1
        out[p]["offset_delta"] = 0
        out[p]["coordinator_epoch"] = -1
        out[p]["producer_epoch"] = -1
        out[p]["first_epoch"] = -1
        out[p]["changes"] = False
        out[p]["has_data"] = False
        out[p]["epoch_changed"] = False
    oldest = -1
    newest = -1
    n_markers = 0
    for i in range(len(batches)):
        batch = batches[i]
        if batch["producer_id"] < 0:
            continue
        p = row[i]
        producer = out[p]
        control = batch["attributes"] & CONTROL_MASK != 0
        if control and batch["records_count"] == 0:
            continue
        if control and batch["control_type"] != CONTROL_ABORT and batch["control_type"] != CONTROL_COMMIT:
            return NOT_A_MARKER, i, n_markers

        if not producer["changes"]:
            producer["changes"] = True
            producer["first_epoch"] = batch["producer_epoch"]
        elif producer["producer_epoch"] != batch["producer_epoch"]:
            producer["epoch_changed"] = True
            producer["last_offset"] = -1
            producer["last_sequence"] = -1
            producer["offset_delta"] = 0
        producer["producer_epoch"] = batch["producer_epoch"]
        producer["timestamp"] = batch["max_timestamp"]  # a marker batch has one record

        if not control:
            producer["has_data"] = True
            producer["last_offset"] = batch["last_offset"]
            delta = batch["last_offset"] - batch["base_offset"]
            producer["offset_delta"] = delta
            sequence = -1
            if batch["base_sequence"] != -1:
                sequence = batch["base_sequence"] + delta
                if sequence > 0x7FFFFFFF:  # continues at 0 after 2^31 - 1
                    sequence -= 1 << 31
            producer["last_sequence"] = sequence
            transactional = batch["attributes"] & TRANSACTIONAL_MASK != 0
            if producer["current_txn_first_offset"] >= 0:
                if not transactional:
                    return PLAIN_IN_TRANSACTION, i, n_markers
            elif transactional:
                producer["current_txn_first_offset"] = batch["base_offset"]
                newer[p] = -1
                older[p] = newest
                if newest >= 0:
                    newer[newest] = p
                else:
                    oldest = p
                newest = p
            elif producer["first_marker"] < 0 and producer["plain_offset"] < 0:
                producer["plain_offset"] = batch["base_offset"]
                producer["plain_position"] = batch["position"]
            continue

        producer["coordinator_epoch"] = batch["coordinator_epoch"]
        open_since = producer["current_txn_first_offset"]
        if open_since >= 0 or producer["first_marker"] < 0:
            other = oldest if oldest != p else newer[p]
            marker = markers[n_markers]
            n_markers += 1
            marker["producer_id"] = batch["producer_id"]
            marker["first_offset"] = open_since
            marker["last_offset"] = batch["base_offset"]
            marker["aborted"] = batch["control_type"] == CONTROL_ABORT
            if other >= 0:
                marker["last_stable_offset"] = out[other]["current_txn_first_offset"]
            else:
                marker["last_stable_offset"] = batch["base_offset"] + 1
        if producer["first_marker"] < 0:
            producer["first_marker"] = batch["base_offset"]
        if open_since >= 0:
            producer["current_txn_first_offset"] = -1
            if older[p] >= 0:
                newer[older[p]] = newer[p]
            else:
                oldest = newer[p]
            if newer[p] >= 0:
                older[newer[p]] = older[p]
            else:
                newest = older[p]
    return OK, -1, n_markers
