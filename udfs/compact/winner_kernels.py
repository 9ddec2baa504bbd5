"""Which record of each key wins by another order than that of offsets (COMPACTION.md, "Another order"): that of the
highest version, of those with one version the last one. A version is a timestamp, or the number in a header; -1: none.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.jit import inline, kernel
from logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from logformat.primitives.memory_kernels import load_i64, prefetch
from logformat.primitives.varint_kernels import read_varint

NO_VERSION: Final = -1
_VERSION_BYTES: Final = 8

# A place of the table: a key's hash, as in last_offset_kernels.SLOT, with the version and the offset of its winner.
WINNER = np.dtype([("low", "u8"), ("high", "u8"), ("version", "i8"), ("offset", "i8")], align=True)
_AHEAD: Final = 16  # records from the fetch of a slot to its use, as in last_offset_kernels


@kernel
def versions_by_time(
    batches: np.ndarray, bodies: np.ndarray, wanted: np.ndarray, spans: np.ndarray, versions: np.ndarray
) -> None:
    """Timestamps of the records of the `wanted` batches (bool[n]) into versions: int64[len(spans)].

    batches: BATCH[n]; bodies: BODY[n]; spans: SPAN[].
    """
    for i in range(batches.shape[0]):
        if not wanted[i]:
            continue
        append_time = batches[i].magic > 0 and batches[i].attributes & TIMESTAMP_TYPE_MASK != 0
        first = bodies[i].first_span
        for row in range(first, first + bodies[i].n_records):
            timestamp = (
                batches[i].max_timestamp if append_time else bodies[i].base_timestamp + spans[row].timestamp_delta
            )
            versions[row] = max(timestamp, np.int64(NO_VERSION))


@kernel
def versions_by_header(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    name: np.ndarray,
    versions: np.ndarray,
) -> None:
    """What the last header called `name` (uint8[]) holds, of each record of the `wanted` batches, into versions:
    int64[len(spans)]. A value of another size than eight bytes, and a negative number, is none.

    raw, scratch: uint8[], where the records lie; bodies: BODY[n]; wanted: bool[n]; spans: SPAN[], decoded already, so
    all lengths are known to be right.
    """
    for i in range(bodies.shape[0]):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        for row in range(first, first + bodies[i].n_records):
            if bodies[i].in_scratch:
                versions[row] = _in_header(scratch, spans[row].rest, spans[row].end, name)
            else:
                versions[row] = _in_header(raw, spans[row].rest, spans[row].end, name)


@inline
def _in_header(buf: np.ndarray, position: int, end: int, name: np.ndarray) -> np.int64:
    version = np.int64(NO_VERSION)
    for _ in range(2):  # key, value
        length, position = read_varint(buf, position, end)
        position += max(length, 0)
    n_headers, position = read_varint(buf, position, end)
    for _ in range(n_headers):
        length, position = read_varint(buf, position, end)
        same = length == name.shape[0]
        if same:
            for i in range(length):
                if buf[position + i] != name[i]:
                    same = False
                    break
        position += length
        length, position = read_varint(buf, position, end)
        if same:
            version = np.int64(NO_VERSION)
            if length == _VERSION_BYTES:
                version = max(load_i64(buf, position), np.int64(NO_VERSION))
        position += max(length, 0)
    return version


@kernel
def enter_winners(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    versions: np.ndarray,
    table: np.ndarray,
    used: int,
    start: int,
) -> tuple[int, int]:
    """Hold the records of a run against the winners of their keys so far.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n]; spans: SPAN[]; versions: int64[len(spans)]; table: WINNER[2^k],
    (0, 0) is free; used: its entries; start: rows of `spans` before it were entered. Records without key, and control
    records, are passed over. Stops before a key for which there is no room: the table is full at two thirds. Returns
    (entries now used, row where it stopped, len(spans) at the end).
    """
    most = table.shape[0] * 2 // 3
    mask = np.uint64(table.shape[0] - 1)
    one = np.uint64(1)
    zero = np.uint64(0)
    for i in range(batches.shape[0]):
        if not wanted[i] or batches[i].attributes & CONTROL_MASK != 0:
            continue
        first = bodies[i].first_span
        stop = first + bodies[i].n_records
        base = bodies[i].base_offset
        for row in range(max(first, start), stop):
            prefetch(table, np.int64(spans[min(row + _AHEAD, stop - 1)].key_low & mask))
            span = spans[row]
            if span.null_key:
                continue
            a = span.key_low
            b = span.key_high
            if a == zero and b == zero:
                b = one
            offset = base + span.offset_delta
            slot = a & mask
            while True:
                x = table[slot].low
                y = table[slot].high
                if x == a and y == b:
                    held = table[slot].version
                    if versions[row] > held or (versions[row] == held and offset > table[slot].offset):
                        table[slot].version = versions[row]
                        table[slot].offset = offset
                    break
                if x == zero and y == zero:
                    if used >= most:
                        return used, row
                    table[slot].low = a
                    table[slot].high = b
                    table[slot].version = versions[row]
                    table[slot].offset = offset
                    used += 1
                    break
                slot = (slot + one) & mask
    return used, spans.shape[0]


@kernel
def mark_winners(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    table: np.ndarray,
    is_last: np.ndarray,
) -> bool:
    """Mark the records that win; is_last: bool[len(spans)], written. The other arguments: see `enter_winners`. Records
    without key, and control records, are marked. False where a key was never entered.
    """
    mask = np.uint64(table.shape[0] - 1)
    one = np.uint64(1)
    zero = np.uint64(0)
    for i in range(batches.shape[0]):
        if not wanted[i]:
            continue
        control = batches[i].attributes & CONTROL_MASK != 0
        first = bodies[i].first_span
        for row in range(first, first + bodies[i].n_records):
            span = spans[row]
            if control or span.null_key:
                is_last[row] = True
                continue
            a = span.key_low
            b = span.key_high
            if a == zero and b == zero:
                b = one
            slot = a & mask
            while table[slot].low != a or table[slot].high != b:
                if table[slot].low == zero and table[slot].high == zero:
                    return False
                slot = (slot + one) & mask
            is_last[row] = table[slot].offset == bodies[i].base_offset + span.offset_delta
    return True
