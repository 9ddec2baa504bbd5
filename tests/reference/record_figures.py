"""The slow twin of `udfs.report.measure_partition`, for topics that are not compacted: record after record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.reference.log import Batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LAST_TIME = 253_402_300_799_999  # the end of the year 9999


@dataclass
class SegmentFigures:
    """Figures of a segment's profile that follow from records alone."""

    records: int = 0
    null_keys: int = 0
    control_records: int = 0
    out_of_order: int = 0
    max_lag_ms: int = 0
    without_timestamp: int = 0
    times: list[int] = field(default_factory=list)
    stored: Counter[str] = field(default_factory=Counter)
    batches: Counter[str] = field(default_factory=Counter)


def profile(segments: list[list[Batch]]) -> tuple[list[SegmentFigures], Counter[bytes]]:
    """Return the figures of each segment, and the number of records of each key."""
    out, keys, largest = [], Counter[bytes](), -1
    for batches in segments:
        figures = SegmentFigures()
        out.append(figures)
        for batch in batches:
            codec = CODECS[batch.codec]
            figures.batches[codec] += 1
            figures.stored[codec] += len(batch.data)
            before = largest
            if batch.max_timestamp <= LAST_TIME:
                largest = max(largest, batch.max_timestamp)
            if batch.control:
                figures.control_records += len(batch.records)
                continue
            for record in batch.records:
                figures.records += 1
                if record.key is None:
                    figures.null_keys += 1
                else:
                    keys[record.key] += 1
                if not 0 <= record.timestamp <= LAST_TIME:
                    figures.without_timestamp += 1
                    continue
                figures.times.append(record.timestamp)
                if record.timestamp < before:
                    figures.out_of_order += 1
                    figures.max_lag_ms = max(figures.max_lag_ms, before - record.timestamp)
                before = max(before, record.timestamp)
    return out, keys
