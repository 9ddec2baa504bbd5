"""Jobs on a standalone cluster, master and two workers, by a pack.

If root runs the tests, executors run as another user, and only root can enter the folder of the driver's checkout.
Otherwise all processes run as one user, who can read the checkout. The tests therefore also check the modules and paths
that executors import.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lastkey
from lastkey import open_partition
from lastkey.jobs.errors import ENVIRONMENT
from lastkey.jobs.spark.jvm import cached_delta, downloads_folder
from tests.builders.cluster import IS_ROOT, PYTHON, Node, cluster, link, make_node
from tests.builders.steps import Holds
from tests.builders.stopping import descendants, wait_until_exited
from tests.builders.trees import files_in, read_tree
from tests.cheap_java import CHEAP

ROOT = Path(__file__).resolve().parents[3]
PACKED = ("lastkey", "jobs", "logformat", "udfs", "conf", "requirements", "examples")
NOW_MS = 1_795_452_284_115
CONFIG = "".join(f'[topics.{topic}]\n"cleanup.policy" = "compact"\n' for topic in ("prices", "users", "orders"))
# Jobs by their command lines in one session, for people and for programs; on the cluster a data source, and what tasks
# find. Elsewhere threads do what they can: a comparison with Spark on Spark would cost more and show less
PROGRAM = """
import contextlib, io, json, sys
from lastkey.jobs.command import cli

def run(name, *words):
    with open(f"{output}/{name}", "wb") as file, contextlib.redirect_stdout(io.TextIOWrapper(file)) as text:
        code = cli.main([*words, "--quiet"])
        text.flush()
    print(name, code)

def origins(paths):
    import lastkey.udfs.compact.compact_partition, os, resource
    files = [module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]
    yield files, [os.access(path, os.R_OK) for path in paths], resource.getrlimit(resource.RLIMIT_AS)[0]

archive, store, output, now, *hidden = sys.argv[1:]
engine = ["--engine", "spark"] if hidden else ["--engine", "threads"]
run("verify", "verify", archive, "--json", *engine)
run("verify-store", "verify", "--store", store, "--json", *engine)
run("reindex", "reindex", archive, "--output", f"{output}/indexes", "--json", *([] if hidden else engine))
run("report", "report", archive, "--output", f"{output}/page.html", "--now", now, "--json", *engine)
run("inspect", "inspect", archive, "--print", "data", "--output", f"{output}/dump", "--json", *engine)
if hidden:
    run("lookup", "lookup", archive, "--store", store, "--at", "2026-11-21T02:30Z", "--json")
what = ["--key", "sku-000010", "--topics", "prices", "--hmac-key", f"{archive}/../hmac.key"]
run("erase", "erase", "--store", store, *what, "--json", *engine)
if hidden:
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    count = spark.read.format("kafka_log").option("topics", "prices").load(archive).count()
    found = spark.sparkContext.parallelize(hidden, 1).mapPartitions(origins).first()
    print(json.dumps([count, *found]))
"""
# Answer of PROGRAM's lookup: the first offset of the minute, and in how many segments. To ask Spark here for it costs
# fifteen processor seconds
FOUND = {("clicks", 0): (1390, 1), ("orders", 0): (1221, 2), ("prices", 0): (1510, 1), ("users", 0): (2203, 1),
         ("users", 1): (2278, 1)}  # fmt: skip
MINUTE_MS = 1_795_228_200_000
# Two compactions in one application
TWICE = """
import sys
from lastkey.jobs.command import cli
folder, now = sys.argv[1:]
for by in ("none", "always"):
    words = ["compact", f"{folder}/archive", "--store", f"{folder}/by-{by}", "--config", f"{folder}/{by}.toml"]
    if code := cli.main([*words, "--now", now, "--quiet", "--json"]):
        sys.exit(code)
