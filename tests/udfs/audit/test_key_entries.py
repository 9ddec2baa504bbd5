"""Rows of `audit_records` merged by key, by the functions of the tasks, against plain code."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.udfs.audit.key_entries import (
    AUDIT_KEYS,
    FIRST,
    KeysTask,
    Runs,
    RunTask,
    bin_ranges,
    first_keys,
    write_keys,
    write_runs,
)
from lastkey.udfs.audit.rows import AUDIT_RECORDS

SECRET = (1, 2)
N_PARTITIONS = 3
PLENTY, LITTLE = 1 << 30, 2_000  # bytes of entries


def records(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Draw records of three partitions: two reads of each, with rising offsets."""
    out = []
    for number in range(n):
        partition = rng.randrange(N_PARTITIONS)
        out.append(
            {
                "read_id": 10 * partition + (number > n // 2), "topic": "t", "partition": partition, "offset": number,
                "timestamp_ms": rng.randrange(100), "key": rng.choice([None, b"", *(b"k%d" % i for i in range(40))]),
                "size_bytes": rng.randrange(1, 50), "tombstone": rng.random() < 0.3, "magic": 2,
            }
        )  # fmt: skip
        out[-1]["murmur2"] = None if out[-1]["key"] is None else len(out[-1]["key"]) * 7 % 5
    return sorted(out, key=lambda row: row["read_id"])


def expected(rows: list[dict[str, Any]], visible: dict[int, tuple[int, int]]) -> list[dict[str, Any]]:
    by_key: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        start, end = visible.get(row["read_id"], (0, 0))
        if row["key"] is not None and start <= row["offset"] < end:
            by_key.setdefault((row["partition"], row["key"]), []).append(row)
    out = []
    for (partition, key), versions in by_key.items():
        last, where = versions[-1], last_murmur(versions) % N_PARTITIONS
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


def last_murmur(versions: list[dict[str, Any]]) -> int:
    return int(versions[-1]["murmur2"])


@pytest.mark.parametrize("most_bytes", [PLENTY, LITTLE])
@pytest.mark.parametrize("seed", range(5))
def test_drawn_records(tmp_path: Path, seed: int, most_bytes: int) -> None:
    rng = random.Random(seed)
    rows = records(rng, 600)
    visible = {read_id: (rng.randrange(100), rng.randrange(300, 700)) for read_id in (0, 1, 10, 20, 21)}
    files = [rows[:250], rows[250:400], rows[400:]]
    for number, some in enumerate(files):
        table = pa.Table.from_pylist(some, AUDIT_RECORDS)
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=70)
    counts = [(read_id, *bounds) for read_id, bounds in visible.items()]
    runs = Runs()
    for some in ([0], [1, 2]):
        of_files = {f"{number}.parquet": counts for number in some}
        runs.add(write_runs(RunTask(str(tmp_path), of_files, "runs", SECRET, most_bytes)))
    ranges = bin_ranges(runs, 2, most_bytes)
    assert [first for first, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    given = [(str(tmp_path), runs.paths, *bins, "keys", "s", "t", N_PARTITIONS, 5) for bins in ranges]
    made = [write_keys(KeysTask(*one)) for one in given]  # type: ignore[arg-type]
    found = [row for one in made for row in pq.read_table(tmp_path / one.path).to_pylist()]
    wanted = expected(rows, visible)
    assert sorted(found, key=lambda row: (row["partition"], row["key"])) == wanted and len(wanted) > 50
    assert sum(one.rows for one in made) == len(wanted)
    for partition in range(N_PARTITIONS):
        of = [row for row in wanted if row["partition"] == partition]
        told = [one.by_partition[partition] for one in made if partition in one.by_partition]
        assert sum(one["versions"] for one in told) == sum(row["versions"] for row in of)
        assert max(one["most_versions"] for one in told) == max(row["versions"] for row in of)
        assert sum(one["elsewhere_too"] for one in told) == sum(row["partitions"] > 1 for row in of)
    for which in FIRST:
        merged = pa.Table.from_pylist([row for one in made for row in one.first[which]], AUDIT_KEYS)
        whole = first_keys(pa.Table.from_pylist(wanted, AUDIT_KEYS), which, 5)
        assert first_keys(merged, which, 5) == whole and len(whole) == 5


@pytest.mark.parametrize("size", [1, 1 << 30], ids=["of few bytes", "for many tasks"])
@pytest.mark.parametrize("filled", [[0], [7], [4095], [3, 2000, 2001], [*range(50, 90)]])
def test_each_range_has_entries_and_all_are_covered(filled: list[int], size: int) -> None:
    runs = Runs(size=size)
    runs.bins[filled] = 3
    ranges = bin_ranges(runs, 2, 1 << 20)
    assert len(ranges) == (1 if size == 1 else len(filled))
    assert [stop for _, stop in ranges[:-1]] == [first for first, _ in ranges[1:]]
    assert (ranges[0][0], ranges[-1][1]) == (0, len(runs.bins))
    assert all(runs.bins[first:stop].any() for first, stop in ranges)


def test_a_topic_without_keys_has_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made = [
        write_keys(KeysTask(str(tmp_path), [], *bins, "keys", "s", "t", 1, 5)) for bins in bin_ranges(Runs(), 2, PLENTY)
    ]
    assert [one.rows for one in made] == [0]
