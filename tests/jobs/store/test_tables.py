"""The state of a store: commits are read as written, a second or killed writer loses no commit of others, and stores of
other versions are converted or refused. Real tables and real processes; Spark only where Spark is asked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from lastkey.jobs.errors import DAMAGED_TABLE, NO_GENERATION, ConflictError, MissingPathError, UsageError
from lastkey.jobs.store import rows as store_rows
from lastkey.jobs.store import table, writing
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.paths import CHECKPOINTS, RUNS, STATES
from lastkey.jobs.store.rows import (
    Checkpoint,
    PartitionState,
    RunRow,
    arrow_schema,
    checkpoint_schema,
    from_arrow,
    parse_segment,
    to_arrow,
)
from lastkey.jobs.store.tables import open_state
from tests.builders.errors import raises_kind
from tests.builders.limits import within
from tests.builders.stores import commit_with_files, make_commit, make_partition_state, manifest_segments, row, run_id

ROOT = Path(__file__).resolve().parents[3]
CLEAN, DIRTY = "clean", "dirty"
R1, R2, R3, R4, OURS, THEIRS, KILLED, DEAD, NEXT = (run_id(n) for n in range(1, 10))


def test_rows_and_columns_agree():
    made = row(Checkpoint, topic="t", topic_id=None, last_batch_leader_epoch=-1)
    table = to_arrow(Checkpoint, [made])
    assert table.schema.field("partition").type == pa.int32()
    assert table.schema.field("generation").type == pa.int64()
    assert from_arrow(Checkpoint, table) == [made]
    for kind in (Checkpoint, PartitionState, RunRow):
        names = ["anew" if field.name == "reset" else field.name for field in dataclasses.fields(kind)]
        assert arrow_schema(kind).names == names
    assert arrow_schema(PartitionState).field("dirty_ratio").type == pa.float64()
    assert checkpoint_schema().field("segments").type.value_type.field("cleaned").type == pa.bool_()


@pytest.fixture
def store(tmp_path):
    """Path of a store that is still to be made."""
    return tmp_path / "store"


@pytest.fixture
def state(store):
    return open_state(str(store))


def current_runs(state):
    """Return the run of every partition's generation, by number of partition."""
    return {key[1]: row.run_id for key, row in state.checkpoints().items()}


def with_state(commit, state=CLEAN):
    return dataclasses.replace(commit, partition_state=make_partition_state(commit, state))


def numbered(generation):
    """Return the commit of a generation by the run of its number."""
    return make_commit(0, generation, run_id(generation), run_id(generation - 1) if generation > 1 else None)


# -- what is committed is read back


LOG = "00000000000000000000.log"
OF_OTHER = f"{R1}/../../u-0/1-{R1}"  # a run id that leads to another partition's folder


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("segments", {"root": "store", "path": f"../other/segments/t-0/1-{R1}/{LOG}"}),
        ("segments", {"root": "store", "path": f"segments/t-0/1-{R1}/../../u-0/1-{R1}/{LOG}"}),
        ("segments", {"root": "store", "path": f"/t-0/{LOG}"}),
        ("segments", {"root": "store", "path": f"segments/u-0/1-{R1}/{LOG}"}),
        ("segments", {"root": "archive", "path": f"u-0/{LOG}"}),
        ("segments", {"root": "archive", "path": f"t-1/{LOG}"}),
        ("segments", {"root": "archive", "path": f"../other/t-0/{LOG}"}),
        ("segments", {"root": "archive", "path": "t-0/0.log"}),
        ("segments", {"root": "other"}),
        ("segments", {"key_files": f'[[0, 1, "segments/u-0/1-{R1}/keys", 1, 0]]'}),
        ("segments", {"key_files": "no JSON"}),
        ("checkpoint", {"run_id": OF_OTHER}),
        ("checkpoint", {"run_id": "r1"}),
        ("checkpoint", {"back_to": 1, "back_to_run_id": OF_OTHER}),
    ],
)
def test_rows_that_name_files_outside_the_store_are_refused(state, kind, values):
    """A change of a row cannot make restore serve a file of another partition, or one outside of the store."""
    made = make_commit(0, 1, R1, segments=1)
    first = made.segments[0] if kind == "segments" else getattr(made, kind)
    changed = dataclasses.replace(first, **values)
    writing.commit_wave(state, [dataclasses.replace(made, **{kind: [changed] if kind == "segments" else changed})])
    reads = {
        "segments": (state.current, lambda: state.manifests([made.checkpoint])),
        "checkpoint": (state.current, state.checkpoints, state.histories),
    }
    for read in reads[kind]:
        with raises_kind(DAMAGED_TABLE, match="runs and files of its own partition, found"):
            read()


