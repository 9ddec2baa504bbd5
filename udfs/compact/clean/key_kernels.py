"""Hash tables over key hashes, with open addressing: one probe for all code that looks up a key.

A table is an array of slots that begin as SLOT does and may hold more; zeros are a free slot. `verify` has a table of
its own, because it shares no code with what it checks.

On the way backwards, the first record of a key is its last one. So one pass over the data decides and collects the
survivors at once, and reads and decompresses each byte once. The table need not hold offsets: 16 bytes a key.

Between the stages of a large partition, `mark_first` and `mark_highest` find the last record of each key among those of
all splits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.memory_kernels import prefetch

# Both halves of a key's hash are adjacent, so that a look-up fetches one cache line.
SLOT = np.dtype([("low", "u8"), ("high", "u8")], align=True)
AHEAD: Final = 16  # records from the prefetch of a slot to its use; tuned: 8 to 32 are alike, 0 takes twice as long


@inline
def hash_entry(span: np.ndarray) -> tuple[np.uint64, np.uint64]:
    """Return both halves of a record's key hash as tables hold them: never (0, 0), which is a free slot."""
    return _entry(span.key_low, span.key_high)


@inline
def _entry(low: np.uint64, high: np.uint64) -> tuple[np.uint64, np.uint64]:
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


@kernel
def mark_last_offsets(
    run: Run, first_dirty_offset: int, table: np.ndarray, used: int, may_stay: np.ndarray, left: int
) -> tuple[int, int]:
    """Mark the records that no later record of the same key supersedes; batches and records from last to first.

    run: batches that are not wanted are skipped; table: SLOT[2^k]; used: its entries; may_stay: bool[len(spans)],
    written. Looks up records below `first_dirty_offset` and adds none of them (KAFKA.md, "Last offset of each key").
    Marks records without key, and control records. left: rows of `spans` yet to mark; the rows after them are done.
    Stops before a key that has no room: the table is full at two thirds. Returns (entries now used, rows that are
    left).
    """
    batches, bodies, wanted, spans = run.batches, run.bodies, run.wanted, run.spans
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
                may_stay[row] = True
                continue
            low, high = hash_entry(span)
            slot = probe(table, zero, mask, low, high)
            if slot < 0 and base + span.offset_delta >= first_dirty_offset:
                if used >= most:
                    return used, row + 1
                table[~slot].low = low
                table[~slot].high = high
                used += 1
            may_stay[row] = slot < 0
    return used, 0


# A slot: a key, and an offset of it: the last one, or that below which its records go.
KEY_OFFSET: Final = np.dtype([("low", "u8"), ("high", "u8"), ("offset", "i8")], align=True)


@kernel
def enter_offsets(keys: np.ndarray, offsets: np.ndarray, table: np.ndarray, used: int, done: int) -> tuple[int, int]:
    """Enter keys: SLOT[n] with offsets: int64[n] from row `done` on into table: KEY_OFFSET[2^k], up to two thirds of
    it; of a key's offsets the highest counts. Returns (slots now used, rows that are done).
    """
    most = table.shape[0] * 2 // 3
    mask = np.uint64(table.shape[0] - 1)
    for i in range(done, keys.shape[0]):
        prefetch(table, np.int64(keys[min(i + AHEAD, keys.shape[0] - 1)].low & mask))
        low, high = _entry(keys[i].low, keys[i].high)
        slot = probe(table, np.uint64(0), mask, low, high)
        if slot < 0:
            if used >= most:
                return used, i
            slot = ~slot
            table[slot].low = low
            table[slot].high = high
            table[slot].offset = offsets[i]
            used += 1
        elif table[slot].offset < offsets[i]:
            table[slot].offset = offsets[i]
    return used, keys.shape[0]