"""
# A step of each stage, in turn: the files of the stage are written and not reported
STEPS = ("generation written", "table committed", "walk", "resolve", "rewrite")

_SMALL = ("--executor-memory", "512m", "--conf", f"spark.driver.extraJavaOptions={CHEAP}")
_ONE = ("--total-executor-cores", "1")  # one executor, where a second one would show nothing: each costs seven seconds

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@dataclass(frozen=True)
class Place:
    """A cluster, a checkout on the driver's machine that its executors cannot read, and an unpacked pack that they can.

    The latter lies in a folder `elsewhere`.
    """

    node: Node
    master: str
    checkout: Path
    pack: Path

    @property
    def shared(self) -> Path:
        return self.node.folder / "shared"

    @property
    def elsewhere(self) -> Path:
        return self.node.folder / "elsewhere"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a driver's command."""
        out = self.node.environment | {
            "HOME": os.environ.get("HOME", "/"), "XDG_CACHE_HOME": str(self.node.folder / "cache"),
            "LASTKEY_VENV": sys.prefix, "PYTHONPATH": "",
        } | more  # fmt: skip
        del out["LD_LIBRARY_PATH"], out["SPARK_HOME"]
        return out

    def run(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the driver."""
        command = self.node.as_user(*words, reads_all=True)
        return subprocess.run(
            command, cwd=self.checkout, env=self.environment(**more), capture_output=True, text=True, check=False
        )

    def spark_submit(self, *words: object, **more: str) -> subprocess.Popen[str]:
        """Start Spark's own spark-submit as the executors' user, who needs no other installation."""
        environment = (
            self.node.environment | {"PYSPARK_PYTHON": "./lastkey/bin/python", "SPARK_LAUNCHER_OPTS": CHEAP} | more
        )
        return subprocess.Popen(
            self.node.as_user(self.node.spark / "bin" / "spark-submit", "--master", self.master, *words),
            cwd=self.elsewhere, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def packed(self) -> tuple[str, ...]:
        """Return the options that send the pack to executors."""
        return ("--archives", f"{self.pack}#lastkey", *_SMALL)

    def unpacked(self) -> tuple[str, ...]:
        """Return the options for executors that run by the pack on a path that all see."""
        python = self.elsewhere / "lastkey" / "bin" / "python"
        return ("--conf", f"spark.pyspark.python={python}", *_SMALL)

    def logged(self, log: str) -> tuple[str, ...]:
        """Return the options for an event log."""
        folder = self.node.own(self.shared / log)
        on = ("--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false")
        return (*on, "--conf", f"spark.eventLog.dir=file://{folder}")

    def events(self, log: str, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind in an event log."""
        lines = (path.read_text().splitlines() for path in files_in(self.shared / log, "**/events_*"))
        return [event for event in map(json.loads, itertools.chain(*lines)) if event["Event"] == kind]

    def tasks(self, log: str) -> list[tuple[str, bool]]:
        """Return of each task in an event log which executor ran it, and whether it ended well."""
        ends = self.events(log, "SparkListenerTaskEnd")
        return [(e["Task Info"]["Executor ID"], e["Task End Reason"]["Reason"] == "Success") for e in ends]

    def said(self) -> str:
        """Return what executors have written to stderr so far."""
        return "".join(path.read_text() for path in files_in(self.node.folder, "work-*/*/*/stderr"))


@pytest.fixture(scope="module")
def place(tmp_path_factory, pack, drivers_pack) -> Iterator[Place]:
    private = tmp_path_factory.mktemp("driver")  # pytest's folders are closed to others
    checkout = private / "checkout"
    for name in PACKED:
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "spark-submit.sh"):
        shutil.copy(path, checkout)
    if (ROOT / ".numba").is_dir():
        shutil.copytree(ROOT / ".numba", checkout / ".numba")
    node = make_node()
    try:
        for name in ("driver", "cache", "shared"):
            node.own(node.folder / name)
        own = node.folder / "driver" / "lastkey.tar.gz"
        link(pack, own)
        (node.folder / "shared" / "none.toml").write_text(f'{CONFIG}[job]\n"split.by" = "none"\n')
        (node.folder / "shared" / "always.toml").write_text(
            f'{CONFIG}[job]\n"split.by" = "always"\n"split.bytes" = 300000\n'
        )
        shutil.copytree(ROOT / "examples" / "archive", node.folder / "shared" / "archive")
        folder = node.own(node.folder / "elsewhere")
        node.own(folder / "lastkey")
        with drivers_pack.open("rb") as packed:
            subprocess.run(node.as_user("tar", "-xz", "-C", folder / "lastkey"), check=True, stdin=packed)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "twice.py").write_text(TWICE)
        (node.folder / "shared" / "hmac.key").write_bytes(bytes(range(32)))
        with cluster(node) as master:
            yield Place(node, master, checkout, own)
    finally:
        shutil.rmtree(node.folder)


