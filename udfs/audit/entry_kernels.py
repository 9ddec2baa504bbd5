"""Kernels that add records to entries, and copy the keys of entries."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes, prefetch
from lastkey.logformat.primitives.siphash_kernels import siphash128
from lastkey.logformat.primitives.varint_kernels import read_varint

# Versions of a key with offsets next to each other. Another version changes fields of the first 64 bytes alone
ENTRY: Final = np.dtype(
    [
        ("high", "u8"),  # halves of the hash of the key; without a key of the digest
        ("low", "u8"),
        ("first_offset", "i8"),
        ("offset", "i8"),  # offset of the last version, like all columns without "first"
        ("timestamp_ms", "i8"),
        ("bytes", "i8"),  # size of all versions
        ("versions", "i4"),
        ("size_bytes", "i4"),
        ("tombstone", "?"),
        ("keyless", "?"),
        ("key_size", "i4"),
        ("first_timestamp_ms", "i8"),
        ("digest", "i8"),  # hash of key, value and headers; 0 where versions are added up
        ("key_at", "i8"),  # first byte of the key among those that are kept
    ],
    align=True,
)
# Fields of the state: counts; row of the first entry of the group; first and last offset and newest time added
ENTRIES, KEY_BYTES, GROUP, FIRST, LAST, NEWEST_MS, N_STATE = range(7)
WORDS: Final = (
    "high", "low", "offset", "first_offset", "timestamp_ms", "first_timestamp_ms", "digest", "bytes", "key_at"
)  # fmt: skip
COUNTS: Final = ("versions", "size_bytes")
FLAGS: Final = ("keyless", "tombstone")
DONE: Final = -1
NO_TIME: Final = np.iinfo(np.int64).min
_AHEAD: Final = 16  # records from the prefetch of a slot to its use
_SOON: Final = 8  # from that of an entry
_HASH_SHIFT: Final = np.uint64(32)  # a slot: row plus 1 in the lower half, the key's `low` in the upper one
_ROW_MASK: Final = np.uint64(2**32 - 1)


class Entries(NamedTuple):
    """Entries of a partition that are being added to."""

    rows: np.ndarray  # ENTRY[], those in use first
    keys: np.ndarray  # uint8[], their keys
    slots: np.ndarray  # uint64[2^k]: the newest entry of each key (`_fill`); 0: free
    state: np.ndarray  # int64[N_STATE]


@inline
def _similar(slots: np.ndarray, slot: np.int64, low: np.uint64) -> np.int64:
    """Return the first slot, from one on, that is free or has the upper half of a key's `low`. Other slots would each
    cost the reading of an entry.
    """
    while slots[slot] != 0 and slots[slot] >> _HASH_SHIFT != low >> _HASH_SHIFT:
        slot = (slot + 1) & np.int64(slots.shape[0] - 1)
    return slot


@inline
def _first_slot(slots: np.ndarray, low: np.uint64) -> np.int64:
    return np.int64(low & np.uint64(slots.shape[0] - 1))


@inline
def _row(slots: np.ndarray, slot: np.int64) -> np.int64:
    """Return the row in a slot; -1: it is free."""
    return np.int64(slots[slot] & _ROW_MASK) - 1


@inline
def _slot(entries: Entries, low: np.uint64, high: np.uint64) -> np.int64:
    """Return the slot of a key, or the free one for it."""
    slots = entries.slots
    slot = _similar(slots, _first_slot(slots, low), low)
    while True:
        row = _row(slots, slot)
        if row < 0 or (entries.rows[row].low == low and entries.rows[row].high == high):
            return slot
        slot = _similar(slots, (slot + 1) & np.int64(slots.shape[0] - 1), low)


@inline
def _fill(entries: Entries, slot: np.int64, low: np.uint64, row: np.int64) -> None:
    entries.slots[slot] = (low >> _HASH_SHIFT) << _HASH_SHIFT | np.uint64(row + 1)


@kernel
def enter_entries(entries: Entries) -> None:
    """Enter the entries of the group into slots that are all free; of a key the newest."""
    end = entries.state[ENTRIES]
    for row in range(entries.state[GROUP], end):
        prefetch(entries.slots, _first_slot(entries.slots, entries.rows[min(row + _AHEAD, end - 1)].low))
        low = entries.rows[row].low
        _fill(entries, _slot(entries, low, entries.rows[row].high), low, np.int64(row))


@kernel
def add_records(
    run: Run,
    times: np.ndarray,
    start_offset: int,
    end_offset: int,
    cuts: np.ndarray,
    apart: bool,
    k0: np.uint64,
    k1: np.uint64,
    entries: Entries,
    at: int,
) -> int:
    """Add the records of a run in [start_offset, end_offset), from row `at` of its spans on, to entries. Return DONE,
    or the row before which there is no room: in `rows`, in `keys` for its key, or in `slots`, filled to a half.

    times: int64[n], of each batch: its time if that counts for all of its records, else NO_TIME. apart: each record is
    an entry, with a digest by the key (k0, k1); otherwise the versions of a key between two of the offsets cuts:
    int64[m], rising, are one, and records without a key are none.
    """
    spans, rows, slots, state = run.spans, entries.rows, entries.slots, entries.state
    last_span = spans.shape[0] - 1
    cut, floor = 0, np.int64(-1)
    for i in range(run.bodies.shape[0]):
        body = run.bodies[i]
        for row in range(max(body.first_span, at), body.first_span + body.n_records):
            span = spans[row]
            offset = body.base_offset + span.offset_delta
            if offset < start_offset:
                continue
            if offset >= end_offset:
                return DONE
            while cut < cuts.shape[0] and cuts[cut] <= offset:
                floor = cuts[cut]
                cut += 1
            time = times[i] if times[i] != NO_TIME else body.base_timestamp + span.timestamp_delta
            if state[FIRST] < 0:
                state[FIRST] = offset
            state[LAST] = offset
            state[NEWEST_MS] = max(state[NEWEST_MS], time)
            slot, newest = np.int64(0), np.int64(-1)
            if not apart:
                prefetch(slots, _first_slot(slots, spans[min(row + _AHEAD, last_span)].key_low))
                soon = spans[min(row + _SOON, last_span)].key_low
                prefetch(rows, max(_row(slots, _similar(slots, _first_slot(slots, soon), soon)), np.int64(0)))
                if span.null_key:
                    continue
                slot = _slot(entries, span.key_low, span.key_high)
                newest = _row(slots, slot)
            if newest < 0 or rows[newest].first_offset < floor:
                n, held = state[ENTRIES], state[KEY_BYTES]
                size, key = np.int64(0), np.int64(0)
                if newest < 0 and not span.null_key:
                    size, key = _key(run, body.in_scratch, span)
                has_slot = apart or newest >= 0 or 2 * (n - state[GROUP]) < slots.shape[0]
                if n == rows.shape[0] or held + size > entries.keys.shape[0] or not has_slot:
                    return row
                entry = rows[n]
                entry.low, entry.high, entry.digest = span.key_low, span.key_high, np.int64(0)
                entry.first_offset, entry.first_timestamp_ms = offset, time
                entry.versions, entry.bytes = 0, 0
                entry.keyless = span.null_key
                entry.key_at, entry.key_size = held, size
                if newest >= 0:
                    entry.key_at, entry.key_size = rows[newest].key_at, rows[newest].key_size
                elif size > 0 and body.in_scratch:
                    copy_bytes(entries.keys, held, run.scratch, key, size)
                elif size > 0:
                    copy_bytes(entries.keys, held, run.raw, key, size)
                if apart:
                    low, high = _digest(run, body.in_scratch, span, k0, k1)
                    entry.digest = np.int64(low)
                    if span.null_key:
                        entry.low, entry.high = low, high
                else:
                    _fill(entries, slot, span.key_low, n)
                state[ENTRIES], state[KEY_BYTES] = n + 1, held + size
                newest = n
            entry = rows[newest]
            entry.offset, entry.timestamp_ms = offset, time
            entry.tombstone = span.null_value
            entry.size_bytes = span.end - span.rest
            entry.bytes += span.end - span.rest
            entry.versions += 1
    return DONE


@inline
def _digest(run: Run, in_scratch: bool, span: Any, k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Hash a record's bytes from the key on: key, value and headers, each with its length."""
    if in_scratch:
        return siphash128(run.scratch, span.rest, span.end, k0, k1)
    return siphash128(run.raw, span.rest, span.end, k0, k1)


