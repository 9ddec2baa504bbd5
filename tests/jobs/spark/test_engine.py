"""Choice of the engine: the switch, its line in the report, and no silent move away from Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.jobs import errors
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import Engine
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.reporting import JobReport, Work
from lastkey.jobs.command.spark_options import without_effect
from lastkey.jobs.spark import engine
from lastkey.jobs.spark.workers import SparkTasks, Threads
from lastkey.jobs.store.tables import open_state

ROOT = Path(__file__).resolve().parents[3]
TOPICS = "examples/topics.toml"
NOW_MS = 1_795_300_000_000
SPARK = Work(spark="4.2.0", master="local[2]", application="local-1", tasks=24)
LOCAL = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LASTKEY_VENV": sys.prefix}


def lastkey(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command as README does, without a setting of these tests."""
    environment = LOCAL | {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
    command = [str(ROOT / "spark-submit.sh"), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session of another test in this process not count."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None:
        monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setattr(engine, "OF_WRITERS", "spark")


@pytest.mark.parametrize(
    ("asked", "master", "n_bytes", "expected"),
    [
        ("spark", "", 1, SparkTasks), ("threads", "", 1 << 60, Threads), ("auto", "", 8 << 30, Threads),
        ("auto", "", (8 << 30) + 1, SparkTasks), ("auto", "--master spark://a:1", 1, SparkTasks),
        ("auto", "--master yarn", 1, SparkTasks), ("auto", "--master local[3]", 1, Threads),
        ("auto", "--conf spark.master=yarn", 1, SparkTasks), ("threads", "--master local[3]", 1, Threads),
    ],
)  # fmt: skip
def test_one_meaning_in_all_jobs(
    monkeypatch: pytest.MonkeyPatch, asked: Engine, master: str, n_bytes: int, expected: type
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{master} pyspark-shell".strip())
    options, report = VerifyOptions("a", engine=asked), JobReport()
    chosen = engine.chosen_engine(options, writes=False)
    with engine.workers(chosen, n_bytes, options.config, report, Silent()) as made:
        assert isinstance(made, expected)
        if isinstance(made, Threads):
            assert made.cores == (3 if "local[3]" in master else os.cpu_count())
    assert report.work is None, "there was nothing to do"


def test_the_option_wins_over_the_setting_and_that_over_the_default(tmp_path: Path) -> None:
    for given, setting, writes, expected in (
        (None, None, True, "spark"), (None, None, False, "auto"), (None, "threads", True, "threads"),
        ("spark", "threads", False, "spark"), ("auto", "spark", True, "auto"),
    ):  # fmt: skip
        config = cli.load_config(None)
        if setting:
            path = tmp_path / "c.toml"
            path.write_text(f'[job]\nengine = "{setting}"\nspark.from.bytes = 5\nsplit.by = "none"\nsplit.bytes = 9\n')
            config = cli.load_config(str(path))
        assert engine.chosen_engine(VerifyOptions("a", engine=given, config=config), writes=writes) == expected


@pytest.mark.parametrize(
    "job", [("compact", "--store", "S"), ("reindex", "--check"), ("verify",), ("lookup", "--sizing")]
)
@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "yarn", "local-cluster[1,1,1024]", "local[0]"])
def test_threads_and_a_master_elsewhere_contradict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    job: tuple[str, ...],
    master: str,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master '{master}' pyspark-shell")
    words = [job[0], "examples/archive", *(str(tmp_path / "s") if word == "S" else word for word in job[1:])]
    more = ["--config", TOPICS] if job[0] == "compact" else []
    assert cli.main([*words, *more, "--engine", "threads"]) == errors.USAGE
    assert f"--engine threads: expected a local master or none, found {master}" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("words", [("--at", "2026-01-01"), ("--queries", "q.csv", "--output", "a.csv")])
def test_tables_need_spark(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "q.csv").write_text("topic,partition,offset\n")
    given = [str(tmp_path / word) if word.endswith(".csv") else word for word in words]
    of = ["--store", str(tmp_path / "store")] if words[0] == "--at" else []
    assert cli.main(["lookup", "examples/archive", *of, *given, "--engine", "threads"]) == errors.USAGE
    assert "reads and writes tables through Spark" in capsys.readouterr().err


def test_options_without_effect_are_named_without_their_values() -> None:
    typed = (
        "--packages",
        "com.nobody:nothing:0.0",
        "--conf",
        "spark.hadoop.fs.s3a.secret.key=hush",
        "--master=local[2]",
    )
    [note] = without_effect(typed, Work(threads=2))
    assert note == "--packages, --conf spark.hadoop.fs.s3a.secret.key: no effect, because no Spark was needed"
    assert "--master" in without_effect(typed, None)[0], "a job that has neither"
    assert without_effect(typed, SPARK) == []
    of_executors = ("--executor-memory", "9g", "--supervise", "-c", "spark.executor.cores=4", "--driver-memory", "2g")
    [note] = without_effect(of_executors, SPARK)
    assert note.startswith(
        "--executor-memory, --supervise, --conf spark.executor.cores: no effect, because --master local[2]"
    )
    for master, others in (
        ("spark://a:1", "--supervise"), ("yarn", "--supervise, --total-executor-cores"),
        ("local-cluster[1,1,1024]", "--supervise, --total-executor-cores"),
    ):  # fmt: skip
        [note] = without_effect((*of_executors, "--total-executor-cores", "2"), Work(spark="4.2.0", master=master))
        kind = master.partition(":")[0]
        assert note == f"{others}: no effect, because --master is {kind}"
    assert without_effect(of_executors[:2], Work(spark="4.2.0", master="spark://a:1", application="app-1")) == []
    assert without_effect((), Work(threads=2)) == []


def test_options_in_the_environment_count_beside_typed_ones() -> None:
    words = ("--conf", "spark.ui.enabled=false", "verify", "examples/archive", "--topics", "prices", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": "--master local[3] --queue q pyspark-shell"},
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["engine"]["threads"] == 3
    assert "--queue, --conf spark.ui.enabled: no effect, because no Spark was needed" in report["notes"]


@pytest.mark.spark
@pytest.mark.slow
def test_the_first_command_of_the_readme_runs_on_spark(tmp_path: Path) -> None:
    """Its event log is Spark's own word for it; the second run has nothing to do, and starts no session."""
    store, logs = tmp_path / "store", tmp_path / "events"
    logs.mkdir()
    events = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{logs}")
    events = (*events, "--conf", "spark.eventLog.compress=false", "--conf", "spark.eventLog.rolling.enabled=false")
    words = ("compact", "examples/archive", "--store", store, "--config", TOPICS, "--now", NOW_MS, "--json")
    done = lastkey(*events, *words)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    work = said["engine"]
    assert (work["threads"], work["tasks"]) == (0, 4)
    [log] = logs.iterdir()
    assert work["application"] in log.name
    told = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [event for event in told if event["Event"] == "SparkListenerTaskEnd"]
    assert len(ended) == 4 and all(event["Task End Reason"]["Reason"] == "Success" for event in ended)
    jobs = [event["Properties"]["spark.job.description"] for event in told if event["Event"] == "SparkListenerJobStart"]
    stages = {event["Stage Info"]["Stage Name"] for event in told if event["Event"] == "SparkListenerStageCompleted"}
    assert jobs == ["compact: a partition in each task"] and stages == set(jobs)
    assert {run.engine for runs in open_state(str(store)).histories(None).values() for run in runs} == {
        str(Work(**work))
    }

    again = lastkey(*events, *words)
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    assert said["engine"] is None and {p["status"] for p in said["partitions"]} == {"not_due"}
    assert len(list(logs.iterdir())) == 1, "a second session"
    assert any(note.startswith("--conf spark.eventLog.enabled") for note in said["notes"])

    threads = lastkey("--driver-memory", "9999g", *words[:3], tmp_path / "other", *words[4:8], "--engine", "threads")
    assert threads.returncode == 0, threads.stderr
    assert re.search(r"^engine: \d+ threads?, no Spark$", threads.stdout, re.MULTILINE)
    assert "note: --driver-memory: no effect, because no Spark was needed" in threads.stdout
    files = [{path.name: path.read_bytes() for path in at.rglob("*.log")} for at in (store, tmp_path / "other")]
    assert files[0] == files[1]
