"""Hash tables over key hashes, with open addressing: one probe for all code that looks up a key.

A table is an array of slots that begin as SLOT does and may hold more; zeros are a free slot. `verify` has a table of
its own, because it shares no code with what it checks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import inline, kernel

# Both halves of a key's hash lie side by side, so that a look-up fetches one cache line.
SLOT = np.dtype([("low", "u8"), ("high", "u8")], align=True)
AHEAD: Final = 16  # records from the prefetch of a slot to its use; tuned: 8 to 32 are alike, 0 takes twice as long


@inline
def entry_of(span: np.ndarray) -> tuple[np.uint64, np.uint64]:
    """Return both halves of a record's key hash as tables hold them: never (0, 0), which is a free slot."""
    low = span.key_low
    high = span.key_high
    if low == np.uint64(0) and high == np.uint64(0):
        high = np.uint64(1)
    return low, high


@inline
def probe(table: np.ndarray, start: np.uint64, mask: np.uint64, low: np.uint64, high: np.uint64) -> np.int64:
    """Return the row of a key; if the table does not hold it, ~row of the free slot for it.

    table: SLOT[], or slots that hold more; start, mask: the key's part of the table, mask + 1 slots (2^k) that are
    never all in use.
    """
    zero = np.uint64(0)
    slot = low & mask
    while True:
        x = table[start + slot].low
        y = table[start + slot].high
        if x == low and y == high:
            return np.int64(start + slot)
        if x == zero and y == zero:
            return ~np.int64(start + slot)
        slot = (slot + np.uint64(1)) & mask


@kernel
def rehash(table: np.ndarray, larger: np.ndarray) -> None:
    """Enter every slot of a table into a larger one of zeros; both of 2^k slots, SLOT[] or slots that hold more."""
    mask = np.uint64(larger.shape[0] - 1)
    zero = np.uint64(0)
    for i in range(table.shape[0]):
        low = table[i].low
        high = table[i].high
        if low != zero or high != zero:
            larger[~probe(larger, zero, mask, low, high)] = table[i]


@kernel
def enter_keys(keys: np.ndarray, table: np.ndarray, used: int, done: int) -> tuple[int, int]:
    """Enter keys: SLOT[n] from row `done` on into table: SLOT[2^k], up to two thirds of it. Returns (slots now used,
    rows that are done).
    """
    most = table.shape[0] * 2 // 3
    mask = np.uint64(table.shape[0] - 1)
    for i in range(done, keys.shape[0]):
        slot = probe(table, np.uint64(0), mask, keys[i].low, keys[i].high)
        if slot < 0:
            if used >= most:
                return used, i
            table[~slot] = keys[i]
            used += 1
    return used, keys.shape[0]
