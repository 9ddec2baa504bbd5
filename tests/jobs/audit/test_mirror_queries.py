"""Two copies compared by Spark: every key as the slow twin judges it, and what is lawful is never a finding."""

from __future__ import annotations

from collections import Counter

import pytest

from lastkey.jobs.audit.matches import match, two_sides
from lastkey.jobs.audit.mirror import LAWFUL, compare
from tests.builders.mirrored import A, B, draw, records_table, topics_of
from tests.reference.mirror import judge, without_key

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CASES = 150


@pytest.fixture(scope="module")
def drawn(spark):
    """Return the drawn records of both sides, and their rows."""
    logs = [draw(seed) for seed in range(CASES)]
    a, b = [row for log in logs for row in log.a], [row for log in logs for row in log.b]
    return a, b, two_sides(spark.createDataFrame(records_table(a, b)), A, B, *topics_of(a, b))


def found(frame):
    """Return what the query says: kinds of keys that are findings, lawful keys by partition, records without a key."""
    rows = frame.toArrow().to_pylist()
    kinds = {
        (r["topic"], r["partition"], r["key"]): r["kind"]
        for r in rows
        if r["kind"] not in LAWFUL and not r["without_key"]
    }
    lawful = Counter()
    loose = Counter()
    for r in rows:
        if r["kind"] in LAWFUL and not r["without_key"]:
            lawful[r["topic"], r["partition"], r["kind"]] += r["keys"]
        elif r["without_key"] and r["kind"] not in LAWFUL:
            loose[r["topic"], r["partition"], r["kind"]] += r["missing_versions"] + r["extra_versions"]
    return kinds, lawful, loose


@pytest.mark.parametrize(
    "options",
    [{}, {"ignore_timestamps": True}, {"every_version": True}, {"spread": {f"t{n:04}" for n in range(0, CASES, 2)}}],
    ids=lambda options: "-".join(options) or "default",
)  # fmt: skip
def test_every_key_as_the_twin_judges_it(drawn, options):
    a, b, rows = drawn
    matches = match(rows, **{name: options[name] for name in options.keys() - {"every_version"}})
    kinds, lawful, loose = found(compare(matches, **{name: options[name] for name in options.keys() - {"spread"}}))
    expected = judge(a, b, **options)
    assert kinds == {place: kind for place, kind in expected.items() if kind not in LAWFUL}
    assert lawful == Counter((*place[:2], kind) for place, kind in expected.items() if kind in LAWFUL)
    if "ignore_timestamps" not in options:
        assert loose == without_key(a, b, options.get("spread", ()))
