"""Two copies compared by the function of the tasks: every key as the slow twin judges it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lastkey.udfs.audit.mirror import LAWFUL, MirrorQuestion
from lastkey.udfs.audit.runs import load, ranges
from tests.builders.mirrored import draw, write_sides
from tests.reference.mirror import judge, without_key
from tests.reference.sides import Seen

CASES = 300
Options = dict[str, object]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastkey.udfs.audit.runs._PART_ROWS", 50)
    monkeypatch.setattr("lastkey.udfs.audit.entries._GROUP_ROWS", 50)


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Seen], list[Seen]]:
    """Return the drawn records of both sides."""
    logs = [draw(seed) for seed in range(CASES)]
    return [row for log in logs for row in log.a], [row for log in logs for row in log.b]


def found(table: pa.Table) -> tuple[dict[tuple[str, int, bytes], str], Counter, Counter]:
    """Return what rows say: kinds of keys that are findings, lawful keys by partition, records without a key."""
    rows = table.to_pylist()
    kinds = {
        (r["topic"], r["partition"], r["key"]): r["kind"]
        for r in rows
        if r["kind"] not in LAWFUL and not r["without_key"]
    }
    lawful: Counter = Counter()
    loose: Counter = Counter()
    for r in rows:
        if r["kind"] in LAWFUL and not r["without_key"]:
            lawful[r["topic"], r["partition"], r["kind"]] += r["keys"]
        elif r["without_key"] and r["kind"] not in LAWFUL:
            loose[r["topic"], r["partition"], r["kind"]] += r["missing_versions"] + r["extra_versions"]
    return kinds, lawful, loose


def answer(root: Path, a: list[Seen], b: list[Seen], options: Options, n_ranges: int = 4) -> pa.Table:
    arguments = dict(options)
    sides = write_sides(root, a, b, arguments.pop("spread", ()))
    unread = tuple(frozenset(arguments.get(name, ())) for name in ("unread_a", "unread_b"))
    flags = bool(arguments.get("ignore_timestamps")), bool(arguments.get("every_version"))
    question = MirrorQuestion("s", unread, *flags, 20)
    return pa.concat_tables([question.answer(load(sides, one, question.columns))[0] for one in ranges(n_ranges, 1)])


SPREAD = {f"t{n:04}" for n in range(0, CASES, 2)}


@pytest.mark.parametrize(
    "options",
    [
        {}, {"ignore_timestamps": True}, {"every_version": True}, {"spread": SPREAD},
        {"spread": SPREAD, "ignore_timestamps": True, "every_version": True},
        {"unread_a": {(f"t{n:04}", n % 2) for n in range(0, CASES, 3)},
         "unread_b": {(f"t{n:04}", n % 2) for n in range(0, CASES, 5)}},
    ],
    ids=lambda options: "-".join(options) or "default",
)  # fmt: skip
def test_every_key_has_the_finding_of_the_twin(
    tmp_path: Path, drawn: tuple[list[Seen], list[Seen]], options: Options
) -> None:
    a, b = drawn
    kinds, lawful, loose = found(answer(tmp_path, a, b, options))
    expected = judge(a, b, **options)  # type: ignore[arg-type]
    assert kinds == {place: kind for place, kind in expected.items() if kind not in LAWFUL}
    assert lawful == Counter((*place[:2], kind) for place, kind in expected.items() if kind in LAWFUL)
    if not options.keys() & {"ignore_timestamps", "unread_a"}:
        assert loose == without_key(a, b, options.get("spread", ()))  # type: ignore[arg-type]


def test_each_finding_has_its_offsets(tmp_path: Path) -> None:
    def seen(offset: int, key: bytes | None, value: str | None) -> Seen:
        return Seen("t", 0, offset, 1000 + offset, key, value)

    a = [seen(0, b"k", "x"), seen(1, b"l", "x"), seen(2, None, "x"), seen(3, b"k", "y")]
    b = [seen(0, b"k", "x"), seen(9, None, "z"), seen(10, b"m", "x")]
    table = answer(tmp_path, a, b, {})
    rows = {(r["kind"], r["key"]): r for r in table.to_pylist()}
    assert rows.keys() == {
        ("stale", b"k"), ("missing", b"l"), ("extra", b"m"), ("missing_record", None), ("extra_record", None),
    }  # fmt: skip
    places = {
        kind: (r["a_offset"], r["a_timestamp_ms"], r["b_offset"], r["b_partition"]) for (kind, _), r in rows.items()
    }
    assert places == {
        "stale": (3, 1003, 0, 0), "missing": (1, 1001, None, None), "extra": (None, None, 10, 0),
        "missing_record": (2, 1002, None, None), "extra_record": (None, None, 9, 0),
    }  # fmt: skip
    counts = rows["stale", b"k"]
    names = ("keys", "a_versions", "b_versions", "missing_versions", "extra_versions")
    assert [counts[name] for name in names] == [1, 2, 1, 1, 0]


def test_empty_sides_have_no_findings(tmp_path: Path) -> None:
    assert len(answer(tmp_path, [], [], {})) == 0
