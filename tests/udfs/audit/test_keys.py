"""Versions merged by key, by the function of the tasks, against plain code."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.audit.keys import AUDIT_KEYS, FIRST, KeysQuestion
from lastkey.udfs.audit.runs import Shown, Sides, load, ranges
from tests.builders.mirrored import added_up, write_rows
from tests.reference.murmur2 import murmur2

N_PARTITIONS, SECRET = 3, (1, 2)


def records(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Draw records of three partitions: two reads of each, with rising offsets."""
    out = []
    for number in range(n):
        partition, key = rng.randrange(N_PARTITIONS), rng.choice([None, b"", *(b"k%d" % i for i in range(40))])
        low, high = keyed_hashes(pa.array([key], pa.binary()), SECRET).view("i8")[0].tolist()
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
        counts = any(one.read_id == row["read_id"] for one in shown)
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
    monkeypatch.setattr("lastkey.udfs.audit.entries._GROUP_ROWS", 50)


@pytest.mark.parametrize("n_ranges", [1, 7])
@pytest.mark.parametrize("seed", range(5))
def test_random_records_give_the_results_of_plain_code(tmp_path: Path, seed: int, n_ranges: int) -> None:
    """Some of the reads hold an entry for each record, others for the versions between cuts; one does not count."""
    rng = random.Random(seed)
    rows, files = records(rng, 600), dict[str, list[Shown]]()
    for number, some in enumerate((rows[:250], rows[250:400], rows[400:])):
        together = added_up(some, rng.sample(range(600), 3))
        write_rows(tmp_path / f"{number}.parquet", together if number else some)
        files[f"{number}.parquet"] = []
    shown = [Shown(read_id, read_id // 10, read_id // 10) for read_id in (0, 1, 10, 20, 21)]
    files = dict.fromkeys(files, shown)
    units = tuple(("t", number) for number in range(N_PARTITIONS))
    sides = Sides(str(tmp_path), units, (files,))
    question = KeysQuestion("s", {"t": 5}, 5)
    made = [question.answer(load(sides, bounds, question.columns))[0] for bounds in ranges(n_ranges, 1)]
    wanted = expected(rows, shown, 5)
    result_rows = pa.concat_tables(made).to_pylist()
    assert sorted(result_rows, key=lambda row: (row["partition"], row["key"])) == wanted and len(wanted) > 50
    summary = question.merged([question.summary(table) for table in made])
    for counts in summary["partitions"].to_pylist():
        of = [row for row in wanted if row["partition"] == counts["partition"]]
        assert (counts["topic"], counts["keys"]) == ("t", len(of))
        assert counts["versions"] == sum(row["versions"] for row in of)
        assert counts["most_versions"] == max(row["versions"] for row in of)
        assert counts["elsewhere_too"] == sum(row["partitions"] > 1 for row in of)
    whole = question.summary(pa.Table.from_pylist(wanted, AUDIT_KEYS))
    assert all(summary[which].equals(whole[which]) and len(whole[which]) == 5 for which in FIRST)
