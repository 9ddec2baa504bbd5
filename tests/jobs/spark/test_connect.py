"""Jobs through Spark Connect: sessions without a SparkContext, on a server from the jars of the package."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastkey
from lastkey.jobs.errors import BAD_MASTER, ENVIRONMENT
from lastkey.jobs.spark import master
from lastkey.jobs.spark.submit import user_options
from lastkey.jobs.store.paths import COMMITTED, MANIFEST
from tests.builders.errors import raises_kind

ROOT = Path(__file__).resolve().parents[3]
TOPICS = ROOT / "examples" / "topics.toml"
NOW_MS = 1_900_000_000_000
TOKEN = "hushhush"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the address of a server of its own process."""
    command = [sys.executable, "-m", "tests.jobs.spark.connect_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield f"sc://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def generations(store: Path) -> dict[str, bytes]:
    """Return the files of all generations by path without the run's id, which is in the name of a folder."""
    files = (path for path in sorted((store / "segments").rglob("*")) if path.is_file())
    contents = {
        f"{path.parts[-3]}/{path.name}": path.read_bytes() for path in files if path.name not in (MANIFEST, COMMITTED)
    }
    assert contents
    return contents


@pytest.mark.spark
@pytest.mark.slow
def test_spark_connect_session_of_a_notebook_is_used_unchanged(server, tmp_path):
    """Compact, verify and reindex run as tasks of the server; its other jobs continue when ours are interrupted."""
    completed = run("tests.jobs.spark.notebook", server, "examples/archive", str(tmp_path))
    assert completed.returncode == 0, completed.stderr[-3000:]
    output = json.loads(completed.stdout.splitlines()[-1])
    for job in ("compact", "verify", "reindex"):
        engine = output[job]["engine"]
        assert (engine["master"], engine["threads"]) == (server, 0)
        assert engine["tasks"] > 0, job
    assert [output[job]["exit_code"] for job in ("compact", "verify")] == [0, 0]
    lastkey.compact(
        "examples/archive", tmp_path / "local", config="examples/topics.toml", now_ms=NOW_MS, engine="threads"
    )
    assert generations(tmp_path / "store") == generations(tmp_path / "local")
    assert output["interrupted"] == {"raised": "KeyboardInterrupt", "theirs": [0]}
    assert output["errors"] == {"is_sparks": True}
    assert (output["zone"], output["tags"]) == ("Europe/Vienna", [])


@pytest.mark.spark
@pytest.mark.slow
def test_command_line_accepts_a_remote_and_never_repeats_its_token(server, tmp_path):
    words = ("lookup", "examples/archive", "--store", str(tmp_path / "store"), "--at", "2026-11-21T02:30Z", "--json")
    completed = run("lastkey", "--executor-memory", "1g", *words, SPARK_REMOTE=f"{server}/;x-token={TOKEN};user_id=me")
    assert completed.returncode == 0, completed.stderr[-3000:]
    report = json.loads(completed.stdout)
    assert report["engine"]["master"] == server
    assert report["refreshed"]["segments_read"] > 0
    assert f"--executor-memory: no effect, because {server} has settings of its own" in report["notes"]
    assert TOKEN not in completed.stdout + completed.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_large_partition_is_one_query_on_the_server(server, tmp_path):
    settings = tmp_path / "several.toml"
    settings.write_text(f'{TOPICS.read_text()}[job]\n"split.by" = "always"\n"split.bytes" = 100000\n')
    words = ("compact", "examples/archive", "--now", str(NOW_MS), "--config")
    completed = run(
        "lastkey", "--remote", server, *words, str(settings), "--store", str(tmp_path / "several"), "--json"
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    report = json.loads(completed.stdout)
    assert report["engine"]["master"] == server
    assert max(partition["splits"] for partition in report["partitions"]) > 2
    alone = run("lastkey", *words, str(TOPICS), "--store", str(tmp_path / "alone"), "--engine", "threads")
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert generations(tmp_path / "several") == generations(tmp_path / "alone")


@pytest.mark.spark
@pytest.mark.slow
def test_server_of_another_kind_is_a_one_line_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"sc://127.0.0.1:{other.getsockname()[1]}"
        threading.Thread(target=_hang_up, args=(other,), daemon=True).start()
        words = ("verify", "examples/archive", "--engine", "spark")
        completed = run("lastkey", "--remote", f"{address}/;x-token={TOKEN}", *words)
        [line] = completed.stderr.splitlines()
        assert line.startswith("error: Spark") and address in line
        assert TOKEN not in line
        assert completed.returncode == ENVIRONMENT


def _hang_up(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            server.accept()[0].close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--remote", f"sc://a:b/;token={TOKEN}"), "expected sc://HOST:PORT[/;NAME=VALUE...]"),
        (("--remote", f"local[2];token={TOKEN}"), "expected sc://HOST:PORT[/;NAME=VALUE...]"),
        (("--remote", f"sc://u:{TOKEN}@host"), "not shown"),
        (("--conf", f"spark.remote=sc://a:1/;token={TOKEN}", "--master", "local"), "expected one of the two"),
        (("--remote", f"sc://127.0.0.1:1/;token={TOKEN}"), "sc://127.0.0.1:1: expected a Spark Connect server"),
    ],
)
def test_error_for_an_invalid_remote_omits_its_token(given, message):
    with raises_kind(BAD_MASTER) as raised:
        master.check_master(user_options(given, {}))
    assert raised.value.exit_code == ENVIRONMENT
    assert message in str(raised.value)
    assert TOKEN not in str(raised.value)
