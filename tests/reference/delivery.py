"""Lag of each key behind its deliveries, a key at a time in plain code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Version(NamedTuple):
    """A record of a key."""

    offset: int
    timestamp_ms: int
    tombstone: bool


def key_lag(versions: Iterable[Version], is_delivered: Callable[[int], bool], newest_ms: int | None) -> dict[str, Any]:
    """Return the columns of a key, by its versions and which offsets are delivered."""
    ordered = sorted(versions)
    done = [version for version in ordered if is_delivered(version.offset)]
    at = done[-1].offset if done else None
    behind = [version for version in ordered if at is None or version.offset > at]
    last, since = ordered[-1], done[-1] if done else ordered[0]
    return {
        "last_offset": last.offset,
        "last_timestamp_ms": _time(last),
        "tombstone": last.tombstone,
        "versions": len(ordered),
        "delivered_offset": at,
        "delivered_timestamp_ms": _time(done[-1]) if done else None,
        "oldest_undelivered_offset": behind[0].offset if behind else None,
        "lag_versions": len(behind),
        "lag_offsets": last.offset - (at if done else ordered[0].offset - 1) if behind else 0,
        "lag_ms": _span(_time(since), _time(last)) if behind else 0,
        "age_ms": _span(_time(behind[0]), newest_ms) if behind else 0,
    }


def _time(version: Version) -> int | None:
    return version.timestamp_ms if version.timestamp_ms >= 0 else None


def _span(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(last - first, 0)


def rank(values: Iterable[int | None], share: float) -> int | None:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(value for value in values if value is not None)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] if ordered else None
