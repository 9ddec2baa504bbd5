"""Versions merged by key, by the function of the tasks, against plain code."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.logformat.primitives.siphash import hashes_of
from lastkey.udfs.audit.keys import AUDIT_KEYS, FIRST, KeysQuestion, add_partitions, first_keys
from lastkey.udfs.audit.runs import Shown, Sides, load, ranges
from lastkey.udfs.audit.versions import hashed_keys
from tests.builders.mirrored import write_rows
from tests.reference.murmur2 import murmur2

N_PARTITIONS, SECRET = 3, (1, 2)


def records(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Draw records of three partitions: two reads of each, with rising offsets."""
    out = []
    for number in range(n):
        partition, key = rng.randrange(N_PARTITIONS), rng.choice([None, b"", *(b"k%d" % i for i in range(40))])
        low, high = hashes_of(pa.array([key], pa.binary()), SECRET).view("i8")[0].tolist()
        out.append(
            {
                "read_id": 10 * partition + (number > n // 2), "offset": number, "timestamp_ms": rng.randrange(100),
                "key": key, "keyless": key is None, "high": high, "low": low, "digest": number,
                "size_bytes": rng.randrange(1, 50), "tombstone": rng.random() < 0.3,
            }
        )  # fmt: skip
    return sorted(out, key=lambda row: row["read_id"])


def expected(rows: list[dict[str, Any]], shown: list[Shown], n_partitions: int) -> list[dict[str, Any]]:
    by_key: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        counts = any(one.read_id == row["read_id"] and one.start <= row["offset"] < one.end for one in shown)
        if row["key"] is not None and counts:
            by_key.setdefault((row["read_id"] // 10, row["key"]), []).append(row)
    out = []
    for (partition, key), versions in by_key.items():
        last, where = versions[-1], (murmur2(key) & 0x7FFFFFFF) % n_partitions
        out.append(
            {
                "source": "s", "topic": "t", "partition": partition, "key": key, "last_offset": last["offset"],
                "last_timestamp_ms": last["timestamp_ms"], "tombstone": last["tombstone"], "versions": len(versions),
                "bytes": sum(row["size_bytes"] for row in versions), "last_bytes": last["size_bytes"],
                "expected_partition": where, "misplaced": partition != where,
                "partitions": sum(other == key for _, other in by_key),
            }
        )  # fmt: skip
    return sorted(out, key=lambda row: (row["partition"], row["key"]))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastkey.udfs.audit.runs._PART_ROWS", 50)
    monkeypatch.setattr("lastkey.udfs.audit.versions._GROUP_ROWS", 50)


@pytest.mark.parametrize("n_ranges", [1, 7])
@pytest.mark.parametrize("seed", range(5))
def test_drawn_records(tmp_path: Path, seed: int, n_ranges: int) -> None:
    rng = random.Random(seed)
    rows, files = records(rng, 600), dict[str, list[Shown]]()
    for number, some in enumerate((rows[:250], rows[250:400], rows[400:])):
        write_rows(tmp_path / f"{number}.parquet", some)
        files[f"{number}.parquet"] = []
    shown = []
    for read_id in (0, 1, 10, 20, 21):  # of one read two ranges, of another none
        cuts = sorted(rng.sample(range(700), 4))
        for start, end in [cuts[:2], cuts[2:]] if read_id == 10 else [cuts[::3]]:
            shown.append(Shown(read_id, start, end, read_id // 10, read_id // 10))
    files = dict.fromkeys(files, shown)
    units = tuple(("t", number) for number in range(N_PARTITIONS))
    sides = Sides(str(tmp_path), units, (files,))
    question = KeysQuestion("s", (5,) * N_PARTITIONS, 5, SECRET)
    made = answered(question, sides, n_ranges)
    wanted = expected(rows, shown, 5)
    found = pa.concat_tables(made).to_pylist()
    assert sorted(found, key=lambda row: (row["partition"], row["key"])) == wanted and len(wanted) > 50
    summaries = [question.summary(table) for table in made]
    for counts in add_partitions([of for of, _ in summaries]):
        of = [row for row in wanted if row["partition"] == counts["partition"]]
        assert (counts["topic"], counts["keys"]) == ("t", len(of))
        assert counts["versions"] == sum(row["versions"] for row in of)
        assert counts["most_versions"] == max(row["versions"] for row in of)
        assert counts["elsewhere_too"] == sum(row["partitions"] > 1 for row in of)
    for which in FIRST:
        merged = pa.Table.from_pylist([row for _, first in summaries for row in first[which]], AUDIT_KEYS)
        whole = first_keys(pa.Table.from_pylist(wanted, AUDIT_KEYS), which, 5)
        assert first_keys(merged, which, 5) == whole and len(whole) == 5


def answered(question: KeysQuestion, sides: Sides, n_ranges: int) -> list[pa.Table]:
    return [question.answer(load(sides, bounds, question.columns)) for bounds in ranges(n_ranges, 1)]


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_earlier_result_and_new_records_are_the_whole(tmp_path: Path, seed: int, hide: bool) -> None:
    """Add to a topic that gets another partition: then more keys are misplaced, if they are not hidden."""
    rows = records(random.Random(seed), 600)
    if hide:
        hidden = hashed_keys(pa.array([row["key"] for row in rows], pa.binary()), SECRET).to_pylist()
        rows = [
            row | {"expected": len(row["key"] or b"") % 5, "key": key} for row, key in zip(rows, hidden, strict=True)
        ]
    write_rows(tmp_path / "versions.parquet", rows)
    units = tuple(("t", number) for number in range(N_PARTITIONS))
    old, new, both = (
        Sides(str(tmp_path), units[: 2 if ids == (0, 10) else 3], ({"versions.parquet": [
            Shown(read_id, 0, 1 << 62, read_id // 10, read_id // 10) for read_id in ids
        ]},))
        for ids in ((0, 10), (1, 11, 20, 21), (0, 1, 10, 11, 20, 21))
    )  # fmt: skip
    earlier = {}
    for bounds, table in zip(ranges(3, 1), answered(KeysQuestion("s", (2, 2), 5, SECRET, hide), old, 3), strict=True):
        earlier[bounds] = f"{bounds[0]}.parquet"
        pq.write_table(table, tmp_path / earlier[bounds])
    whole = answered(KeysQuestion("s", (5,) * 3, 5, SECRET, hide), both, 3)
    added = answered(KeysQuestion("s", (5,) * 3, 5, SECRET, hide, earlier), new, 3)
    by = [(name, "ascending") for name in ("partition", "key")]
    assert [table.sort_by(by) for table in added] == [table.sort_by(by) for table in whole]
    assert sum(map(len, whole)) > 100
