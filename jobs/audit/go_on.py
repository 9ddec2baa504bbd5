"""Asks the questions of `failover` in turn, and decides where a group goes on in each partition, and says why there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from pyspark import StorageLevel

from lastkey.jobs.audit.failover import behind, figures, first_at, first_new, states
from lastkey.jobs.command.reporting import counted
from lastkey.jobs.topics import Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Way = Literal["identity", "time", "start"]
_LEAST_MATCH: Final = 0.5  # of the records that could match: fewer, and the values are others
_NO_TIME: Final = -1


@dataclass(frozen=True)
class GroupOffsets:
    """Group's offsets in A, and what is known of the logs beside their records."""

    committed: Mapping[Key, int]
    b_unread: Mapping[Key, int] = field(default_factory=dict)  # -> an offset of B before all that could not be read
    a_unread: Collection[Key] = ()
    ignore_timestamps: bool = False


@dataclass(frozen=True)
class GoOn:
    """Answer for one partition: the offset of B at which a group goes on. None: B has nothing of it."""

    topic: str
    partition: int
    committed: int | None  # None: the group committed nothing here
    offset: int | None = None
    way: Way = "identity"
    why: str = ""
    a_records: int = 0
    b_records: int = 0
    matched: int = 0  # records of A that have a copy
    undelivered: int = 0
    lost: int = 0  # undelivered records without a copy
    superseded: int = 0  # the same, but B has a newer version of their keys
    read: int = 0  # records of B from `offset` on
    again: int = 0  # of these, delivered before, or copies beyond the first
    again_ms: int = 0  # from the earliest to the latest of these
    not_of_a: int = 0  # of these, records that A does not have
    passed_over: int = 0  # records before `offset` that A had and dropped
    a_unread: bool = False

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition


def go_on(spark: SparkSession, matches: DataFrame, asked: GroupOffsets) -> tuple[list[GoOn], DataFrame]:
    """Return the answer for each partition of A, and the matches as `states` knows them, kept on disk until the caller
    calls `unpersist`. matches: of `match`, with the same ignore_timestamps.
    """
    committed = [(*key, offset) for key, offset in asked.committed.items()]
    known = states(matches, frame(spark, committed, "committed"), ignore_timestamps=asked.ignore_timestamps)
    known = known.persist(StorageLevel.DISK_ONLY)
    found = {key_of(row): row for row in figures(known).toArrow().to_pylist()}
    of_a = sorted({key for key, row in found.items() if row["a_records"]} | set(asked.committed))
    first = {key: _first(key, found.get(key, {}), asked) for key in of_a}
    suspects = [key for key in of_a if _may_pass_over(first[key], found.get(key, {}))]
    if suspects:
        rows_of = ((key, found[key]) for key in suspects)
        starts = frame(
            spark,
            [(*key, asked.committed[key], row["a_first"], row["first_copy"]) for key, row in rows_of],
            "committed", "a_first", "first_copy",
        )  # fmt: skip
        for row in first_new(known, starts).toArrow().to_pylist():
            first[key_of(row)] = _decided(first[key_of(row)], found[key_of(row)], row["first_new"])
    by_time = {key: _from_ms(found[key]) for key in of_a if first[key].way == "time"}
    if by_time:
        times = frame(spark, [(*key, ms) for key, ms in by_time.items()], "from_ms")
        for row in first_at(known, times).toArrow().to_pylist():
            first[key_of(row)] = _by_time(first[key_of(row)], found[key_of(row)], row["first_at"])
    answers = [_before_unread(first[key], asked.b_unread.get(key)) for key in of_a]
    offsets = frame(spark, [(*one.key, one.offset) for one in answers if one.offset is not None], "go_on")
    counts = {key_of(row): row for row in behind(known, offsets).toArrow().to_pylist()}
    return [_counted(one, found.get(one.key, {}), counts.get(one.key, {})) for one in answers], known


