"""Data of aborted transactions whose marker no sound copy has.

A cleaner removes a marker after the data of its transaction was removed. A merge can bring the data back from a copy
that is less compacted, and damage can take the marker from that copy. Then a consumer of committed records would get
the data as soon as its producer commits another transaction. The `.txnindex` files of the copies still name such
transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_MASK, TRANSACTIONAL_MASK
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.merge.copies import LogCopy
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root, read_file


class AbortedTransactions:
    """The aborted transactions that the copies know, compared with the batches of a result."""

    def __init__(self, copies: Sequence[tuple[LogCopy, int]]) -> None:
        """Read the indexes. copies: each with the offset from which on its batches are not in the winning lineage."""
        found = [np.empty(0, transaction_index.ENTRY)]
        for copy, until in copies:
            for segment in copy.segments:
                if segment.txn_index is not None:
                    with suppress(LogFormatError):  # a damaged index is no evidence
                        data = read_file(open_root(segment.beside), segment.txn_index, segment.size_bytes)
                        entries = transaction_index.read(data, segment.txn_index)
                        found.append(entries[entries["last_offset"] < until])
        self.entries = np.unique(np.concatenate(found))
        self.has_marker = np.zeros(len(self.entries), np.bool_)
        self.has_data = np.zeros(len(self.entries), np.bool_)

    def add(self, batches: np.ndarray) -> None:
        """Take the next batches of the result, BATCH[n]."""
        if not len(self.entries):
            return
        markers = batches["base_offset"][batches["control_type"] == CONTROL_ABORT]
        self.has_marker |= np.isin(self.entries["last_offset"], markers)
        is_data = (batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK)) == TRANSACTIONAL_MASK
        data = batches[is_data & (batches["records_count"] > 0)]
        for producer in np.intersect1d(data["producer_id"], self.entries["producer_id"]).tolist():
            own = np.flatnonzero(self.entries["producer_id"] == producer)
            own = own[np.argsort(self.entries["first_offset"][own], kind="stable")]
            offsets = data["base_offset"][data["producer_id"] == producer]
            at = np.searchsorted(self.entries["first_offset"][own], offsets, "right") - 1
            inside = (at >= 0) & (offsets < self.entries["last_offset"][own[np.maximum(at, 0)]])
            self.has_data[own[at[inside]]] = True

    def problems(self, folder: str) -> Iterator[Problem]:
        """Yield a problem for each transaction whose data is in the result, and whose marker is not."""
        for entry in self.entries[self.has_data & ~self.has_marker]:
            expected = f"the ABORT marker of producer {entry['producer_id']} at offset {entry['last_offset']}"
            first = int(entry["first_offset"])
            hint = "a consumer of committed records may get the records of this transaction: skip or erase them"
            yield Problem("transaction", folder, NO_POSITION, expected, "none in any sound copy", first, hint)
