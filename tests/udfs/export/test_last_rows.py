"""The last record of each key of a partition, by the function of its tasks, against plain code."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import Selection
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.data_source.pieces import Bound, Range, Wanted
from lastkey.udfs.export.last_rows import ROWS, LastRows, LastRowsTask, first_open, write_last_rows
from tests.builders.damage import flip
from tests.builders.latest_tables import Log, grow
from tests.builders.logs import write_partition
from tests.builders.trees import files_in
from tests.reference.read_committed import last_stable_offset

PLENTY = 1 << 30
COMMITTED = Range(wanted=Wanted(committed=True), quarantine=True)
STORED = Range(quarantine=True, accept_gaps=True, as_stored=True)


def last_rows(folder: Path, asked: Range = COMMITTED, memory: int = PLENTY, columns: tuple[str, ...] = ROWS):
    (partition,) = find_partitions((str(folder.parent),), Selection())
    out = folder.parents[1]
    task = LastRowsTask(partition, asked, str(out), "new/rows.parquet", {"key": None}, 1 << 20, memory, columns)
    return write_last_rows(task), pq.read_table(out / task.path)


@pytest.mark.parametrize("seed", range(20))
def test_last_rows_of_random_logs_equal_plain_code(tmp_path: Path, seed: int) -> None:
    rng, log = random.Random(seed), Log(tmp_path / "archive" / "t-0")
    pids: set[int] = set()
    for _ in range(3):
        log.roll()
        grow(log, pids, rng)
    stable = last_stable_offset(log.batches)
    end = rng.randrange(stable + 1)
    done, table = last_rows(log.folder, COMMITTED)
    _, some = last_rows(log.folder, Range(end=Bound("offset", end), wanted=Wanted(committed=True), quarantine=True))
    for rows, until in ((table, stable), (some, end)):
        last_versions = {r["key"]: (r["offset"], r["value"]) for r in rows.to_pylist() if not r["tombstone"]}
        assert last_versions == log.rows(until)
        assert rows["offset"].to_pylist() == sorted(rows["offset"].to_pylist())
    assert (done.problems, done.null_keys) == ([], 0)


def test_keys_that_exceed_the_memory_take_several_rounds(tmp_path: Path) -> None:
    n = 150_000
    keys = np.random.default_rng(1).integers(0, n, n)
    folder = tmp_path / "archive" / "t-0"
    folder.mkdir(parents=True)
    with SegmentWriter(folder, 0) as writer:
        columns = {"key": pa.array(map(str, keys)).cast(pa.binary()), "value": pa.array([b"v"] * n)}
        times = {"offset": pa.array(range(n)), "timestamp_ms": pa.array([0] * n)}
        writer.append_records(pa.record_batch(columns | times))
    once, table = last_rows(folder)
    often, same = last_rows(folder, memory=1)
    wanted = {str(key).encode(): offset for offset, key in enumerate(keys.tolist())}
    assert dict(zip(table["key"].to_pylist(), table["offset"].to_pylist(), strict=True)) == wanted
    assert same.sort_by("offset").equals(table.sort_by("offset")) and not same.equals(table)
    assert once == often == LastRows("new/rows.parquet", n)


def test_problem_discards_the_rows_of_its_partition(tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "t-0"
    write_partition(folder, "a=1 | b=2 || c=3")
    flip(files_in(folder)[0], 70)
    done, table = last_rows(folder)
    assert len(done.problems) == 1
    assert (done.records, len(table)) == (0, 0)


def test_last_rows_can_have_only_keys(tmp_path: Path) -> None:
    write_partition(tmp_path / "archive" / "t-0", "a=1 -=2 b=- a=3")
    _, table = last_rows(tmp_path / "archive" / "t-0", columns=("partition", "key"))
    assert table.to_pydict() == {"partition": [0, 0], "key": [b"b", b"a"]}


@pytest.mark.parametrize(("cut", "first"), [(3, None), (4, 3), (7, 3), (8, 5), (9, None), (20, None)])
def test_first_open_transaction_before_an_offset_is_found(tmp_path: Path, cut: int, first: int | None) -> None:
    text = "a=1 b=1 c=1 | {pid=1 txn} d=4 e=5 | {pid=2 txn} f=6 | {pid=1 txn} g=7 | {pid=1 commit} | {pid=2 abort}"
    write_partition(tmp_path / "archive" / "t-0", text)
    (partition,) = find_partitions((str(tmp_path / "archive"),), Selection())
    assert first_open(partition, STORED, cut) == first
