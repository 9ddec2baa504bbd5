"""The winning record of each key by version, not by offset (COMPACTION.md, "Version-based compaction").

The highest version wins, and among equal versions the last record. A version is a timestamp, or the number in a header;
-1: none.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from lastkey.logformat.primitives.memory_kernels import load_i64, prefetch
from lastkey.logformat.primitives.varint_kernels import read_varint
from lastkey.udfs.compact.clean.key_kernels import AHEAD, hash_entry, probe

NO_VERSION: Final = -1
_VERSION_BYTES: Final = 8

# A slot: a key's hash, as in SLOT, with the version and the offset of its winner.
WINNER = np.dtype([("low", "u8"), ("high", "u8"), ("version", "i8"), ("offset", "i8")], align=True)


@kernel
def versions_by_time(run: Run, versions: np.ndarray) -> None:
    """Write the timestamps of the records of the wanted batches into versions: int64[len(spans)]."""
    batches, bodies, spans = run.batches, run.bodies, run.spans
    for i in range(batches.shape[0]):
        if not run.wanted[i]:
            continue
        append_time = batches[i].magic > 0 and batches[i].attributes & TIMESTAMP_TYPE_MASK != 0
        first = bodies[i].first_span
        for row in range(first, first + bodies[i].n_records):
            timestamp = (
                batches[i].max_timestamp if append_time else bodies[i].base_timestamp + spans[row].timestamp_delta
            )
            versions[row] = max(timestamp, np.int64(NO_VERSION))


@kernel
def versions_by_header(run: Run, name: np.ndarray, versions: np.ndarray) -> None:
    """Write the value of each record's last header called `name` (uint8[]) into versions: int64[len(spans)]. A value
    that has not eight bytes, or is negative, becomes NO_VERSION. The spans are decoded, so all lengths are right.
    """
    raw, scratch, bodies, spans = run.raw, run.scratch, run.bodies, run.spans
    for i in range(bodies.shape[0]):
        if not run.wanted[i]:
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
    run: Run, versions: np.ndarray, table: np.ndarray, used: int, wins: np.ndarray, left: int
) -> tuple[int, int]:
    """Compare the records of a run, from last to first, with the winners of their keys so far, and enter those that
    win.

    versions: int64[len(spans)]; table: WINNER[2^k], (0, 0) is free; used: its entries; wins: bool[len(spans)], written:
    whether a record was entered; left: rows of `spans` yet to enter. Skips records without key, and control records.
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
            wins[row] = False
            if control or span.null_key:
                continue
            low, high = hash_entry(span)
            offset = base + span.offset_delta
            slot = probe(table, zero, mask, low, high)
            if slot < 0:
                if used >= most:
                    return used, row + 1
                slot = ~slot
                table[slot].low = low
                table[slot].high = high
                used += 1
            else:
                held = table[slot].version
                if versions[row] < held or (versions[row] == held and offset <= table[slot].offset):
                    continue
            table[slot].version = versions[row]
            table[slot].offset = offset
            wins[row] = True
    return used, 0