@inline
def _key(run: Run, in_scratch: bool, span: Any) -> tuple[np.int64, np.int64]:
    """Return the size of a record's key, and its first byte."""
    if in_scratch:
        size, at = read_varint(run.scratch, span.rest, span.end)
    else:
        size, at = read_varint(run.raw, span.rest, span.end)
    return np.int64(size), np.int64(at)


@kernel
def order_by_bin(high: np.ndarray, shift: int, ends: np.ndarray, order: np.ndarray) -> None:
    """Order hashes, int64[n], by their bits above `shift`; equal ones stay in order. ends: int64[bins], all 0; gets the
    place in `order`, int64[n], where each bin ends.
    """
    middle = ends.shape[0] // 2
    for i in range(high.shape[0]):
        ends[(high[i] >> shift) + middle] += 1
    begin = np.int64(0)
    for bin_ in range(ends.shape[0]):
        begin, ends[bin_] = begin + ends[bin_], begin
    for i in range(high.shape[0]):
        bin_ = (high[i] >> shift) + middle
        order[ends[bin_]] = i
        ends[bin_] += 1


@kernel
def take_entries(
    rows: np.ndarray, order: np.ndarray, words: np.ndarray, counts: np.ndarray, flags: np.ndarray, ends: np.ndarray
) -> None:
    """Copy fields of rows, ENTRY[], in this order, int64[n]. words: int64[9, n], WORDS; counts: int32[2, n], COUNTS;
    flags: bool[2, n], FLAGS; ends: int32[n + 1], where each key begins if the keys are stored one after the other.
    """
    n = order.shape[0]
    ends[0] = 0
    for i in range(n):
        prefetch(rows, np.int64(order[min(i + _AHEAD, n - 1)]))
        row = rows[order[i]]
        words[0, i], words[1, i] = np.int64(row.high), np.int64(row.low)
        words[2, i], words[3, i] = row.offset, row.first_offset
        words[4, i], words[5, i] = row.timestamp_ms, row.first_timestamp_ms
        words[6, i], words[7, i], words[8, i] = row.digest, row.bytes, row.key_at
        counts[0, i], counts[1, i] = row.versions, row.size_bytes
        flags[0, i], flags[1, i] = row.keyless, row.tombstone
        ends[i + 1] = ends[i] + row.key_size


@kernel
def copy_keys(keys: np.ndarray, key_at: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    """Copy keys that begin at key_at, int64[n], one after the other. ends: int32[n + 1], where each begins; out:
    uint8[].
    """
    n = key_at.shape[0]
    for i in range(n):
        prefetch(keys, np.int64(key_at[min(i + _AHEAD, n - 1)]))
        copy_bytes(out, np.int64(ends[i]), keys, key_at[i], np.int64(ends[i + 1] - ends[i]))
