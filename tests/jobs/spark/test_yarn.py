"""Jobs on YARN, with the driver here (client mode) and in a container (cluster mode), against the same jobs here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastkey
from tests.builders.trees import files_of
from tests.yarn_lab import SPARK, Yarn

ROOT = Path(__file__).resolve().parents[3]
NOW_MS = 1_800_000_000_000
CONFIG = "".join(
    f'[topics.{topic}]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n'
    for topic in ("users", "orders", "prices")
)
# What a Python program does with several jobs in one session, and where its executors find Lastkey
SEVERAL_JOBS = """
import json, os, sys
import lastkey
from lastkey.jobs.spark import session

def where(_):
    import lastkey
    return lastkey.__file__, os.getcwd(), os.environ["PYTHONPATH"], sys.path

archive, store, output = sys.argv[1:]
places = session.start().sparkContext.parallelize(range(4), 4).map(where).collect()
reports = [lastkey.verify(archive), lastkey.verify(store=store), lastkey.reindex(archive, output=output)]
print(json.dumps([places, [report.to_json() for report in reports]]))
"""

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
    """Return `--archives`' value. In cluster mode the driver runs by it too."""
    return f"{drivers_pack}#lastkey"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a store that was made without a cluster, and the words of the job that did."""
    folder = tmp_path_factory.mktemp("here")
    config, archive = folder / "topics.toml", ROOT / "examples" / "archive"
    config.write_text(CONFIG)
    assert lastkey.compact(archive, folder / "store", config=config, now_ms=NOW_MS).exit_code == 0
    return folder / "store", ["compact", str(archive), "--config", str(config), "--now", str(NOW_MS), "--store"]


def run(yarn: Yarn, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a client's command. Its own Python is the tests'."""
    environment = {**yarn.environment, "LASTKEY_VENV": sys.prefix, **more}
    return subprocess.run(
        [str(word) for word in words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def submit_to_cluster(yarn: Yarn, pack: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Spark's own spark-submit, as CLUSTER.md says."""
    options = ["--master", "yarn", "--deploy-mode", "cluster", "--name", "lastkey", "--archives", pack]
    options += ["--conf", "spark.yarn.maxAppAttempts=1"]
    command = [SPARK / "bin" / "spark-submit", *options, ROOT / "lastkey" / "__main__.py", *words]
    return run(yarn, *command, PYSPARK_PYTHON="./lastkey/bin/python")


def segments(store: Path) -> dict[tuple[str, str], bytes]:
    """Return the files of generations by partition and name. Their folders' names hold a run's id."""
    files = {Path(path): data for path, data in files_of(store / "segments").items()}
    found = {(path.parts[0], path.name): data for path, data in files.items()}
    assert len(found) == len(files) > 0
    return {name: data for name, data in found.items() if name[1] not in ("manifest.json", "committed")}


def found_by(report: dict[str, Any]) -> list[Any]:
    """Return what a report says of data."""
    partitions = [{name: value for name, value in row.items() if name != "seconds"} for row in report["partitions"]]
    return [report["job"], report["exit_code"], report["problems"], partitions]


def said_by_driver(yarn: Yarn) -> str:
    """Return what the application of the last `submit_to_cluster` printed: its driver is in the first container."""
    return [text for name, text in yarn.container_logs().items() if name.endswith("_000001/stdout")][-1]


def test_compact_in_client_mode(yarn, pack, here, tmp_path):
    done = run(
        yarn, "./spark-submit.sh", "--master", "yarn", "--archives", pack, *here[1], tmp_path / "store", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 0
    assert segments(tmp_path / "store") == segments(here[0])


def test_other_jobs_in_client_mode(yarn, pack, here, tmp_path):
    archive = ROOT / "examples" / "archive"
    options = shlex.join(["--master", "yarn", "--archives", pack, "pyspark-shell"])
    words = (sys.executable, "-c", SEVERAL_JOBS, archive, here[0], tmp_path / "there")
    done = run(yarn, *words, PYTHONPATH=str(ROOT), PYSPARK_SUBMIT_ARGS=options)
    assert done.returncode == 0, done.stderr
    places, reports = json.loads(done.stdout)
    for file, folder, python_path, path in places:
        assert Path(file).is_relative_to(yarn.folder)  # in the archive that YARN unpacked
        assert Path(folder).is_relative_to(yarn.folder)
        assert str(ROOT) not in [*python_path.split(os.pathsep), *path]
    same = [lastkey.verify(archive), lastkey.verify(store=here[0]), lastkey.reindex(archive, output=tmp_path / "here")]
    as_printed = [json.loads(json.dumps(report.to_json())) for report in same]
    assert [found_by(report) for report in reports] == [found_by(report) for report in as_printed]
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here") != {}


def test_a_job_with_nothing_to_do_succeeds_in_cluster_mode(yarn, pack, here):
    """It would need no session; but YARN takes an end without one for a failure."""
    done = submit_to_cluster(yarn, pack, "runs", "--store", here[0])
    assert done.returncode == 0, done.stderr
    assert said_by_driver(yarn).endswith(f"1 run in {here[0]}\n")
