"""Runs that are killed at each step, and two runs at once: real processes, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import VacuumOptions
from lastkey.jobs.errors import RunningError
from lastkey.jobs.store.leases import EXPIRY_SECONDS
from lastkey.jobs.store.paths import MANIFEST
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import Lab, offset_checkpoint, only_input, put
from tests.builders.leases import expire_leases
from tests.builders.steps import Holds
from tests.builders.stopping import ROOT, start, tracebacks, wait_until_exited
from tests.builders.trees import tree, tree_without_runs

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
[job]
"wave.partitions" = {wave}
"split.by" = "{split}"
"split.bytes" = 1
"engine" = "{engine}"
"""


# (where, at which call, whether the generation is the new one then). A wave has two commits: the history, and the
# switch
STEPS = [
    ("segments scanned", 1, False),
    ("log written", 1, False),
    ("read back", 1, False),
    ("generation written", 1, False),
]
OF_COMMIT = [
    ("manifests written", 1, False),
    ("history appended", 1, False),
    ("rows written", 2, False),
    ("table committed", 2, True),
    ("states set", 1, True),
]
# The first worker at one of these dies
DYING = {"read back": 1, "walk": 1, "resolve": 1, "rewrite": 1}
# Runs in sequence in one session, regardless of their outcomes
ONE_SESSION = """
import json, sys
from lastkey.jobs.command import cli
for words in json.loads(sys.argv[1]):
    print(cli.main(words), end="\\0")
"""


@pytest.fixture(scope="module")
def begun(cases, now_ms, tmp_path_factory):
    """Make a store with one generation of one partition; its archive has grown since, also by two partitions."""
    lab = Lab(None, tmp_path_factory.mktemp("begun"))
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
    """Return the same archive with a copy of the store."""
    store = lab.root / name
    shutil.copytree(lab.store, store)
    return Lab(None, lab.root, store_at=store)


def _result(lab):
    """Return files and manifests of the current generations, without the names of their runs."""
    checkpoints, manifests = lab.state().current()
    files = {}
    for (topic, partition), at in checkpoints.items():
        lab.check_whole(manifests[topic, partition])
        folder = lab.store / "segments" / f"{topic}-{partition}" / f"{at.generation}-{at.run_id}"
        for path in folder.iterdir():
            if path.name != MANIFEST:  # the manifest names the run
                files[topic, partition, at.generation, path.name] = path.read_bytes()
        for s in manifests[topic, partition]:
            files[topic, partition, at.generation, s.base_offset] = (s.root, s.size_bytes, s.checksum, s.next_offset)
    return files


def _leases(lab):
    return [path.name for path in (lab.store / "state" / "running").iterdir()]


def _delete_leases(lab):
    """Hide the running run from all others."""
    for path in (lab.store / "state" / "running").iterdir():
        path.unlink()


def _check_next_run(begun, mine, now_ms):
    """Check that the next run leaves what an undisturbed one leaves, and that the archive is as it was."""
    lab, archive, expected = begun
    assert mine.run(now_ms).exit_code == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def _folders(lab):
    """Return the folders of runs: those on the disk, and those in the tables."""
    existing = {path.relative_to(lab.store / "segments").as_posix() for path in (lab.store / "segments").glob("*/*")}
    referenced = {
        f"{topic}-{partition}/{run.generation_after}-{run.run_id}"
        for (topic, partition), runs in lab.state().histories().items()
        for run in runs
    }
    return existing, referenced


def _arguments(lab, tmp_path, now_ms, *more, wave=64, split="auto", engine="spark"):
    config = tmp_path / "cleaner.toml"
    config.write_text(TOML.format(wave=wave, split=split, engine=engine))
    return [
        "compact", str(lab.archive), "--store", str(lab.store), "--config", str(config), "--now", str(now_ms), "--json",
        *more,
    ]  # fmt: skip


