"""Kernels of the search in one segment: sparse index, then a walk over batch headers (FORMAT.md, "Searching").

The bytes of a `.log` come as a window of it; the window of a mapped file is the whole file. A kernel that needs bytes
outside the window, or finds bytes or entries that it cannot trust, returns a status and keeps its state; the caller
solves the problem and calls again.

The kernels trust no entry of an index. An entry must point at a batch that ends at the entry's offset, or at an earlier
batch from which the walk reaches that batch. An older broker's entry holds the last offset of a whole append, and the
append's start. All batches before one that ends at or below the target end below the target too. So the walk from there
finds the first one that does not.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.header_kernels import LAST_DELTA_OFFSET, trail_v3
from lastkey.logformat.batches.walk_kernels import BAD_OFFSETS, BAD_TRAIL, FRAMED, check_range, frame_batch
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CODEC_MASK, MAGIC_OFFSET, V3_LARGEST_HEADER
from lastkey.logformat.primitives.memory_kernels import load_i32, load_i64

# status of a search
FOUND: Final = 0
NONE: Final = 1  # no such batch up to the end of the log
NEED: Final = 2  # bytes outside the window, from the position in state[NEEDED] on, are needed
WRONG_INDEX: Final = 3  # an entry of the offset index does not point at its batch
WRONG_TIMES: Final = 4  # the batch of an entry of the time index has another timestamp, or is not there
LONG_WALK: Final = 5  # a walk over more batches than there are between two entries
BAD_BATCH: Final = 6  # state[PROBLEM] as in `walk_batches`, with EXPECTED and FOUND_VALUE, at state[POSITION]

# state of a search, int64[STATE_SIZE]
ROW: Final = 0  # targets before this one are answered
POSITION: Final = 1  # in the .log: a batch begins there, or the log ends
PREVIOUS: Final = 2  # last offset before that batch; base offset - 1: unknown
NEEDED: Final = 3
PROBLEM: Final = 4
EXPECTED: Final = 5
FOUND_VALUE: Final = 6
ENTRY: Final = 7  # offset of the offset index's entry whose batch has not been reached yet; or -1
PENDING: Final = 8  # in a search by time: the same of the time index; or -1
PENDING_TIMESTAMP: Final = 9
STATE_SIZE: Final = 10

OFFSET_ENTRY: Final = 8  # bytes of an entry as stored: i32 relative offset, i32 position
TIME_ENTRY: Final = 12  # i64 timestamp, i32 relative offset
WIDE_ENTRY: Final = 16  # index entry in memory: two i64, the offset absolute


class Window(NamedTuple):
    """Bytes of a `.log`."""

    buf: np.ndarray  # uint8[], read only, bytes of the file from `origin` on
    origin: int
    end: int  # end of the log, in the file


class Index(NamedTuple):
    """Entries of an offset or time index."""

    entries: np.ndarray  # uint8[n * entry_size], read only
    entry_size: int  # OFFSET_ENTRY or TIME_ENTRY, or WIDE_ENTRY
    n: int
    base: int  # base offset of the segment


# Result of a search by offset, one row a target.
LOCATION = np.dtype(
    [
        ("status", "i1"),  # FOUND; partition_log sets the others
        ("segment_base_offset", "i8"),
        ("position", "i8"),  # position of the batch in the segment's .log
        ("size", "i8"),  # size of the batch, bytes
        ("base_offset", "i8"),  # base offset of the batch; -1: magic 0 or 1, compressed, known only after decompression
        ("last_offset", "i8"),
    ],
    align=True,
)


def new_state(base_offset: int, position: int = 0) -> NDArray[np.int64]:
    """Return the state of a search that begins at a batch border, by default at the first batch."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[POSITION] = position
    state[PREVIOUS] = base_offset - 1
    state[ENTRY] = state[PENDING] = -1
    return state


