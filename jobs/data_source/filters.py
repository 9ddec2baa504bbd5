"""Conditions of a query that reduce the data to read. Spark passes conditions that must all hold. Spark does not repeat
conditions that the source applies exactly; the source returns conditions that it applies only in part. With problem
rows the source returns all conditions: null is in no range, so a WHERE hides these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from lastkey.jobs.data_source.options import ReadOptions

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EQUAL: Final = (EqualTo, EqualNullSafe)
_ORDER: Final = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
Narrow = Callable[[ReadOptions, Filter], ReadOptions | None]


def narrow(filters: list[Filter], options: ReadOptions) -> tuple[ReadOptions, list[Filter]]:
    """Return the options with the limits that the conditions set, and the conditions that Spark still has to check."""
    columns = _OF_RECORDS if options.source == "kafka_log" else _OF_PARTITIONS
    rest = []
    for condition in filters:
        column = getattr(condition, "attribute", ("",))
        one = columns.get(column[0]) if len(column) == 1 else None
        narrowed = one(options, condition) if one is not None else None
        options = options if narrowed is None else narrowed
        if narrowed is None or column[0] == "timestamp" or options.asked.quarantine:
            rest.append(condition)
    return options, rest


def _values(condition: Filter, kind: type) -> frozenset[Any] | None:
    """Return the values of an equality; None if the condition is none, or a value is not of this kind."""
    if isinstance(condition, _EQUAL):
        values = [condition.value]
    elif isinstance(condition, In):
        values = list(condition.value)
    else:
        return None
    values = [bytes(value) if isinstance(value, bytearray) else value for value in values]
    return frozenset(values) if all(isinstance(value, kind) for value in values) else None


def _equal(limit: str, kind: type) -> Narrow:
    """Return how an equality narrows the limit of this name, a set of values of a kind."""

    def narrowed(options: ReadOptions, condition: Filter) -> ReadOptions | None:
        found, before = _values(condition, kind), getattr(options, limit)
        if found is None:
            return None
        limits: dict[str, Any] = {limit: found if before is None else before & found}
        return replace(options, **limits)

    return narrowed


def _range(condition: Filter, scale: Callable[[Any], int | None]) -> tuple[int | None, int | None] | None:
    """Return [from, to) of a condition; `scale` gives a value in halves of a unit, so that a value between two units is
    odd. An equality with such a value gives an empty range.
    """
    if not isinstance(condition, (*_EQUAL, *_ORDER)):
        return None
    halves = scale(condition.value)
    if halves is None:
        return None
    at_or_above, above = -(-halves // 2), halves // 2 + 1
    if isinstance(condition, _EQUAL):
        return at_or_above, above
    return {
        GreaterThan: (above, None),
        GreaterThanOrEqual: (at_or_above, None),
        LessThan: (None, at_or_above),
        LessThanOrEqual: (None, above),
    }[type(condition)]


def _number(value: Any) -> int | None:
    return 2 * value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(value: Any) -> int | None:
    """Return a moment of Spark's, which has microseconds, in halves of a millisecond."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    micros = (value - _EPOCH) // timedelta(microseconds=1)
    return 2 * (micros // 1000) + (micros % 1000 > 0)


def _asking(options: ReadOptions, **limits: Any) -> ReadOptions:
    """Return the options with other limits of wanted records."""
    return replace(options, asked=replace(options.asked, wanted=replace(options.asked.wanted, **limits)))


def _keys(options: ReadOptions, condition: Filter) -> ReadOptions | None:
    found, before = _values(condition, bytes), options.asked.wanted.keys
    return None if found is None else _asking(options, keys=found if before is None else before & found)


def _offset(options: ReadOptions, condition: Filter) -> ReadOptions | None:
    offsets = _range(condition, _number)
    if offsets is None:
        return None
    (start, end), asked = offsets, options.asked
    first, until = max(asked.start_offset, start or 0), asked.end_offset if end is None else min(asked.end_offset, end)
    return replace(options, asked=replace(asked, start_offset=first, end_offset=until))


def _times(scale: Callable[[Any], int | None]) -> Narrow:
    def narrowed(options: ReadOptions, condition: Filter) -> ReadOptions | None:
        times, wanted = _range(condition, scale), options.asked.wanted
        if times is None:
            return None
        starts = [ms for ms in (wanted.start_ms, times[0]) if ms is not None]
        ends = [ms for ms in (wanted.end_ms, times[1]) if ms is not None]
        return _asking(options, start_ms=max(starts, default=None), end_ms=min(ends, default=None))

    return narrowed


_OF_PARTITIONS: Final[Mapping[str, Narrow]] = {"topic": _equal("topics", str), "partition": _equal("partitions", int)}
_OF_RECORDS: Final[Mapping[str, Narrow]] = {
    **_OF_PARTITIONS,
    "offset": _offset,
    "key": _keys,
    "timestamp": _times(_moment),
    "timestamp_ms": _times(_number),
}
