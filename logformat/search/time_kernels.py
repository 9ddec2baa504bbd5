"""Kernels of the search by time: which batch may hold the answer, and which of its records is it.

Built as `offset_kernels`. An entry of the time index says that no batch up to its creation has a larger timestamp, and
which is the first that has this one. That the batch is there and has it is seen on the way; that none before it has a
larger one is what is taken from the index, as a broker takes it.
"""

from __future__ import annotations

import numpy as np

from logformat.batches.header_kernels import COUNT_OFFSET, MAX_TIMESTAMP_OFFSET
from logformat.jit import inline, kernel
from logformat.layout import MAGIC_OFFSET, TIMESTAMP_TYPE_MASK
from logformat.primitives.memory_kernels import copy_bytes, load_i32, load_i64
from logformat.search.offset_kernels import (
    ENTRY,
    EXPECTED,
    FOUND,
    FOUND_VALUE,
    NEEDED,
    NONE,
    PENDING,
    PENDING_TIMESTAMP,
    POSITION,
    PREVIOUS,
    PROBLEM,
    ROW,
    WIDE_ENTRY,
    WRONG_INDEX,
    WRONG_TIMES,
    entry_floor,
    entry_offset_of,
    entry_position_of,
    jump,
    read_batch,
)

# What a search by time finds, a row for each target.
CANDIDATE = np.dtype(
    [
        ("position", "i8"),  # of the batch
        ("size", "i8"),  # bytes
    ]
)


@inline
def _max_timestamp(buf: np.ndarray, at: int) -> int:
    magic = buf[at + MAGIC_OFFSET]
    if magic == 2:
        return np.int64(load_i64(buf, at + MAX_TIMESTAMP_OFFSET))
    return np.int64(load_i64(buf, at + MAGIC_OFFSET + 2)) if magic == 1 else np.int64(-1)


@inline
def _is_empty(buf: np.ndarray, at: int) -> bool:
    """Whether compaction left only the header: it still has its largest timestamp."""
    return buf[at + MAGIC_OFFSET] == 2 and load_i32(buf, at + COUNT_OFFSET) == 0


@inline
def _floor(times: np.ndarray, entry_size: int, n: int, target: int, hint: int) -> int:
    """As entry_floor, by the timestamp, which stands first in both kinds of entry."""
    low = np.int64(-1)
    high = np.int64(n)
    if hint >= 0 and load_i64(times, hint * entry_size) <= target:
        low = np.int64(hint)
        step = 1
        while low + step < n and load_i64(times, (low + step) * entry_size) <= target:
            low += step
            step *= 2
        high = min(low + step, n)
    while high - low > 1:
        middle = (low + high) >> 1
        if load_i64(times, middle * entry_size) <= target:
            low = middle
        else:
            high = middle
    return low


