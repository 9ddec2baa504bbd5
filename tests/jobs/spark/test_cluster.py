"""Jobs on a standalone cluster, master and two workers, by a pack.

As root, executors run as `nobody`, and the driver's checkout lies in a folder that only root can enter. Elsewhere all
run as one user, who could read it; so the tests also look at what executors have imported, and from where.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastkey import open_partition
from tests.builders.cluster import IS_ROOT, Node, cluster, make_node
from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[3]
PACKED = ("lastkey", "jobs", "logformat", "udfs", "conf", "requirements", "examples")
NOW = "1795452284115"
CONFIG = """
[job]
"without.spark.bytes" = 0
[topics.prices]
"cleanup.policy" = "compact"
[topics.users]
"cleanup.policy" = "compact"
[topics.orders]
"cleanup.policy" = "compact"
"""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@dataclass(frozen=True)
class Place:
    """A cluster, and a checkout on the driver's machine that its executors cannot read."""

    node: Node
    master: str
    checkout: Path
    pack: Path

    @property
    def shared(self) -> Path:
        return self.node.folder / "shared"

    def run(self, *words: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the driver."""
        environment = self.node.environment | {
            "HOME": os.environ.get("HOME", "/"), "XDG_CACHE_HOME": str(self.node.folder / "cache"),
            "LASTKEY_VENV": sys.prefix, "PYTHONPATH": "",
        } | more  # fmt: skip
        del environment["LD_LIBRARY_PATH"], environment["SPARK_HOME"]
        command = self.node.as_user(*words, reads_all=True)
        return subprocess.run(
            command, cwd=cwd or self.checkout, env=environment | more, capture_output=True, text=True, check=False
        )

    def options(self, log: str) -> tuple[str, ...]:
        folder = self.node.own(self.shared / log)
        return (
            "--master", self.master, "--archives", f"{self.pack}#lastkey", "--executor-memory", "512m",
            "--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false", "--conf", f"spark.eventLog.dir=file://{folder}",
        )  # fmt: skip

    def tasks(self, log: str) -> list[tuple[str, bool]]:
        """Return of each task in an event log which executor ran it, and whether it ended well."""
        lines = (path.read_text().splitlines() for path in files_in(self.shared / log, "**/events_*"))
        events = [
            event for event in map(json.loads, itertools.chain(*lines)) if event["Event"] == "SparkListenerTaskEnd"
        ]
        return [(e["Task Info"]["Executor ID"], e["Task End Reason"]["Reason"] == "Success") for e in events]

    def said(self) -> str:
        """Return what executors have written to stderr so far."""
        return "".join(path.read_text() for path in files_in(self.node.folder, "work-*/*/*/stderr"))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    private = tmp_path_factory.mktemp("driver")  # pytest's folders are closed to others
    checkout = private / "checkout"
    for name in PACKED:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "spark-submit.sh"):
        shutil.copy(path, checkout)
    if (ROOT / ".numba").is_dir():
        shutil.copytree(ROOT / ".numba", checkout / ".numba")
    node = make_node()
    try:
        pack = node.folder / "driver" / "lastkey.tar.gz"
        pack.parent.mkdir()
        made = subprocess.run(
            [checkout / "spark-submit.sh", "pack", pack, "--json"], capture_output=True, text=True, check=False,
            env=os.environ | {"LASTKEY_VENV": sys.prefix},
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        node.own(node.folder / "cache")
        node.own(node.folder / "shared")
        (node.folder / "shared" / "t.toml").write_text(CONFIG)
        shutil.copytree(ROOT / "examples" / "archive", node.folder / "shared" / "archive")
        with cluster(node) as master:
            yield Place(node, master, checkout, pack)
    finally:
        shutil.rmtree(node.folder)


@pytest.fixture(scope="module")
def local(place) -> Path:
    """Compact in the driver alone; return the store."""
    store = place.shared / "local"
    done = place.run("./spark-submit.sh", *_compact(place, store))
    assert done.returncode == 0, done.stderr
    return store


def _compact(place: Place, store: Path) -> tuple[object, ...]:
    words = ("--config", place.shared / "t.toml", "--now", NOW, "--quiet", "--json")
    return ("compact", place.shared / "archive", "--store", store, *words)


def _generations(store: Path) -> dict[str, bytes]:
    """Return the files of a store's generations, without names of runs and values from clocks."""
    of_run = ("manifest.json", "committed")
    paths = [p for p in files_in(store / "segments", "**/*") if p.is_file() and p.name not in of_run]
    return {f"{p.parent.parent.name}/{p.parent.name.split('-')[0]}/{p.name}": p.read_bytes() for p in paths}


def test_compact_by_the_checkout_s_command(place, local):
    done = place.run("./spark-submit.sh", *place.options("log-1"), *_compact(place, place.shared / "store"))
    assert done.returncode == 0, done.stderr
    tasks = place.tasks("log-1")
    assert tasks
    assert {executor for executor, _ in tasks} <= {"0", "1"}  # never "driver"
    assert all(well for _, well in tasks)
    assert _generations(place.shared / "store") == _generations(local)
    assert "-Xmx512M" in place.said()
    assert "prices-0" in place.said()  # what they work on
    assert "compiling kernels" not in place.said()


PROGRAM = """
import sys
from pyspark.sql import SparkSession

def origins(paths):
    import lastkey.udfs.compact.one_task, pandas, os
    files = [module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]
    yield files, [os.access(path, os.R_OK) for path in paths]

spark = SparkSession.builder.getOrCreate()
print(spark.read.format("kafka_log").option("topics", "prices").load(sys.argv[1]).count())
files, reads = spark.sparkContext.parallelize([sys.argv[2]], 1).mapPartitions(origins).first()
print(*reads)
print(*files, sep="\\n")
"""


@pytest.fixture(scope="module")
def unpacked(place) -> Path:
    """Unpack the pack where Spark's own spark-submit runs."""
    folder = place.node.own(place.node.folder / "elsewhere")
    place.node.own(folder / "lastkey")
    subprocess.run(place.node.as_user("tar", "-xf", place.pack, "-C", folder / "lastkey"), check=True)
    (folder / "program.py").write_text(PROGRAM)
    return folder


def _spark_submit(place: Place, unpacked: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Spark's own spark-submit as the executors' user, who needs no other installation."""
    environment = place.node.environment | {"PYSPARK_PYTHON": "./lastkey/bin/python"}
    return subprocess.run(
        place.node.as_user(place.node.spark / "bin" / "spark-submit", *words), cwd=unpacked, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_data_source_and_where_executors_import_from(place, unpacked):
    done = _spark_submit(
        place, unpacked, *place.options("log-2"), "program.py", place.shared / "archive", place.checkout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count, reads, *files = done.stdout.splitlines()
    with open_partition(str(ROOT / "examples" / "archive" / "prices-0")) as log:
        assert int(count) == sum(batch.num_rows for batch in log.records(["offset"]))
    assert reads == str(not IS_ROOT)
    assert len(files) > 500
    assert [file for file in files if not Path(file).is_relative_to(place.node.folder)] == []
    assert {executor for executor, _ in place.tasks("log-2")} <= {"0", "1"}


def test_on_another_processor_kernels_are_compiled_into_the_executors_own_copy(place, unpacked):
    code = (
        "from lastkey.logformat.primitives.crc32c import crc32c_extend as f; import numpy; f(0, numpy.zeros(9, 'u1'))"
    )
    kept = unpacked / "lastkey" / "lib" / "lastkey" / ".numba"
    found = [set(kept.rglob("*.nbc"))]
    for processor in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}):
        done = subprocess.run(
            place.node.as_user(unpacked / "lastkey" / "bin" / "python", "-c", code), cwd=unpacked, check=False,
            env=place.node.environment | processor, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        found.append(set(kept.rglob("*.nbc")))
    assert found[0] == found[1] < found[2]


def _processes(folder: Path) -> dict[int, str]:
    """Return the processes that work in a folder, with their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink().is_relative_to(folder):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    return found


def _await(found, what: str):
    """Return what `found` returns once it is true."""
    patience = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < patience, what
        time.sleep(0.01)
    return value


def test_a_killed_executor_costs_time_and_nothing_else(place, unpacked):
    """Its Python workers live on and write until they miss their executor: late tries."""
    archive = place.shared / "many"
    for number in range(24):
        shutil.copytree(place.shared / "archive" / f"users-{number % 2}", archive / f"users-{number}")
    alone, store = place.shared / "many-alone", place.shared / "many-store"
    words = ("compact", archive, "--config", place.shared / "t.toml", "--now", NOW, "--quiet", "--store")
    done = place.run("./spark-submit.sh", *words, alone)
    assert done.returncode == 0, done.stderr
    results: list[subprocess.CompletedProcess[str]] = []
    main = unpacked / "lastkey" / "lib" / "lastkey" / "__main__.py"
    command = (*place.options("log-3"), main, *words, store)
    before = set(_processes(place.node.folder))
    thread = threading.Thread(target=lambda: results.append(_spark_submit(place, unpacked, *command)))
    thread.start()
    _await(lambda: list(store.glob("**/*.log")) or not thread.is_alive(), "no segment was written")
    ours = {pid: said for pid, said in _processes(place.node.folder).items() if pid not in before}
    executor = next(pid for pid, said in ours.items() if "CoarseGrainedExecutorBackend" in said)
    work = Path(f"/proc/{executor}/cwd").readlink()
    workers = [pid for pid, said in _processes(work).items() if pid != executor]
    os.kill(executor, signal.SIGKILL)
    thread.join()
    assert results[0].returncode == 0, results[0].stdout  # Spark's spark-submit sends stderr there too
    assert any(not well for _, well in place.tasks("log-3"))  # else it was killed too late
    assert _generations(store) == _generations(alone)
    _await(lambda: not set(workers) & set(_processes(work)), "late workers did not end")
    assert _generations(store) == _generations(alone)
