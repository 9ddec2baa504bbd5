"""The last records of each key: a hash table over key hashes, filled from the end of the log backwards.

On the way backwards, the first record of a key is its last one. So one pass over the data decides and collects the
survivors at once, reads and decompresses each byte once, and the table need not hold offsets: 16 bytes a key.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.memory_kernels import prefetch
from lastkey.udfs.compact.clean.slot_kernels import AHEAD, entry_of, probe


@kernel
def mark_last_offsets(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    first_dirty_offset: int,
    table: np.ndarray,
    used: int,
    is_last: np.ndarray,
    left: int,
) -> tuple[int, int]:
    """Mark the records that no later record of the same key supersedes; batches and records from last to first.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n] (skips the others); spans: SPAN[]; table: SLOT[2^k]; used: its
    entries; is_last: bool[len(spans)], written. Looks up records below `first_dirty_offset` and adds none of them
    (KAFKA.md, "Last offset of each key"). Marks records without key, and control records. left: rows of `spans` yet to
    mark; the rows behind them are done. Stops before a key that has no room: the table is full at two thirds. Returns
    (entries now used, rows that are left).
    """
    most = table.shape[0] * 2 // 3
    mask = np.uint64(table.shape[0] - 1)
    zero = np.uint64(0)
    for i in range(batches.shape[0] - 1, -1, -1):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        control = batches[i].attributes & CONTROL_MASK != 0
        base = bodies[i].base_offset
        for row in range(min(first + bodies[i].n_records, left) - 1, first - 1, -1):
            prefetch(table, np.int64(spans[max(row - AHEAD, 0)].key_low & mask))
            span = spans[row]
            if control or span.null_key:
                is_last[row] = True
                continue
            low, high = entry_of(span)
            slot = probe(table, zero, mask, low, high)
            if slot < 0 and base + span.offset_delta >= first_dirty_offset:
                if used >= most:
                    return used, row + 1
                table[~slot].low = low
                table[~slot].high = high
                used += 1
            is_last[row] = slot < 0
    return used, 0
