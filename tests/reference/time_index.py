"""Slow twin of udfs.lookup.minute_kernels: where each minute of a log begins, one record at a time."""

from __future__ import annotations


def first_offsets(records, granularity_ms=60_000):
    """records: (offset, timestamp, control) in the log's order. Gives minute -> first offset."""
    first = {}
    for offset, timestamp, control in records:
        if not control and timestamp >= 0:
            first.setdefault(timestamp // granularity_ms, offset)
    return first
