"""Kernel that decides which batches get an offset index and a time index entry, in one pass over any number of calls.

Rules: Kafka's LogSegment.append and LogSegment.recover (KAFKA.md, "Indexes"; for each batch, KAFKA-806). A batch gets
an offset index entry if more than index.interval.bytes were appended between the last entry and this batch. A time
index entry is added with it if the largest timestamp so far, including this batch's, has risen since the last one; with
a time index interval (ours, after the KIP-33 draft), if it has risen into another interval.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import NO_TIMESTAMP

# Slots of the state that is kept between calls: int64[STATE_SIZE].
INTERVAL: Final = 0  # index.interval.bytes
MAX_OFFSET_ENTRIES: Final = 1  # limit of the offset index; no entries are made beyond it
MAX_TIME_ENTRIES: Final = 2  # limit of the time index, not counting the slot for the final entry
POSITION: Final = 3  # position of the next batch in the .log
SINCE_ENTRY: Final = 4  # bytes appended since the last offset index entry
MAX_TIMESTAMP: Final = 5  # largest so far, ms
OFFSET_OF_MAX: Final = 6  # last offset of the earliest batch that carries it
LAST_TIME_ENTRY: Final = 7  # timestamp of the last time index entry
N_OFFSET_ENTRIES: Final = 8  # made so far
N_TIME_ENTRIES: Final = 9
TIME_INTERVAL: Final = 10  # time.index.interval.ms; 1: every rise of the timestamp counts
STATE_SIZE: Final = 11


def new_state(
    base_offset: int,
    index_interval_bytes: int,
    max_offset_entries: int,
    max_time_entries: int,
    time_index_interval_ms: int = 0,
) -> NDArray[np.int64]:
    """Return the state at the beginning of a segment."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[INTERVAL] = index_interval_bytes
    state[MAX_OFFSET_ENTRIES] = max_offset_entries
    state[MAX_TIME_ENTRIES] = max_time_entries
    state[MAX_TIMESTAMP] = state[LAST_TIME_ENTRY] = NO_TIMESTAMP
    state[OFFSET_OF_MAX] = base_offset
    state[TIME_INTERVAL] = max(time_index_interval_ms, 1)
    return state


@kernel
def build_index_entries(
    last_offset: NDArray[np.int64],
    size: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    state: NDArray[np.int64],
    out_offset: NDArray[np.int64],
    out_position: NDArray[np.int64],
    out_ts: NDArray[np.int64],
    out_ts_offset: NDArray[np.int64],
) -> tuple[int, int]:
    """Take the next batches of a segment; return the numbers of offset index and time index entries that they made.

    last_offset, size (bytes), max_timestamp (ms; -1 none): int64[n], one batch each, in file order, read only.
    state: int64[STATE_SIZE] of new_state or an earlier call, updated.
    out_offset, out_position: int64[m], written: offset index entries. out_ts, out_ts_offset: int64[m], written: time
    index entries. m must be at least min(n, (state[SINCE_ENTRY] + sum(size)) // (state[INTERVAL] + 1)), unchecked.
    The caller makes the final time index entry, because only the caller knows where the segment ends.
    """
    interval = state[INTERVAL]
    position = state[POSITION]
    since_entry = state[SINCE_ENTRY]
    max_so_far = state[MAX_TIMESTAMP]
    offset_of_max = state[OFFSET_OF_MAX]
    last_time_entry = state[LAST_TIME_ENTRY]
    room_offset = state[MAX_OFFSET_ENTRIES] - state[N_OFFSET_ENTRIES]
    time_interval = state[TIME_INTERVAL]
    room_time = state[MAX_TIME_ENTRIES] - state[N_TIME_ENTRIES]
    n_offset = 0
    n_time = 0
    for i in range(len(last_offset)):
        if max_timestamp[i] > max_so_far:
            max_so_far = max_timestamp[i]
            offset_of_max = last_offset[i]
        if since_entry > interval and n_offset < room_offset:
            out_offset[n_offset] = last_offset[i]
            out_position[n_offset] = position
            n_offset += 1
            if max_so_far // time_interval > last_time_entry // time_interval and n_time < room_time:
                out_ts[n_time] = max_so_far
                out_ts_offset[n_time] = offset_of_max
                n_time += 1
                last_time_entry = max_so_far
            since_entry = 0
        position += size[i]
        since_entry += size[i]
    state[POSITION] = position
    state[SINCE_ENTRY] = since_entry
    state[MAX_TIMESTAMP] = max_so_far
    state[OFFSET_OF_MAX] = offset_of_max
    state[LAST_TIME_ENTRY] = last_time_entry
    state[N_OFFSET_ENTRIES] += n_offset
    state[N_TIME_ENTRIES] += n_time
    return n_offset, n_time
