"""Copies whose making is known, record by record, and the verdicts of the slow twins of two audits on them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lastkey.udfs.audit.mirror import LAWFUL
from tests.builders.mirrored import draw
from tests.reference.failover import failover
from tests.reference.mirror import judge, without_key
from tests.reference.sides import Seen

SEEDS = range(10_000, 13_000)


@pytest.mark.slow
def test_changes_by_mirrors_and_cleaners_are_not_reported():
    for seed in SEEDS:
        log = draw(seed, changes=False, behind=False, repeats=False)
        kinds = judge(log.a, log.b)
        assert set(kinds.values()) <= set(LAWFUL), (seed, kinds)
        assert not without_key(log.a, log.b), seed


def test_lagging_mirror_has_no_other_findings():
    """Extra is a key that A has deleted, and dropped with its tombstone, which B does not know yet."""
    kinds = Counter()
    for seed in SEEDS:
        log = draw(seed, changes=False, repeats=False)
        if is_plain(log.original):
            kinds.update(judge(log.a, log.b).values())
        assert all(kind == "missing_record" for _, _, kind in without_key(log.a, log.b))
    assert set(kinds) == {"equal", "deleted", "stale", "missing", "extra"}


@pytest.mark.parametrize("changes", [False, True], ids=["faithful", "changed"])
def test_continuing_group_loses_no_record(changes):
    seen = Counter()
    for seed in SEEDS:
        log = draw(seed, 1, changes=changes)
        committed = random.Random(seed).randrange(18)
        translated = failover(log.a, log.b, committed)
        if translated.offset is None or translated.by_time:
            continue
        read = [r for r in log.b if r.offset >= translated.offset]
        wanted, there, got = (
            Counter(content(r) for r in rows) for rows in ([r for r in log.a if r.offset >= committed], log.b, read)
        )
        for one, n in wanted.items():
            assert got[one] >= min(n, there[one]), (seed, one)
        assert sum(wanted.values()) - sum((wanted & got).values()) == len(translated.lost) + len(
            translated.superseded
        ), seed
        original = {r.origin for r in log.original}
        copied = {content(r) for r in log.a}
        for r in log.b:
            if r.offset < translated.offset and r.origin not in original and content(r) not in copied:
                # A has room for it, and B itself may drop it, or it precedes all that A has left
                newer = [o for o in log.b if o.key == r.key and o.offset > r.offset and content(o) in copied]
                older = [o for o in log.b if o.offset < r.offset and content(o) in copied]
                assert (r.key is not None and newer) or (not older and log.a[0].offset > 0), (seed, r)
                assert len(log.a) <= log.a[-1].offset, (seed, r)  # A has holes at all
                seen["taken for dropped"] += 1
        seen["cases"] += 1
    assert seen["cases"] > len(SEEDS) / 2
    assert (seen["taken for dropped"] > 0) == changes


def test_continuing_group_rereads_only_required_records():
    """Copies without repeats, of records that differ from one another: the offset is exact."""
    seen = Counter()
    for seed in SEEDS:
        log = draw(seed, 1, changes=False, repeats=False)
        if not is_plain(log.original) or not log.b or not log.a:
            continue
        committed = random.Random(seed).randrange(18)
        translated = failover(log.a, log.b, committed)
        at = {r.origin: r.offset for r in log.original}
        exact = min((r.offset for r in log.b if at[r.origin] >= committed), default=log.b[-1].offset + 1)
        seen["by time" if translated.by_time else "exact" if translated.offset == exact else "early"] += 1
        if not translated.by_time:
            assert translated.offset <= exact
    assert seen["early"] < seen["exact"] / 10, seen


def content(row: Seen) -> tuple[object, ...]:
    return row.topic, row.partition, row.key, row.value, row.timestamp


def is_plain(rows: list[Seen]) -> bool:
    """Return whether timestamps rise, so that all records differ from one another."""
    times = [(r.partition, r.timestamp) for r in rows]
    return times == sorted(set(times))
