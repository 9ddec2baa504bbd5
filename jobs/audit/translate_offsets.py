"""The rules of `failover` in turn: the offset at which a group continues in each partition, and the reason.

Each partition is answered by itself. Of one whose records and committed offset have not changed the earlier answer is
kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from lastkey.jobs.audit.audit import MOST, R
from lastkey.jobs.audit.pairs import PairAudit, first_unread, unread
from lastkey.jobs.command.reporting import counted
from lastkey.jobs.command.store_options import AuditFailoverOptions
from lastkey.jobs.spark.workers import Runner
from lastkey.jobs.store.paths import AUDIT_PAIRS, table_folder
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.answers import AnswerFile, Asked, write_rows
from lastkey.udfs.audit.failover import (
    PARTITION,
    READ,
    FailoverQuestion,
    RangeResult,
    Suspect,
    add_figures,
    behind,
    first_at,
    first_new,
    unit_figures,
)
from lastkey.udfs.audit.pairs import PAIRS
from lastkey.udfs.storage import delete_folder, exists

Way = Literal["identity", "time", "start"]
_LEAST_MATCH: Final = 0.5  # share of matching records; below it, the values differ
_NO_TIME: Final = -1
_INT64: Final = 1 << 63


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

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True)
class KnownLogs:
    """Group's offsets in A, and what is known of the logs beside their records."""

    committed: Mapping[Key, int]
    a_unread: Collection[Key]
    b_unread: Mapping[Key, int]  # -> an offset of B before all that could not be read
    in_b: Mapping[str, str]  # topic of A -> its name in B


def translate_offsets(
    audit: PairAudit[AuditFailoverOptions, R], committed: Mapping[Key, int]
) -> tuple[list[TranslatedOffset], list[dict[str, Any]]]:
    """Return the offset for each partition of A that the group read, and the first lost records; write both."""
    options, pair, root = audit.options, audit.pair, audit.state.root
    in_a, in_b = unread(pair, audit.found)
    topics = {topic for topic, _ in committed} or pair.topics
    parts = {unit: of for unit, of in audit.parts_by_unit(pair.sides).items() if unit[0] in topics}
    b_unread = {unit: first_unread(part for side, part in parts.get(unit, ()) if side) for unit in in_b}
    known = KnownLogs(committed, in_a, b_unread, pair.in_b)
    extra = {
        unit: [committed.get(unit), unit in in_a, known.b_unread.get(unit), options.ignore_timestamps]
        for unit in sorted({*parts, *committed})
    }
    source, folder = f"{pair.result}, group {options.group}", f"{table_folder(AUDIT_PAIRS)}/states/{uuid.uuid4().hex}"
    question = FailoverQuestion(source, options.group, committed, options.ignore_timestamps, MOST, root.uri, folder)

    def decided(asked: Asked, fresh: Sequence[AnswerFile]) -> list[AnswerFile]:
        """Write the rows of partitions."""
        if not asked.fingerprints:
            return []
        answers = decide(audit.workers, root.uri, asked.sides.units, [one.more for one in fresh], known)
        return [write_rows(asked, pa.Table.from_pylist([one.to_row(source, options.group) for one in answers], PAIRS))]

    try:
        tables, _ = audit.answer(AUDIT_PAIRS, question, parts, extra, decided)
    finally:
        if exists(root, folder):
            delete_folder(root, folder)
    answers = [TranslatedOffset.from_row(row, known) for row in tables["partitions"].to_pylist()]
    return sorted(answers, key=lambda one: one.key), tables["lost"].to_pylist()


