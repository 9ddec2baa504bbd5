"""The fork of a command that becomes Spark's daemon, and the JVM that starts ahead: who gets them, and how they end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lastkey.jobs.errors import USAGE
from lastkey.jobs.spark.jvm import find_java

ROOT = Path(__file__).resolve().parents[3]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
# Says the address, and does what its standard input says: b: Spark starts; the end: the command ends
COMMAND = """
import json, os, sys
from lastkey.jobs.spark import forked
def work():
    print(json.dumps([sys.argv[1:], os.environ.get("MARK"), sys.path[-1], sys.stdin.read()]), flush=True)
    print("said on stderr", file=sys.stderr, flush=True)
forked.listen()
forked.fork([], lambda: None, work)
print(json.dumps(forked.address()), flush=True)
while sys.stdin.read(1):
    forked.begin()
    print("begun", flush=True)
"""
DAEMON = "import sys; from lastkey.jobs.spark import forked; sys.path.append('/p'); print(forked.handed_over())"


@pytest.fixture
def adopting() -> Iterator[set[int]]:
    """Let orphans of processes become ours, so that their end can be waited for. Yield the children before."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    yield _children()
    prctl(_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in lists for pid in path.read_text().split()}


@pytest.fixture
def command() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _begun(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdin is not None and process.stdout is not None
    address: dict[str, str] = json.loads(process.stdout.readline())
    process.stdin.write("b")
    process.stdin.flush()
    assert process.stdout.readline() == "begun\n"
    return address


def _daemon(address: dict[str, str], said: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | address | {"MARK": "ü"}
    words = [sys.executable, "-c", DAEMON, "pyspark.worker"]
    return subprocess.run(
        words, cwd=ROOT, env=environment, input=said, capture_output=True, text=True, check=False, timeout=60
    )


def _all_ended(before: set[int]) -> None:
    """Wait for every process that has become ours; a test's patience is the run's."""
    while new := _children() - before:
        for pid in new:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def test_the_fork_gets_pipes_environment_arguments_and_path_once(command: subprocess.Popen[str]) -> None:
    address = _begun(command)
    done = _daemon(address, "from the JVM")
    assert done.stderr == "said on stderr\n"
    assert json.loads(done.stdout) == [["pyspark.worker"], "ü", "/p", "from the JVM"]
    assert _daemon(address).stdout == "False\n"  # a second daemon works itself
    assert _daemon({}).stdout == "False\n"


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fork_that_waits_ends_with_its_command(
    adopting: set[int], command: subprocess.Popen[str], number: int, begun: bool
) -> None:
    assert command.stdout is not None
    address = _begun(command) if begun else json.loads(command.stdout.readline())
    command.send_signal(number)
    command.wait()
    _all_ended(adopting)
    assert _daemon(address).stdout == "False\n"


@pytest.mark.spark
@pytest.mark.slow
def test_a_jvm_that_nobody_needs_is_ended(adopting: set[int], tmp_path: Path) -> None:
    words = ("compact", tmp_path / "none", "--store", tmp_path / "store", "--topics", "*", "--engine", "spark")
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", *words, "--cleanup-policy", "compact"], cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    _all_ended(adopting)
    assert (done.returncode, len(done.stderr.splitlines())) == (USAGE, 1), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_workers_come_from_the_fork_of_the_command(tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"os.register_at_fork(after_in_child=lambda: open({str(said)!r}, 'a').write(sys.orig_argv[2] + '\\n'))\n"
    )
    words = ("compact", "examples/archive", "--store", str(tmp_path / "store"), "--config", "examples/topics.toml")
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", "--master", "local[2]", *words], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    forks = said.read_text().split()
    assert len(forks) >= 2 and set(forks) == {"lastkey"}  # the fork and its workers; no lastkey.jobs.spark.daemon


@pytest.mark.slow
@pytest.mark.spark
def test_a_compaction_by_the_window_starts_one_jvm(tmp_path: Path) -> None:
    """It needs another one than what is launched ahead for other jobs."""
    started, java = tmp_path / "started", tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$*" >> {started}\nexec {find_java()} "$@"\n')
    java.chmod(0o755)
    settings = tmp_path / "topics.toml"
    settings.write_text('[job]\n"split.by" = "window"\n[topics.prices]\n"cleanup.policy" = "compact"\n')
    words = ["compact", "examples/archive", "--store", tmp_path / "s", "--config", settings]
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", *words],
        cwd=ROOT, env=os.environ | {"JAVA_HOME": str(tmp_path / "java")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "engine: Spark" in done.stdout
    of_spark = [line for line in started.read_text().splitlines() if ".SparkSubmit" in line]
    assert len([line for line in of_spark if ".launcher.Main" not in line]) == 1
