"""Generations of a store as snapshots: the current one, an old one, and while the next one is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chispa import assert_df_equality

from lastkey.jobs.data_source.read import read_task
from lastkey.jobs.data_source.source import select_columns
from lastkey.jobs.errors import NO_GENERATION, ConflictError, MissingPathError, UsageError
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.listing import Segment
from tests.builders.archives import HOUR, Lab, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.logs import log_text, write_partition, write_segment
from tests.builders.nights import run_every_night
from tests.builders.sources import BY_NAME, _Partition, list_tasks, parse_options, read
from tests.builders.stores import commit_with_files, manifest_segments, row, run_id
from tests.golden import golden
from tests.reference.log import decode_log

TOPICS = {"s-plain": "none-tomb", "s-txn": "txn-zstd", "s-zstd": "zstd-headers"}


class Store:
    """Two generations of t-0, one of u-0, which lies in the archive alone."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.store = folder / "archive", folder / "store"
        write_partition(self.archive / "t-0", "a=1 b=2 a=3 || c=4 a=5 || d=6 | e=7")
        write_partition(self.archive / "u-0", "u=1")
        self.folder(1), self.folder(2)
        write_segment(self.folder(1), "b=2@1 a=3@2")
        write_segment(self.folder(2), "b=2@1 | a=5@4")
        self.commit(1, 1, [self.segment(1, 0, 1, "archive", topic="u")], topic="u")
        self.commit(1, 5, [self.segment(1, 0, 3, "store"), self.segment(1, 3, 5, "archive")])
        with pytest.raises(ConflictError):
            self.commit(1, 9, [self.segment(1, 0, 3, "store")], run_id=run_id(1, 1))
        self.commit(2, 6, [self.segment(2, 0, 5, "store"), self.segment(2, 5, 6, "archive", size=True)])

    def commit(self, generation, end, segments, topic="t", **run):
        shared = self.shared(generation, end, topic) | run
        made = Commit(row(Checkpoint, **shared), segments, row(RunRow, **shared))
        commit_with_files(open_state(str(self.store)), made)

    def folder(self, generation: int) -> Path:
        path = self.store / "segments" / "t-0" / f"{generation}-{run_id(generation)}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def segment(self, generation, base, end, root, topic="t", size=False):
        name = f"{base:020d}.log"
        folder = self.folder(generation).relative_to(self.store) if root == "store" else Path(f"{topic}-0")
        path = (self.store if root == "store" else self.archive) / folder / name
        first_batch = 12 + int.from_bytes(path.read_bytes()[8:12], "big")
        return row(
            Segment, base_offset=base, root=root, path=str(folder / name), next_offset=end,
            size_bytes=first_batch if size else path.stat().st_size,
        )  # fmt: skip

    def shared(self, generation, end, topic):
        return {
            "topic": topic, "partition": 0, "generation": generation, "run_id": run_id(generation),
            "archive_uri": str(self.archive), "next_offset": end, "generation_after": generation,
            "generation_before": generation - 1, "parent_run_id": run_id(generation - 1) if generation > 1 else None,
        }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("data_source_store"))


def keys(path=None, **options: str) -> list[tuple[str, int, bytes]]:
    rows = read("kafka_log", path, columns="topic,offset,key", **options).to_pylist()
    return [(r["topic"], r["offset"], r["key"]) for r in rows]


def test_current_and_older_generations_are_read(made):
    second = [("t", 1, b"b"), ("t", 4, b"a"), ("t", 5, b"d"), ("u", 0, b"u")]
    assert keys(store=str(made.store)) == second
    assert keys(store=str(made.store), generation="2") == second[:3]
    first = [("t", 1, b"b"), ("t", 2, b"a"), ("t", 3, b"c"), ("t", 4, b"a")]
    assert keys(store=str(made.store), generation="1", topics="t") == first
    assert keys(store=str(made.store), generation="1") == [*first, ("u", 0, b"u")]
    assert keys(store=str(made.store), topics="u", key="u") == second[3:]
    batches = read("kafka_log_batches", None, store=str(made.store), generation="2")
    assert batches["base_offset"].to_pylist() == [1, 4, 5]


def test_marker_in_the_archive_decides_transactions_in_the_store(tmp_path):
    lies = Store(tmp_path)
    write_segment(lies.folder(3), "{pid=1 txn} b=2@1 | a=5@4")
    write_partition(lies.archive / "t-0", "a=1 b=2 a=3 || c=4 a=5 || {pid=1 abort} | e=7")
    lies.commit(3, 7, [lies.segment(3, 0, 5, "store"), lies.segment(3, 5, 7, "archive")])
    options = {"store": str(lies.store), "topics": "t"}
    assert [offset for _, offset, _ in keys(**options)] == [1, 4, 6]
    assert [offset for _, offset, _ in keys(isolationLevel="read_committed", **options)] == [4, 6]


