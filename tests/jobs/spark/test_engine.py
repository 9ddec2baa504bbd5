"""Choice of the engine: the option, its line in the report, and no silent fallback from Spark."""

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
from lastkey.jobs.command.config import Engine, load_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.reporting import JobReport, Work
from lastkey.jobs.command.spark_options import IN_DEFAULTS, named, without_effect
from lastkey.jobs.spark import engine, submit
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
def no_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session of another test in this process not count. The shared one is there before, if a test asks for it:
    else it would be forgotten at the test's end, while it runs.
    """
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")
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
def test_engine_option_selects_the_same_engine_in_all_jobs(
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


def test_engine_option_overrides_the_setting_and_the_setting_overrides_the_default(tmp_path: Path) -> None:
    for given, setting, writes, expected in (
        (None, None, True, "spark"), (None, None, False, "auto"), (None, "threads", True, "threads"),
        ("spark", "threads", False, "spark"), ("auto", "spark", True, "auto"),
    ):  # fmt: skip
        config = load_config(None)
        if setting:
            path = tmp_path / "c.toml"
            path.write_text(f'[job]\nengine = "{setting}"\nspark.from.bytes = 5\nsplit.by = "none"\nsplit.bytes = 9\n')
            config = load_config(str(path))
        assert engine.chosen_engine(VerifyOptions("a", engine=given, config=config), writes=writes) == expected


@pytest.mark.parametrize(
    "job", [("compact", "--store", "S"), ("reindex", "--check"), ("verify",), ("lookup", "--sizing")]
)
@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "yarn", "local-cluster[1,1,1024]", "local[0]"])
def test_threads_engine_refuses_a_cluster_master(
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
def test_threads_engine_refuses_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "q.csv").write_text("topic,partition,offset\n")
    arguments = [str(tmp_path / word) if word.endswith(".csv") else word for word in words]
    of = ["--store", str(tmp_path / "store")] if words[0] == "--at" else []
    assert cli.main(["lookup", "examples/archive", *of, *arguments, "--engine", "threads"]) == errors.USAGE
    assert "needs Spark for its tables" in capsys.readouterr().err


def notes_on(typed: tuple[str, ...], work: Work | None) -> list[str]:
    return without_effect(named(typed, {}), work)


def test_options_without_effect_are_named_without_their_values() -> None:
    typed = (
        "--packages",
        "com.nobody:nothing:0.0",
        "--conf",
        "spark.hadoop.fs.s3a.secret.key=hush",
        "--master=local[2]",
    )
    [note] = notes_on(typed, Work(threads=2))
    assert note == "--packages, --conf spark.hadoop.fs.s3a.secret.key: no effect, because no Spark was needed"
    assert "--master" in notes_on(typed, None)[0], "a job that has neither"
    assert notes_on(("--conf", "spark.master=local[2]"), Work(threads=2)) == []
    assert notes_on(typed, SPARK) == []
    of_executors = ("--executor-memory", "9g", "--supervise", "-c", "spark.executor.cores=4", "--driver-memory", "2g")
    [note] = notes_on(of_executors, SPARK)
    assert note.startswith(
        "--executor-memory, --supervise, --conf spark.executor.cores: no effect, because --master local[2]"
    )
    of_others = (*of_executors, "--total-executor-cores", "2", "--conf=spark.cores.max=2", "-c", "spark.yarn.queue=q")
    for master, others in (
        ("spark://a:1", "--supervise, --conf spark.yarn.queue"),
        ("yarn", "--supervise, --total-executor-cores, --conf spark.cores.max"),
        (
            "local-cluster[1,1,1024]",
            "--supervise, --total-executor-cores, --conf spark.cores.max, --conf spark.yarn.queue",
        ),
    ):
        [note] = notes_on(of_others, Work(spark="4.2.0", master=master))
        kind = master.partition(":")[0]
        assert note == f"{others}: no effect, because --master is {kind}"
    assert notes_on(of_executors[:2], Work(spark="4.2.0", master="spark://a:1", application="app-1")) == []
    assert notes_on((), Work(threads=2)) == []


@pytest.mark.parametrize(
    ("work", "of_file", "of_machine"),
    [
        (None, "spark.master, spark.executor.memory, spark.sql.x", ""),
        (Work(threads=2), "spark.executor.memory, spark.sql.x", ""),
        (SPARK, "spark.executor.memory", "spark.executor.memory"),
        (Work(spark="4.2.0", master="yarn"), "", ""),
        (Work(spark="4.2.0", master="sc://a:1"), "spark.master, spark.executor.memory",
         "spark.master, spark.executor.memory"),
    ],
)  # fmt: skip
def test_properties_of_a_file_named_by_the_user_are_applied(
    tmp_path: Path, work: Work | None, of_file: str, of_machine: str
) -> None:
    """The machine's defaults hold for every program, so a run without Spark does not name them."""
    path = tmp_path / "spark-defaults.conf"
    path.write_text("spark.master x\nspark.executor.memory 3g\nspark.executor.cores 2\nspark.sql.x hush\n")
    typed = ["--conf", "spark.executor.cores=1"]  # overrides the file's, without a note

    def names(arguments: list[str], environment: dict[str, str]) -> list[str]:
        names = submit.user_options(arguments, environment).names
        return [name for name in names if "executor.cores" not in name]

    machine = {"SPARK_CONF_DIR": str(tmp_path)}
    file = ["--properties-file", str(path)]
    for given, environment, expected, ending in (
        ([*file, *typed], {}, of_file, " in --properties-file"),
        ([*file, *typed], machine, of_file, " in --properties-file"),
        (typed, machine, of_machine, IN_DEFAULTS),
    ):
        notes = without_effect(names(given, environment), work)
        options = [note.partition(": no effect")[0] for note in notes]
        assert options == [", ".join(f"{name}{ending}" for name in expected.split(", "))] * bool(expected)


