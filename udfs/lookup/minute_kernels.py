"""Kernels that note where each minute of a segment begins: a hash table from minute to the first offset in it.

The table is two int64 arrays of 2^k slots, `minutes` with FREE in those that are empty. It is never more than half
full: a kernel stops before that, says where, and continues there once the caller has made it larger.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK

FREE: Final = -1
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: consecutive minutes spread over the table


@inline
def _slot(minutes: NDArray[np.int64], minute: np.int64) -> np.uint64:
    """Return the slot that holds `minute`, or the free one where it belongs."""
    mask = np.uint64(minutes.shape[0] - 1)
    slot = (np.uint64(minute) * _MULTIPLIER >> np.uint64(20)) & mask
    while minutes[slot] != FREE and minutes[slot] != minute:
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def note_records(
    run: Run,
    granularity_ms: int,
    at: tuple[int, int],
    minutes: NDArray[np.int64],
    first_offsets: NDArray[np.int64],
    used: int,
) -> tuple[int, int, int]:
    """Note the records of a run from a record on, in the log's order. at: row of its batch, and its number in it.

    Skips control records, and those without a timestamp. minutes, first_offsets: int64[2^k], the table, written; used:
    its entries. Returns (row, record, used): row n when all are noted; else the table has to grow.
    """
    batches, bodies, spans = run.batches, run.bodies, run.spans
    row, record = at
    last = np.int64(FREE)
    while row < batches.shape[0]:
        batch = batches[row]
        body = bodies[row]
        append_time = batch.magic >= 2 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
        n = np.int64(0) if batch.attributes & CONTROL_MASK != 0 else np.int64(body.n_records)
        while record < n:
            span = spans[body.first_span + record]
            timestamp = batch.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
            if timestamp >= 0:
                minute = np.int64(timestamp // granularity_ms)
                if minute != last:
                    slot = _slot(minutes, minute)
                    if minutes[slot] == FREE:
                        if 2 * used >= minutes.shape[0]:
                            return row, record, used
                        minutes[slot] = minute
                        first_offsets[slot] = body.base_offset + span.offset_delta
                        used += 1
                    last = minute
            record += 1
        record = 0
        row += 1
    return row, record, used


@kernel
def note_headers(
    batches: np.ndarray,
    granularity_ms: int,
    row: int,
    minutes: NDArray[np.int64],
    first_offsets: NDArray[np.int64],
    used: int,
) -> tuple[int, int]:
    """Note batches of LogAppendTime from `row` on: all records of such a batch have its timestamp.

    batches: BATCH[n]. Skips control batches, empty ones, and those without a timestamp. The rest is as in note_records.
    Returns (row, used).
    """
    last = np.int64(FREE)
    while row < batches.shape[0]:
        batch = batches[row]
        if batch.attributes & CONTROL_MASK == 0 and batch.records_count != 0 and batch.max_timestamp >= 0:
            minute = np.int64(batch.max_timestamp // granularity_ms)
            if minute != last:
                slot = _slot(minutes, minute)
                if minutes[slot] == FREE:
                    if 2 * used >= minutes.shape[0]:
                        return row, used
                    minutes[slot] = minute
                    first_offsets[slot] = batch.base_offset
                    used += 1
                last = minute
        row += 1
    return row, used


@kernel
def enter_all(
    minutes: NDArray[np.int64],
    first_offsets: NDArray[np.int64],
    new_minutes: NDArray[np.int64],
    new_first_offsets: NDArray[np.int64],
) -> None:
    """Enter a table into a larger one whose slots are all FREE."""
    for i in range(minutes.shape[0]):
        if minutes[i] != FREE:
            slot = _slot(new_minutes, minutes[i])
            new_minutes[slot] = minutes[i]
            new_first_offsets[slot] = first_offsets[i]
