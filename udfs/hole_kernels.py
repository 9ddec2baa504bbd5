"""The kernel that looks for a cleaner's work in a log."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import DELETE_HORIZON_MASK


@kernel
def last_thinned(batches: np.ndarray, previous_last_offset: int, not_known: int) -> int:
    """Return the result of `holes.thinned_offset`. not_known: the previous_last_offset before a batch that may begin
    anywhere.
    """
    for i in range(batches.shape[0] - 1, -1, -1):
        batch = batches[i]
        before = batches[i - 1].last_offset if i > 0 else np.int64(previous_last_offset)
        if batch.base_offset < 0:
            continue
        gap = before != not_known and batch.base_offset != before + 1
        cleaned = batch.magic >= 2 and batch.attributes & DELETE_HORIZON_MASK != 0
        if gap or cleaned or batch.records_count < batch.last_offset - batch.base_offset + 1:
            last: int = batch.last_offset
            return last
    return -1
