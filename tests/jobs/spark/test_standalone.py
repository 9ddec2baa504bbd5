"""A standalone cluster of pyspark's own jars: a master and a worker on the loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from lastkey.jobs.errors import ENVIRONMENT
from lastkey.jobs.spark.jvm import find_java

ROOT = Path(__file__).resolve().parents[3]
SPARK = Path(pyspark.__file__).parent
LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@contextmanager
def daemon(folder: Path, ready: str, kind: str, *words: str) -> Iterator[str]:
    """Start a process of Spark's without this checkout in its environment; yield the match when it prints `ready`."""
    java_home = str(find_java().parent.parent)
    environment = {"PATH": os.defpath, "HOME": str(folder), "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *LOOPBACK, *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = (re.search(ready, line) for line in process.stderr)
            found = next(filter(None, said), None)
            assert found is not None, f"{kind} ended"
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with (
        daemon(tmp_path, r"Starting Spark master at (\S+)", "master.Master") as master,
        daemon(
            tmp_path, r"Successfully registered with master (\S+)", "worker.Worker",
            "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"), master,
        ),
    ):  # fmt: skip
        yield master


def test_a_worker_that_has_no_checkout_is_one_line(cluster, tmp_path):
    config = tmp_path / "t.toml"
    config.write_text('[topics.prices]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "spark"\n')
    options = ("--master", cluster, "--conf", "spark.executor.memory=512m")
    words = ("compact", "examples/archive", "--store", str(tmp_path / "store"), "--config", str(config), "--quiet")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", *options, *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    *others, line = done.stderr.splitlines()
    assert all(" WARN " in other for other in others), done.stderr  # as that a worker is slow to begin
    assert line.startswith(
        "error: Spark's Python workers cannot run Lastkey: ModuleNotFoundError: No module named 'lastkey'"
    )
    assert done.returncode == ENVIRONMENT
