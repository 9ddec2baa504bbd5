"""Offsets to go on at, by Spark, for drawn logs: as the slow twin finds them, and safe by a check of their own."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from lastkey.jobs.audit.go_on import GroupOffsets, go_on
from lastkey.jobs.audit.matches import match, two_sides
from tests.builders.mirrored import A, B, draw, records_table, topics_of
from tests.reference.failover import failover

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CASES = 200


@pytest.fixture(scope="module")
def drawn():
    """Return the drawn records of both sides by partition, and a committed offset for most of them."""
    partitions, rng = defaultdict(lambda: ([], [])), random.Random(1)
    for seed in range(CASES):
        log = draw(seed, changes=seed % 3 > 0)
        for side, rows in enumerate((log.a, log.b)):
            for row in rows:
                partitions[row.topic, row.partition][side].append(row)
    committed = {key: rng.randrange(18) for key in partitions if rng.random() < 0.9}
    return dict(partitions), committed


@pytest.mark.parametrize("ignore_timestamps", [False, True], ids=["exact", "ignoring timestamps"])
def test_as_the_twin_finds_them(spark, drawn, ignore_timestamps):
    partitions, committed = drawn
    a, b = ([row for sides in partitions.values() for row in sides[side]] for side in (0, 1))
    rows = two_sides(spark.createDataFrame(records_table(a, b)), A, B, *topics_of(a, b))
    matches = match(rows, ignore_timestamps=ignore_timestamps)
    answers, known = go_on(spark, matches, GroupOffsets(committed, ignore_timestamps=ignore_timestamps))
    states = defaultdict(set)
    for row in known.where("a_state IN ('lost', 'superseded')").toArrow().to_pylist():
        states[row["topic"], row["partition"], row["a_state"]].add(row["a"]["offset"])
    known.unpersist()
    ways = Counter()
    assert {one.key for one in answers} == {key for key, sides in partitions.items() if sides[0] or key in committed}
    for one in answers:
        expected = failover(*partitions[one.key], committed.get(one.key), ignore_timestamps)
        assert (one.offset, one.way == "time", one.again, one.passed_over) == (
            expected.offset, expected.by_time, expected.again, expected.passed_over,
        ), (one, expected)  # fmt: skip
        assert states[(*one.key, "lost")] == expected.lost, one
        assert states[(*one.key, "superseded")] == expected.superseded, one
        ways[one.way] += 1
        ways["passed over"] += one.passed_over > 0
        ways["again"] += one.again > 0
        ways["lost"] += one.lost > 0
    print(ways)