@inline
def read_batch(window: Window, position: int, previous: int) -> tuple[Any, ...]:
    """Read the batch at `position`: (status, first offset, last offset, size, problem, expected, found).

    A wrapper (magic 0 and 1, compressed) has its last offset as its first, because its contents are unknown. The status
    is FOUND, NONE (the log ends, maybe with an incomplete batch), NEED or BAD_BATCH.
    """
    buf, none = window.buf, np.int64(0)
    n_available = window.end - position
    if n_available <= MAGIC_OFFSET:
        return NONE, none, none, none, none, none, none
    at = position - window.origin
    if at < 0 or at + min(n_available, V3_LARGEST_HEADER) > buf.shape[0]:
        return NEED, none, none, none, none, none, none
    problem, expected, found, size = frame_batch(buf, at, at + n_available)
    if problem != FRAMED:
        return BAD_BATCH, none, none, none, np.int64(problem), np.int64(expected), np.int64(found)
    if size > n_available:
        return NONE, none, none, none, none, none, none
    first = np.int64(load_i64(buf, at))
    last_delta = none
    if buf[at + MAGIC_OFFSET] == 2:
        last_delta = np.int64(load_i32(buf, at + LAST_DELTA_OFFSET))
    elif buf[at + MAGIC_OFFSET] == 3:
        last_delta, _, fits = trail_v3(buf, at, min(at + size, buf.shape[0]))
        if not fits:
            return BAD_BATCH, none, none, none, np.int64(BAD_TRAIL), none, none
    problem, expected, found = check_range(first, last_delta)
    if problem != FRAMED:
        return BAD_BATCH, none, none, none, np.int64(problem), np.int64(expected), np.int64(found)
    if first <= previous:
        return BAD_BATCH, none, none, none, np.int64(BAD_OFFSETS), previous + 1, first
    return FOUND, first, first + last_delta, np.int64(size), none, none, none


@inline
def _is_wrapper(buf: np.ndarray, at: int) -> bool:
    return buf[at + MAGIC_OFFSET] < 2 and buf[at + MAGIC_OFFSET + 1] & CODEC_MASK != 0


@inline
def read_entry(index: Index, slot: int) -> int:
    """Return the absolute offset of an entry of the offset index; the timestamp of one of the time index."""
    if index.entry_size == OFFSET_ENTRY:
        return index.base + np.int64(load_i32(index.entries, slot * OFFSET_ENTRY))
    return np.int64(load_i64(index.entries, slot * index.entry_size))


@inline
def read_entry_position(index: Index, slot: int) -> int:
    """Return the position in the .log that an entry of the offset index points at."""
    if index.entry_size == OFFSET_ENTRY:
        return np.int64(load_i32(index.entries, slot * OFFSET_ENTRY + 4))
    return np.int64(load_i64(index.entries, slot * WIDE_ENTRY + 8))


@inline
def entry_floor(index: Index, target: int, hint: int) -> int:
    """Return the entry with the greatest offset, or timestamp, <= target, or -1; the search widens from entry `hint`
    (or -1) on.

    If the entries do not rise, the result may be any of them.
    """
    n = index.n
    low = np.int64(-1)
    high = np.int64(n)
    if hint >= 0 and read_entry(index, hint) <= target:
        low = np.int64(hint)
        step = 1
        while low + step < n and read_entry(index, low + step) <= target:
            low += step
            step *= 2
        high = min(low + step, n)
    while high - low > 1:
        middle = (low + high) >> 1
        if read_entry(index, middle) <= target:
            low = middle
        else:
            high = middle
    return low


@inline
def jump(window: Window, index: Index, slot: int, previous: int) -> tuple[Any, ...]:
    """Read the batch that an entry of the offset index points at: (status, position, first, last, size).

    The status is FOUND, NEED, or WRONG_INDEX if the entry cannot mean any batch there.
    """
    position = read_entry_position(index, slot)
    status, first, last, size, _, _, _ = read_batch(window, position, previous)
    if status == NEED:
        return NEED, position, first, last, size
    if status != FOUND or last > read_entry(index, slot):
        return WRONG_INDEX, position, first, last, size
    return FOUND, position, first, last, size