def frame(spark: SparkSession, rows: Iterable[Sequence[Any]], *numbers: str) -> DataFrame:
    """Return a small DataFrame: topic, partition, and columns of numbers."""
    fields = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
    schema = pa.schema([*fields, *[pa.field(name, pa.int64()) for name in numbers]])
    return spark.createDataFrame(
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    )


def key_of(row: Mapping[str, Any]) -> Key:
    """Return topic and partition of a row."""
    return row["topic"], row["partition"]


def _first(key: Key, row: Mapping[str, Any], asked: GroupOffsets) -> GoOn:
    """Return where to go on as far as identity alone tells."""
    names = ("a_records", "b_records", "matched", "undelivered", "lost", "superseded")
    one = GoOn(*key, asked.committed.get(key), a_unread=key in asked.a_unread, **{n: row.get(n, 0) for n in names})
    if not one.b_records:
        return replace(one, why=f"B has no record of it, A has {counted(one.undelivered, 'undelivered record')}")
    if one.a_records and one.matched < _LEAST_MATCH * min(one.a_records, one.b_records):
        few = f"of {one.a_records:,} records of A and {one.b_records:,} of B {one.matched:,} match"
        if _from_ms(row) <= _NO_TIME:
            return replace(one, way="start", offset=row["b_first"], why=f"{few}, and they have no timestamps")
        return replace(one, way="time", why=few)
    return _decided(one, row, row["first_unmatched"])


def _decided(one: GoOn, row: Mapping[str, Any], first_new: int | None) -> GoOn:
    """Return the answer by identity: the first record of B that must be read."""
    undelivered = row["first_undelivered"]
    if first_new is not None and (undelivered is None or first_new < undelivered):
        return replace(one, offset=first_new, why="the first record that A does not have")
    if undelivered is not None:
        return replace(one, offset=undelivered, why="the first copy of a record that was not delivered")
    return replace(one, offset=row["b_end"], why="all that B has was delivered")


def _may_pass_over(one: GoOn, row: Mapping[str, Any]) -> bool:
    """Return whether the answer is a record that A may have had and dropped: A has holes, and was read beyond them."""
    decides = one.way == "identity" and one.offset is not None and one.offset == row["first_unmatched"]
    return decides and one.a_records > 0 and row["a_end"] > row["a_records"] and one.committed is not None


def _from_ms(row: Mapping[str, Any]) -> int:
    """Return the time from which on B has to be read."""
    if row["undelivered_from_ms"] is not None:
        return int(row["undelivered_from_ms"])
    return int(row["delivered_to_ms"]) + 1


def _by_time(one: GoOn, row: Mapping[str, Any], first_at: int | None) -> GoOn:
    what = "a record that was not delivered" if row["undelivered_from_ms"] is not None else "all delivered records"
    bound = "not older than" if row["undelivered_from_ms"] is not None else "newer than"
    return replace(
        one, offset=row["b_end"] if first_at is None else first_at, why=f"{one.why}: the first {bound} {what}"
    )


def _before_unread(one: GoOn, unread: int | None) -> GoOn:
    """Return the answer, but not behind what could not be read of B: an undelivered record may be there."""
    if unread is None or (one.offset is not None and one.offset <= unread):
        return one
    return replace(one, offset=unread, why="B could not be read from here on")


def _counted(one: GoOn, row: Mapping[str, Any], counts: Mapping[str, Any]) -> GoOn:
    """Return the answer with what is read from there on. Without identity, all but as many as were not delivered."""
    names = ("read", "again", "again_ms", "not_of_a", "passed_over")
    one = replace(one, **{name: counts.get(name, 0) for name in names})
    if one.way == "identity":
        return one
    again_ms = max((row["delivered_to_ms"] or 0) - _from_ms(row), 0)
    return replace(one, again=max(one.read - one.undelivered, 0), again_ms=again_ms, not_of_a=0, passed_over=0)
