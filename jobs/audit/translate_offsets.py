"""The rules of `failover` in turn: the offset at which a group continues in each partition, and the reason.

Each partition is answered by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from lastkey.jobs.command.reporting import counted
from lastkey.jobs.spark.workers import Runner
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.failover import (
    BEHIND,
    PARTITION,
    READ,
    RangeResult,
    Suspect,
    add_figures,
    behind,
    first_at,
    first_new,
    named_figures,
)
from lastkey.udfs.audit.tables import PAIRS

Way = Literal["identity", "time", "start"]
_LEAST_MATCH: Final = 0.5  # share of matching records; below it, the values differ
_NO_TIME: Final = -1
_INT64: Final = 1 << 63
_RECORDS: Final = ("a_records", "b_records", "matched", "undelivered", "lost", "superseded")


@dataclass(frozen=True)
class TranslatedOffset:
    """Offset of B at which a group continues in a partition; None: B has no record of it."""

    topic: str
    partition: int
    b_topic: str | None  # None: B does not have it
    committed: int | None  # None: the group has no committed offset here
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
    again: int = 0  # records delivered before, or copies beyond the first
    again_ms: int = 0  # from the earliest to the latest of these
    not_of_a: int = 0  # records that A does not have
    passed_over: int = 0  # records before `offset` that A had and dropped
    a_unread: bool = False

    def to_row(self, source: str, group: str) -> dict[str, Any]:
        """Return the row of PAIRS. Its counts of versions are records."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name in PAIRS.names}
        return columns | {
            "source": source, "group": group, "kind": PARTITION,
            "a_versions": self.a_records, "b_versions": self.b_records,
            "missing_versions": self.a_records - self.matched, "extra_versions": self.b_records - self.matched,
        }  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any], known: KnownLogs) -> TranslatedOffset:
        """Return the offset of a row of PAIRS."""
        columns = {f.name: row[f.name] for f in fields(cls) if f.name in row}
        records = {"a_records": row["a_versions"], "b_records": row["b_versions"]}
        matched = row["a_versions"] - row["missing_versions"]
        return cls(**columns, **records, matched=matched, a_unread=(row["topic"], row["partition"]) in known.a_unread)


@dataclass(frozen=True)
class KnownLogs:
    """Group's offsets in A, and what is known of the logs beside their records."""

    committed: Mapping[Key, int]
    a_unread: Collection[Key]
    b_unread: Mapping[Key, int]  # -> an offset of B before all that could not be read
    in_b: Mapping[str, str]  # topic of A -> its name in B


class _Choice(NamedTuple):
    """Place where the group continues, as far as it is decided."""

    offset: int | None
    why: str
    way: Way = "identity"


def decide(
    workers: Runner, root: str, units: Sequence[Key], found: Sequence[RangeResult], known: KnownLogs
) -> list[TranslatedOffset]:
    """Return the answers of units. found: of all ranges."""
    run, paths = workers.run, [one.states for one in found]
    all_figures = named_figures(add_figures([one.figures for one in found]))
    rows = {
        unit: row for unit, row in zip(units, all_figures, strict=True) if row["a_records"] or unit in known.committed
    }
    number = {unit: n for n, unit in enumerate(units)}
    choices = {unit: _first(row) for unit, row in rows.items()}
    suspects = {
        unit: Suspect(number[unit], known.committed[unit], row["a_first"], row["first_copy"])
        for unit, row in rows.items()
        if unit in known.committed and _may_pass_over(choices[unit], row)
    }
    for unit, new in zip(
        suspects, run(partial(first_new, root, paths), [*suspects.values()], "audit: holes"), strict=True
    ):
        choices[unit] = _by_identity(rows[unit], new)
    by_time = {unit: _from_ms(rows[unit]) for unit, choice in choices.items() if choice.way == "time"}
    if by_time:
        from_ms = [by_time.get(unit) for unit in units]
        first_later = np.minimum.reduce(run(partial(first_at, root, from_ms), paths, "audit: times"))
        choices |= {unit: _by_time(choices[unit], rows[unit], int(first_later[number[unit]])) for unit in by_time}
    choices = {unit: _before_unread(choice, known.b_unread.get(unit)) for unit, choice in choices.items()}
    offsets = [-1 if unit not in choices or (at := choices[unit].offset) is None else at for unit in units]
    read = add_figures(run(partial(behind, root, offsets), paths, "audit: what is read again"), BEHIND).tolist()
    return [_answer(unit, choice, rows[unit], read[number[unit]], known) for unit, choice in choices.items()]