@pytest.mark.parametrize("topic", ["../t", ".", "..", "", "t t", "t" * 250])
def test_rows_with_invalid_topic_names_are_refused(topic):
    checkpoint = dataclasses.replace(make_commit(0, 1, R1).checkpoint, topic=topic)
    with raises_kind(DAMAGED_TABLE, match="runs and files of its own partition, found"):
        store_rows.check_places([checkpoint.places], "table", DAMAGED_TABLE)


@pytest.mark.parametrize("path", [f"t-00/{LOG}", f"disk 1//t-0/{LOG}", f"..a/t-0/{LOG}", f"/t-0/{LOG}"])
def test_folders_of_an_archive_may_have_any_names(state, path):
    made = make_commit(0, 1, R1, segments=1)
    segment = dataclasses.replace(made.segments[0], path=path)
    writing.commit_wave(state, [dataclasses.replace(made, segments=[segment])])
    assert state.current()[1][made.key] == [segment]


def test_commits_are_read_as_written(state):
    assert not state.checkpoints()
    assert state.current() == ({}, {})
    assert state.states() == {}
    assert state.histories() == {}
    first = [make_commit(0, 1, R1), make_commit(1, 1, R1, segments=0)]
    commit_with_files(state, *first)
    assert state.checkpoints()
    second = make_commit(0, 2, R2, R1, segments=1)
    writing.commit_wave(state, [second, make_commit(2, 1, R2)])
    writing.commit_wave(state, [])  # nothing to say

    checkpoints, manifests = state.current()
    assert {key: (row.generation, row.run_id) for key, row in checkpoints.items()} == {
        ("t", 0): (2, R2), ("t", 1): (1, R1), ("t", 2): (1, R2),
    }  # fmt: skip
    assert checkpoints["t", 0] == second.checkpoint
    assert manifests["t", 0] == second.segments
    assert manifests["t", 1] == []
    assert [row.base_offset for row in manifest_segments(state, "t", 0, 1)] == [0, 10]
    assert manifest_segments(state, "t", 0, 1) == sorted(first[0].segments, key=lambda row: row.base_offset)
    assert manifest_segments(state, "t", 9) == []
    assert [run.generation_after for run in state.histories()["t", 0]] == [2, 1]
    assert state.histories()["t", 0][0] == second.run
    assert state.histories(["other"]) == {}
    with raises_kind(NO_GENERATION, match="its folder has no manifest"):
        state.manifests([dataclasses.replace(second.checkpoint, generation=3, run_id=R3)])


def test_repeated_commit_of_a_wave_changes_nothing(state):
    """As for a caller that did not receive the answer to its commit."""
    wave = [make_commit(0, 1, R1), make_commit(1, 1, R1)]
    writing.commit_wave(state, wave)
    version = state.version()
    writing.commit_wave(state, wave)
    assert state.version() == version
    assert len(manifest_segments(state, "t", 0)) == 2
    assert [run.run_id for run in state.histories()["t", 0]] == [R1]


def test_current_generation_needs_no_history(state, store):
    """Manifests lie beside the checkpoints."""
    first, second = make_commit(0, 1, R1), with_state(make_commit(0, 2, R2, R1))
    writing.commit_wave(state, [first])
    writing.commit_wave(state, [second])
    (store / "state" / RUNS).rename(store / RUNS)
    again = open_state(str(store))
    checkpoints, manifests = again.current()
    assert checkpoints["t", 0] == second.checkpoint
    assert manifests["t", 0] == sorted(second.segments, key=lambda row: row.base_offset)
    assert again.states()["t", 0] == second.partition_state
    assert again.histories()["t", 0] == []


