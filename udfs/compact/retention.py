"""Kafka's retention: the segments that log start, size and time remove, from the oldest on (KAFKA.md, "Retention").

These functions read no file. Retention removes whole segments, and only at the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.udfs.compact.cleaner import SegmentTimes
from lastkey.udfs.segments import Expired, Reason

REASONS: Final[tuple[Reason, ...]] = ("log_start", "size", "time")


def summarize_expired(
    by_rule: Mapping[Reason, int], segments: Sequence[tuple[int, int, int, int]], bytes_above: int
) -> tuple[Expired, ...]:
    """Return the segments that each rule removed.

    segments: (base offset, end of its range, records, bytes) of the removed ones, in order.
    """
    out, first = [], 0
    for reason, n in by_rule.items():
        rows = segments[first : first + n]
        first += n
        if rows:
            records, size = sum(row[2] for row in rows), sum(row[3] for row in rows)
            above = bytes_above if reason == "size" else 0
            out.append(Expired(reason, rows[0][0], rows[-1][1], n, records, size, above))
    return tuple(out)


@dataclass(frozen=True)
class RetentionLimits:
    """Limits in a topic's settings; -1: no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1

    @property
    def has_limit(self) -> bool:
        """True if there is any limit."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0


def may_take_any(
    segments: SegmentTimes, limits: RetentionLimits, *, log_start_offset: int, now_ms: int, last_may_go: bool
) -> bool:
    """Return whether retention may remove any segment, judged by the first one; sizes may be too large."""
    largest = np.full(len(segments.base_offset), 2**63 - 1, np.int64)  # times of the others are unknown: assume young
    largest[:1] = segments.largest_timestamp()[:1]
    facts = replace(segments, max_timestamp=largest)
    by_rule = expired_segments(facts, limits, log_start_offset=log_start_offset, now_ms=now_ms, last_may_go=last_may_go)
    return any(by_rule.values())


def expired_segments(
    segments: SegmentTimes, limits: RetentionLimits, *, log_start_offset: int, now_ms: int, last_may_go: bool
) -> dict[Reason, int]:
    """Return the number of segments that each rule removes, in the order of UnifiedLog.deleteOldSegments.
    Without a limit it removes none, not even those below the log start: no setting asks for that, and there they do no
    harm.

    last_may_go: whether no batch will be appended to the last segment; an empty last segment stays even then.
    """
    if not limits.has_limit:
        return dict.fromkeys(REASONS, 0)
    n = len(segments.base_offset)
    may_go = n if last_may_go and n and segments.size[-1] > 0 else max(n - 1, 0)
    by_start = min(int(np.searchsorted(segments.base_offset[1:], log_start_offset, "right")), may_go)
    left = slice(by_start, may_go)
    by_size = 0
    too_much = int(segments.size[by_start:].sum()) + segments.bytes_above - limits.retention_bytes
    if limits.retention_bytes >= 0 and too_much >= 0:
        by_size = int(np.searchsorted(np.cumsum(segments.size[left]), too_much, "right"))
    left = slice(by_start + by_size, may_go)
    by_time = 0
    if limits.retention_ms >= 0:
        young = np.flatnonzero(now_ms - segments.largest_timestamp()[left] <= limits.retention_ms)
        by_time = int(young[0]) if len(young) else may_go - left.start
    return {"log_start": by_start, "size": by_size, "time": by_time}
