"""The table of erased keys, and which records it leaves (`erased`)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.memory_kernels import prefetch
from lastkey.udfs.compact.clean.slot_kernels import AHEAD, entry_of, probe

# A slot: a key's digest, as in SLOT, and the offset below which its records go.
ERASED: Final = np.dtype([("low", "u8"), ("high", "u8"), ("until", "i8")], align=True)


@kernel
def enter_erased(digests: np.ndarray, until: int, table: np.ndarray) -> None:
    """Enter digests: SLOT[n] into table: ERASED[2^k], at most half of it; of a key's offsets the highest counts."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(digests.shape[0]):
        low = digests[i].low
        high = digests[i].high
        if low == np.uint64(0) and high == np.uint64(0):
            high = np.uint64(1)  # as in `entry_of`
        slot = probe(table, np.uint64(0), mask, low, high)
        if slot < 0:
            slot = ~slot
            table[slot].low = low
            table[slot].high = high
            table[slot].until = until
        elif table[slot].until < until:
            table[slot].until = until


@kernel
def mark_others(
    batches: np.ndarray, bodies: np.ndarray, spans: np.ndarray, table: np.ndarray, stays: np.ndarray
) -> None:
    """Write stays: bool[len(spans)]: False for a record of a key of the table below the key's offset.

    batches: BATCH[n]; bodies: BODY[n]; spans: SPAN[]; table: ERASED[2^k]. Control records and those without a
    key stay.
    """
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
            low, high = entry_of(span)
            slot = probe(table, zero, mask, low, high)
            if slot >= 0 and bodies[i].base_offset + span.offset_delta < table[slot].until:
                stays[row] = False


@kernel
def offsets_of_others(
    batches: np.ndarray, bodies: np.ndarray, spans: np.ndarray, stays: np.ndarray, out: np.ndarray
) -> int:
    """Write the offsets of the records that do not stay to out: int64[len(spans)]; return their number."""
    n = 0
    for i in range(batches.shape[0]):
        first = bodies[i].first_span
        for row in range(first, first + bodies[i].n_records):
            if not stays[row]:
                out[n] = bodies[i].base_offset + spans[row].offset_delta
                n += 1
    return n