def test_a_generation_after_a_reset_keeps_the_one_before_in_its_history(state):
    second = make_commit(0, 2, R2, R1)
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    writing.commit_wave(state, [dataclasses.replace(second, run=dataclasses.replace(second.run, reset=True))])
    assert [(run.run_id, run.reset) for run in state.histories()["t", 0]] == [(R2, True), (R1, False)]
    assert state.histories().keys() == {("t", 0)}


@pytest.mark.slow
def test_many_waves_leave_few_files_and_lose_no_row(state, store, monkeypatch):
    monkeypatch.setattr("lastkey.jobs.store.writing._MOST_FILES", 4)
    state.now_ms = lambda: 0  # when these runs began: none is old
    for generation in range(1, 11):
        writing.commit_wave(state, [numbered(generation)])
    assert [run.generation_after for run in state.histories()["t", 0]] == list(range(10, 0, -1))
    for name in (CHECKPOINTS, RUNS):
        assert len(DeltaTable(store / "state" / name).file_uris()) <= 4


# -- all or nothing


def test_wave_is_atomic_and_names_changed_partitions(state):
    writing.commit_wave(state, [make_commit(0, 1, R1), make_commit(1, 1, R1)])
    before, version = state.checkpoints(), state.version()
    for late in (
        make_commit(1, 1, R2),  # planned before r1 committed
        make_commit(1, 2, R2, THEIRS),  # the same generation number, of another run
        make_commit(1, 3, R2, R1),  # generations ahead
    ):
        with pytest.raises(ConflictError, match="t-1: expected generation") as raised:
            writing.commit_wave(state, [make_commit(0, 2, R2, R1), make_commit(5, 1, R2), late])
        assert raised.value.exit_code == 4
        assert raised.value.fields["partitions"] == [["t", 1]]
        assert state.checkpoints() == before
    with pytest.raises(ConflictError, match="no generation"):
        writing.commit_wave(state, [make_commit(7, 2, R2, R1)])
    assert state.version() == version
    assert [run.run_id for run in state.histories()["t", 0]] == [R1]  # rows of dead runs belong to no history
    assert len(manifest_segments(state, "t", 0, 1)) == 2


def test_rows_of_a_killed_run_with_the_same_number_are_replaced(state):
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    with pytest.raises(ConflictError):
        writing.commit_wave(state, [make_commit(0, 2, DEAD, run_id(0), segments=5)])
    writing.commit_wave(state, [make_commit(0, 2, R2, R1, segments=3)])
    writing.commit_wave(state, [make_commit(0, 3, R3, R2)])
    assert [run.run_id for run in state.histories()["t", 0]] == [R3, R2, R1]


def test_files_are_checked_at_the_version_that_is_committed_on(state, store):
    """Before the switch, and once more where another run was first in between."""
    other, seen = open_state(str(store)), []

    def look():
        seen.append((state.version(), current_runs(state)))
        if len(seen) == 1:
            writing.commit_wave(other, [make_commit(1, 1, THEIRS)])

    writing.commit_wave(state, [make_commit(0, 1, OURS)], look)
    assert seen == [(-1, {}), (0, {1: THEIRS})]
    assert state.version() == 1
    assert current_runs(state) == {0: OURS, 1: THEIRS}

    def gone():
        raise FileNotFoundError("0.log")

    with pytest.raises(FileNotFoundError):
        writing.commit_wave(state, [make_commit(0, 2, R2, OURS)], gone)
    assert current_runs(state) == {0: OURS, 1: THEIRS}


def test_second_run_plans_again_and_conflicts_if_its_partition_changed(state, store):
    writing.commit_wave(state, [make_commit(0, 1, R1), make_commit(1, 1, R1)])
    other = open_state(str(store))

    def overtaken():
        if current_runs(other)[0] == R1:
            writing.commit_wave(other, [make_commit(0, 2, THEIRS, R1)])

    message = re.escape(f"t-0: expected generation 1 (run {R1}), found generation 2 (run {THEIRS})")
    with pytest.raises(ConflictError, match=message) as raised:
        writing.commit_wave(state, [make_commit(0, 2, OURS, R1), make_commit(1, 2, OURS, R1)], overtaken)
    assert raised.value.fields["partitions"] == [["t", 0]]
    assert current_runs(state) == {0: THEIRS, 1: R1}


# -- vacuum beside a run


