"""Runs that are killed at each step, and two runs at once: real processes, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from jobs import vacuum
from jobs.command.options import VacuumOptions
from jobs.command.progress import Silent
from jobs.store.paths import MANIFEST
from tests.builders.archives import Lab, offset_checkpoint, only_input, put
from tests.builders.stopping import start, wait_until_gone
from tests.builders.trees import tree

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
[job]
"wave.partitions" = {wave}
"engine" = "{engine}"
"without.spark.bytes" = {without_spark}
"""

WITHOUT = 1 << 30  # bytes that a run takes without Spark, in threads of its own

# (where, at which call, whether the generation is the new one then). A wave has three commits: two of the history, and
# the switch
STEPS = [
    ("before udfs.compact.one_task:clean_groups", 1, False),  # everything scanned, nothing written
    ("before udfs.compact.generation:write_indexes", 1, False),  # a log without its indexes
    ("before udfs.compact.generation:read_back", 1, False),
    ("before udfs.compact.generation:flush_folder", 1, False),  # all files there, folders not flushed
]
OF_COMMIT = [
    ("before jobs.store.tables:State.commit_wave", 1, False),
    ("after jobs.store.tables:State._append", 1, False),  # one table appended
    ("after jobs.store.table:_write", 3, False),  # rows of checkpoints that no commit names
    ("before jobs.store.table:_commit", 3, False),
    ("after jobs.store.table:_commit", 3, True),  # nobody was told
    ("after jobs.store.tables:State.set_states", 1, True),  # the table cleaner_state is not written yet
]


@pytest.fixture(scope="module")
def begun(spark, cases, now_ms, tmp_path_factory):
    """A store with one generation of one partition; an archive that has grown since, with two partitions more."""
    lab = Lab(spark, tmp_path_factory.mktemp("begun"))
    put(only_input(cases["txn-none"]), lab.archive / "grown-0", segments=2, batches=9)
    lab.run(now_ms)
    put(only_input(cases["txn-none"]), lab.archive / "grown-0")
    put(only_input(cases["two-parts"]), lab.archive / "new-0")
    put(only_input(cases["few-keys"]), lab.archive / "new-1")
    offset_checkpoint(lab.archive / "recovery-point-offset-checkpoint", {"new-0": 0})  # any other file
    before = tree(lab.archive)
    undisturbed = _copy(lab, "undisturbed")
    undisturbed.run(now_ms)
    assert tree(lab.archive) == before
    return lab, before, _result(undisturbed)


def _copy(lab, name):
    """The same archive with a copy of the store."""
    store = lab.root / name
    shutil.copytree(lab.store, store)
    return Lab(lab.spark, lab.root, store_at=store)


def _result(lab):
    """Files and manifests of the current generations, without the names of their runs."""
    checkpoints, manifests = lab.state().current()
    files = {}
    for (topic, partition), at in checkpoints.items():
        lab.check_whole(manifests[topic, partition])
        folder = lab.store / "segments" / f"{topic}-{partition}" / f"{at.generation}-{at.run_id}"
        for path in folder.iterdir():
            if path.name != MANIFEST:  # which names the run
                files[topic, partition, at.generation, path.name] = path.read_bytes()
        for s in manifests[topic, partition]:
            files[topic, partition, at.generation, s.base_offset] = (s.root, s.size_bytes, s.checksum, s.next_offset)
    return files


def _arguments(lab, tmp_path, now_ms, *more, wave=64, engine="auto", without_spark=0):
    config = tmp_path / "cleaner.toml"
    config.write_text(TOML.format(wave=wave, engine=engine, without_spark=without_spark))
    return [
        "compact", str(lab.archive), "--store", str(lab.store), "--config", str(config), "--now", str(now_ms), "--json",
        *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "nth", "new", "without_spark"),
    [(*step, WITHOUT) for step in STEPS + OF_COMMIT] + [(*step, 0) for step in STEPS],
    ids=lambda value: str(value).replace(" ", "-"),
)
def test_a_kill_leaves_a_whole_generation(begun, step, nth, new, without_spark, now_ms, tmp_path):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, without_spark=without_spark)
    run = start(tmp_path / "run", arguments, step, nth=nth)
    run.wait_until_reached()
    run.kill()
    code, out, _ = run.finish()
    assert code == -signal.SIGKILL
    assert out == ""

    assert tree(lab.archive) == archive
    # every file that a manifest names is there with its size
    generations = {name[:3] for name in _result(mine)}
    assert generations == ({("grown", 0, 2), ("new", 0, 1), ("new", 1, 1)} if new else {("grown", 0, 1)})

    report = mine.run(now_ms)
    assert report.exit_code == 0
    assert {r.status for r in report.results} == {"not_due" if new else "cleaned"}
    assert _result(mine) == expected
    assert tree(lab.archive) == archive
    if "jobs.store" in step:  # rows that were appended belong to no history
        histories = mine.state().histories()
        assert [run.generation_after for run in histories["grown", 0]] == [2, 1]
        assert {key: row.state for key, row in mine.state().states().items()} == dict.fromkeys(histories, "clean")


