"""The wheel, installed in an environment of its own, run in a folder that is not the checkout."""

from __future__ import annotations

import json
import os
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from lastkey.jobs import errors
from tests.builders.wheel import MAN_PAGE, PACKED
from tests.builders.wheel import run_apart as _run

ROOT = Path(__file__).resolve().parents[1]
OURS = ("lastkey/", "pyspark_kafka_log")  # all that may land in site-packages
# What a user's program does, checked by `mypy --strict` and then run, beside packages that have names of ours
PROGRAM = """
import sys
import threading
from collections.abc import Sequence

from pyspark.sql import SparkSession

import lastkey

ARCHIVE: str = sys.argv[1]
TABLES = {"topics": {"prices": {"cleanup.policy": "compact"}}, "job": {"engine": "spark"}}


def work() -> None:
    report: lastkey.CompactReport = lastkey.compact(ARCHIVE, "store", config=TABLES)
    made.append((report.exit_code, report.problems))
    made.append((lastkey.verify(store="store").exit_code, lastkey.restore("store", "restored").problems))


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
made: list[tuple[int, Sequence[object]]] = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert made == [(0, []), (0, [])], made
with lastkey.open_partition(f"{ARCHIVE}/prices-0") as log:
    read = sum(batch.num_rows for batch in log.records(["offset"]))
found = spark.read.format("kafka_log").option("topics", "prices").load(ARCHIVE).count()  # Spark's discovery
lastkey.register(spark)
assert found == spark.read.format("kafka_log").option("topics", "prices").load(ARCHIVE).count() == read
assert not spark.sparkContext._jsc.sc().isStopped()
try:
    lastkey.compact("/nope", "store")
except lastkey.JobError as error:
    print(error.line())
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """Make a folder to run commands in, with a company's own packages that have the names of our folders."""
    for name in ("jobs", "udfs", "logformat", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')\n")
    return tmp_path


@pytest.mark.slow
def test_wheel_has_exactly_the_required_files(wheel):
    existing = {
        str(path.relative_to(ROOT))
        for top in PACKED
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }
    inside = {name.replace("conf/", "jobs/conf/", 1) if name.startswith("conf/") else name for name in existing}
    expected = {name if name.startswith("lastkey/") else f"lastkey/{name}" for name in inside}
    expected |= {path.name for path in ROOT.glob("*.py")}
    assert all(name.startswith(OURS) for name in expected)
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = f"lastkey-{PROJECT['project']['version']}.data/data/share/man/man1/{MAN_PAGE.name}"
    assert packed == {*expected, data}


@pytest.mark.slow
def test_installed_command_shows_help_version_and_usage_errors(installed, elsewhere):
    done = _run(installed, "--version", cwd=elsewhere)
    assert (done.returncode, done.stdout) == (0, f"lastkey, version {PROJECT['project']['version']}\n"), done.stderr
    assert "Usage: lastkey compact" in _run(installed, "compact", "--help", cwd=elsewhere).stdout
    (elsewhere / "c.toml").write_text("[defaults]\n'segment.byte' = 1\n")
    wrong = _run(installed, "compact", "A", "--store", "S", "--config", "c.toml", cwd=elsewhere)
    assert wrong.returncode == errors.USAGE
    settings = Path(wrong.stderr.split()[-4])  # ".../cleaner.toml lists every setting"
    assert settings.read_bytes() == (ROOT / "conf" / "cleaner.toml").read_bytes()
    completed = _run(
        installed, cwd=elsewhere, _LASTKEY_COMPLETE="bash_complete", COMP_WORDS="lastkey com", COMP_CWORD="1"
    )
    assert (completed.returncode, completed.stdout) == (0, "plain,compact\n"), completed.stderr


@pytest.mark.slow
def test_report_runs_with_a_plain_installation(installed, elsewhere):
    done = _run(installed, "report", ROOT / "examples" / "archive", "--output", "page.html", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (elsewhere / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_installed_package_compacts(installed, elsewhere, engine):
    """Delta's jars, Python workers and kernels too: none of them comes from the checkout."""
    archive, config = ROOT / "examples" / "archive", elsewhere / "c.toml"
    config.write_text(f'[topics.prices]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "{engine}"\n')
    words = ("compact", archive, "--store", "store", "--config", config)
    done = _run(installed, "--master", "local[1]", *words, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "prices-0" in done.stdout
    checked = _run(installed, "verify", "--store", "store", cwd=elsewhere)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    restored = _run(installed, "restore", "--store", "store", "--output", "restored", cwd=elsewhere)
    assert restored.returncode == 0, restored.stderr
    assert list((elsewhere / "restored" / "prices-0").glob("*.log"))


@pytest.mark.slow
@pytest.mark.spark
def test_python_program_runs_jobs_in_its_own_session(installed, elsewhere):
    """Spark's workers compact, and find the data source, with decoys of our folders' names on PYTHONPATH."""
    (elsewhere / "program.py").write_text(PROGRAM)
    python = installed.with_name("python")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # as an activated environment has it
    done = _run(
        python, "program.py", ROOT / "examples" / "archive", cwd=elsewhere, PATH=path, PYTHONPATH=str(elsewhere)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/nope: expected a folder with Kafka log directories, found none\n"


@pytest.mark.slow
def test_pack_of_an_installed_package_equals_that_of_the_checkout(installed, elsewhere):
    done = _run(installed, "pack", "p.tar.gz", "--json", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "fastavro" in json.loads(done.stdout)["packages"]
    with tarfile.open(elsewhere / "p.tar.gz") as packed:
        names = set(packed.getnames())
    assert {"bin/python", "lib/pyspark_kafka_log.py", "lib/lastkey/jobs/conf/cleaner.toml"} <= names
    assert any(name.startswith("lib/lastkey/.numba/") and name.endswith(".nbc") for name in names)
    assert not any(name.startswith(("lib/pyspark/", "lib/pytest/")) for name in names)


@pytest.mark.slow
def test_installed_package_has_type_hints(installed, elsewhere):
    """mypy reports a wrong type; without py.typed every name would be Any."""
    (elsewhere / "program.py").write_text(PROGRAM)
    (elsewhere / "wrong.py").write_text(
        "import lastkey\nlastkey.compact(5, 'S').exit_code.upper()\nlastkey.compacted\n"
    )
    mypy = (installed.with_name("python"), "-m", "mypy", "--strict", "--no-incremental")
    right = _run(*mypy, "program.py", "wrong.py", cwd=elsewhere)
    assert [line.partition(": ")[0] for line in right.stdout.splitlines()[:-1]] == ["wrong.py:2"] * 2 + ["wrong.py:3"]