def test_run_whose_folder_vacuum_announced_cannot_commit(state, store):
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    run = open_state(str(store))
    run.current()  # start of the run
    assert writing.announce_deletions(state, [f"segments/t-0/2-{R2}", "segments/u-0/1-x"], state.version())
    writing.commit_wave(state, [make_commit(1, 1, R1)])  # a mark is not for those whose folders it does not name
    message = f"segments/t-0/2-{R2}: expected the files that this run wrote, found a vacuum"
    with pytest.raises(ConflictError, match=message):
        writing.commit_wave(run, [make_commit(0, 2, R2, R1), make_commit(5, 1, R2)])
    assert current_runs(state) == {0: R1, 1: R1}
    later = open_state(str(store))
    later.current()
    writing.commit_wave(later, [make_commit(0, 2, R2, R1)])  # it began after the vacuum: its files are younger
    assert current_runs(state) == {0: R2, 1: R1}


def test_deletion_marker_is_committed_on_the_version_it_was_chosen_by(state, store):
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    seen = state.version()
    writing.commit_wave(open_state(str(store)), [make_commit(0, 2, R2, R1)])
    assert not writing.announce_deletions(state, [f"segments/t-0/2-{R2}"], seen)
    assert state.version() == seen + 1
    assert writing.announce_deletions(state, [f"segments/t-0/9-{run_id(9)}"], seen + 1)
    assert state.version() == seen + 2
    assert current_runs(state) == {0: R2}


# -- how partitions stand


def test_partition_states_have_one_row_per_partition(state):
    writing.set_states(state, [row(PartitionState, topic="t", partition=p, state=DIRTY) for p in range(3)])
    writing.set_states(state, [row(PartitionState, topic="t", partition=1, state=CLEAN, reason=None)])
    assert {key[1]: row.state for key, row in state.states().items()} == {0: DIRTY, 1: CLEAN, 2: DIRTY}
    assert state.checkpoints() == {}  # to stand is not to have a generation
    assert not state.checkpoints()
    with pytest.raises(MissingPathError):
        open_store(state.root.uri)
    assert manifest_segments(state, "t", 0) == []
    version = state.version()
    writing.set_states(state, [])
    assert state.version() == version


def test_partition_with_a_state_gets_its_first_generation(state):
    writing.set_states(state, [row(PartitionState, topic="t", partition=0, state="uncleanable", generation=-1)])
    commit = with_state(make_commit(0, 1, R1))
    writing.commit_wave(state, [commit])
    assert current_runs(state) == {0: R1}
    assert state.states() == {("t", 0): commit.partition_state}


def test_partition_state_is_committed_with_its_generation_and_keeps_sources(state):
    commit = with_state(make_commit(0, 1, R1))
    writing.commit_wave(state, [commit])
    dirty = row(PartitionState, topic="t", partition=0, state=DIRTY, generation=1)
    writing.set_states(state, [dirty])
    assert state.states() == {("t", 0): dirty}
    assert state.checkpoints()["t", 0] == commit.checkpoint
    assert manifest_segments(state, "t", 0) == sorted(commit.segments, key=lambda row: row.base_offset)


def test_run_with_an_outdated_snapshot_does_not_overwrite_the_newest_state(state, store):
    writing.commit_wave(state, [make_commit(0, 1, R1), make_commit(1, 1, R1)])
    writing.commit_wave(state, [with_state(make_commit(0, 2, THEIRS, R1))])
    version = state.version()
    late = [row(PartitionState, topic="t", partition=p, state="gap", generation=1) for p in (0, 1)]
    writing.set_states(state, late)
    assert {key[1]: row.state for key, row in state.states().items()} == {0: CLEAN, 1: "gap"}
    writing.set_states(state, late[:1])
    assert state.version() == version + 1


def test_cleaner_state_is_written_only_if_it_differs(state, store):
    def copied():
        version = table.head(state.root, STATES)
        states = from_arrow(PartitionState, table.rows(version, arrow_schema(PartitionState)))
        return version.number, {(row.topic, row.partition): row for row in states}

    writing.write_states(state)
    assert copied()[1] == {}
    writing.set_states(state, [row(PartitionState, topic="t", partition=p, state=DIRTY) for p in range(2)])
    writing.commit_wave(state, [with_state(make_commit(1, 1, R1))])
    writing.write_states(state)
    number, rows = copied()
    assert rows == state.states()
    assert {key[1]: row.state for key, row in rows.items()} == {0: DIRTY, 1: CLEAN}
    writing.write_states(state)
    assert copied() == (number, rows)


