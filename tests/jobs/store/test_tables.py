from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from jobs.errors import ConflictError, NoGenerationError, NoLockError
from jobs.store.rows import Checkpoint, PartitionState, RunRow, Segment, arrow_schema, from_arrow, to_arrow
from tests.builders.stores import make_commit, row

ROOT = Path(__file__).resolve().parents[3]


def test_rows_and_columns_agree():
    made = row(Checkpoint, topic="t", topic_id=None, last_batch_leader_epoch=-1)
    table = to_arrow(Checkpoint, [made])
    assert table.schema.field("partition").type == pa.int32()
    assert table.schema.field("generation").type == pa.int64()
    assert from_arrow(Checkpoint, table) == [made]
    for kind in (Checkpoint, Segment, PartitionState, RunRow):
        assert arrow_schema(kind).names == [field.name for field in dataclasses.fields(kind)]
    assert arrow_schema(PartitionState).field("dirty_ratio").type == pa.float64()
    assert arrow_schema(Segment).field("cleaned").type == pa.bool_()


def test_a_uri_that_was_stored_with_credentials_is_known_without_them():
    for kind in (Checkpoint, RunRow):
        table = to_arrow(kind, [row(kind, topic="t", archive_uri="s3://AKIA:hush@bucket/a"), row(kind, topic="u")])
        assert [each.archive_uri for each in from_arrow(kind, table)] == ["s3://bucket/a", row(kind).archive_uri]


def test_a_store_without_a_lock_is_refused_unless_one_writer_is_promised(tmp_path):
    from jobs.store.tables import State
    from udfs.storage import Root

    root = Root("mock://store", pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "")
    with pytest.raises(NoLockError, match="second writer"), State(None, root).lock():
        pass
    with State(None, root, single_writer=True).lock():
        pass


def test_the_lock_excludes_other_processes_and_re_enters(tmp_path):
    from jobs.store.tables import State
    from udfs.storage import open_root

    state = State(None, open_root(str(tmp_path)), lock_seconds=0.2)
    other = State(None, open_root(str(tmp_path)), lock_seconds=0.2)  # another descriptor: as another process
    with state.lock(), state.lock(), pytest.raises(ConflictError, match="another process holds it"), other.lock():
        pass
    with other.lock():
        pass


@pytest.fixture
def state(spark, tmp_path):
    from jobs.store.tables import open_state

    return open_state(spark, str(tmp_path / "store"))


