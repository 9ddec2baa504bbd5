"""Jobs on YARN, with the driver here (client mode) and in a container (cluster mode), against the same jobs here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

import lastkey
from lastkey.jobs.command import cli
from lastkey.jobs.spark.connector import GOOGLES_JAR
from tests.builders.cloud_servers import azure_environment, azure_server, gcs_server
from tests.builders.s3_server import CREDENTIALS, get, put, s3_server
from tests.builders.trees import files_in, read_tree
from tests.kafka_lab.waiting import wait_until
from tests.yarn_lab import SPARK, Yarn

ROOT = Path(__file__).resolve().parents[3]
ARCHIVE = ROOT / "examples" / "archive"
NOW_MS = 1_800_000_000_000
CONFIG = "".join(
    f'[topics.{topic}]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n'
    for topic in ("users", "orders", "prices")
)
# Run several commands in one session; print where its executors find Lastkey, and then what each command prints
SEVERAL_JOBS = """
import json, os, sys
from lastkey.jobs.command import cli
from lastkey.jobs.spark import session

def where(_):
    import lastkey
    return lastkey.__file__, os.getcwd(), os.environ["PYTHONPATH"], sys.path

print(json.dumps(session.start().sparkContext.parallelize(range(4), 4).map(where).collect()))
for words in json.loads(sys.argv[1]):
    print(end="\\0", flush=True)
    code = cli.main(words)
sys.exit(code)
"""
# First offsets of the minute 02:30Z, by a run without a cluster
AT_HALF_PAST_TWO = {"clicks": [1390], "orders": [1221], "prices": [1510], "users": [2203, 2278]}
KEYS = {name: value for name, value in CREDENTIALS.items() if name != "AWS_EC2_METADATA_DISABLED"}

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as made:
        yield made


@pytest.fixture(autouse=True)
def logs(yarn: Yarn) -> Iterator[None]:
    """Print what containers wrote, which pytest shows if the test fails."""
    before = set(yarn.container_logs())
    yield
    for name, text in yarn.container_logs().items():
        if name not in before:
            print(f"==== {name}\n{text[-3000:]}")


@pytest.fixture(scope="module")
def pack(drivers_pack: Path) -> str:
    """Return `--archives`' value: a file on storage that all nodes share, so each of them unpacks it once. In cluster
    mode the driver runs by it too.
    """
    return f"viewfs://shared{drivers_pack}#lastkey"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "topics.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Path:
    """Return a store that was made without a cluster."""
    store = tmp_path_factory.mktemp("here") / "store"
    assert lastkey.compact(ARCHIVE, store, config=config, now_ms=NOW_MS).exit_code == 0
    return store


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive whose compaction takes long enough to be disturbed."""
    archive = tmp_path_factory.mktemp("many")
    for number in range(24):
        shutil.copytree(ARCHIVE / f"users-{number % 2}", archive / f"users-{number}")
    return archive