def test_a_kill_between_waves_keeps_what_was_committed(begun, now_ms, tmp_path):
    """wave.partitions = 1: the largest partition first; the run dies with the second wave."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, wave=1, without_spark=WITHOUT)
    run = start(tmp_path / "run", arguments, "before jobs.store.table:_commit", nth=6)
    run.wait_until_reached()
    run.kill()
    run.finish()
    generations = {key: row.generation for key, row in mine.state().checkpoints().items()}
    assert generations == {("grown", 0): 2}
    report = mine.run(now_ms)
    statuses = {r.name(): r.status for r in report.results}
    assert statuses == {"grown-0": "not_due", "new-0": "cleaned", "new-1": "cleaned"}
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize(
    ("engine", "step"),
    [
        ("auto", "generation:read_back"),
        ("blocks", "walk_split:walk_split"),
        ("blocks", "settle:settle"),
        ("blocks", "generation:read_back"),
    ],
)
def test_a_worker_that_dies_is_an_error_and_commits_nothing(begun, now_ms, tmp_path, engine, step):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    run = start(tmp_path / "run", _arguments(mine, tmp_path, now_ms, engine=engine), f"before udfs.compact.{step}")
    worker = run.wait_until_reached()
    assert worker != run.process.pid
    os.kill(worker, signal.SIGKILL)
    code, out, err = run.finish()
    assert code == 5, err
    error = json.loads(out)["error"]
    assert (error["kind"], error["exit_code"]) == ("WorkerEndedError", 5), error
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_a_jvm_that_is_killed_is_an_environment_that_failed(begun, now_ms, tmp_path):
    """As the kernel does for want of memory."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms)
    run = start(tmp_path / "run", arguments, "before jobs.compact.waves:_in_tasks", held=True)
    run.wait_until_reached()
    os.kill(run.jvm(), signal.SIGKILL)
    run.let_go()
    code, out, err = run.finish()
    assert code == 5, err
    error = json.loads(out)["error"]
    assert (error["kind"], error["exit_code"]) == ("JvmEndedError", 5)
    assert "killed by signal 9" in error["message"]
    assert "--driver-memory" in error["hint"]
    assert "please report" not in err
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_a_jvm_that_is_killed_after_the_last_task_costs_nothing(begun, now_ms, tmp_path):
    """Commits need none."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms)
    run = start(tmp_path / "run", arguments, "before jobs.store.tables:State.commit_wave", held=True)
    run.wait_until_reached()
    os.kill(run.jvm(), signal.SIGKILL)
    run.let_go()
    code, out, err = run.finish()
    assert code == 0, err
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"cleaned"}
    assert "please report" not in err  # PySpark's own server of accumulators may say that its peer is gone
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize(("who", "step"), [("JVM", "generation:read_back"), ("driver", "one_task:clean_groups")])
def test_a_kill_in_the_middle_of_a_task_ends_its_worker_too(begun, now_ms, tmp_path, who, step):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    run = start(tmp_path / "run", _arguments(mine, tmp_path, now_ms), f"before udfs.compact.{step}")
    worker, jvm = run.wait_until_reached(), run.jvm()
    os.kill(jvm if who == "JVM" else run.process.pid, signal.SIGKILL)
    wait_until_gone(jvm)
    wait_until_gone(worker)
    code, out, err = run.finish()
    if who == "JVM":
        assert (code, json.loads(out)["error"]["kind"]) == (5, "JvmEndedError"), err
        assert "please report" not in err
    else:
        assert (code, out) == (-signal.SIGKILL, "")
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_a_vacuum_without_grace_beside_a_run_is_a_conflict(begun, now_ms, tmp_path):
    """It takes files that no generation names yet, and says so first; the run sees it when it commits, and the next one
    succeeds. First generations of partitions that have no other are not taken: their tables may have been lost.
    """
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, without_spark=WITHOUT)
    run = start(tmp_path / "run", arguments, "before jobs.store.tables:State.commit_wave", held=True)
    run.wait_until_reached()
    taken = vacuum.run(VacuumOptions(str(mine.store), grace_hours=0), Silent())
    assert set(taken.deleted) == {("grown", 0)}
    assert {(kept["topic"], kept["partition"]) for kept in taken.kept_unknown} == {("new", 0), ("new", 1)}
    run.let_go()
    code, out, err = run.finish()
    assert code == 4, err
    said = json.loads(out)
    assert "expected the files that this run wrote, found a vacuum that took them" in said["conflict"]
    assert {p["status"] for p in said["partitions"]} == {"conflict"}
    assert "Traceback" not in err
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize("without_spark", [0, WITHOUT])
@pytest.mark.parametrize(("asked", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_end_does(begun, now_ms, tmp_path, asked, expected, without_spark):
    """At once, though a task or thread still works."""
    lab, archive, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, without_spark=without_spark)
    run = start(tmp_path / "run", arguments, "before udfs.compact.one_task:clean_groups")
    run.wait_until_reached()
    os.kill(run.process.pid, asked)
    code, out, err = run.finish()
    assert (code, json.loads(out)["error"]["exit_code"]) == (expected, expected)
    assert "Traceback" not in err
    assert "run again to continue" in err
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert tree(lab.archive) == archive


@pytest.mark.parametrize("step", ["walk_split:walk_split", "settle:settle", "rewrite_split:rewrite_split"])
@pytest.mark.parametrize(("asked", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("without_spark", [0, WITHOUT])
def test_a_run_in_several_tasks_that_is_asked_to_end_does(
    begun, now_ms, tmp_path, asked, expected, step, without_spark
):
    """Three partitions by blocks, two at once: those that work end, the third one is not begun."""
    lab, archive, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="blocks", without_spark=without_spark)
    run = start(tmp_path / "run", arguments, f"before udfs.compact.{step}")
    run.wait_until_reached()
    os.kill(run.process.pid, asked)
    code, out, err = run.finish(45)
    assert (code, json.loads(out)["error"]["exit_code"]) == (expected, expected)
    assert "Traceback" not in err
    assert "run again to continue" in err
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert tree(lab.archive) == archive


@pytest.mark.parametrize("wave", [64, 1])
def test_of_two_runs_at_once_one_wins(begun, now_ms, tmp_path, wave):
    """Both plan on the same generations and stand before their commit; then both go on."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    step = "before jobs.store.tables:State.commit_wave"
    arguments = _arguments(mine, tmp_path, now_ms, wave=wave, without_spark=WITHOUT)
    runs = [start(tmp_path / name, arguments, step, held=True) for name in ("one", "two")]
    for run in runs:
        run.wait_until_reached()
    for run in runs:
        run.let_go()
    ended = [run.finish() for run in runs]
    assert sorted(code for code, _, _ in ended) == [0, 4], ended
    reports = {code: json.loads(out) for code, out, _ in ended}
    assert "expected generation" in reports[4]["conflict"]
    assert reports[0]["conflict"] is None
    checkpoints, manifests = mine.state().current()
    won = {(p["topic"], p["partition"]): p["generation"] for p in reports[0]["partitions"]}
    lost = {(p["topic"], p["partition"]): p["generation"] for p in reports[4]["partitions"]}
    for key, row in checkpoints.items():
        mine.check_whole(manifests[key])
        assert row.run_id in (reports[0]["run_id"], reports[4]["run_id"])
        mine_is = won if row.run_id == reports[0]["run_id"] else lost
        assert mine_is[key] == row.generation
    assert {row.run_id for row in checkpoints.values()} == {reports[0]["run_id"]}  # who comes second commits nothing
    assert set(lost.values()) == {None}
    assert "conflict" in {p["status"] for p in reports[4]["partitions"]} <= {"conflict", "not_due"}
    # how partitions stand is told by who won
    assert {key: (s.state, s.generation) for key, s in mine.state().states().items()} == {
        key: ("clean", row.generation) for key, row in checkpoints.items()
    }
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive
