"""Kernels of the stages of a large partition: the last record of each key among those of all splits, and the records of
a run that survive.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.memory_kernels import prefetch
from lastkey.udfs.compact.clean.key_kernels import AHEAD, entry_of, probe


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
                keys[n, 0], keys[n, 1] = entry_of(spans[row])
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
