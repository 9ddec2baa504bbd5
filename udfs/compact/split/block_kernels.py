"""Kernels of the way over several tasks: they collect hashes on a walk, sort them by bucket, settle them, and bring the
result back to the records.

An entry is the key hash of a record that leaves its split, as two halves u8[2]: never (0, 0), as in the key table. By
`compaction.strategy` the record's version is the third column. The order of the walk is from the last record to the
first.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.primitives.crc32c import crc32c_extend_range, crc32c_range
from lastkey.logformat.primitives.memory_kernels import copy_bytes, prefetch
from lastkey.udfs.compact.clean.key_kernels import AHEAD, entry_of, probe
from lastkey.udfs.compact.verdicts import ALL_GO, ALL_STAY, UNKNOWN


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
    whether it leaves; plain: bool[wanted batches], whether a batch has magic 2, no tombstone and no record without key,
    and no record's time matters (oldest_ms < 0); entries: u8[m, 2 or 3], the halves alone, and buckets: u1[m], with
    room for every record.
    Returns (number of entries, number of those of dirty records, which come first, number of batches).
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
        is_plain = batches[i].magic == 2 and oldest_ms < 0  # a batch of magic 3 is never copied
        for row in range(first + bodies[i].n_records - 1, first - 1, -1):
            span = spans[row]
            is_plain = is_plain and not span.null_key and not span.null_value
            goes_out = is_last[row] and not span.null_key
            leaves[at] = goes_out
            at += 1
            if goes_out:
                low, high = entry_of(span)
                entries[n, 0] = low
                entries[n, 1] = high
                buckets[n] = np.uint8(high >> np.uint64(bucket_shift))
                n += 1
                if base + span.offset_delta >= first_dirty_offset:
                    n_dirty = n
        plain[n_batches] = is_plain
        n_batches += 1
    return n, n_dirty, n_batches


@kernel
def sort_by_bucket(entries: np.ndarray, buckets: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
    """Sort entries (u8[n, 2 or 3]) by bucket (u1[n]) into `out`; each bucket keeps its order. starts: int64[buckets],
    used up.
    """
    with_version = entries.shape[1] > 2
    for i in range(entries.shape[0]):
        at = starts[buckets[i]]
        starts[buckets[i]] = at + 1
        out[at, 0] = entries[i, 0]
        out[at, 1] = entries[i, 1]
        if with_version:
            out[at, 2] = entries[i, 2]


@kernel
def checksum_cells(raw: np.ndarray, sizes: np.ndarray, checksums: np.ndarray) -> None:
    """Compute CRC-32C of consecutive cells of raw: uint8[]; sizes: int64[n], bytes; checksums: uint32[n], written."""
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

    counts: int64[buckets], entries of each bucket; buckets follow each other; dirty: int64[buckets], how many of a
    bucket's entries, the first ones, are of dirty records; table: SLOT[]; starts, masks: each bucket's part of the
    table, of mask + 1 slots, never full; used: int64[buckets], slots in use of each part, updated; stays: bool[n],
    written.
    """
    end = 0
    for bucket in range(counts.shape[0]):
        begin = end
        end = begin + counts[bucket]
        clean_from = begin + dirty[bucket]
        start = np.uint64(starts[bucket])
        mask = np.uint64(masks[bucket])
        for i in range(begin, end):
            prefetch(table, np.int64(start + (entries[min(i + AHEAD, end - 1), 0] & mask)))
            slot = probe(table, start, mask, entries[i, 0], entries[i, 1])
            if slot < 0 and i < clean_from:
                table[~slot].low = entries[i, 0]
                table[~slot].high = entries[i, 1]
                used[bucket] += 1
            stays[i] = slot < 0


@kernel
def settle_versions(
    entries: np.ndarray,
    counts: np.ndarray,
    number: int,
    table: np.ndarray,
    starts: np.ndarray,
    masks: np.ndarray,
    used: np.ndarray,
    stays: np.ndarray,
) -> None:
    """Mark the entries (u8[n, 3]) that have the highest version of their key so far, of equal ones the first that was
    met, and enter them. A second pass over the same entries changes nothing, and so it marks one entry of each key.

    number: of the first entry, among all of a pass; table: WINNER[], whose offsets are such numbers; the others: see
    `settle_cells`.
    """
    end = 0
    for bucket in range(counts.shape[0]):
        begin = end
        end = begin + counts[bucket]
        start = np.uint64(starts[bucket])
        mask = np.uint64(masks[bucket])
        for i in range(begin, end):
            prefetch(table, np.int64(start + (entries[min(i + AHEAD, end - 1), 0] & mask)))
            slot = probe(table, start, mask, entries[i, 0], entries[i, 1])
            version = np.int64(entries[i, 2])
            if slot < 0:
                slot = ~slot
                table[slot].low = entries[i, 0]
                table[slot].high = entries[i, 1]
                used[bucket] += 1
            elif version <= table[slot].version:
                stays[i] = table[slot].offset == number + i
                continue
            table[slot].version = version
            table[slot].offset = number + i
            stays[i] = True