@pytest.mark.parametrize(("step", "nth", "new"), STEPS + OF_COMMIT, ids=lambda value: str(value).replace(" ", "-"))
def test_killed_run_leaves_a_complete_generation(begun, step, nth, new, now_ms, tmp_path):
    """With Spark the same functions write the same files: there a kill of the driver alone shows that the next run goes
    on, below.
    """
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
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

    expire_leases(mine.store)
    left = _leases(mine)
    report = mine.run(now_ms)
    assert report.exit_code == 0
    assert _leases(mine) == (left if new else [])  # a run without due partitions takes no lease, and no other one over
    assert {r.status for r in report.results} == {"not_due" if new else "cleaned"}
    result = _result(mine)
    if step == "table committed":  # nothing is due that would write the word
        assert {name[-1] for name in expected.keys() - result.keys()} == {"committed"}
        assert vacuum.run(VacuumOptions(str(mine.store)), Silent()).exit_code == 0
        result = _result(mine)
    assert result == expected
    assert tree(lab.archive) == archive
    if (step, nth, new) in OF_COMMIT:  # rows that were appended belong to no history
        histories = mine.state().histories()
        assert [run.generation_after for run in histories["grown", 0]] == [2, 1]
        assert {key: row.state for key, row in mine.state().states().items()} == dict.fromkeys(histories, "clean")


def test_run_killed_between_waves_keeps_committed_partitions(begun, now_ms, tmp_path):
    """wave.partitions = 1: the largest partition first; the run dies with the second wave."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, wave=1, engine="threads")
    run = start(tmp_path / "run", arguments, "rows written", nth=4)
    run.wait_until_reached()
    run.kill()
    run.finish()
    assert len(_leases(mine)) == 1
    generations = {key: row.generation for key, row in mine.state().checkpoints().items()}
    assert generations == {("grown", 0): 2}
    with pytest.raises(RunningError, match=f"pid {run.process.pid}"):
        mine.run(now_ms)
    expire_leases(mine.store)
    report = mine.run(now_ms)
    statuses = {r.name(): r.status for r in report.results}
    assert statuses == {"grown-0": "not_due", "new-0": "cleaned", "new-1": "cleaned"}
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_a_waiting_run_takes_over_the_expired_lease_of_a_killed_one(begun, now_ms, tmp_path):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    run = start(tmp_path / "one", arguments, "manifests written")
    run.wait_until_reached()
    run.kill()
    run.finish()
    waiting = start(tmp_path / "two", [*arguments, "--wait"])
    waiting.wait_for_stderr(f"waiting for a run on {os.uname().nodename} (pid {run.process.pid}, ")
    (lease,) = (mine.store / "state" / "running").glob("*.json")
    lease.write_text(lease.read_text().replace(f'"expiry_seconds": {EXPIRY_SECONDS}', '"expiry_seconds": 0'))
    code, _, err = waiting.finish()
    assert code == 0, err
    assert _leases(mine) == []
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_killed_workers_are_errors_and_commit_nothing(begun, now_ms, tmp_path):
    """In one session, which continues: a worker of a run in one task, then one of each stage of runs in several. Each
    has done its work and not reported it.
    """
    lab, _, _ = begun
    holds = Holds(tmp_path / "holds", DYING)
    labs = {step: _copy(lab, f"dies-{step}") for step in DYING}
    words = []
    for step, mine in labs.items():
        (tmp_path / step).mkdir()
        split = "auto" if step == "read back" else "always"
        # one partition, and one task, after the other: beside a waiting one, another would continue to the next run's
        words.append(_arguments(mine, tmp_path / step, now_ms, "--topics", "new", wave=1, split=split))
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(holds.folder), str(ROOT)]),
        "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell",
    }  # fmt: skip
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", ONE_SESSION, json.dumps(words)],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as run,
    ):  # fmt: skip
        for step in labs:
            worker = holds.wait(step, run.pid)
            assert worker != run.pid
            os.kill(worker, signal.SIGKILL)
        out, _ = run.communicate()
    err = (tmp_path / "err").read_text()
    *ended, _ = out.split("\0")
    assert len(ended) == len(labs), err
    for mine, result in zip(labs.values(), ended, strict=True):
        report, _, code = result.rpartition("\n")
        assert "error" in json.loads(report), (code, report, err)
        error = json.loads(report)["error"]
        assert (code, error["kind"], error["exit_code"]) == ("5", "WorkerEndedError", 5), error
        assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
        _check_next_run(begun, mine, now_ms)


def test_jvm_killed_after_the_last_task_loses_no_result(begun, now_ms, tmp_path):
    """Commits need none."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms)
    run = start(tmp_path / "run", arguments, "manifests written")
    run.wait_until_reached()
    os.kill(run.jvm(), signal.SIGKILL)
    run.release()
    code, out, err = run.finish()
    assert code == 0, err
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"cleaned"}
    assert "please report" not in err  # PySpark's own server of accumulators may say that its peer is gone
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize(("who", "step"), [("JVM", "log written"), ("driver", "generation written")])
def test_killed_run_terminates_its_worker(begun, now_ms, tmp_path, who, step):
    """A killed JVM, as by the kernel for want of memory, is a failed environment; a killed driver leaves no report."""
    lab, _, _ = begun
    mine = _copy(lab, tmp_path.name)
    run = start(tmp_path / "run", _arguments(mine, tmp_path, now_ms), step)
    worker, jvm = run.wait_until_reached(), run.jvm()
    os.kill(jvm if who == "JVM" else run.process.pid, signal.SIGKILL)
    wait_until_exited(jvm)
    wait_until_exited(worker)
    code, out, err = run.finish()
    if who == "JVM":
        error = json.loads(out)["error"]
        assert (code, error["kind"], error["exit_code"]) == (5, "JvmEndedError", 5), err
        assert "the connection to it broke" in error["message"]
        assert "--driver-memory" in error["hint"]
        assert "please report" not in err
    else:
        assert (code, out) == (-signal.SIGKILL, "")
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    expire_leases(mine.store)  # a killed driver leaves its lease
    _check_next_run(begun, mine, now_ms)