def test_properties_file_without_settings_is_reported(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a 1\nspark.b 2\n")
    (tmp_path / "mine").write_text("spark.b 3\n")
    machine = {"SPARK_CONF_DIR": str(tmp_path)}
    assert submit.user_options(["--properties-file", str(tmp_path / "none")], machine).names == ["--properties-file"]
    both = submit.user_options(["--load-spark-defaults", "--properties-file", str(tmp_path / "mine")], machine)
    assert both.conf == {"spark.a": "1", "spark.b": "3"}
    assert both.names == ["--load-spark-defaults", "spark.b in --properties-file", f"spark.a{IN_DEFAULTS}"]


JOBS = {
    "compact": ("compact", "examples/archive", "--store", "NEW", "--config", TOPICS, "--topics", "prices"),
    "verify": ("verify", "examples/archive", "--topics", "prices"),
    "reindex": ("reindex", "examples/archive", "--check", "--topics", "prices"),
    "report": ("report", "examples/archive", "--topics", "prices", "--output", "PAGE"),
    "inspect": ("inspect", "examples/archive/prices-0", "--output", "DIR"),
    "lookup": ("lookup", "examples/archive", "--topics", "prices", "--offset", "7"),
    "lookup --sizing": ("lookup", "examples/archive", "--topics", "prices", "--sizing"),
    "lookup --at": ("lookup", "examples/archive", "--store", "STORE", "--at", "2026-11-21", "--topics", "prices"),
    "runs": ("runs", "--store", "STORE"),
    "restore": ("restore", "--store", "STORE", "--output", "DIR"),
    "rollback": ("rollback", "--store", "STORE", "--generation", "1", "--dry-run"),
    "rebuild-state": ("rebuild-state", "--store", "STORE", "--dry-run"),
    "vacuum": ("vacuum", "--store", "STORE", "--dry-run"),
}
WITH_ENGINE = ("compact", "verify", "reindex", "report", "inspect", "lookup", "lookup --sizing")


@pytest.mark.parametrize(
    ("job", "asked"),
    [(job, "threads" if job in WITH_ENGINE else "") for job in JOBS if job != "lookup --at"]
    + [
        pytest.param(job, "spark", marks=[pytest.mark.spark, pytest.mark.slow]) for job in (*WITH_ENGINE, "lookup --at")
    ],
)
def test_ignored_spark_options_are_reported(
    job: str, asked: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Each job on each engine, with a properties file: threads read its master, and Spark gets no executors."""
    properties = tmp_path / "mine"
    properties.write_text("spark.master local[2]\nspark.executor.memory 3g\nspark.sql.x 1\n")
    store, new = tmp_path / "store", {"NEW": tmp_path / "new", "PAGE": tmp_path / "p.html", "DIR": tmp_path / "dir"}
    if "STORE" in JOBS[job]:
        made = ["compact", "examples/archive", "--store", str(store), "--config", TOPICS, "--topics", "prices"]
        assert cli.main([*made, "--engine", "threads", "--quiet"]) == errors.DONE
        capfd.readouterr()
    words = [str(new.get(word, store if word == "STORE" else word)) for word in JOBS[job]]
    of_job = ["--engine", asked] if asked else []
    with pytest.MonkeyPatch.context() as patch:
        if asked == "spark":
            session = request.getfixturevalue("spark")
            patch.setattr(type(session.sparkContext), "_active_spark_context", session.sparkContext)
        patch.setattr(cli, "spark_options", submit.user_options(["--properties-file", str(properties)], {}).names)
        code = cli.main([*words, *of_job, "--quiet"])
    out, err = capfd.readouterr()
    assert code == errors.DONE, err
    [note] = re.findall(r"^note: (.*no effect.*)$", out + err, re.MULTILINE)
    settings = {"threads": ["spark.executor.memory", "spark.sql.x"], "spark": ["spark.executor.memory"]}
    names = settings.get(asked, ["spark.master", "spark.executor.memory", "spark.sql.x"])
    assert note.partition(":")[0] == ", ".join(f"{name} in --properties-file" for name in names)


def test_spark_options_of_the_environment_files_and_command_line_are_reported(tmp_path: Path) -> None:
    properties = tmp_path / "mine"
    properties.write_text("spark.jars.packages hush\n")
    options = ("--properties-file", properties, "--conf", "spark.ui.enabled=false")
    words = (*options, "verify", "examples/archive", "--topics", "prices", "--json")
    completed = subprocess.run(
        [sys.executable, "-m", "lastkey", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": "--master local[3] --queue q pyspark-shell"},
    )  # fmt: skip
    report = json.loads(completed.stdout)
    assert report["engine"]["threads"] == 3
    names = "--queue, --conf spark.ui.enabled, spark.jars.packages in --properties-file"
    assert f"{names}: no effect, because no Spark was needed" in report["notes"]


@pytest.mark.spark
@pytest.mark.slow
def test_first_command_of_the_readme_runs_on_spark(tmp_path: Path) -> None:
    """Its event log is Spark's own word for it; the second run has nothing to do, and starts no session."""
    store, logs = tmp_path / "store", tmp_path / "events"
    logs.mkdir()
    events = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{logs}")
    events = (*events, "--conf", "spark.eventLog.compress=false", "--conf", "spark.eventLog.rolling.enabled=false")
    words = ("compact", "examples/archive", "--store", store, "--config", TOPICS, "--now", NOW_MS, "--json")
    done = lastkey(*events, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    work = result["engine"]
    assert (work["threads"], work["tasks"]) == (0, 4)
    [log] = logs.iterdir()
    assert work["application"] in log.name
    report = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [event for event in report if event["Event"] == "SparkListenerTaskEnd"]
    assert len(ended) == 4 and all(event["Task End Reason"]["Reason"] == "Success" for event in ended)
    jobs = [
        event["Properties"]["spark.job.description"] for event in report if event["Event"] == "SparkListenerJobStart"
    ]
    stages = {event["Stage Info"]["Stage Name"] for event in report if event["Event"] == "SparkListenerStageCompleted"}
    assert jobs == ["compact: a partition in each task"] and stages == set(jobs)
    assert {run.engine for runs in open_state(str(store)).histories(None).values() for run in runs} == {
        str(Work(**work))
    }

    again = lastkey(*events, *words)
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert result["engine"] is None and {p["status"] for p in result["partitions"]} == {"not_due"}
    assert len(list(logs.iterdir())) == 1, "a second session"
    assert any(note.startswith("--conf spark.eventLog.enabled") for note in result["notes"])

    threads = lastkey("--driver-memory", "9999g", *words[:3], tmp_path / "other", *words[4:8], "--engine", "threads")
    assert threads.returncode == 0, threads.stderr
    assert re.search(r"^engine: \d+ threads?, no Spark$", threads.stdout, re.MULTILINE)
    assert "note: --driver-memory: no effect, because no Spark was needed" in threads.stdout
    files = [
        {(path.parts[-3], path.name): path.read_bytes() for path in at.rglob("*.log")}
        for at in (store, tmp_path / "other")
    ]
    assert files[0] == files[1]