@kernel
def mark_entered(keys: np.ndarray, offsets: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Write to out: bool[n] whether the table holds the offset offsets[i] for keys[i].

    keys: SLOT[n]; offsets: int64[n]; table: KEY_OFFSET[2^k].
    """
    mask = np.uint64(table.shape[0] - 1)
    for i in range(keys.shape[0]):
        prefetch(table, np.int64(keys[min(i + AHEAD, keys.shape[0] - 1)].low & mask))
        low, high = _entry(keys[i].low, keys[i].high)
        slot = probe(table, np.uint64(0), mask, low, high)
        out[i] = slot >= 0 and table[slot].offset == offsets[i]


@kernel
def mark_others(run: Run, table: np.ndarray, stays: np.ndarray) -> None:
    """Write stays: bool[len(spans)]: False for a record of a key of the table, KEY_OFFSET[2^k], below the key's offset.
    Control records and those without a key stay.
    """
    batches, bodies, spans = run.batches, run.bodies, run.spans
    mask = np.uint64(table.shape[0] - 1)
    zero = np.uint64(0)
    for i in range(batches.shape[0]):
        control = batches[i].attributes & CONTROL_MASK != 0
        first = bodies[i].first_span
        end = first + bodies[i].n_records
        for row in range(first, end):
            prefetch(table, np.int64(spans[min(row + AHEAD, end - 1)].key_low & mask))
            span = spans[row]
            stays[row] = True
            if control or span.null_key:
                continue
            low, high = hash_entry(span)
            slot = probe(table, zero, mask, low, high)
            if slot >= 0 and bodies[i].base_offset + span.offset_delta < table[slot].offset:
                stays[row] = False


@kernel
def collect_survivors(run: Run, may_stay: np.ndarray, keys: np.ndarray, offsets: np.ndarray) -> int:
    """Collect the records of a run that are the last of their key, from the last record to the first; return their
    number. Records without key are none of them.

    may_stay: bool[len(spans)]; written: keys: u8[m, 2 or more], the halves of their key hashes; offsets: i8[m], both
    with room for every record.
    """
    bodies, spans = run.bodies, run.spans
    n = 0
    for i in range(bodies.shape[0] - 1, -1, -1):
        first = bodies[i].first_span
        for row in range(first + bodies[i].n_records - 1, first - 1, -1):
            if may_stay[row] and not spans[row].null_key:
                keys[n, 0], keys[n, 1] = hash_entry(spans[row])
                offsets[n] = bodies[i].base_offset + spans[row].offset_delta
                n += 1
    return n


@kernel
def mark_first(keys: np.ndarray, dirty: np.ndarray, table: np.ndarray, stays: np.ndarray) -> None:
    """Mark the records whose key no dirty record before them has, and enter the keys of dirty ones.

    keys: u8[n, 2], halves of key hashes, never (0, 0), from the last record of the log to the first; dirty: bool[n];
    table: SLOT[2^k], of zeros, with more slots than keys; stays: bool[n], written.
    """
    zero, mask, n = np.uint64(0), np.uint64(table.shape[0] - 1), keys.shape[0]
    for i in range(n):
        prefetch(table, np.int64(keys[min(i + AHEAD, n - 1), 0] & mask))
        slot = probe(table, zero, mask, keys[i, 0], keys[i, 1])
        if slot < 0 and dirty[i]:
            table[~slot].low = keys[i, 0]
            table[~slot].high = keys[i, 1]
        stays[i] = slot < 0


@kernel
def mark_highest(keys: np.ndarray, table: np.ndarray, stays: np.ndarray) -> None:
    """Mark the records with the highest version of their key so far, of equal ones the first. The second call with the
    same table marks one record of each key.

    keys: u8[n, 3], the third column a version, otherwise as in `mark_first`; table: WINNER[2^k], whose offsets are rows
    of `keys`.
    """
    zero, mask, n = np.uint64(0), np.uint64(table.shape[0] - 1), keys.shape[0]
    for i in range(n):
        prefetch(table, np.int64(keys[min(i + AHEAD, n - 1), 0] & mask))
        slot = probe(table, zero, mask, keys[i, 0], keys[i, 1])
        version = np.int64(keys[i, 2])
        if slot < 0:
            slot = ~slot
            table[slot].low = keys[i, 0]
            table[slot].high = keys[i, 1]
        elif version <= table[slot].version:
            stays[i] = table[slot].offset == i
            continue
        table[slot].version = version
        table[slot].offset = i
        stays[i] = True


@kernel
def mark_survivors(run: Run, survivors: np.ndarray, at: int, may_stay: np.ndarray) -> int:
    """Mark the records of a run whose offsets are among the survivors, records without key, and control records.

    survivors: int64[], ascending; at: the first of them that may be an offset of the run; may_stay: bool[len(spans)],
    written. Returns how many survivors were met.
    """
    batches, bodies, wanted, spans = run.batches, run.bodies, run.wanted, run.spans
    n = 0
    for i in range(batches.shape[0]):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        control = batches[i].attributes & CONTROL_MASK != 0
        for row in range(first, first + bodies[i].n_records):
            if control or spans[row].null_key:
                may_stay[row] = True
                continue
            offset = bodies[i].base_offset + spans[row].offset_delta
            while at < survivors.shape[0] and survivors[at] < offset:
                at += 1
            may_stay[row] = at < survivors.shape[0] and survivors[at] == offset
            n += may_stay[row]
    return n