@pytest.mark.parametrize(
    ("step", "heard"),
    [
        ("manifests written", False),  # its files are complete, and no generation has read as far
        ("read back", True),  # a segment without its generation
    ],
)
def test_vacuum_without_grace_keeps_files_of_an_active_run(begun, now_ms, tmp_path, step, heard):
    """heard: vacuum finds the run's lease; otherwise only the files decide."""
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    run = start(tmp_path / "run", arguments, step)
    run.wait_until_reached()
    if not heard:
        _delete_leases(mine)
    report = vacuum.run(VacuumOptions(str(mine.store), grace_hours=0), Silent())
    assert report.deleted == {}
    if heard:
        assert [f"(pid {run.process.pid}, " in note for note in report.notes] == [True], report.notes
    else:
        assert {(kept["topic"], kept["partition"]) for kept in report.kept} == {("grown", 0), ("new", 0), ("new", 1)}
    run.release()
    code, out, err = run.finish()
    assert code == 0, err
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"cleaned"}
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize(
    ("asked", "expected", "wave", "nth", "engine"),
    [
        (signal.SIGTERM, 143, 64, 3, "threads"), (signal.SIGINT, 130, 64, 3, "spark"),
        (signal.SIGINT, 130, 1, 2, "threads"), (signal.SIGTERM, 143, 1, 2, "spark"),
    ],
)  # fmt: skip
def test_stopped_run_commits_finished_partitions(begun, now_ms, tmp_path, asked, expected, wave, nth, engine):
    """One core, one partition after the other: as the signal comes, `nth` - 1 are finished. With one core of Spark the
    last of them may not have been heard of yet.
    """
    lab, archive, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, wave=wave, engine=engine)
    run = start(tmp_path / "run", arguments, "generation written", nth=nth, cores=1)
    run.wait_until_reached()
    if asked == signal.SIGINT:
        os.killpg(run.process.pid, asked)  # as a terminal does: to the JVM too
    else:
        os.kill(run.another_thread(), asked)  # the system may give a process's signal to any thread
    code, out, err = run.finish()
    report = json.loads(out)
    assert (code, report["exit_code"], report["error"]["exit_code"]) == (expected, expected, expected), err
    generations = [p["generation"] for p in report["partitions"]]
    n = len(list(filter(None, generations)))
    assert n == nth - 1 or (engine == "spark" and 0 < n < nth)
    assert f"; {n} of 3 partitions committed" in report["error"]["message"]
    assert f"{n} of 3 partitions committed" in err and "run again to continue" in err
    assert sorted(p["status"] for p in report["partitions"]) == ["cleaned"] * n + ["stopped"] * (3 - n)
    assert sum(row.generation > 1 or key[0] == "new" for key, row in mine.state().checkpoints().items()) == n
    existing, folders = _folders(mine)
    assert existing == folders
    assert bool(report["notes"]) == (engine == "threads"), report["notes"]  # a thread that waits at the step never ends
    assert _leases(mine) == []
    assert tracebacks(err) == []
    assert tree(lab.archive) == archive

    _check_next_run(begun, mine, now_ms)


