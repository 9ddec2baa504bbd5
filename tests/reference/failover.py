"""Slow twin of jobs/audit/failover.py for one partition: copies found one record after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.reference.sides import Seen


@dataclass(frozen=True)
class Expected:
    offset: int | None
    by_time: bool = False
    lost: frozenset[int] = frozenset()  # offsets of A
    superseded: frozenset[int] = frozenset()
    again: int = 0
    passed_over: int = 0


def failover(a: Sequence[Seen], b: Sequence[Seen], committed: int | None, ignore_timestamps: bool = False) -> Expected:
    a, b = (sorted(rows, key=lambda r: r.offset) for rows in (a, b))
    of_a, of_b = _groups(a, ignore_timestamps), _groups(b, ignore_timestamps)
    delivered = {r.offset for r in a if committed is not None and r.offset < committed}
    new: set[int] = set()  # records of B that the group must read
    again: set[int] = set()
    copies: dict[int, int] = {}  # offset in A -> offset in B, where it is certain
    without: set[int] = set()  # undelivered records of A without a copy
    matched = 0
    for same, rows in of_a.items():
        there = of_b.get(same, [])
        had = [r for r in rows if r.offset in delivered]
        open_ = [r for r in rows if r.offset not in delivered]
        matched += min(len(rows), len(there))
        if len(rows) == len(there):
            copies |= {r.offset: copy.offset for r, copy in zip(rows, there, strict=True)}
        # the copies that are certainly of delivered records come first
        surely = min(len(had), max(len(there) - len(open_), 0)) if open_ else len(there)
        again |= {copy.offset for copy in there[:surely]} | {copy.offset for copy in there[surely + len(open_) :]}
        new |= {copy.offset for copy in there[surely : surely + len(open_)]}
        without |= {r.offset for r in open_[: max(len(open_) - len(there), 0)]}
    unmatched = [r for r in b if _same(r, ignore_timestamps) not in of_a]
    newest: dict[bytes, int] = {}  # key -> the newest record of A that has a copy
    for r in a:
        if r.key is not None and _same(r, ignore_timestamps) in of_b:
            newest[r.key] = r.offset
    superseded = {r.offset for r in a if r.offset in without and r.key is not None and newest.get(r.key, -1) > r.offset}
    lost = frozenset(without - superseded)
    if not b:
        return Expected(None, lost=lost, superseded=frozenset(superseded))
    if a and matched < 0.5 * min(len(a), len(b)):
        offset = _by_time(a, b, delivered)
        n_again = max(sum(r.offset >= offset for r in b) - (len(a) - len(delivered)), 0)
        return Expected(offset, True, lost, frozenset(superseded), n_again)
    removed = _dropped_by_a(a, b, unmatched, copies, delivered, of_a, ignore_timestamps)
    must = new | {r.offset for r in unmatched if r.offset not in removed}
    offset = min(must, default=b[-1].offset + 1)
    return Expected(
        offset,
        False,
        lost,
        frozenset(superseded),
        sum(o >= offset for o in again),
        sum(r.offset < offset for r in unmatched),
    )


def _dropped_by_a(a, b, unmatched, copies, delivered, of_a, ignore_timestamps) -> set[int]:
    """Return offsets of B's records that A surely had: A has as many holes where they stand, and they are old."""
    removed: set[int] = set()
    held, of_copy = {r.offset for r in a}, {copy: original for original, copy in copies.items()}
    loose = {r.offset: r for r in unmatched}
    first_copy = min((r.offset for r in b if r.offset not in loose), default=0)
    run: list[Seen] = []
    before = -1
    for row in b:
        if row.offset in loose:
            run.append(row)
        elif row.offset in of_copy:
            after = of_copy[row.offset]
            holes = sum(o not in held for o in range(before + 1, after))
            alone = [r for r in run if not _has_newer(r, b, of_a, ignore_timestamps)]
            oldest = all(r.offset < first_copy for r in alone)
            fits = len(run) <= holes and oldest and len(alone) <= a[0].offset
            if before < after and after in delivered and fits:
                removed |= {r.offset for r in run}
            before, run = after, []
    return removed


def _has_newer(row, b, of_a, ignore_timestamps) -> bool:
    return row.key is not None and any(
        r.key == row.key and r.offset > row.offset and _same(r, ignore_timestamps) in of_a for r in b
    )


def _by_time(a: Sequence[Seen], b: Sequence[Seen], delivered: set[int]) -> int:
    open_ = [r.timestamp for r in a if r.offset not in delivered]
    least = min(open_) if open_ else max(r.timestamp for r in a) + 1
    return min((r.offset for r in b if r.timestamp >= least), default=b[-1].offset + 1)


def _same(row: Seen, ignore_timestamps: bool) -> tuple[object, ...]:
    return (row.key, *row.same(ignore_timestamps))


def _groups(rows: Sequence[Seen], ignore_timestamps: bool) -> dict[tuple[object, ...], list[Seen]]:
    groups: dict[tuple[object, ...], list[Seen]] = defaultdict(list)
    for row in rows:
        groups[_same(row, ignore_timestamps)].append(row)
    return groups
