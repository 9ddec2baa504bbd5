"""Slow twin of logformat.side_files.index_kernels: LogSegment.recover, step by step, one batch at a time."""

from __future__ import annotations

import numpy as np


def index_entries(batches, base_offset, interval, max_offset_entries=10**9, max_time_entries=10**9, interval_ms=1):
    """Return ([(offset, position)], [(timestamp, offset)]). batches: (last offset, size, max timestamp)."""
    offset_entries, time_entries = [], []
    max_timestamp, offset_of_max = -1, base_offset
    valid_bytes = last_index_entry = 0

    def maybe_append(full_counts):
        last = time_entries[-1][0] if time_entries else -1
        rises = max_timestamp // interval_ms > last // interval_ms if full_counts else max_timestamp > last
        if rises and not (full_counts and len(time_entries) >= max_time_entries - 1):
            time_entries.append((max_timestamp, offset_of_max))

    for last_offset, size, timestamp in batches:
        if timestamp > max_timestamp:
            max_timestamp, offset_of_max = timestamp, last_offset
        if valid_bytes - last_index_entry > interval and len(offset_entries) < max_offset_entries:
            offset_entries.append((last_offset, valid_bytes))
            maybe_append(full_counts=True)
            last_index_entry = valid_bytes
        valid_bytes += size
    maybe_append(full_counts=False)
    return offset_entries, time_entries


def lawful_offset_index(entries: np.ndarray, base_offset: int, log_size: int = 2**31) -> bool:
    """Return whether a writer can have made the entries: above the base, inside the log, rising."""
    offset, position = entries["offset"], entries["position"]
    inside = (offset > base_offset) & (position > 0) & (position < log_size)
    return bool(inside.all() and (np.diff(offset) > 0).all() and (np.diff(position) > 0).all())


def lawful_time_index(entries: np.ndarray, base_offset: int) -> bool:
    """Return whether a writer can have made the entries (timestamp, offset)."""
    timestamp, offset = entries["timestamp"], entries["offset"]
    inside = (offset >= base_offset) & (timestamp >= 0)
    return bool(inside.all() and (np.diff(timestamp) > 0).all() and (np.diff(offset) > 0).all())


def lawful_txn_index(entries: np.ndarray, base_offset: int) -> bool:
    """Return whether markers rise, in the segment and behind their first offsets, with last stable offsets up to 1
    above.
    """
    first, last, stable = entries["first_offset"], entries["last_offset"], entries["last_stable_offset"]
    inside = (last >= base_offset) & (first >= 0) & (first < last) & (stable <= last + 1)
    return bool(inside.all() and (np.diff(last) > 0).all())