def test_signal_during_a_commit_is_handled_after_the_commit(begun, now_ms, tmp_path):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    run = start(tmp_path / "run", arguments, "rows written", nth=2)
    run.wait_until_reached()
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait_for_stderr("stopping: ")
    run.release()
    code, out, err = run.finish()
    assert code == 143, err
    assert "terminated; 3 of 3 partitions committed" in json.loads(out)["error"]["message"]
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"cleaned"}
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


@pytest.mark.parametrize(("second", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_second_signal_terminates_the_run(begun, now_ms, tmp_path, second, expected):
    lab, _, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    run = start(tmp_path / "run", arguments, "manifests written")
    run.wait_until_reached()
    os.kill(run.process.pid, signal.SIGINT)
    run.wait_for_stderr("stopping: ")
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for the commit; a signal at once is the same one
        run.process.wait(0.3)
    os.kill(run.process.pid, second)
    code, out, err = run.finish()
    assert (code, json.loads(out)["error"]["exit_code"]) == (expected, expected)
    assert "stopped at once: at least 0 of 3 partitions committed; vacuum deletes what this run left" in err
    assert tracebacks(err) == []
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    assert _leases(mine) == []
    _check_next_run(begun, mine, now_ms)


@pytest.mark.parametrize(
    ("engine", "asked", "expected", "step"),
    # a run takes ten seconds, and no step knows the signal
    [
        ("spark", signal.SIGINT, 130, "walk"),
        ("spark", signal.SIGTERM, 143, "resolve"),
        ("spark", signal.SIGTERM, 143, "rewrite"),
    ],
)
def test_run_with_several_tasks_per_partition_stops_on_a_signal(begun, now_ms, tmp_path, asked, expected, step, engine):
    """Three large partitions, two at once, each of which waits at the step: none of them is committed."""
    lab, archive, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, split="always", engine=engine)
    run = start(tmp_path / "run", arguments, step, every=True)
    run.wait_until_reached()
    os.kill(run.process.pid, asked)
    code, out, err = run.finish(45)
    assert (code, json.loads(out)["error"]["exit_code"]) == (expected, expected)
    assert tracebacks(err) == []
    assert "run again to continue" in err
    assert {key: row.generation for key, row in mine.state().checkpoints().items()} == {("grown", 0): 1}
    existing, folders = _folders(mine)
    assert existing == folders
    assert tree(lab.archive) == archive


@pytest.mark.parametrize("wave", [64, 1])
def test_one_of_two_concurrent_runs_commits(begun, now_ms, tmp_path, wave):
    """Both runs plan on the same generations, because neither sees the other's lease. Both wait before their commit and
    then continue.
    """
    lab, _, _ = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, wave=wave, engine="threads")
    runs = []
    for name in ("one", "two"):
        runs.append(start(tmp_path / name, arguments, "manifests written"))
        runs[-1].wait_until_reached()
        _delete_leases(mine)
    for run in runs:
        run.release()
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
    assert {row.run_id for row in checkpoints.values()} == {reports[0]["run_id"]}  # the second run commits no partition
    assert set(lost.values()) == {None}
    assert "conflict" in {p["status"] for p in reports[4]["partitions"]} <= {"conflict", "not_due"}
    # the winner reports the states of the partitions
    assert {key: (s.state, s.generation) for key, s in mine.state().states().items()} == {
        key: ("clean", row.generation) for key, row in checkpoints.items()
    }
    _check_next_run(begun, mine, now_ms)


