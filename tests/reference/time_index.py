"""Slow twin of udfs.lookup.minutes: the first offset of each minute of a log, one record at a time."""

from __future__ import annotations


def first_offsets(records, granularity_ms=60_000):
    """Return minute -> first offset. records: (offset, timestamp, control) in the log's order."""
    first = {}
    for offset, timestamp, control in records:
        if not control and timestamp >= 0:
            first.setdefault(timestamp // granularity_ms, offset)
    return first
