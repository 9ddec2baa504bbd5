"""Ranges of offsets, held against sets of them."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

from lastkey.jobs.store import coverage
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.logformat.listing import Segment
from lastkey.udfs.ranges import without
from tests.builders.stores import row

_UNTIL = 40


def _ranges(rng: random.Random) -> list[tuple[int, int]]:
    ends = [(rng.randrange(_UNTIL), rng.randrange(_UNTIL)) for _ in range(rng.randrange(5))]
    return [(first, until) for first, until in ends if rng.random() < 0.2 or first < until]


def _offsets(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for first, until in ranges for offset in range(first, until)}


def _generation(rng: random.Random, chain: str) -> Commit:
    """Return a generation with files of its own up to some offset; it takes the rest from the archive."""
    gaps = [(first, until - 1, -1, -1, True) for first, until in _ranges(rng) if first < until]
    start, own, end = sorted(rng.randrange(_UNTIL) for _ in range(3))
    facts = {"log_start_offset": start, "next_offset": end, "gaps": json.dumps(gaps) if gaps else None}
    segments = [_segment("store", own), _segment("archive", end)] if start < own else [_segment("archive", end)]
    return Commit(row(Checkpoint, **facts, chain=chain), segments, row(RunRow))


def _segment(root: str, until: int) -> Segment:
    return row(Segment, root=root, next_offset=until)


def _gaps(made: Commit) -> set[int]:
    return _offsets([(gap[0], gap[1] + 1) for gap in json.loads(made.checkpoint.gaps or "[]")])


def _holds(made: Commit) -> set[int]:
    ours = [s.next_offset for s in made.segments if s.root == "store"]
    return set(range(made.checkpoint.log_start_offset, *ours)) - _gaps(made) if ours else set()


def test_range_operations_equal_set_operations() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        some, others = _ranges(rng), _ranges(rng)
        left = without(some, others)
        assert _offsets(left) == _offsets(some) - _offsets(others)
        assert left == sorted(left) and all(a[1] < b[0] for a, b in itertools.pairwise(left))


def test_many_ranges_are_removed_in_one_pass() -> None:
    n = 200_000  # a pass for each range would take hours
    cuts = [(10 * i, 10 * i + 5) for i in range(n)]
    assert without([(0, 10 * n)], cuts) == [(10 * i + 5, 10 * i + 10) for i in range(n)]
    assert without(cuts, [(0, 10 * n)]) == []


def test_coverage_of_a_chain_never_shrinks_and_excludes_gaps() -> None:
    rng = random.Random(8)
    for _ in range(300):
        before, read = None, set()
        for _ in range(4):
            made, log_start = _generation(rng, "a"), rng.randrange(_UNTIL)
            at = made.checkpoint
            before = replace(at, read=coverage.read_with(before, at, made.segments, log_start))
            read |= _holds(made) | (set(range(log_start, at.log_start_offset)) - _gaps(made))
            assert _offsets(coverage.read_by(before)) == read
        other = _generation(rng, "a")
        assert _offsets(coverage.unread(other, before, committed=True)) == _holds(other) - read


def test_coverage_of_other_chains_applies_only_to_uncommitted_offsets() -> None:
    old = Commit(row(Checkpoint, next_offset=10, chain="a"), [_segment("store", 10)], row(RunRow))
    new = row(Checkpoint, next_offset=10, chain="b", read="[[0, 10]]")
    assert coverage.unread(old, new, committed=True) == [(0, 10)]
    assert coverage.unread(old, new, committed=False) == []
    assert coverage.unread(old, None, committed=False) == [(0, 10)]


def test_ranges_are_shown_from_their_first_to_their_last_offset() -> None:
    assert coverage.shown([(0, 10), (20, 21)]) == "0 to 9, 20 to 20"