@pytest.mark.spark
@pytest.mark.slow
def test_commits_are_read_back(state):
    assert not state.exists()
    assert state.current() == ({}, {})
    checked = []
    first = [make_commit(0, 1, "r1"), make_commit(1, 1, "r1", segments=0)]
    state.commit_wave(first, 0, lambda: checked.append(state.exists()))
    assert checked == [False]  # files are listed before the switch
    second = make_commit(0, 2, "r2", "r1", segments=1)
    state.commit_wave([second, make_commit(2, 1, "r2")], 0)

    checkpoints, manifests = state.current()
    assert {key: (row.generation, row.run_id) for key, row in checkpoints.items()} == {
        ("t", 0): (2, "r2"), ("t", 1): (1, "r1"), ("t", 2): (1, "r2"),
    }  # fmt: skip
    assert checkpoints["t", 0] == second.checkpoint
    assert manifests["t", 0] == second.segments
    assert manifests["t", 1] == []
    assert [row.base_offset for row in state.manifest("t", 0, 1)] == [0, 10]
    assert state.manifest("t", 9) == []
    assert [run.generation_after for run in state.history("t", 0)] == [2, 1]
    assert state.histories(["other"]) == {}
    with pytest.raises(NoGenerationError, match="one of 1, 2"):
        state.manifest("t", 0, 3)

    # the same wave again, as a retry after a lost answer: nothing is added, nothing fails
    state.commit_wave([second, make_commit(2, 1, "r2")], 0)
    assert len(state.manifest("t", 0)) == 1

    # a run that died left rows under the same generation number: they belong to nobody
    state._append_all([make_commit(0, 3, "dead", "r2", segments=5)], 0)
    state.commit_wave([make_commit(0, 3, "r3", "r2", segments=3)], 0)
    assert len(state.manifest("t", 0)) == 3
    assert [run.run_id for run in state.history("t", 0)] == ["r3", "r2", "r1"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_wave_is_all_or_nothing(state, monkeypatch):
    state.commit_wave([make_commit(0, 1, "r1"), make_commit(1, 1, "r1")], 0)
    before = state.checkpoints()
    for late in (
        make_commit(1, 1, "r2"),  # planned before r1 committed
        make_commit(1, 2, "r2", "other"),  # the same generation number, of another run
        make_commit(1, 3, "r2", "r1"),  # generations ahead
    ):
        with pytest.raises(ConflictError, match="t-1: expected generation") as raised:
            state.commit_wave([make_commit(0, 2, "r2", "r1"), make_commit(5, 1, "r2"), late], 0)
        assert raised.value.exit_code == 4
        assert raised.value.fields["partitions"] == [["t", 1]]
        assert state.checkpoints() == before
    with pytest.raises(ConflictError, match="no generation"):
        state.commit_wave([make_commit(7, 2, "r2", "r1")], 1)

    def gone():
        raise FileNotFoundError("0.log")

    with pytest.raises(FileNotFoundError):
        state.commit_wave([make_commit(0, 2, "r3", "r1")], 0, gone)
    assert state.checkpoints() == before

    # Delta's own conflict: our partitions are as planned, so the MERGE is tried again
    from delta.exceptions import ConcurrentAppendException

    real, tries = state._merge, []

    def merge(commits):
        tries.append(1)
        if len(tries) == 1:
            raise ConcurrentAppendException("another writer", "at", None)
        real(commits)

    monkeypatch.setattr(state, "_merge", merge)
    state.commit_wave([make_commit(0, 2, "r4", "r1")], 0)
    assert len(tries) == 2
    assert state.checkpoints()["t", 0].run_id == "r4"


@pytest.mark.spark
@pytest.mark.slow
def test_states_are_one_row_a_partition(state):
    state.set_states([row(PartitionState, topic="t", partition=p, state="dirty") for p in range(3)])
    state.set_states([row(PartitionState, topic="t", partition=1, state="clean", reason=None)])
    assert {key[1]: row.state for key, row in state.states().items()} == {0: "dirty", 1: "clean", 2: "dirty"}
    assert state.vacuum_state(dry_run=True) == 0
    state.vacuum_state()
    assert len(state.states()) == 3


def _child(store, code):
    """Another real process with a session of its own."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom jobs.spark import session\n"
        "from jobs.store.tables import open_state\n"
        "from tests.builders.stores import make_commit\n"
        f"store = Path({str(store)!r})\nstate = open_state(session.start(), str(store))\n"
        "state.current()\n(store / 'ready').touch()\n" + code
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)


def _wait_for(path, child):
    deadline = time.monotonic() + 180
    while not path.exists():
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.spark
@pytest.mark.slow
def test_two_processes_race_for_a_partition(state, tmp_path):
    store = tmp_path / "store"
    state.commit_wave([make_commit(0, 1, "r1"), make_commit(1, 1, "r1")], 0)
    code = """
while not (store / 'go').exists(): time.sleep(0.001)
from jobs.errors import ConflictError
try:
    state.commit_wave([make_commit(0, 2, "theirs", "r1"), make_commit(2, 1, "theirs")], 0)
except ConflictError:
    sys.exit(4)
"""
    with _child(store, code) as child:
        _wait_for(store / "ready", child)
        (store / "go").touch()
        try:
            state.commit_wave([make_commit(0, 2, "ours", "r1"), make_commit(1, 2, "ours", "r1")], 0)
            ours = 0
        except ConflictError as error:
            ours = error.exit_code
        theirs = child.wait(120)
    assert sorted((ours, theirs)) == [0, 4]
    runs = {key[1]: row.run_id for key, row in state.checkpoints().items()}
    assert runs == ({0: "ours", 1: "ours"} if ours == 0 else {0: "theirs", 1: "r1", 2: "theirs"})


@pytest.mark.spark
@pytest.mark.slow
def test_a_kill_between_the_appends_and_the_switch_leaves_the_old_generation(state, tmp_path):
    store = tmp_path / "store"
    state.commit_wave([make_commit(0, 1, "r1")], 0)
    code = """
def stop():
    (store / 'appended').touch()
    time.sleep(300)
state.commit_wave([make_commit(0, 2, "killed", "r1", segments=7)], 0, stop)
"""
    with _child(store, code) as child:
        _wait_for(store / "appended", child)
        os.kill(child.pid, signal.SIGKILL)
    assert state.checkpoints()["t", 0].run_id == "r1"
    assert len(state.manifest("t", 0)) == 2
    assert [run.run_id for run in state.history("t", 0)] == ["r1"]
    state.commit_wave([make_commit(0, 2, "killed", "r1", segments=7)], 0)  # the same run again: its rows are there once
    assert len(state.manifest("t", 0)) == 7
    assert [run.run_id for run in state.history("t", 0)] == ["killed", "r1"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_store_of_before_the_column_anew_is_read_and_written(state, spark):
    """`cleaner_runs` as an older version made it; read by Spark and by delta-rs, before and after a new row."""
    from jobs.store.reader import table_rows

    old, new = make_commit(0, 1, "r1"), make_commit(0, 2, "r2", "r1")
    state.commit_wave([old], 0)
    table = to_arrow(RunRow, [old.run]).drop_columns(["anew"])
    spark.createDataFrame(table).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
        state.uri("cleaner_runs")
    )
    assert "anew" not in state.load("cleaner_runs").columns
    assert [run.anew for run in state.history("t", 0)] == [False]
    assert [run.anew for run in table_rows(state.root, "cleaner_runs", RunRow)] == [False]
    state.commit_wave([dataclasses.replace(new, run=dataclasses.replace(new.run, anew=True))], 0)
    assert [(run.run_id, run.anew) for run in state.history("t", 0)] == [("r2", True), ("r1", False)]
    found = {run.run_id: run.anew for run in table_rows(state.root, "cleaner_runs", RunRow)}
    assert found == {"r1": False, "r2": True}