def decide(
    workers: Runner, root: str, units: Sequence[Key], found: Sequence[RangeResult], known: KnownLogs
) -> list[TranslatedOffset]:
    """Return the answers of units. found: of all ranges."""
    run, paths = workers.run, [one.states for one in found]
    all_figures = add_figures([one.figures for one in found])
    figures: dict[Key, dict[str, Any]] = {unit: unit_figures(all_figures, number) for number, unit in enumerate(units)}
    of_a = [key for key, row in figures.items() if row["a_records"] or key in known.committed]
    first = {key: _first(key, figures[key], known) for key in of_a}
    numbers = {unit: number for number, unit in enumerate(units)}
    suspects = [key for key in of_a if _may_pass_over(first[key], figures[key])]
    asked = [
        Suspect(numbers[key], known.committed[key], figures[key]["a_first"], figures[key]["first_copy"])
        for key in suspects
    ]
    for key, new in zip(suspects, run(partial(first_new, root, paths), asked, "audit: holes"), strict=True):
        first[key] = _decided(first[key], figures[key], new)
    from_ms = [_from_ms(figures[u]) if u in first and first[u].way == "time" else None for u in units]
    if any(ms is not None for ms in from_ms):
        first_later = np.minimum.reduce(run(partial(first_at, root, from_ms), paths, "audit: times"))
        for key in of_a:
            if first[key].way == "time":
                at = int(first_later[numbers[key]])
                first[key] = _by_time(first[key], figures[key], None if at == _INT64 - 1 else at)
    final = {key: _before_unread(first[key], known.b_unread.get(key)) for key in of_a}
    offsets = [-1 if (one := final.get(unit)) is None or one.offset is None else one.offset for unit in units]
    parts = run(partial(behind, root, offsets), paths, "audit: what is read again")
    earliest = np.minimum.reduce([part[1] for part in parts])
    latest = np.maximum.reduce([part[2] for part in parts])
    out = []
    for key, one in final.items():
        unit = numbers[key]
        counts = {name: int(sum(part[0][name][unit] for part in parts)) for name in READ}
        span = int(latest[unit]) - int(earliest[unit]) if counts["again"] else 0
        out.append(_counted(one, figures[key], counts | {"again_ms": span if span < _INT64 else 0}))
    return out


def _first(key: Key, row: Mapping[str, Any], asked: KnownLogs) -> TranslatedOffset:
    """Return the offset where to continue, as far as identity alone determines it."""
    names = ("a_records", "b_records", "matched", "undelivered", "lost", "superseded")
    one = TranslatedOffset(
        *key,
        asked.in_b.get(key[0]),
        asked.committed.get(key),
        a_unread=key in asked.a_unread,
        **{n: row[n] for n in names},
    )
    if not one.b_records:
        return replace(one, why=f"B has no record of it, A has {counted(one.undelivered, 'undelivered record')}")
    if one.a_records and one.matched < _LEAST_MATCH * min(one.a_records, one.b_records):
        few = f"of {one.a_records:,} records of A and {one.b_records:,} of B {one.matched:,} match"
        if _from_ms(row) <= _NO_TIME:
            return replace(one, way="start", offset=row["b_first"], why=f"{few}, and they have no timestamps")
        return replace(one, way="time", why=few)
    return _decided(one, row, row["first_unmatched"])


def _decided(one: TranslatedOffset, row: Mapping[str, Any], first_new: int | None) -> TranslatedOffset:
    """Return the answer by identity: the first record of B that must be read."""
    undelivered = row["first_undelivered"]
    if first_new is not None and (undelivered is None or first_new < undelivered):
        return replace(one, offset=first_new, why="the first record that A does not have")
    if undelivered is not None:
        return replace(one, offset=undelivered, why="the first copy of a record that was not delivered")
    return replace(one, offset=row["b_end"], why="all that B has was delivered")


def _may_pass_over(one: TranslatedOffset, row: Mapping[str, Any]) -> bool:
    """Return whether the answer is a record that A may have had and dropped: A has holes, and was read beyond them."""
    decides = one.way == "identity" and one.offset is not None and one.offset == row["first_unmatched"]
    return decides and one.a_records > 0 and row["a_end"] > row["a_records"] and one.committed is not None


def _from_ms(row: Mapping[str, Any]) -> int:
    """Return the time from which on B has to be read."""
    if row["undelivered_from_ms"] is not None:
        return int(row["undelivered_from_ms"])
    return int(row["delivered_to_ms"]) + 1


def _by_time(one: TranslatedOffset, row: Mapping[str, Any], first_at: int | None) -> TranslatedOffset:
    what = "a record that was not delivered" if row["undelivered_from_ms"] is not None else "all delivered records"
    bound = "not older than" if row["undelivered_from_ms"] is not None else "newer than"
    return replace(
        one, offset=row["b_end"] if first_at is None else first_at, why=f"{one.why}: the first {bound} {what}"
    )


def _before_unread(one: TranslatedOffset, unread: int | None) -> TranslatedOffset:
    """Return the answer, but not after the first unread offset of B: an undelivered record may be there."""
    if unread is None or (one.offset is not None and one.offset <= unread):
        return one
    return replace(one, offset=unread, why="B could not be read from here on")


def _counted(one: TranslatedOffset, row: Mapping[str, Any], counts: Mapping[str, Any]) -> TranslatedOffset:
    """Return the answer with what is read from there on. Without identity, all but as many as were not delivered."""
    one = replace(one, **counts)
    if one.way == "identity":
        return one
    again_ms = max((row["delivered_to_ms"] or 0) - _from_ms(row), 0)
    return replace(one, again=max(one.read - one.undelivered, 0), again_ms=again_ms, not_of_a=0, passed_over=0)
