"""Kernels of `profile_partition`: keys counted and their last records found, records added up by segment and time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK, DELETE_HORIZON_MASK, TIMESTAMP_TYPE_MASK
from lastkey.udfs.compact.clean.key_kernels import SLOT, hash_entry, probe
from lastkey.udfs.compact.verdicts import DROPPED

# columns of the sums of a segment
RECORDS: Final = 0  # records in data batches that were opened
LIVE_BYTES: Final = 1  # size of every batch, or the share of its live records
DEAD_BYTES: Final = 2
TOMBSTONES: Final = 3  # tombstones that are the last record of their key
TOMBSTONES_WITH_HORIZON: Final = 4  # tombstones in batches whose delete horizon is set
NULL_KEYS: Final = 5
OUT_OF_ORDER: Final = 6  # records below the running maximum
LARGEST_LAG: Final = 7  # ms below it, at most
NO_TIME: Final = 8  # records whose timestamp is none, or after the year 9999
CONTROL_RECORDS: Final = 9
MIN_TIME: Final = 10  # ms; NOTHING where there is none
MAX_TIME: Final = 11  # ms; -1 where there is none
N_SUMS: Final = 12
NOTHING: Final = 2**63 - 1
LAST_TIME: Final = 253_402_300_799_999  # ms: the end of the year 9999

# upper ends of the classes of tombstones by age, ms; the last class has none
AGES_MS: Final = (3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 90 * 86_400_000, 365 * 86_400_000)
NO_AGE: Final = len(AGES_MS) + 1  # the class of tombstones without a timestamp
N_AGES: Final = len(AGES_MS) + 2

# A slot: a key's hash, how many records it has, and the highest offset of one.
KEY_COUNT = np.dtype([*SLOT.descr, ("count", "i8"), ("example", "i8")], align=True)


@kernel
def count_keys(
    run: Run, dirty: tuple[int, int], table: np.ndarray, used: int, is_last: np.ndarray, left: int
) -> tuple[int, int]:
    """Count the records of every key, and mark those that the cleaner takes for the last of their key.

    Goes through batches and records from last to first. dirty: first dirty offset, and first uncleanable one; table:
    KEY_COUNT[2^k], a count is negative once a record at or above the first and below the second was seen; used: its
    entries; is_last: bool[len(spans)], written: below the first uncleanable offset as by
    `key_kernels.mark_last_offsets`, which sees no other records; true above. left: rows of `spans` still to count.
    Stops before a key for which there is no room: the table is full at two thirds. Returns (entries, rows that are
    left).
    """
    batches, bodies, wanted, spans = run.batches, run.bodies, run.wanted, run.spans
    first_dirty_offset, first_uncleanable_offset = dirty
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
            span = spans[row]
            is_last[row] = True
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
                table[slot].example = offset
                used += 1
            seen = table[slot].count < 0
            n = abs(table[slot].count) + 1
            if offset < first_uncleanable_offset:
                is_last[row] = not seen
                seen = seen or offset >= first_dirty_offset
            table[slot].count = -n if seen else n
    return used, 0


class RunDecisions(NamedTuple):
    """Decisions about a run, and the records before it."""

    is_last: np.ndarray  # bool[len(spans)]
    kept: np.ndarray  # bool[len(spans)]
    outcome: np.ndarray  # int8[n], of `clean_batches`
    largest_before: np.ndarray  # int64[n], ms, the largest timestamp of all batches before each


@inline
def _record_time(batch: np.ndarray, body: np.ndarray, span: np.ndarray) -> int:
    """Return a record's timestamp: that of its batch for LogAppendTime."""
    if batch.magic >= 2 and batch.attributes & TIMESTAMP_TYPE_MASK != 0:
        return np.int64(batch.max_timestamp)
    return body.base_timestamp + span.timestamp_delta


@kernel
def add_up(run: Run, seen: RunDecisions, now_ms: int, sums: np.ndarray, ages: np.ndarray) -> None:
    """Add the records of a run to `sums`: int64[N_SUMS], and its tombstones to `ages`: int64[N_AGES]."""
    batches, bodies, wanted, spans = run.batches, run.bodies, run.wanted, run.spans
    is_last, kept, outcome, largest_before = seen
    for i in range(batches.shape[0]):
        batch = batches[i]
        body = bodies[i]
        control = batch.attributes & CONTROL_MASK != 0
        if not wanted[i]:  # wholly dropped, and not opened; an emptied one keeps its header
            sums[DEAD_BYTES] += batch.size
            continue
        if control:
            sums[CONTROL_RECORDS] += body.n_records
        largest = largest_before[i]
        horizon = batch.magic >= 2 and batch.attributes & DELETE_HORIZON_MASK != 0
        dead = np.int64(0)
        length = np.int64(0)
        for row in range(body.first_span, body.first_span + body.n_records):
            span = spans[row]
            length += span.end - span.start
            if not kept[row]:
                dead += span.end - span.start
            if control:
                continue
            sums[RECORDS] += 1
            if span.null_key:
                sums[NULL_KEYS] += 1
            time = _record_time(batch, body, span)
            usable = 0 <= time <= LAST_TIME
            if usable:
                sums[MIN_TIME] = min(sums[MIN_TIME], time)
                sums[MAX_TIME] = max(sums[MAX_TIME], time)
                if time < largest:
                    sums[OUT_OF_ORDER] += 1
                    sums[LARGEST_LAG] = max(sums[LARGEST_LAG], largest - time)
                largest = max(largest, time)
            else:
                sums[NO_TIME] += 1
            if span.null_value and not span.null_key and is_last[row]:
                sums[TOMBSTONES] += 1
                if horizon:
                    sums[TOMBSTONES_WITH_HORIZON] += 1
                at = NO_AGE
                if usable:
                    at = 0
                    while at < len(AGES_MS) and now_ms - time >= AGES_MS[at]:
                        at += 1
                ages[at] += 1
        if length == 0:
            dead_bytes = np.int64(batch.size) if outcome[i] == DROPPED else np.int64(0)
        else:  # both are below 2^31, so the product fits
            dead_bytes = batch.size * dead // length
        sums[DEAD_BYTES] += dead_bytes
        sums[LIVE_BYTES] += batch.size - dead_bytes


@kernel
def add_times(run: Run, first_bucket: int, width_ms: int, counts: np.ndarray) -> None:
    """Count the data records with a usable timestamp by time // width_ms - first_bucket; counts: int64[], added to."""
    batches, bodies, spans = run.batches, run.bodies, run.spans
    for i in range(batches.shape[0]):
        if not run.wanted[i] or batches[i].attributes & CONTROL_MASK != 0:
            continue
        for row in range(bodies[i].first_span, bodies[i].first_span + bodies[i].n_records):
            time = _record_time(batches[i], bodies[i], spans[row])
            if 0 <= time <= LAST_TIME:
                counts[time // width_ms - first_bucket] += 1
