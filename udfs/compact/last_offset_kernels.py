"""Which records are the last of their key: a hash table over key hashes, filled from the end of the log backwards.

Going backwards, the first record of a key that is met is its last one. So one pass over the data decides and collects
the survivors at once, each byte is read and decompressed once, and the table need not hold offsets: 16 bytes a key.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.jit import kernel
from logformat.layout import CONTROL_MASK
from logformat.primitives.memory_kernels import prefetch

# A place of the table: both halves of a key's hash, side by side, so that a look-up fetches one cache line; (0, 0) is
# free.
SLOT = np.dtype([("low", "u8"), ("high", "u8")], align=True)
_AHEAD: Final = 16  # records from the fetch of a slot to its use; tuned: 8 to 32 are alike, 0 takes twice as long


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

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n] (others are passed over); spans: SPAN[]; table: SLOT[2^k]; used:
    its entries; is_last: bool[len(spans)], written. Records below `first_dirty_offset` are looked up and not entered
    (KAFKA.md, "Last offset of each key"). Records without key, and control records, are marked. left: rows of `spans`
    that are yet to be marked; those behind them were. Stops before a key for which there is no room: the table is full
    at two thirds. Returns (entries now used, rows that are left).
    """
    most = table.shape[0] * 2 // 3
    mask = np.uint64(table.shape[0] - 1)
    one = np.uint64(1)
    zero = np.uint64(0)
    for i in range(batches.shape[0] - 1, -1, -1):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        control = batches[i].attributes & CONTROL_MASK != 0
        base = bodies[i].base_offset
        for row in range(min(first + bodies[i].n_records, left) - 1, first - 1, -1):
            prefetch(table, np.int64(spans[max(row - _AHEAD, 0)].key_low & mask))
            span = spans[row]
            if control or span.null_key:
                is_last[row] = True
                continue
            a = span.key_low
            b = span.key_high
            if a == zero and b == zero:
                b = one
            slot = a & mask
            while True:
                x = table[slot].low
                y = table[slot].high
                if x == a and y == b:
                    is_last[row] = False
                    break
                if x == zero and y == zero:
                    if base + span.offset_delta >= first_dirty_offset:
                        if used >= most:
                            return used, row + 1
                        table[slot].low = a
                        table[slot].high = b
                        used += 1
                    is_last[row] = True
                    break
                slot = (slot + one) & mask
    return used, 0


@kernel
def rehash(table: np.ndarray, larger: np.ndarray) -> None:
    """Enter every slot of a table into a larger one; table, larger: SLOT[2^k], or slots that begin as it does and hold
    more; the larger one of zeros.
    """
    mask = np.uint64(larger.shape[0] - 1)
    one = np.uint64(1)
    zero = np.uint64(0)
    for i in range(table.shape[0]):
        a = table[i].low
        b = table[i].high
        if a == zero and b == zero:
            continue
        slot = a & mask
        while larger[slot].low != zero or larger[slot].high != zero:
            slot = (slot + one) & mask
        larger[slot] = table[i]


@kernel
def mark_survivors(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    survivors: np.ndarray,
    start: int,
    is_last: np.ndarray,
) -> int:
    """Mark the records whose offsets are among the survivors of a Spark window; first to last.

    survivors: int64[], ascending, from row `start` on those at or above the first offset of these batches.
    is_last: bool[len(spans)], written. Records without key, and control records, are marked. Returns the first row of
    `survivors` that was not passed.
    """
    at = start
    for i in range(batches.shape[0]):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        control = batches[i].attributes & CONTROL_MASK != 0
        base = bodies[i].base_offset
        for row in range(first, first + bodies[i].n_records):
            span = spans[row]
            offset = base + span.offset_delta
            while at < survivors.shape[0] and survivors[at] < offset:
                at += 1
            is_last[row] = control or span.null_key or (at < survivors.shape[0] and survivors[at] == offset)
    return at
