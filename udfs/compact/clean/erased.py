"""Erased keys of a partition: which records stay."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.clean.erased_kernels import ERASED, enter_erased, mark_others, offsets_of_others
from lastkey.udfs.compact.clean.slot_kernels import SLOT
from lastkey.udfs.compact.plan import Erasing, PartitionPlan
from lastkey.udfs.erased_keys import KEY_ID_BYTES, read_erased
from lastkey.udfs.storage import open_root


class ErasedKeys:
    """Table of the keys whose records go from a partition, each below an offset."""

    def __init__(self, plan: PartitionPlan, erasing: Erasing) -> None:
        store = open_root(plan.run.store_uri)
        files = [(read_erased(store, path), until) for path, until in erasing.files]
        files += [(erasing.digests, MAX_OFFSET)] if erasing.digests else []
        parts = [(np.frombuffer(data, SLOT, offset=KEY_ID_BYTES), until) for data, until in files]
        n = sum(len(digests) for digests, _ in parts)
        self._table = np.zeros(1 << max((2 * n).bit_length(), 4), ERASED)
        for digests, until in parts:
            enter_erased(digests, until, self._table)
        self._gone = [np.empty((0, 2), np.int64)]  # first and last of ranges of offsets

    def mark(self, run: Run, stays: np.ndarray) -> None:
        """Mark the records that stay, in stays: bool[len(run.spans)]."""
        mark_others(run.batches, run.bodies, run.spans, self._table, stays)
        if not stays.all():
            out = np.empty(len(stays), np.int64)
            n = offsets_of_others(run.batches, run.bodies, run.spans, stays, out)
            self._gone.append(_joined(np.stack([out[:n], out[:n]], axis=1)))

    def ranges(self) -> np.ndarray:
        """Return the offsets of the records that went, as rising ranges: int64[n, 2], first and last of each."""
        return _joined(np.concatenate(self._gone))


def _joined(ranges: np.ndarray) -> np.ndarray:
    """Return ranges in order, those that touch as one."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    begins = np.ones(len(ranges), np.bool_)
    begins[1:] = ranges[1:, 0] != ranges[:-1, 1] + 1
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(ranges)) - 1 if len(at) else at
    return np.stack([ranges[at, 0], ranges[ends, 1]], axis=1)
