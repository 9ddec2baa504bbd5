"""Kernels of the way over several tasks: hashes out of a walk, by bucket; settled; and brought back to the records.

An entry is the key hash of a record that leaves its split, as two halves u8[2]: never (0, 0), as in the key table.
Order of the walk: from the last record to the first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.jit import kernel
from logformat.layout import CONTROL_MASK
from logformat.primitives.crc32c import crc32c_range
from logformat.primitives.memory_kernels import prefetch

# What is known of a batch before its body is read
UNKNOWN: Final = 0
ALL_STAY: Final = 1
ALL_GO: Final = 2

_AHEAD: Final = 16  # entries from the fetch of a slot to its use, as in last_offset_kernels


@kernel
def collect_leaving(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    is_last: np.ndarray,
    first_dirty_offset: int,
    oldest_ms: int,
    bucket_shift: int,
    leaves: np.ndarray,
    plain: np.ndarray,
    entries: np.ndarray,
    buckets: np.ndarray,
) -> tuple[int, int, int]:
    """Collect the entries of the records that are the last of their key, in the order of the walk.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n], of batches without control records; spans: SPAN[]; is_last:
    bool[len(spans)]; bucket_shift: the bucket is key_high >> this. Written: leaves: bool[len(spans)], for each record
    whether it leaves; plain: bool[wanted batches], no tombstone and no record without key, of magic 2, and no record's
    time matters (oldest_ms < 0); entries: u8[m, 2] and buckets: u1[m], with room for every record. Returns (entries,
    those of dirty records, which come first, batches).
    """
    n = 0
    n_dirty = 0
    n_batches = 0
    at = 0
    for i in range(batches.shape[0] - 1, -1, -1):
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        base = bodies[i].base_offset
        is_plain = batches[i].magic == 2 and oldest_ms < 0
        for row in range(first + bodies[i].n_records - 1, first - 1, -1):
            span = spans[row]
            is_plain = is_plain and not span.null_key and not span.null_value
            goes_out = is_last[row] and not span.null_key
            leaves[at] = goes_out
            at += 1
            if goes_out:
                a = span.key_low
                b = span.key_high
                if a == np.uint64(0) and b == np.uint64(0):
                    b = np.uint64(1)
                entries[n, 0] = a
                entries[n, 1] = b
                buckets[n] = np.uint8(b >> np.uint64(bucket_shift))
                n += 1
                if base + span.offset_delta >= first_dirty_offset:
                    n_dirty = n
        plain[n_batches] = is_plain
        n_batches += 1
    return n, n_dirty, n_batches


@kernel
def sort_by_bucket(entries: np.ndarray, buckets: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
    """Entries (u8[n, 2]) by bucket (u1[n]), each bucket's in their order; starts: int64[buckets], used up."""
    for i in range(entries.shape[0]):
        at = starts[buckets[i]]
        starts[buckets[i]] = at + 1
        out[at, 0] = entries[i, 0]
        out[at, 1] = entries[i, 1]


@kernel
def checksum_cells(raw: np.ndarray, sizes: np.ndarray, checksums: np.ndarray) -> None:
    """CRC-32C of consecutive cells of raw: uint8[]; sizes: int64[n], bytes; checksums: uint32[n], written."""
    start = 0
    for i in range(sizes.shape[0]):
        end = start + int(sizes[i])
        checksums[i] = crc32c_range(raw, start, end)
        start = end


@kernel
def settle_cells(
    entries: np.ndarray,
    counts: np.ndarray,
    dirty: np.ndarray,
    table: np.ndarray,
    starts: np.ndarray,
    masks: np.ndarray,
    used: np.ndarray,
    stays: np.ndarray,
) -> None:
    """Mark the entries (u8[n, 2]) whose key no dirty record met before has, and enter the keys of dirty ones.

    counts: int64[buckets], entries of each bucket, which follow each other; dirty: int64[buckets], so many of them are
    of dirty records, and come first; table: SLOT[]; starts, masks: each bucket's part of it, of mask + 1 slots, never
    full; used: int64[buckets], slots in use of each part, counted on; stays: bool[n], written.
    """
    one = np.uint64(1)
    zero = np.uint64(0)
    end = 0
    for bucket in range(counts.shape[0]):
        begin = end
        end = begin + counts[bucket]
        clean_from = begin + dirty[bucket]
        start = np.uint64(starts[bucket])
        mask = np.uint64(masks[bucket])
        for i in range(begin, end):
            prefetch(table, np.int64(start + (entries[min(i + _AHEAD, end - 1), 0] & mask)))
            a = entries[i, 0]
            b = entries[i, 1]
            slot = a & mask
            while True:
                x = table[np.int64(start + slot)].low
                y = table[np.int64(start + slot)].high
                if x == a and y == b:
                    stays[i] = False
                    break
                if x == zero and y == zero:
                    if i < clean_from:
                        table[np.int64(start + slot)].low = a
                        table[np.int64(start + slot)].high = b
                        used[bucket] += 1
                    stays[i] = True
                    break
                slot = (slot + one) & mask


@kernel
def in_order_of_walk(buckets: np.ndarray, starts: np.ndarray, sorted_bits: np.ndarray, out: np.ndarray) -> None:
    """Undo `sort_by_bucket` for one bit an entry: buckets: u1[n]; starts: int64[buckets], used up; bool[n] both."""
    for i in range(buckets.shape[0]):
        at = starts[buckets[i]]
        starts[buckets[i]] = at + 1
        out[i] = sorted_bits[at]


@kernel
def fates_of_batches(
    batches: np.ndarray, entering: np.ndarray, survives: np.ndarray, at: int, plain: np.ndarray, fates: np.ndarray
) -> None:
    """What is known of batches before they are read; fates: int8[n], of zeros, written.

    batches: BATCH[n] of magic 2; entering: bool[n], those whose records were walked; survives: bool[], from `at` on
    those of these records, in the order of the log; plain: bool[entering batches].
    """
    j = 0
    for i in range(batches.shape[0]):
        if not entering[i]:
            continue
        n = int(batches[i].records_count)
        if plain[j] and 0 < n <= survives.shape[0] - at:
            fate = ALL_STAY if survives[at] else ALL_GO
            for row in range(at + 1, at + n):
                if survives[row] != survives[at]:
                    fate = UNKNOWN
                    break
            fates[i] = fate
        at += n
        j += 1


@kernel
def hand_out(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    fates: np.ndarray,
    survives: np.ndarray,
    at: int,
    is_last: np.ndarray,
) -> int:
    """Mark the surviving records of a run, first to last; those of control batches are marked.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n]; fates: int8[n]; survives: bool[], from `at` on those of the
    walked records. is_last: bool[spans], written. Returns the first of `survives` that was not passed; -1: there are
    too few.
    """
    for i in range(batches.shape[0]):
        if fates[i] != UNKNOWN:
            at += int(batches[i].records_count)
            continue
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        if batches[i].attributes & CONTROL_MASK != 0:
            for row in range(first, first + bodies[i].n_records):
                is_last[row] = True
            continue
        if at + bodies[i].n_records > survives.shape[0]:
            return -1
        for row in range(first, first + bodies[i].n_records):
            is_last[row] = survives[at]
            at += 1
    return at