@pytest.mark.parametrize(("wave", "kept"), [(64, {}), (1, {("grown", 0): 2})])
def test_wave_is_committed_atomically(begun, now_ms, tmp_path, wave, kept):
    """Another run commits one of three partitions, and neither run sees the other's lease. With waves of one partition,
    the largest is committed first and is kept.
    """
    mine = _copy(begun[0], tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, wave=wave, engine="threads")
    late = start(tmp_path / "late", arguments, "rows written", nth=2 if wave > 1 else 4)
    late.wait_until_reached()
    _delete_leases(mine)
    assert mine.run(now_ms, topics=TopicFilter(("new",))).exit_code == 0
    late.release()
    code, out, err = late.finish()
    report = json.loads(out)
    assert code == 4, err
    assert {(p["topic"], p["partition"]): p["generation"] for p in report["partitions"] if p["generation"]} == kept
    assert {p["status"] for p in report["partitions"] if not p["generation"]} <= {"conflict", "not_due"}
    _check_next_run(begun, mine, now_ms)


def test_second_run_is_refused_at_its_start_or_waits_for_the_first(begun, now_ms, tmp_path):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    first = start(tmp_path / "one", arguments, "segments scanned", cores=1)
    first.wait_until_reached()
    files = set(tree_without_runs(mine.store))

    code, out, err = start(tmp_path / "two", arguments).finish()
    error = json.loads(out)["error"]
    assert (code, error["kind"]) == (4, "RunningError"), err
    assert f"(pid {first.process.pid}, since " in error["found"]
    assert error["expected"] == "no other run at grown-0 and 2 more"
    assert "--wait" in error["hint"]
    assert set(tree_without_runs(mine.store)) == files  # it left nothing but its row in cleaner_runs

    dry = mine.run(now_ms, dry_run=True)
    assert dry.exit_code == 0
    assert any(f"(pid {first.process.pid}, " in note and "works on grown-0 and 2 more" in note for note in dry.notes)

    third = start(tmp_path / "three", [*arguments, "--wait"])
    third.wait_for_stderr(f"waiting for a run on {os.uname().nodename} (pid {first.process.pid}, ")
    first.release()
    assert first.finish()[0] == 0
    code, out, err = third.finish()
    assert code == 0, err
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"not_due"}
    assert _leases(mine) == []
    assert _result(mine) == expected
    assert tree(lab.archive) == archive


def test_runs_of_different_partitions_run_concurrently(begun, now_ms, tmp_path):
    lab, archive, expected = begun
    mine = _copy(lab, tmp_path.name)
    arguments = _arguments(mine, tmp_path, now_ms, engine="threads")
    first = start(tmp_path / "one", [*arguments, "--topics", "grown"], "segments scanned")
    first.wait_until_reached()
    code, out, err = start(tmp_path / "two", [*arguments, "--topics", "new"]).finish()
    assert code == 0, err
    assert {p["status"] for p in json.loads(out)["partitions"]} == {"cleaned"}
    first.release()
    assert first.finish()[0] == 0
    assert _result(mine) == expected
    assert tree(lab.archive) == archive
