"""Kernels of the search by time: they find the batches that may hold the answers, and the records in them.

They work like `offset_kernels`. An entry of the time index states that no batch before its creation has a larger
timestamp, and names the first batch with this one. The walk checks that the batch is there and has the timestamp; like
a broker, it takes from the index that no earlier batch has a larger one.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.header_kernels import COUNT_OFFSET, COUNT_OFFSET_V3, MAX_TIMESTAMP_OFFSET, trail_v3
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import MAGIC_OFFSET, TIMESTAMP_TYPE_MASK, V3_LARGEST_HEADER
from lastkey.logformat.primitives.memory_kernels import copy_bytes, load_i32, load_i64
from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.offset_kernels import Index, Window

# Result of a search by time, one row a target.
CANDIDATE = np.dtype(
    [
        ("position", "i8"),  # position of the batch
        ("size", "i8"),  # bytes
    ]
)


@inline
def _max_timestamp(buf: np.ndarray, at: int) -> int:
    magic = buf[at + MAGIC_OFFSET]
    if magic == 2:
        return np.int64(load_i64(buf, at + MAX_TIMESTAMP_OFFSET))
    if magic == 3:
        return trail_v3(buf, at, min(at + V3_LARGEST_HEADER, buf.shape[0]))[1]
    return np.int64(load_i64(buf, at + MAGIC_OFFSET + 2)) if magic == 1 else np.int64(-1)


@inline
def _is_empty(buf: np.ndarray, at: int) -> bool:
    """Return whether compaction left only the batch's header, which keeps its largest timestamp."""
    magic = buf[at + MAGIC_OFFSET]
    return (magic == 2 and load_i32(buf, at + COUNT_OFFSET) == 0) or (
        magic == 3 and load_i32(buf, at + COUNT_OFFSET_V3) == 0
    )


@kernel
def find_times(
    window: Window,
    index: Index,
    times: Index,
    start_offset: int,
    targets: np.ndarray,
    after: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> int:
    """Find for each target timestamp the first batch that may hold a record with it or a later one; return a status.

    This is the first batch whose largest timestamp is >= target and whose last offset is >= start_offset.
    targets: int64[n] ms, not falling; after: int64[n], not falling: begin no earlier than at this position, a batch
    border. out: CANDIDATE[n], written; state: as in find_offsets. Status NONE: targets from state[ROW] on have none.
    """
    buf, origin, _ = window
    base = index.base
    i = state[k.ROW]
    position = state[k.POSITION]
    previous = state[k.PREVIOUS]
    pending = state[k.PENDING]
    entry = state[k.ENTRY]
    slot = np.int64(-1)
    time_slot = np.int64(-1)
    size = np.int64(0)
    last = np.int64(-1)
    status = k.FOUND
    while i < targets.shape[0]:
        target = targets[i]
        if after[i] > position:
            position = after[i]
            previous = np.int64(base - 1)
            size = np.int64(0)
            entry = np.int64(-1)
        # Skip an entry with exactly this timestamp: another batch with it may precede the one that the entry names.
        floor = k.entry_floor(times, target - 1, time_slot)
        offset = start_offset
        if floor != time_slot:
            time_slot = floor
            at = floor * times.entry_size + 8
            wide = times.entry_size == k.WIDE_ENTRY
            stored = np.int64(load_i64(times.entries, at)) if wide else base + load_i32(times.entries, at)
            if stored > previous and stored >= start_offset:  # else the walk does not pass its batch
                offset = stored
                pending = stored
                state[k.PENDING_TIMESTAMP] = k.read_entry(times, floor)
        if offset > previous:
            slot = k.entry_floor(index, offset, slot)
            if slot >= 0 and k.read_entry_position(index, slot) > position:
                status, entry_position, e_first, e_last, e_size = k.jump(window, index, slot, max(previous, last))
                if status != k.FOUND:
                    state[k.NEEDED] = entry_position
                    break
                position = entry_position
                previous = e_first - 1
                last = e_last
                size = e_size
                entry = k.read_entry(index, slot)
        while True:
            if size == 0:
                status, _first, last, size, problem, expected, found = k.read_batch(window, position, previous)
                if status != k.FOUND:
                    size = np.int64(0)
                    state[k.NEEDED] = position
                    state[k.PROBLEM] = problem
                    state[k.EXPECTED] = expected
                    state[k.FOUND_VALUE] = found
                    break
            if last >= entry >= 0:
                if last > entry:
                    status = k.WRONG_INDEX
                    break
                entry = np.int64(-1)
            largest = _max_timestamp(buf, position - origin)
            if pending >= 0 and last >= pending:
                if largest != state[k.PENDING_TIMESTAMP]:
                    status = k.WRONG_TIMES
                    break
                pending = np.int64(-1)
            if largest >= target and last >= start_offset and not _is_empty(buf, position - origin):
                if pending >= 0:  # yet the entry names a later batch as the first with so large a timestamp
                    status = k.WRONG_TIMES
                break
            position += size
            previous = last
            size = np.int64(0)
        if status == k.NONE and entry >= 0:  # an entry of a longer log
            status = k.WRONG_INDEX
        elif status == k.NONE and pending >= 0:
            status = k.WRONG_TIMES
        if status != k.FOUND:
            break
        out[i].position = position
        out[i].size = size
        i += 1
    state[k.ROW] = i
    state[k.POSITION] = position
    state[k.PREVIOUS] = previous
    state[k.PENDING] = pending
    state[k.ENTRY] = entry
    return status


@kernel
def copy_batches(buf: np.ndarray, positions: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
    """Copy batches one after the other: buf (uint8[]) from positions[i] (int64[n]) on to out[starts[i]:starts[i + 1]].

    starts: int64[n + 1]; out: uint8[starts[n]], written.
    """
    for i in range(positions.shape[0]):
        size = starts[i + 1] - starts[i]
        copy_bytes(out, np.int64(starts[i]), buf, np.int64(positions[i]), np.int64(size))


@kernel
def first_records(
    run: Run, which: np.ndarray, targets: np.ndarray, start_offset: int, exact: bool, out: np.ndarray
) -> None:
    """Find for each target its batch's first record with timestamp >= it (exact: equal) and offset >= start_offset.

    which: int64[m], not falling: the target's batch; targets: int64[m] ms, not falling within one batch. out: int64[2,
    m], written: offset and timestamp; -1: none.
    """
    batches, bodies, spans = run.batches, run.bodies, run.spans
    row = np.int64(-1)
    span = end = np.int64(0)
    for i in range(which.shape[0]):
        batch = batches[which[i]]
        body = bodies[which[i]]
        if which[i] != row:
            row = np.int64(which[i])
            span = np.int64(body.first_span)
            # A message of magic 0 never counts as having timestamp -1 (RecordBatch.offsetOfMaxTimestamp).
            end = span if exact and batch.magic == 0 else span + body.n_records
        append_time = batch.magic >= 2 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
        out[0, i] = -1
        out[1, i] = -1
        while span < end:
            offset = body.base_offset + spans[span].offset_delta
            timestamp = batch.max_timestamp if append_time else body.base_timestamp + spans[span].timestamp_delta
            if offset >= start_offset and (timestamp == targets[i] if exact else timestamp >= targets[i]):
                out[0, i] = offset
                out[1, i] = timestamp
                break
            span += 1
