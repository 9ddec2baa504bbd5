"""Offsets to continue at for drawn logs: as the slow twin finds them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from lastkey.jobs.audit.translate_offsets import KnownLogs, decide
from lastkey.udfs.audit.failover import FailoverQuestion
from lastkey.udfs.audit.runs import load, ranges
from tests.builders.mirrored import draw, write_sides
from tests.builders.workers import InTurn
from tests.reference.failover import failover

CASES = 200


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastkey.udfs.audit.runs._PART_ROWS", 50)
    monkeypatch.setattr("lastkey.udfs.audit.entries._GROUP_ROWS", 50)


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
def test_positions_equal_those_of_the_twin(tmp_path, drawn, ignore_timestamps):
    partitions, committed = drawn
    a, b = ([row for sides in partitions.values() for row in sides[side]] for side in (0, 1))
    sides = write_sides(tmp_path, a, b)
    question = FailoverQuestion("s", "g", committed, ignore_timestamps, 9, str(tmp_path), "states")
    parts = [question.answer(load(sides, bounds, question.columns)) for bounds in ranges(4, 1)]
    answers = decide(
        InTurn(), str(tmp_path), sides.units, [found for _, found in parts], KnownLogs(committed, set(), {}, {})
    )
    lost = defaultdict(set)
    for row in (row for table, _ in parts for row in table.to_pylist()):
        assert (row["kind"], row["group"]) == ("lost", "g")
        lost[row["topic"], row["partition"]].add(row["offset"])
    ways = Counter()
    wanted = {key for key, sides in partitions.items() if sides[0] or key in committed}
    assert {(one.topic, one.partition) for one in answers} == wanted
    for one in answers:
        key = one.topic, one.partition
        expected = failover(*partitions[key], committed.get(key), ignore_timestamps)
        assert (one.offset, one.way == "time", one.again, one.passed_over, one.superseded) == (
            expected.offset, expected.by_time, expected.again, expected.passed_over, len(expected.superseded),
        ), (one, expected)  # fmt: skip
        assert lost[key] == expected.lost and one.lost == len(expected.lost), one
        ways[one.way] += 1
        ways["passed over"] += one.passed_over > 0
        ways["again"] += one.again > 0
        ways["lost"] += one.lost > 0
    assert min(ways.values()) > 5, ways