def _first(row: Mapping[str, Any]) -> _Choice:
    """Return where to continue, as far as identity alone determines it."""
    a_records, b_records, matched = (row[name] for name in _RECORDS[:3])
    if not b_records:
        return _Choice(None, f"B has no record of it, A has {counted(row['undelivered'], 'undelivered record')}")
    if a_records and matched < _LEAST_MATCH * min(a_records, b_records):
        few = f"of {a_records:,} records of A and {b_records:,} of B {matched:,} match"
        if _from_ms(row) <= _NO_TIME:
            return _Choice(row["b_first"], f"{few}, and they have no timestamps", "start")
        return _Choice(None, few, "time")
    return _by_identity(row, row["first_unmatched"])


def _by_identity(row: Mapping[str, Any], first_new: int | None) -> _Choice:
    """Return the choice by identity: the first record of B that must be read."""
    undelivered = row["first_undelivered"]
    if first_new is not None and (undelivered is None or first_new < undelivered):
        return _Choice(first_new, "the first record that A does not have")
    if undelivered is not None:
        return _Choice(undelivered, "the first copy of a record that was not delivered")
    return _Choice(row["b_end"], "all that B has was delivered")


def _may_pass_over(choice: _Choice, row: Mapping[str, Any]) -> bool:
    """Return whether the choice is a record that A may have had and dropped: A has holes, and was read beyond them."""
    decides = choice.way == "identity" and choice.offset is not None and choice.offset == row["first_unmatched"]
    return decides and row["a_records"] > 0 and row["a_end"] > row["a_records"]


def _from_ms(row: Mapping[str, Any]) -> int:
    """Return the time from which on B has to be read."""
    if row["undelivered_from_ms"] is not None:
        return int(row["undelivered_from_ms"])
    return int(row["delivered_to_ms"]) + 1


def _by_time(choice: _Choice, row: Mapping[str, Any], first_at: int) -> _Choice:
    bound = "newer than all delivered records"
    if row["undelivered_from_ms"] is not None:
        bound = "not older than a record that was not delivered"
    offset = row["b_end"] if first_at == _INT64 - 1 else first_at
    return choice._replace(offset=offset, why=f"{choice.why}: the first {bound}")


def _before_unread(choice: _Choice, unread: int | None) -> _Choice:
    """Return the choice, but not after the first unread offset of B: an undelivered record may be there."""
    if unread is None or (choice.offset is not None and choice.offset <= unread):
        return choice
    return choice._replace(offset=unread, why="B could not be read from here on")


def _answer(
    unit: Key, choice: _Choice, row: Mapping[str, Any], read: Sequence[int], known: KnownLogs
) -> TranslatedOffset:
    """Return the answer with what is read from there on, BEHIND. Without identity, all but as many as were not
    delivered.
    """
    *amounts, from_ms, to_ms = read
    counts: dict[str, Any] = dict(zip(READ, amounts, strict=True)) | {name: row[name] for name in _RECORDS}
    counts["again_ms"] = to_ms - from_ms if counts["again"] and to_ms - from_ms < _INT64 else 0
    if choice.way != "identity":
        again_ms = max((row["delivered_to_ms"] or 0) - _from_ms(row), 0)
        again = max(counts["read"] - row["undelivered"], 0)
        counts |= {"again": again, "again_ms": again_ms, "not_of_a": 0, "passed_over": 0}
    in_b, committed = known.in_b.get(unit[0]), known.committed.get(unit)
    counts["a_unread"] = unit in known.a_unread
    return TranslatedOffset(*unit, in_b, committed, choice.offset, choice.way, choice.why, **counts)