def test_moved_archive_can_be_named_by_option(made, tmp_path):
    moved = Path(shutil.copytree(made.archive, tmp_path / "elsewhere"))
    shutil.rmtree(moved / "u-0")
    assert keys(moved, store=str(made.store), topics="t") == keys(store=str(made.store), topics="t")


def test_queries_need_no_history_table(made, tmp_path):
    store = Path(shutil.copytree(made.store, tmp_path / "copied"))
    shutil.rmtree(store / "state" / "cleaner_runs")
    for more in ({}, {"generation": "1"}):
        assert keys(store=str(store), **more) == keys(store=str(made.store), **more)


def test_a_missing_generation_store_or_topic_is_refused(made, tmp_path):
    with raises_kind(NO_GENERATION, match="generation 3: never committed; expected one of 1, 2"):
        read("kafka_log", None, store=str(made.store), generation="3")
    with pytest.raises(MissingPathError, match="expected a store, with state/compaction_checkpoints, found none"):
        read("kafka_log", None, store=str(tmp_path))
    with pytest.raises(UsageError, match="matches tt"):
        read("kafka_log", None, store=str(made.store), topics="tt")
    with pytest.raises(UsageError, match="at most one path"):
        read("kafka_log", ["a", "b"], store=str(made.store))
    vacuumed = Path(shutil.copytree(made.store, tmp_path / "vacuumed"))
    shutil.rmtree(vacuumed / "segments" / "t-0" / f"1-{run_id(1)}")
    with raises_kind(NO_GENERATION, match="its files are gone"):
        read("kafka_log", None, store=str(vacuumed), generation="1")
    assert len(keys(store=str(vacuumed), topics="t")) == 3


def test_generation_with_logs_in_folders_of_earlier_generations_is_read(tmp_path):
    lab = run_every_night(tmp_path)
    current = lab.state().current()
    segments = current[1]["t", 0]
    folders = {segment.path.rpartition("/")[0] for segment in segments if segment.root == "store"}
    assert folders - {current[0]["t", 0].folder}, "no log of an earlier generation is used"
    records = [r for b in lab.batches(segments) if not b.control for r in b.records]
    assert keys(store=str(lab.store)) == [("t", r.offset, r.key) for r in records]
    log = lab.path(segments[0])
    log.write_bytes(log.read_bytes()[:-1])
    with raises_kind(NO_GENERATION, match=log.name):
        read("kafka_log", None, store=str(lab.store))


@pytest.mark.spark
@pytest.mark.slow
def test_generations_written_by_compact_are_read(spark, tmp_path, tmp_path_factory):
    """Two runs of compact on real partitions; the first generation's tasks are planned before the second run."""
    cases = golden(tmp_path_factory)
    lab = Lab(None, tmp_path)
    now = max(cases[name].now_ms(1, cases[name].partitions[0]) for name in TOPICS.values())
    for topic, name in TOPICS.items():
        put(only_input(cases[name]), lab.archive / f"{topic}-0", segments=2, batches=2)
    lab.run(now)
    planned = list_tasks("kafka_log", None, store=str(lab.store))
    first = expected(lab, 1)
    for topic, name in TOPICS.items():
        put(only_input(cases[name]), lab.archive / f"{topic}-0")
    lab.run(now + 30 * HOUR, force=True)
    options = parse_options("kafka_log", None, store=str(lab.store))
    schema = select_columns(BY_NAME["kafka_log"].columns, options)
    while_it_ran = [r for task in planned for b in read_task(options, schema, _Partition(task)) for r in b.to_pylist()]
    assert comparable_rows(while_it_ran) == first
    assert comparable_rows(read("kafka_log", None, store=str(lab.store), generation="1").to_pylist()) == first
    second = expected(lab, 2)
    assert second != first
    assert comparable_rows(read("kafka_log", None, store=str(lab.store), splitBytes="3000").to_pylist()) == second
    frame = spark.read.format("kafka_log").option("store", str(lab.store)).option("generation", "2").load()
    columns = "topic string, offset bigint, key binary, value binary"
    frame_rows = frame.select("topic", "offset", "key", "value")
    assert_df_equality(frame_rows, spark.createDataFrame(second, columns), ignore_row_order=True)
    assert log_text(*[lab.path(s) for s in manifest_segments(lab.state(), "s-plain", 0)][:1])


def comparable_rows(rows: list[dict]) -> list[tuple]:
    return sorted((r["topic"], r["offset"], r["key"], r["value"]) for r in rows)


def expected(lab: Lab, generation: int) -> list[tuple]:
    """Return the records of the manifest that the job's own state names, decoded by the reference."""
    out = []
    for topic in TOPICS:
        for segment in manifest_segments(lab.state(), topic, 0, generation):
            for batch in decode_log(lab.path(segment).read_bytes()[: segment.size_bytes]):
                if not batch.control:
                    out += [(topic, record.offset, record.key, record.value) for record in batch.records]
    return sorted(out)