def test_table_vacuum_deletes_no_referenced_file(state):
    for generation in range(1, 4):
        writing.commit_wave(state, [numbered(generation)])
    assert writing.vacuum_state(state, dry_run=True) == 0  # all of it is young
    assert writing.vacuum_state(state) == 0
    assert current_runs(state) == {0: R3}
    writing.commit_wave(state, [make_commit(0, 4, R4, R3)])
    assert current_runs(state) == {0: R4}


# -- several processes


IMPORTS = """
import os, signal, sys
from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store import table, writing
from lastkey.jobs.store.tables import open_state
from tests.builders.stores import make_commit, run_id
"""


def python(script):
    """Start a process that reads lines from us and prints lines for us."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def child(store, code):
    """Start another process; it says `ready` once it has read the state, and continues on request."""
    made = python(
        f"{IMPORTS}\nstate = open_state({str(store)!r})\nstate.current()\nprint('ready', flush=True)\n"
        f"sys.stdin.readline()\n{code}"
    )
    assert made.stdout.readline() == "ready\n"
    return made


# A process that has imported all, and nothing else; of each line, the store and the code, it makes a child
FORKS = f"""
{IMPORTS}
import json
for line in sys.stdin:
    store, code = json.loads(line)
    forked = os.fork()
    if not forked:
        state = open_state(store)
        exec(code)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def exit_code():
    """Return the exit code of a process that runs this code on the state of a store."""
    with python(FORKS) as forks:

        def run(store, code):
            forks.stdin.write(json.dumps([str(store), code]) + "\n")
            forks.stdin.flush()
            return int(forks.stdout.readline())

        yield run
    assert forks.returncode == 0


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
def test_one_of_two_processes_commits_a_partition(state, store):
    """Each writer commits several generations of a shared partition and of its own one. Each commit has exactly one
    winner, and no commit is lost.
    """
    writing.commit_wave(state, [make_commit(p, 1, R1) for p in range(3)])
    code = """
won = []
for i in range(12):
    now = state.checkpoints()
    run, planned = run_id(i, NAME), {p: now["t", p] for p in (0, NAME)}
    wave = [make_commit(p, at.generation + 1, run, at.run_id) for p, at in planned.items()]
    try:
        writing.commit_wave(state, wave)
        won.append(run)
    except ConflictError:
        pass
print(*won)
"""
    children = [child(store, code.replace("NAME", str(name))) for name in (1, 2)]
    for process in children:
        go(process)
    won = [process.communicate(timeout=240)[0].split() for process in children]
    assert [process.returncode for process in children] == [0, 0]
    checkpoints, manifests = state.current()
    assert {run.run_id for run in state.histories()["t", 0]} == {R1, *won[0], *won[1]}
    for partition, wins in ((0, won[0] + won[1]), (1, won[0]), (2, won[1])):
        assert checkpoints["t", partition].generation == 1 + len(wins)
        assert len(state.histories()["t", partition]) == 1 + len(wins)
        assert len(manifests["t", partition]) == 2
    assert len(won[0]) + len(won[1]) >= 12  # a conflict is another's commit
    for name, wins in enumerate(won, 1):
        assert [run.run_id for run in reversed(state.histories()["t", name])] == [R1, *wins]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_any_commit_leaves_a_complete_generation(state, store, exit_code, when, nth):
    """The first is that of the history, the second is the switch."""
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    code = """
real, calls = table._commit, []
def commit(*args):
    calls.append(1)
    if len(calls) == NTH and WHEN == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args)
    if len(calls) == NTH:
        os.kill(os.getpid(), signal.SIGKILL)
table._commit = commit
writing.commit_wave(state, [make_commit(0, 2, run_id(7), run_id(1), segments=7)])
"""
    with within(120):
        assert exit_code(store, code.replace("NTH", str(nth)).replace("WHEN", repr(when))) == -signal.SIGKILL
    new = (when, nth) == ("after", 2)
    assert current_runs(state) == {0: KILLED if new else R1}
    assert len(manifest_segments(state, "t", 0)) == (7 if new else 2)
    assert [run.run_id for run in state.histories()["t", 0]] == ([KILLED, R1] if new else [R1])
    at = state.checkpoints()["t", 0]
    writing.commit_wave(state, [make_commit(0, at.generation + 1, NEXT, at.run_id, segments=3)])
    assert len(manifest_segments(state, "t", 0)) == 3
    assert [run.run_id for run in state.histories()["t", 0]] == ([NEXT, KILLED, R1] if new else [NEXT, R1])


