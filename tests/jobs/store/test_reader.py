"""A store read by delta-rs and by Spark: the same rows, the same order, and never another store."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs.errors import MissingPathError
from jobs.spark.stores import open_tables
from jobs.store.generations import made_by, manifests_of, open_store, runs_at
from jobs.store.paths import CHECKPOINTS, RUNS, SEGMENTS, table_folder
from jobs.store.reader import StoreReader
from jobs.store.rows import Checkpoint, Commit, RunRow, Segment
from jobs.store.tables import State, open_state
from tests.builders.archives import HOUR, Lab
from tests.builders.logs import START_MS, write_partition
from tests.builders.stores import row, run_id
from udfs.storage import open_root

ROOT = Path(__file__).resolve().parents[3]


def commit(partition, generation, end=100, topic="t", anew=False, other=0):
    """Generation `generation` of one partition, planned on the one before."""
    shared = {"topic": topic, "partition": partition, "generation": generation, "run_id": run_id(generation, other)}
    parent = run_id(generation - 1) if generation > 1 else None
    facts = {"archive_uri": "/archive", "next_offset": end, "topic_id": None}
    return Commit(
        topic, partition, generation - 1, parent,
        row(Checkpoint, **shared, **facts, gaps="[[1, 2, 0, 9]]"),
        [row(Segment, **shared, base_offset=base, path=f"{base}.log") for base in (20, 0, 10)],
        row(RunRow, **shared, **facts, generation_before=generation - 1, generation_after=generation,
            parent_run_id=parent, anew=anew),
    )  # fmt: skip


def reads(tables, generation=None):
    """All that a job reads of a store."""
    current, chains = tables.checkpoints(), tables.histories()
    generations = [made_by(run) for run in runs_at(current, chains, generation).values()]
    rows = tables.segments_of_runs([run_id(1), run_id(2), run_id(3, 7), "none"])
    return (
        current, chains, tables.histories(["u"]), tables.histories([]), manifests_of(tables, generations),
        sorted(rows, key=lambda s: (s.topic, s.partition, s.generation, s.run_id, s.base_offset)),
        tables.manifests({}), tables.segments_of_runs([]),
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
def test_both_readers_give_the_same_rows(spark, tmp_path):
    folder = tmp_path / "a store #1"
    state = open_state(spark, str(folder))
    state.commit_wave([commit(0, 1), commit(1, 1), commit(0, 1, topic="u")], 0)
    state.commit_wave([commit(0, 2, end=200, anew=True)], 1)
    state._append_all([commit(0, 3, other=7)], 2)  # a run that died
    reader = open_tables(open_store(str(folder)))
    assert isinstance(reader, StoreReader)
    assert not isinstance(open_tables(open_store(str(folder))), State)
    for generation in (None, 1, 2, 3):
        assert reads(reader, generation) == reads(state, generation)
    current = reader.checkpoints()
    assert {key: found.generation for key, found in current.items()} == {("t", 0): 2, ("t", 1): 1, ("u", 0): 1}
    assert [run.began_anew for run in reader.histories()["t", 0]] == [True, False]
    assert [s.base_offset for s in reader.manifests({("t", 0): (2, run_id(2))})["t", 0]] == [0, 10, 20]
    assert runs_at(current, reader.histories(), 2).keys() == {("t", 0)}

    # what is read stays as it was; who opens the store again sees the next generation
    state.commit_wave([commit(1, 2, end=300)], 3)
    assert reader.checkpoints() == current
    assert open_tables(open_store(str(folder))).checkpoints()["t", 1].generation == 2


@pytest.mark.spark
@pytest.mark.slow
def test_no_other_store_is_read(spark, tmp_path):
    """delta-rs takes `a%25` for `a%`: Spark reads such a store, and who has no Spark is refused."""
    for name, end in (("a%25", 7), ("a%", 8)):
        open_state(spark, str(tmp_path / name)).commit_wave([commit(0, 1, end=end)], 0)
    for name, end, kind in (("a%25", 7, State), ("a%", 8, StoreReader)):
        tables = open_tables(open_store(str(tmp_path / name)))
        assert isinstance(tables, kind)
        assert [one.next_offset for one in tables.checkpoints().values()] == [end]
    with pytest.raises(MissingPathError, match="expected a path without"):
        StoreReader(open_root(str(tmp_path / "a%25"))).checkpoints()


def test_a_table_that_is_not_there_is_no_empty_one(tmp_path):
    with pytest.raises(MissingPathError, match="expected a store, with state/compaction_checkpoints, found none"):
        open_store(str(tmp_path))
    (tmp_path / "state" / "compaction_checkpoints").mkdir(parents=True)
    tables = open_tables(open_store(str(tmp_path)))
    for read in (tables.checkpoints, tables.histories, lambda: tables.segments_of_runs(["x"])):
        with pytest.raises(MissingPathError, match="expected a Delta table"):
            read()


@pytest.mark.spark
@pytest.mark.slow
def test_a_damaged_table_gives_no_rows_in_silence(spark, tmp_path):
    state = open_state(spark, str(tmp_path / "whole"))
    for generation in (1, 2, 3):
        state.commit_wave([commit(0, generation)], generation)
    tables = (CHECKPOINTS, SEGMENTS, RUNS)
    for number, (table, kind, is_cut) in enumerate(itertools.product(tables, ("commit", "rows"), (False, True))):
        store = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        folder = store / table_folder(table)
        if kind == "commit":
            victim = sorted((folder / "_delta_log").glob("*.json"))[1]
        else:
            victim = Path(DeltaTable(str(folder)).file_uris()[0])
        reads(open_tables(open_store(str(store))))
        if is_cut:
            victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
        else:
            victim.unlink()
        with pytest.raises((MissingPathError, OSError, pa.ArrowInvalid)):
            reads(open_tables(open_store(str(store))))


@pytest.mark.spark
@pytest.mark.slow
def test_who_only_reads_a_store_needs_no_java(spark, tmp_path):
    lab = Lab(spark, tmp_path)
    write_partition(lab.archive / "t-0", "a=1 b=2 | a=3 || c=1 a=4 || d=1")
    assert lab.run(START_MS + HOUR).generations == {("t", 0): 1}
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}  # where there is no Java
    for words, code in (
        (["verify", "--store", lab.store], 0),
        (["lookup", "--store", lab.store, "--time", "latest"], 0),
        (["restore", "--store", lab.store, "--output", tmp_path / "out"], 0),
        (["vacuum", "--store", lab.store], 5),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "jobs", *map(str, words)],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert (tmp_path / "out" / "t-0" / "00000000000000000000.log").stat().st_size > 0