@kernel
def in_order_of_walk(buckets: np.ndarray, starts: np.ndarray, sorted_bits: np.ndarray, out: np.ndarray) -> None:
    """Undo `sort_by_bucket` for one bit an entry. buckets: u1[n]; starts: int64[buckets], used up; sorted_bits, out:
    bool[n].
    """
    for i in range(buckets.shape[0]):
        at = starts[buckets[i]]
        starts[buckets[i]] = at + 1
        out[i] = sorted_bits[at]


@kernel
def batch_verdicts(
    batches: np.ndarray, candidates: np.ndarray, survives: np.ndarray, at: int, plain: np.ndarray, verdicts: np.ndarray
) -> None:
    """Write the verdicts that are certain before a batch is read; verdicts: int8[n], of zeros, written.

    batches: BATCH[n] of magic 2; candidates: bool[n], the batches whose records were walked; survives: bool[], from
    `at` on those of these records, in the order of the log; plain: bool[candidates batches].
    """
    j = 0
    for i in range(batches.shape[0]):
        if not candidates[i]:
            continue
        n = int(batches[i].records_count)
        if plain[j] and 0 < n <= survives.shape[0] - at:
            verdict = ALL_STAY if survives[at] else ALL_GO
            for row in range(at + 1, at + n):
                if survives[row] != survives[at]:
                    verdict = UNKNOWN
                    break
            verdicts[i] = verdict
        at += n
        j += 1


@kernel
def mark_kept(
    batches: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    verdicts: np.ndarray,
    leaves: np.ndarray,
    survives: np.ndarray,
    at: int,
    is_last: np.ndarray,
) -> int:
    """Mark the surviving records of a run, first to last; mark those of control batches too.

    batches: BATCH[n]; bodies: BODY[n]; wanted: bool[n]; verdicts: int8[n]; leaves, survives: bool[], from `at` on those
    of the walked records, of which a thinned batch has only those that leave; is_last: bool[len(spans)], written.
    Returns the first row of `survives` that it did not pass; -1 if there are not as many as in the run.
    """
    for i in range(batches.shape[0]):
        if verdicts[i] != UNKNOWN:
            at += int(batches[i].records_count)
            continue
        if not wanted[i]:
            continue
        first = bodies[i].first_span
        if batches[i].attributes & CONTROL_MASK != 0:
            for row in range(first, first + bodies[i].n_records):
                is_last[row] = True
            continue
        n = bodies[i].n_records
        end = at + max(np.int64(batches[i].records_count), n)  # magic 0 and 1: maybe -1
        if end > survives.shape[0]:
            return -1
        is_thinned = at + n < end
        stop = first + n
        for j in range(at, end):
            if is_thinned and not leaves[j]:
                continue
            if first == stop:
                return -1
            is_last[first] = survives[j]
            first += 1
        if first < stop:
            return -1
        at = end
    return at


@kernel
def thin_bodies(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    wanted: np.ndarray,
    spans: np.ndarray,
    leaves: np.ndarray,
    out: np.ndarray,
    thinned: np.ndarray,
) -> tuple[int, int]:
    """Copy the records that leave, one behind the other.

    bodies: BODY[n]; wanted: bool[n]; leaves: bool[len(spans)], in the order of the walk; out: uint8[]; thinned:
    BODY[n], of zeros, written, with places in `out`. Returns (bytes written, CRC-32C of the bytes as they were read);
    -1 bytes if a wanted batch would lose nothing, a record has no key, or `out` has no room.
    """
    last = spans.shape[0] - 1
    size = 0
    for i in range(bodies.shape[0]):
        if not wanted[i]:
            continue
        stays = 0
        first, stop = bodies[i].first_span, bodies[i].first_span + bodies[i].n_records
        for row in range(first, stop):
            if spans[row].null_key:
                return -1, 0
            if leaves[last - row]:
                size += spans[row].end - spans[row].start
            else:
                stays += 1
        if (stays == 0 and first < stop) or size > out.shape[0]:
            return -1, 0
    at = 0
    crc = 0
    for i in range(bodies.shape[0]):
        body, result = bodies[i], thinned[i]
        result.base_offset = body.base_offset
        result.base_timestamp = body.base_timestamp
        result.start = at
        if wanted[i]:
            for row in range(body.first_span, body.first_span + body.n_records):
                if not leaves[last - row]:
                    continue
                start, n = spans[row].start, spans[row].end - spans[row].start
                if body.in_scratch:
                    copy_bytes(out, at, scratch, start, n)
                    crc = crc32c_extend_range(crc, scratch, start, start + n)
                else:
                    copy_bytes(out, at, raw, start, n)
                    crc = crc32c_extend_range(crc, raw, start, start + n)
                at += n
                result.n_records += 1
        result.end = at
    return at, crc