@dataclass
class Client:
    """A client's command and what it has written. It writes into files, because no pipe is read while a test waits."""

    process: subprocess.Popen[str]
    files: tuple[IO[str], IO[str]]

    def finish(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, stdout and stderr."""
        code = self.process.wait()
        for file in self.files:
            file.seek(0)
        return code, self.files[0].read(), self.files[1].read()


@contextmanager
def client(yarn: Yarn, *words: object, **more: str) -> Iterator[Client]:
    """Yield a client's running command, whose own Python is the tests'. Kill it if it still runs afterwards."""
    environment = {**yarn.environment, "LASTKEY_VENV": sys.prefix, **more}
    command = [str(word) for word in words]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=file, text=True)
        try:
            yield Client(process, (out, file))
        finally:
            process.kill()
            process.wait()


def compact_words(archive: object, store: object, config: object) -> list[str]:
    return ["compact", str(archive), "--store", str(store), "--config", str(config), "--now", str(NOW_MS)]


def submit_to_cluster(yarn: Yarn, pack: str, *words: object, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run Spark's own spark-submit, as how-to/cluster.md says; return its exit code, and what it wrote to stderr."""
    ours = ["--master", "yarn", "--deploy-mode", "cluster", "--name", "lastkey", "--archives", pack]
    ours += ["--conf", "spark.yarn.maxAppAttempts=1", *options]
    command = (SPARK / "bin" / "spark-submit", *ours, ROOT / "lastkey" / "__main__.py", *words)
    with client(yarn, *command, PYSPARK_PYTHON="./lastkey/bin/python") as run:
        code, _, output = run.finish()
    return code, output


def segments(store: Path) -> dict[tuple[str, str], bytes]:
    """Return the files of generations by partition and name. Their folders' names hold a run's id. Folders without the
    file `committed` are those of tries that died.
    """
    every = {Path(path): data for path, data in read_tree(store / "segments").items()}
    files = {path: data for path, data in every.items() if path.parent / "committed" in every}
    contents = {(path.parts[0], path.name): data for path, data in files.items()}
    assert len(contents) == len(files) > 0
    return {name: data for name, data in contents.items() if name[1] not in ("manifest.json", "committed")}


def found_by(report: dict[str, Any]) -> list[Any]:
    """Return what a report says of data."""
    partitions = [{name: value for name, value in row.items() if name != "seconds"} for row in report["partitions"]]
    return [report["job"], report["exit_code"], report["problems"], partitions]


def said_by_driver(yarn: Yarn) -> str:
    """Return what the application of the last `submit_to_cluster` printed: its driver is in the first container."""
    return [text for name, text in yarn.container_logs().items() if name.endswith("_000001/stdout")][-1]


def wait_for_segments(store: Path, run: Client) -> None:
    def begun() -> bool:
        assert run.process.poll() is None, run.finish()
        return any(store.glob("segments/**/*.log"))

    wait_until(begun, f"a segment in {store}", seconds=300)


def test_client_mode_jobs_survive_killed_containers_and_applications(yarn, pack, here, many, config, tmp_path):
    """A killed container only delays compact; a killed application ends it. (tests/jobs/spark/test_cluster.py compares
    the other jobs.)
    """
    compared = {
        "verify of a store": ["verify", "--store", here],
        "reindex": ["reindex", ARCHIVE, "--output", tmp_path / "there"],
    }
    commands = compared | {
        "delayed": compact_words(many, tmp_path / "delayed", config),
        "killed": compact_words(many, tmp_path / "killed", config),
    }
    words = {name: [*map(str, command), "--json"] for name, command in commands.items()}
    options = ("--master", "yarn", "--archives", pack, "--conf", "spark.executor.memoryOverhead=200m", "pyspark-shell")
    program = (sys.executable, "-c", SEVERAL_JOBS, json.dumps([*words.values()]))
    with client(yarn, *program, PYTHONPATH=str(ROOT), PYSPARK_SUBMIT_ARGS=shlex.join(options)) as run:
        wait_for_segments(tmp_path / "delayed", run)
        _, application = yarn.application()
        executors = application["runningContainers"] - 1
        # In steps of 256 MB: 512 and Spark's least overhead, 384, for YARN's own part; 512 + 200 for each executor
        assert (application["allocatedMB"], executors > 0) == (1024 + 768 * executors, True)
        for process in yarn.executors()[0]:
            os.kill(process, signal.SIGKILL)
        wait_for_segments(tmp_path / "killed", run)
        yarn.kill_application()
        code, out, output = run.finish()
    places, *printed = out.split("\0")
    for file, folder, python_path, path in json.loads(places):
        assert Path(file).is_relative_to(yarn.folder)  # in the archive that YARN unpacked
        assert Path(folder).is_relative_to(yarn.folder)
        assert str(ROOT) not in [*python_path.split(os.pathsep), *path]
    reports = dict(zip(commands, map(json.loads, printed), strict=True))
    words["reindex"][3] = str(tmp_path / "here")
    for name in compared:
        alone = json.loads(CliRunner().invoke(cli.lastkey, words[name]).stdout)
        assert found_by(reports[name]) == found_by(alone), name
        assert reports[name]["engine"]["tasks"] > 0, name
    assert read_tree(tmp_path / "there") == read_tree(tmp_path / "here") != {}
    assert reports["delayed"]["exit_code"] == 0, output
    assert any(", try 1" in text for text in yarn.container_logs().values())  # else it was killed too late
    assert lastkey.compact(many, tmp_path / "alone", config=config, now_ms=NOW_MS).exit_code == 0
    assert segments(tmp_path / "delayed") == segments(tmp_path / "alone")
    error = reports["killed"]["error"]
    assert (code, error["kind"], error["exit_code"]) == (5, "SparkEndedError", 5), output
    assert "state KILLED" in output  # Spark's own line
    assert "unexpected:" not in output


CLOUDS = [
    (s3_server, "s3", lambda port: {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}),
    pytest.param(azure_server, "az", azure_environment, marks=pytest.mark.clouds),
    pytest.param(
        gcs_server, "gs", lambda port: {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}, marks=pytest.mark.clouds
    ),
]


@pytest.mark.parametrize(("server", "scheme", "environment_of"), CLOUDS)
def test_archive_store_and_tables_can_be_in_a_bucket(
    yarn, pack, here, config, tmp_path, server, scheme, environment_of
):
    """`compact` in cluster mode; then tables, which Spark itself keeps in the bucket by a connector, in client mode."""
    with server() as port:
        put(ARCHIVE, f"{scheme}://logs/archive")
        settings = {name: value for name, value in environment_of(port).items() if value is not None}
        places = ("spark.executorEnv", "spark.yarn.appMasterEnv")
        options = [f"--conf={place}.{name}={value}" for place in places for name, value in settings.items()]
        options.append("--num-executors=1")  # any executor may read the bucket
        options += [f"--jars={GOOGLES_JAR}"] if scheme == "gs" else []
        words = compact_words(f"{scheme}://logs/archive", f"{scheme}://logs/store", config.name)
        code, output = submit_to_cluster(yarn, pack, *words, "--json", options=(*options, f"--files={config}"))
        assert code == 0, output
        assert json.loads(said_by_driver(yarn))["exit_code"] == 0
        get(f"{scheme}://logs/store", tmp_path / "store")
        lookup = ["lookup", f"{scheme}://logs/archive", "--store", f"{scheme}://logs/minutes"]
        lookup += ["--at", "2026-11-21T02:30Z", "--json"]
        ours = ("--master", "yarn", "--archives", pack, *options)
        with client(yarn, "./spark-submit.sh", *ours, *lookup, **settings) as run:
            code, out, output = run.finish()
        assert code == 0, output
    assert segments(tmp_path / "store") == segments(here)
    assert first_offsets(out) == AT_HALF_PAST_TWO


def first_offsets(report: str) -> dict[str, list[int]]:
    minutes: dict[str, list[int]] = {}
    for row in json.loads(report)["partitions"]:
        minutes.setdefault(row["topic"], []).append(row["first_offset"])
    return minutes


def test_a_job_with_nothing_to_do_succeeds_in_cluster_mode(yarn, pack, here):
    """The run needs no session, but YARN counts an end without a session as a failure."""
    none = ("--conf=spark.dynamicAllocation.enabled=true", "--conf=spark.executor.instances=0")
    code, output = submit_to_cluster(yarn, pack, "runs", "--store", here, options=none)
    assert code == 0, output
    assert said_by_driver(yarn).endswith(f"1 run in {here}; exit code 0\n")


def test_a_job_that_finds_problems_fails_in_cluster_mode(yarn, pack, tmp_path):
    part = tmp_path / "archive" / "prices-0"
    shutil.copytree(ARCHIVE / "prices-0", part)
    with files_in(part)[0].open("r+b") as log:
        log.seek(2000)
        log.write(b"damage")
    code, output = submit_to_cluster(yarn, pack, "verify", part.parent, options=("--num-executors=1",))
    assert code == 1
    assert "final status: FAILED" in output
    assert "diagnostics: User application exited with status 3\n" in output
    assert "prices-0" in said_by_driver(yarn)