@pytest.fixture(scope="module")
def local(place) -> Path:
    """Compact here, without a cluster; return the store."""
    store = place.shared / "local"
    done = lastkey.compact(place.shared / "archive", store, config=place.shared / "none.toml", now_ms=NOW_MS)
    assert done.exit_code == 0
    return store


def _compact(place: Place, store: object, archive: object = "") -> tuple[object, ...]:
    words = ("--config", place.shared / "none.toml", "--now", NOW_MS, "--quiet", "--json")
    return ("compact", archive or place.shared / "archive", "--store", store, *words)


def _run_folders(store: Path, *, committed: bool) -> list[Path]:
    """Return the folders of committed runs, or those that are left of others."""
    return [path for path in files_in(store, "segments/*/*") if (path / "manifest.json").is_file() == committed]


def _generations(store: Path) -> dict[str, bytes]:
    """Return the files of a store's generations, without names of runs and values from clocks."""
    of_run = ("manifest.json", "committed")
    files = [file for folder in _run_folders(store, committed=True) for file in files_in(folder, "*")]
    contents = {f"{p.parent.parent.name}/{p.name}": p.read_bytes() for p in files if p.name not in of_run}
    assert len(contents) == len([file for file in files if file.name not in of_run])  # a generation of each partition
    return contents


def test_command_of_the_checkout_compacts_on_a_cluster(place, local):
    """Executors have the requested memory and cores, and their logs name the current task."""
    own = ("--conf", "spark.executor.cores=1", *_ONE)
    options = ("--master", place.master, *place.packed(), *place.logged("log-1"), *own)
    completed = place.run("./spark-submit.sh", *options, *_compact(place, place.shared / "store"))
    assert completed.returncode == 0, completed.stderr
    tasks = place.tasks("log-1")
    assert tasks
    assert {executor for executor, _ in tasks} <= {"0", "1"}  # never "driver"
    assert all(well for _, well in tasks)
    assert _generations(place.shared / "store") == _generations(local)
    output = place.said()
    assert set(re.findall('"-Xmx(.*?)"', output)) == {"512M"}
    assert set(re.findall('"--cores" "(.*?)"', output)) == {"1"}
    assert re.search(r"stage \d+, compact: a partition in each task: prices-0, try 0", output)
    assert "compiling kernels" not in output


def test_worker_without_lastkey_is_a_one_line_error(place):
    options = ("--master", place.master, *_SMALL, *_ONE)
    completed = place.run(
        "./spark-submit.sh", *options, *_compact(place, place.shared / "never"), PYSPARK_PYTHON=PYTHON
    )
    *others, line = completed.stderr.splitlines()
    # As that a worker is slow to begin, and of each JVM that it has incubator modules
    assert all(" WARN " in other or other.startswith("WARNING: Using incubator") for other in others), completed.stderr
    assert line.startswith(
        "error: Spark's Python workers cannot run Lastkey: ModuleNotFoundError: No module named 'lastkey'"
    )
    assert completed.returncode == ENVIRONMENT


def _timeless(text: Any) -> Any:
    """Return a report without what clocks say, and who did the work."""
    if isinstance(text, dict):
        varies = ("seconds", "io", "megabytes_per_second_per_core", "engine", "work", "peak_memory_bytes")
        return {name: _timeless(value) for name, value in text.items() if name not in varies}
    return [_timeless(value) for value in text] if isinstance(text, list) else text


