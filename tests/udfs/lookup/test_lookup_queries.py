"""A table of queries, batch by batch, against the same questions asked one at a time."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import pyarrow as pa
import pytest

from lastkey.jobs.data_source.plan_tasks import source_partitions
from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.logformat.search.partition_log import MAX_TIMESTAMP
from lastkey.udfs.data_source.log_end import find_ends
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.lookup.queries import ANSWER, as_ms, lookup_table, open_log
from tests.builders.logs import write_partition
from tests.builders.opened import open_partition
from tests.builders.sources import parse_options
from tests.builders.trees import files_in
from tests.golden import golden


@pytest.fixture
def logs(tmp_path_factory):
    """Plans by partition, and the folder of their partitions."""
    case = golden(tmp_path_factory)["two-parts"]
    root = case.input(case.partitions[0]).parent
    return {(plan.topic, plan.partition): plan for plan in archived_partitions(str(root), EVERY_TOPIC, [])}, root


def ask(plans, rows, size):
    """Return answers of rows (topic, partition, offset, timestamp), handed over in batches of so many."""
    kinds = {"topic": pa.string(), "partition": pa.int64(), "offset": pa.int64(), "timestamp": pa.int64()}
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=pa.schema(kinds))
    answer_batches = list(lookup_table(plans, iter(table.to_batches(size))))
    assert [batch.num_rows for batch in answer_batches] == [batch.num_rows for batch in table.to_batches(size)]
    answers = pa.Table.from_batches(answer_batches)
    assert answers.schema == pa.schema([*table.schema, *ANSWER])
    return answers.select(ANSWER.names).to_pylist()


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("ordered", [True, False])
def test_many_queries_have_the_answers_of_single_queries(logs, size, ordered):
    plans, root = logs
    rng = random.Random(size)
    rows, expected = [], []
    for topic, partition in plans:
        with open_partition(root / f"{topic}-{partition}") as log:
            last = int(log.offsets_for_times([MAX_TIMESTAMP])["timestamp"][0])
            for _ in range(40):
                offset, time = rng.randrange(-3, log.latest + 3), rng.choice([-1, -2, -3, last - rng.randrange(10**6)])
                rows += [(topic, partition, offset, rng.choice([None, time])), (topic, partition, None, time)]
                place, expected_answers = log.lookup_offset(offset), log.offsets_for_times([time])[0]
                expected += [
                    place.position if place else None,
                    expected_answers["position"] if expected_answers["position"] >= 0 else None,
                ]
    order = list(range(len(rows)))
    if not ordered:
        rng.shuffle(order)
    answers = ask(plans, [rows[i] for i in order], size)
    for i, answer in zip(order, answers, strict=True):
        if rows[i][3] in (-1, -2) and rows[i][2] is None:
            assert answer["status"] == "found"
        else:
            assert answer["position"] == expected[i], rows[i]


def test_unanswerable_queries_get_a_status(logs):
    plans, _ = logs
    rows = [
        ("two-parts", 2**40, 1, None), ("two-parts", -1, 1, None), ("two-parts", None, 1, None), (None, 0, 1, None),
        ("two\0-parts", 0, 1, None), ("", 0, 1, None), ("two-parts-0", 0, None, 5), ("two-parts", 0, None, None),
        ("two-parts", 0, None, -4), ("two-parts", 0, -1, None), ("two-parts", 0, 2**62, None),
        ("two-parts", 0, None, 2**62),
    ]  # fmt: skip
    expected = ["no_partition"] * 7 + ["no_query"] * 2 + ["out_of_range"] * 2 + ["none"]
    assert [answer["status"] for answer in ask(plans, rows, 5)] == expected


def open_folders():
    """Return the folders of the partitions whose files this process holds open, or in memory."""
    files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    files += [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return {Path(file).parent for file in files if file.endswith(".log")}


def test_lookup_closes_log_files(logs):
    plans, _ = logs
    before = open_folders()  # folders of earlier tests: a traceback may hold an open file until it is collected
    batch = pa.table({"topic": ["two-parts"] * 4, "partition": [0, 0, 1, 1], "offset": [1, 2, 1, 2]}).to_batches()[0]
    answers = lookup_table(plans, iter([batch, batch]))
    next(answers)
    assert len(open_folders() - before) == 1
    list(answers)
    assert open_folders() <= before


def test_damaged_log_gives_a_status(tmp_path):
    log = write_partition(tmp_path / "t-0", "a=1 | b=2").folder / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[16] = 9
    log.write_bytes(data)
    plans = {("t", 0): archived_partitions(str(tmp_path), EVERY_TOPIC, [])[0]}
    assert [answer["status"] for answer in ask(plans, [("t", 0, 1, None), ("t", 0, None, 1)], 2)] == ["magic"] * 2


def test_transaction_from_a_deleted_segment_is_still_open(tmp_path):
    """Same rule as the data source: the snapshot at the first segment shows the open transaction."""
    folder = write_partition(
        tmp_path / "t-0", "a=1 | b=2 | {pid=1 txn} c=3 || {pid=2 txn} d=4 | {pid=2 commit} || e=5"
    ).folder
    (plan,) = archived_partitions(str(tmp_path), EVERY_TOPIC, [])
    assert ends(plan) == (0, 2)
    for path in files_in(folder, "00000000000000000000.*"):
        path.unlink()
    for checkpoint in (None, 0, 3):
        if checkpoint is not None:
            (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {checkpoint}\n")
        (plan,) = archived_partitions(str(tmp_path), EVERY_TOPIC, [])
        (partition,) = source_partitions(parse_options("kafka_log", tmp_path))
        assert ends(plan) == find_ends(partition, committed=True)[:2] == (3, 3)


def ends(plan: SourcePartition) -> tuple[int, int]:
    with open_log(plan, committed=True) as log:
        return log.earliest, log.latest


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("s")])
def test_timestamps_become_epoch_milliseconds(kind):
    moments = [datetime.datetime(2026, 11, 21, 14, 5), datetime.datetime(1969, 12, 31, 23, 59, 59), None]
    assert as_ms(pa.array(moments, kind)).to_pylist() == [1_795_269_900_000, None, None]
    assert as_ms(pa.array([-3, 5], pa.int32())).to_pylist() == [-3, 5]