@kernel
def find_times(
    buf: np.ndarray,
    origin: int,
    end: int,
    index: np.ndarray,
    entry_size: int,
    n_entries: int,
    times: np.ndarray,
    time_entry_size: int,
    n_times: int,
    base: int,
    start_offset: int,
    targets: np.ndarray,
    after: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> int:
    """For each target timestamp the first batch that may hold a record with it or a later one. Returns a status.

    That is the first batch whose largest timestamp is >= target and whose last offset is >= start_offset.
    times: uint8[n_times * time_entry_size], of TIME_ENTRY or WIDE_ENTRY bytes; targets: int64[n] ms, not falling;
    after: int64[n], not falling: look no earlier than at this position, a batch border. out: CANDIDATE[n]; the rest as
    in find_offsets. NONE: those from state[ROW] on have none.
    """
    i = state[ROW]
    position = state[POSITION]
    previous = state[PREVIOUS]
    pending = state[PENDING]
    entry = state[ENTRY]
    slot = np.int64(-1)
    time_slot = np.int64(-1)
    size = np.int64(0)
    last = np.int64(-1)
    status = FOUND
    while i < targets.shape[0]:
        target = targets[i]
        if after[i] > position:
            position = after[i]
            previous = np.int64(base - 1)
            size = np.int64(0)
            entry = np.int64(-1)
        # An entry with the very timestamp is passed by: another batch with it may come before the one that it names
        floor = _floor(times, time_entry_size, n_times, target - 1, time_slot)
        offset = start_offset
        if floor != time_slot:
            time_slot = floor
            at = floor * time_entry_size + 8
            stored = np.int64(load_i64(times, at)) if time_entry_size == WIDE_ENTRY else base + load_i32(times, at)
            if stored > previous and stored >= start_offset:  # else its batch is not passed any more
                offset = stored
                pending = stored
                state[PENDING_TIMESTAMP] = load_i64(times, floor * time_entry_size)
        if offset > previous:
            slot = entry_floor(index, entry_size, n_entries, base, offset, slot)
            if slot >= 0 and entry_position_of(index, entry_size, slot) > position:
                status, entry_position, e_first, e_last, e_size = jump(
                    buf, origin, end, index, entry_size, base, slot, max(previous, last)
                )
                if status != FOUND:
                    state[NEEDED] = entry_position
                    break
                position = entry_position
                previous = e_first - 1
                last = e_last
                size = e_size
                entry = entry_offset_of(index, entry_size, slot, base)
        while True:
            if size == 0:
                status, _first, last, size, problem, expected, found = read_batch(buf, origin, end, position, previous)
                if status != FOUND:
                    size = np.int64(0)
                    state[NEEDED] = position
                    state[PROBLEM] = problem
                    state[EXPECTED] = expected
                    state[FOUND_VALUE] = found
                    break
            if last >= entry >= 0:
                if last > entry:
                    status = WRONG_INDEX
                    break
                entry = np.int64(-1)
            largest = _max_timestamp(buf, position - origin)
            if pending >= 0 and last >= pending:
                if largest != state[PENDING_TIMESTAMP]:
                    status = WRONG_TIMES
                    break
                pending = np.int64(-1)
            if largest >= target and last >= start_offset and not _is_empty(buf, position - origin):
                if pending >= 0:  # before the batch that the entry says is the first with so large a timestamp
                    status = WRONG_TIMES
                break
            position += size
            previous = last
            size = np.int64(0)
        if status == NONE and entry >= 0:  # an entry of a longer log
            status = WRONG_INDEX
        elif status == NONE and pending >= 0:
            status = WRONG_TIMES
        if status != FOUND:
            break
        out[i].position = position
        out[i].size = size
        i += 1
    state[ROW] = i
    state[POSITION] = position
    state[PREVIOUS] = previous
    state[PENDING] = pending
    state[ENTRY] = entry
    return status


@kernel
def copy_batches(buf: np.ndarray, positions: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
    """Batches one after the other: buf (uint8[]) from positions[i] (int64[n]) on to out[starts[i]:starts[i + 1]].

    starts: int64[n + 1]; out: uint8[starts[n]], written.
    """
    for i in range(positions.shape[0]):
        size = starts[i + 1] - starts[i]
        copy_bytes(out, np.int64(starts[i]), buf, np.int64(positions[i]), np.int64(size))


@kernel
def first_records(
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    which: np.ndarray,
    targets: np.ndarray,
    start_offset: int,
    exact: bool,
    out_offset: np.ndarray,
    out_timestamp: np.ndarray,
) -> None:
    """For each target the first record of its batch with a timestamp >= it (exact: equal) and offset >= start_offset.

    batches: BATCH[n], bodies: BODY[n], spans: SPAN[] of all their records. which: int64[m], not falling: the target's
    batch; targets: int64[m] ms, not falling within one batch. out_offset, out_timestamp: int64[m], written; -1: none.
    """
    row = np.int64(-1)
    span = end = np.int64(0)
    for i in range(which.shape[0]):
        batch = batches[which[i]]
        body = bodies[which[i]]
        if which[i] != row:
            row = np.int64(which[i])
            span = np.int64(body.first_span)
            # A message of magic 0 is not "the one with timestamp -1" (RecordBatch.offsetOfMaxTimestamp)
            end = span if exact and batch.magic == 0 else span + body.n_records
        append_time = batch.magic == 2 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
        out_offset[i] = -1
        out_timestamp[i] = -1
        while span < end:
            offset = body.base_offset + spans[span].offset_delta
            timestamp = batch.max_timestamp if append_time else body.base_timestamp + spans[span].timestamp_delta
            if offset >= start_offset and (timestamp == targets[i] if exact else timestamp >= targets[i]):
                out_offset[i] = offset
                out_timestamp[i] = timestamp
                break
            span += 1