def _results(output: Path, store: Path) -> dict[str, Any]:
    """Return what PROGRAM's jobs printed and wrote, by name."""
    results: dict[str, Any] = {}
    for name, data in read_tree(output).items():
        text = data.decode("latin-1").replace(str(output), "OUTPUT").replace(str(store), "STORE")
        results[name] = _timeless(json.loads(text)) if text.startswith("{\n") else text
    fields = ("exit_code", "erasure", "result", "remains")  # without ids of runs
    results["erase"] = {name: results["erase"][name] for name in fields}
    return results


def _looked_up(place: Place) -> dict[str, Any]:
    """Return what the report of PROGRAM's lookup says."""
    whole = {"exit_code": 0, "start_ms": MINUTE_MS, "end_ms": MINUTE_MS + 60_000, "problems": [], "notes": []}
    refreshed = {"segments_read": 29, "bytes_read": 3_671_093, "segments_kept": 0, "segments_removed": 0}
    partitions = [
        {"topic": topic, "partition": partition, "first_minute_ms": MINUTE_MS, "first_offset": offset, "minutes": 1,
         "segments": segments, "timestamps": "CreateTime"} for (topic, partition), (offset, segments) in FOUND.items()
    ]  # fmt: skip
    names = {"job": "lookup", "archive": str(place.shared / "archive"), "store": "STORE"}
    return names | whole | {"partitions": partitions, "refreshed": refreshed}