@kernel
def find_offset(
    buf: np.ndarray, end: int, entries: np.ndarray, entry_size: int, n: int, base: int, budget: int, target: int
) -> tuple[int, int, int, int, int]:
    """Find the first batch whose last offset is >= target: (status, position, size, base offset or -1, last offset).

    This serves one target in a mapped file; the arguments are the fields of a Window and an Index, because numba takes
    longer for a tuple than for the search. For details of any status other than FOUND call find_offsets.
    """
    window, index = Window(buf, 0, end), Index(entries, entry_size, n, base)
    none = np.int64(-1)
    position = np.int64(0)
    previous = np.int64(base - 1)
    entry = none  # offset of the entry whose batch has not been reached yet
    slot = entry_floor(index, target, -1)
    if slot >= 0:
        entry = read_entry(index, slot)
        status, position, _first, _last, _size = jump(window, index, slot, previous)
        if status != FOUND:
            return status, position, np.int64(0), none, none
    for _ in range(budget):
        status, first, last, size, _problem, _expected, _found = read_batch(window, position, previous)
        if status != FOUND:
            return status, position, np.int64(0), none, none
        if last > entry >= 0:
            return WRONG_INDEX, position, np.int64(0), none, none
        if last == entry:
            entry = none
        if last >= target:
            return FOUND, position, size, none if _is_wrapper(buf, position) else first, last
        position += size
        previous = last
    return LONG_WALK, position, np.int64(0), none, none


@kernel
def find_offsets(
    window: Window, index: Index, budget: int, targets: np.ndarray, rows: np.ndarray, state: np.ndarray, out: np.ndarray
) -> int:
    """Find for each target the first batch whose last offset is >= it; return a status. FOUND: all are answered.

    budget: batches to walk over for one target before LONG_WALK. targets: int64[n], not falling; rows: int64[n], row of
    `out` for each target. out: LOCATION[], written.
    state: of new_state, or of an earlier call. After NONE, WRONG_INDEX or LONG_WALK targets before state[ROW] are
    answered.
    """
    i = state[ROW]
    position = state[POSITION]
    previous = state[PREVIOUS]
    slot = np.int64(-1)
    size = np.int64(0)  # size of the batch at `position`; 0: not read yet
    first = last = np.int64(-1)
    entry = state[ENTRY]
    walked = 0
    status = FOUND
    while i < targets.shape[0]:
        target = targets[i]
        if size == 0 or last < target:
            slot = entry_floor(index, target, slot)
            if slot >= 0 and read_entry_position(index, slot) > position:
                status, entry_position, e_first, e_last, e_size = jump(window, index, slot, max(previous, last))
                if status != FOUND:
                    state[NEEDED] = entry_position
                    break
                position = entry_position
                previous = e_first - 1
                first = e_first
                last = e_last
                size = e_size
                entry = read_entry(index, slot)
            walked = 0
        while True:
            if size > 0 and last >= entry >= 0:
                if last > entry:
                    status = WRONG_INDEX
                    break
                entry = np.int64(-1)
            if size > 0 and last >= target:
                break
            if size > 0:
                position += size
                previous = last
                size = np.int64(0)
                walked += 1
                if walked > budget:
                    status = LONG_WALK
                    break
            status, first, last, size, problem, expected, found = read_batch(window, position, previous)
            if status != FOUND:
                size = np.int64(0)
                state[NEEDED] = position
                state[PROBLEM] = problem
                state[EXPECTED] = expected
                state[FOUND_VALUE] = found
                break
        if status == NONE and entry >= 0:  # an entry of a longer log
            status = WRONG_INDEX
        if status != FOUND:
            break
        answer = out[rows[i]]
        answer.status = FOUND
        answer.segment_base_offset = index.base
        answer.position = position
        answer.size = size
        answer.base_offset = np.int64(-1) if _is_wrapper(window.buf, position - window.origin) else first
        answer.last_offset = last
        i += 1
    state[ROW] = i
    state[POSITION] = position
    state[PREVIOUS] = previous
    state[ENTRY] = entry
    return status