def test_the_lock_excludes_other_processes(store):
    """Vacuum and the refresh of `time_index` take an exclusive lock; commits take no lock."""
    state = open_state(str(store))
    holder = child(store, "with state.lock():\n    print('held', flush=True)\n    sys.stdin.readline()\n")
    with holder:
        go(holder)
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConflictError, match="another process that holds it"), state.lock(0.1):
            pass
        writing.commit_wave(state, [make_commit(0, 1, R1)])
        go(holder)
        assert holder.wait(60) == 0
    with state.lock(0.1):
        assert current_runs(state) == {0: R1}


# -- stores of other versions


@pytest.mark.parametrize("other", [2, 4])
def test_different_store_format_is_refused_when_reading_and_committing(state, store, monkeypatch, other):
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    state.current()
    with monkeypatch.context() as patch:  # a version that is to come takes the store over
        patch.setattr(store_rows, "FORMAT", other)
        rows = DeltaTable(store / "state" / CHECKPOINTS).to_pyarrow_table().cast(store_rows.checkpoint_schema())
        write_deltalake(store / "state" / CHECKPOINTS, rows, mode="overwrite", schema_mode="overwrite")
    before = table.head(state.root, CHECKPOINTS).number
    late = row(PartitionState, topic="t", partition=0, state=DIRTY, generation=1)
    for ask in (
        open_state(str(store)).current,
        open_state(str(store)).states,
        lambda: writing.commit_wave(state, [make_commit(0, 2, R2, R1)]),
        lambda: writing.set_states(state, [late]),
        lambda: writing.announce_deletions(state, ["x"], before),
    ):
        with pytest.raises(UsageError, match=f"has format {other}, and this version of Lastkey reads only format 3"):
            ask()
    assert table.head(state.root, CHECKPOINTS).number == before


def test_another_delta_protocol_is_refused(state, store):
    """Another program, which can write deletion vectors, changed the table."""
    writing.commit_wave(state, [make_commit(0, 1, R1)])
    DeltaTable(store / "state" / CHECKPOINTS).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    for ask in (state.current, lambda: writing.commit_wave(state, [make_commit(0, 2, R2, R1)])):
        with pytest.raises(UsageError, match="expected Delta's protocol 1/2, found 3/7"):
            ask()


# -- Spark beside it


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_the_store_tables(state, store, spark):
    second = with_state(make_commit(0, 2, R2, R1))
    writing.commit_wave(state, [make_commit(0, 1, R1), with_state(make_commit(1, 1, R1, segments=0))])
    writing.commit_wave(state, [second])
    writing.set_states(state, [row(PartitionState, topic="t", partition=7, state=DIRTY, generation=-1)])
    writing.write_states(state)

    def read(name):
        return spark.read.format("delta").load(str(store / "state" / name)).toArrow()

    def ordered(rows):
        return sorted(rows, key=repr)

    runs = [run for chain in state.histories().values() for run in chain]
    assert ordered(from_arrow(RunRow, read(RUNS))) == ordered(runs)
    stood = {(row.topic, row.partition): row for row in from_arrow(PartitionState, read(STATES))}
    assert stood == state.states()
    decided = {(row["topic"], row["partition"]): row for row in read(CHECKPOINTS).to_pylist()}
    assert decided.keys() == {("t", 0), ("t", 1), ("t", 7)}
    at = decided["t", 0]
    assert {name: at[name] for name in arrow_schema(Checkpoint).names} == dataclasses.asdict(second.checkpoint)
    assert [parse_segment(segment) for segment in at["segments"]] == manifest_segments(state, "t", 0)
    assert PartitionState(topic="t", partition=0, **at["partition_state"]) == second.partition_state
    assert (decided["t", 7]["generation"], decided["t", 7]["run_id"]) == (0, None)