def test_other_jobs_and_data_sources_run_on_executors(place, local):
    """By Spark's own spark-submit; it gets Delta's jars from the user, and executors from it."""
    jars = [place.elsewhere / Path(jar).name for jar in cached_delta(downloads_folder({}))]
    assert jars
    for jar in jars:
        shutil.copy(Path("~/.ivy2.5.2/jars").expanduser() / jar.name, jar)
    store, output = place.shared / "for-jobs", place.node.own(place.shared / "output")
    shutil.copytree(local, store)
    for path in (store, *store.rglob("*")) if IS_ROOT else ():
        shutil.chown(path, "nobody")
    options = (*place.packed(), *place.logged("log-2"), "--jars", ",".join(map(str, jars)))
    words = (*_ONE, "--conf", "spark.executor.pyspark.memory=8g", "program.py", place.shared / "archive")
    run = place.spark_submit(*options, *words, store, output, NOW_MS, place.checkout)
    text, _ = run.communicate()
    assert run.returncode == 0, text
    (rows,) = re.findall(r"^\[\d+, .*", text, re.MULTILINE)  # among lines of Spark's
    count, files, reads, memory = json.loads(rows)
    with open_partition(str(ROOT / "examples" / "archive" / "prices-0")) as log:
        assert count == sum(batch.num_rows for batch in log.records(["offset"]))
    assert reads == [not IS_ROOT]
    assert len(files) > 500
    assert [file for file in files if not Path(file).is_relative_to(place.node.folder)] == []
    assert memory == 8 << 30
    assert {executor for executor, _ in place.tasks("log-2")} <= {"0", "1"}
    here, here_output = place.shared / "for-jobs-here", place.shared / "output-here"
    shutil.copytree(local, here)
    here_output.mkdir()
    completed = subprocess.run(
        [sys.executable, place.elsewhere / "program.py", place.shared / "archive", here, here_output, str(NOW_MS)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"},
        capture_output=True, text=True, check=False, cwd=place.shared,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    jobs = [line for line in text.splitlines() if re.fullmatch(r"[a-z-]+ \d", line)]
    assert [job for job in jobs if job != "lookup 0"] == completed.stdout.splitlines()
    assert len(jobs) == 7
    expected = _results(here_output, here) | {"lookup": _looked_up(place)}
    assert _results(output, store) == expected
    assert len(expected) > 50


def test_different_processor_compiles_kernels_into_its_own_cache(place):
    code = (
        "from lastkey.logformat.primitives.crc32c import crc32c_extend as f; import numpy; f(0, numpy.zeros(9, 'u1'))"
    )
    kept = place.elsewhere / "lastkey" / "lib" / "lastkey" / ".numba"
    cached = [set(kept.rglob("*.nbc"))]
    for processor in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}):
        completed = subprocess.run(
            place.node.as_user(place.elsewhere / "lastkey" / "bin" / "python", "-c", code), cwd=place.elsewhere,
            check=False, env=place.node.environment | processor, capture_output=True, text=True,
        )  # fmt: skip
        assert (completed.returncode, completed.stderr) == (0, "")
        cached.append(set(kept.rglob("*.nbc")))
    assert cached[0] == cached[1] < cached[2]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _find_executor(pid: int) -> int:
    """Return the JVM of the executor that a Python worker belongs to."""
    while "CoarseGrainedExecutorBackend" not in _command(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _executors(place: Place) -> list[int]:
    """Return the JVMs of executors that run now."""
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (path / "cwd").readlink().is_relative_to(place.node.folder) and "CoarseGrained" in _command(
                int(path.name)
            ):
                processes.append(int(path.name))
    return processes


def test_executor_killed_in_each_stage_only_delays_the_run(place, local):
    """In one task a partition, then in several; each stage's first task has done its work and not reported it."""
    holds = Holds(place.node.folder / "kills", dict.fromkeys(STEPS, 1))
    options = (*place.unpacked(), *place.logged("log-4"), "--conf", f"spark.executorEnv.PYTHONPATH={holds.folder}")
    run = place.spark_submit(*options, "twice.py", place.shared, NOW_MS, PYTHONPATH=str(holds.folder))
    held = []
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(run.communicate)  # else the driver waits: what it says of lost shuffles fills a pipe
        try:
            for stage in STEPS:
                pid = holds.wait(stage, run.pid)
                if stage == "table committed":
                    os.kill(_executors(place)[0], signal.SIGKILL)
                    holds.release(stage)
                else:
                    held.append(pid)
                    os.kill(_find_executor(pid), signal.SIGKILL)
        except BaseException:
            run.kill()
            raise
        output, _ = reading.result()
    assert run.returncode == 0, output
    for pid in held:
        wait_until_exited(pid)
    assert len(place.events("log-4", "SparkListenerExecutorRemoved")) >= len(held)
    for by in ("none", "always"):
        assert _generations(place.shared / f"by-{by}") == _generations(local), by
    # a failed attempt at a whole partition leaves its folder for vacuum; stages leave no file
    left = [path.name for path in _run_folders(place.shared / "by-none", committed=False)]
    assert len(left) == 1  # killed after the generation was written
    assert _run_folders(place.shared / "by-always", committed=False) == []
    assert "compiling kernels" not in place.said()


def test_resumed_executor_does_not_affect_its_replacement(place, local, installed):
    """A second, speculative try does the work of a task whose executor has stopped; then the first try ends its own.
    The driver is the wheel's command.
    """
    steps = {"read back": 1, "partition done": 1}
    holds, store = Holds(place.node.folder / "stops", steps, one=True), place.shared / "twins"
    settings = ("speculation=true", "speculation.interval=100ms", "speculation.task.duration.threshold=1s",
                "speculation.minTaskRuntime=100ms", f"executorEnv.PYTHONPATH={holds.folder}")  # fmt: skip
    options = [word for setting in settings for word in ("--conf", f"spark.{setting}")]
    words = (*place.unpacked(), *place.logged("log-5"), *options, *_compact(place, store))
    run = subprocess.Popen(
        place.node.as_user(installed, "--master", place.master, *words, reads_all=True), cwd=place.checkout,
        env=place.environment(LASTKEY_VENV=""), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    worker = holds.wait("read back", run.pid)
    executor = _find_executor(worker)
    stopped = [executor, *descendants(executor)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        _, errors = run.communicate()
        assert run.returncode == 0, errors
        assert [event for event in place.events("log-5", "SparkListenerTaskStart") if event["Task Info"]["Speculative"]]
        before, (late,) = read_tree(store), _run_folders(store, committed=False)
        holds.release("read back")
        os.kill(worker, signal.SIGCONT)
        holds.wait("partition done", worker)
        after = read_tree(store)
        assert len(after) > len(before)  # it continued
        assert {name: after[name] for name in before} == before
        assert all(store / name in late.iterdir() for name in after.keys() - before.keys())
        assert _generations(store) == _generations(local)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert Counter(well for _, well in place.tasks("log-5"))[True] == len(_run_folders(store, committed=True))
