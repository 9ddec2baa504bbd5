"""Slow twin of logformat.side_files.index_kernels: LogSegment.recover, step by step, one batch at a time."""

from __future__ import annotations


def index_entries(batches, base_offset, interval, max_offset_entries=10**9, max_time_entries=10**9, interval_ms=1):
    """batches: (last offset, size, max timestamp). Gives [(offset, position)], [(timestamp, offset)]."""
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
