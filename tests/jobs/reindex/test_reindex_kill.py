"""`reindex --in-place` killed at each step: every file is the old one or the new one; the next run ends the work."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from lastkey.jobs.errors import DONE
from lastkey.udfs.reindex.write import LEFTOVER
from tests.builders.logs import write_partition
from tests.builders.reindexed import TEXT, not_same
from tests.builders.reindexed import run as reindex
from tests.builders.stopping import start, tracebacks, wait_until_exited
from tests.builders.trees import read_tree

pytestmark = pytest.mark.slow

OLD = b"\1" * 11  # the content of every side file before
STEPS = [  # (step, nth call)
    ("side file written", 1),
    ("side file written", 2),
    ("side file flushed", 3),
    ("side file checked", 5),
    ("side file replaced", 3),
    ("side file replaced", 6),
    ("segments reindexed", 1),  # between the halves
    ("partition reindexed", 1),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """(good files, an archive in which every side file is rubbish)."""
    root = tmp_path_factory.mktemp("broken") / "archive"
    write_partition(root / "t-0", TEXT, index_interval_bytes=0)
    (root / ".lock").write_bytes(b"")
    good = read_tree(root)
    for path in (root / "t-0").iterdir():
        if path.suffix != ".log" and path.name != "partition.metadata":
            path.write_bytes(OLD)
    return good, root


@pytest.mark.parametrize(("step", "nth"), STEPS)
def test_killed_run_leaves_each_file_old_or_new(broken, step, nth, tmp_path):
    good, source = broken
    root = tmp_path / "archive"
    shutil.copytree(source, root)
    run = start(tmp_path / "run", _arguments(root, tmp_path), step, nth=nth)
    run.wait_until_reached()
    run.kill()
    assert run.finish()[0] == -signal.SIGKILL
    _check_old_or_new(root, good)
    assert reindex(root, "in_place").exit_code == DONE
    assert read_tree(root) == good
    assert not_same(reindex(root)) == {}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("who", "step", "nth"),
    [("worker", "side file flushed", 3), ("JVM", "side file replaced", 4), ("driver", "side file replaced", 1)],
)
def test_killed_run_on_spark_leaves_each_file_old_or_new(broken, who, step, nth, tmp_path):
    """A worker ends with its JVM, and that with its driver: no process writes behind the next run."""
    good, source = broken
    root = tmp_path / "archive"
    shutil.copytree(source, root)
    run = start(tmp_path / "run", _arguments(root, tmp_path, "spark"), step, nth=nth)
    worker, jvm = run.wait_until_reached(), run.jvm()
    os.kill({"worker": worker, "JVM": jvm, "driver": run.process.pid}[who], signal.SIGKILL)
    wait_until_exited(worker)
    code, out, err = run.finish()
    wait_until_exited(jvm)
    if who == "driver":
        assert (code, out) == (-signal.SIGKILL, "")
    else:
        error = json.loads(out)["error"]
        assert (code, error["exit_code"]) == (5, 5), (error, err)
        assert error["kind"] == {"worker": "WorkerEndedError", "JVM": "JvmEndedError"}[who], error
    _check_old_or_new(root, good)
    assert reindex(root, "in_place").exit_code == DONE
    assert read_tree(root) == good
    assert not_same(reindex(root)) == {}


def _arguments(root, tmp_path, engine="threads"):
    config = tmp_path / "c.toml"
    config.write_text('[defaults]\n"index.interval.bytes" = 0\n')
    return ["reindex", str(root), "--in-place", "--config", str(config), "--engine", engine, "--json"]


def _check_old_or_new(root, good):
    files = read_tree(root)
    left = {path for path in files if path.endswith(LEFTOVER)}
    assert set(files) - left == set(good)
    for path in set(good):
        assert files[path] in (OLD, good[path]), path
    assert len(left) <= 1


@pytest.mark.parametrize(
    ("mode", "message"), [("--in-place", "each file is the old one or the new one"), ("--output", "remove ")]
)
def test_interrupted_run_reports_its_temporary_files(broken, mode, message, tmp_path):
    good, source = broken
    root, output = tmp_path / "archive", tmp_path / "output"
    shutil.copytree(source, root)
    arguments = _arguments(root, tmp_path)
    if mode == "--output":
        arguments = [*(word for word in arguments if word != "--in-place"), mode, str(output)]
    run = start(tmp_path / "run", arguments, "side file written", nth=2)
    run.wait_until_reached()
    os.killpg(run.process.pid, signal.SIGINT)
    code, out, err = run.finish()
    assert (code, json.loads(out)["error"]["exit_code"]) == (130, 130), err
    assert f"interrupted; 0 of 1 partition done; {message}" in err
    assert tracebacks(err) == []
    if mode == "--in-place":
        _check_old_or_new(root, good)
        assert reindex(root, "in_place").exit_code == DONE
        assert read_tree(root) == good
    else:
        assert f"remove {output}, or give another --output, and run again" in err
        assert read_tree(root) == read_tree(source)
