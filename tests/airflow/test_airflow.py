"""The example DAG in a real Airflow, in an environment of its own, on real archives.

Airflow is never imported here: `run_dags.py` runs in its environment, which the first test makes in `.airflow/venv`
with the commands of examples/airflow/README.md. Without network, or where Airflow does not start, these tests fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "examples" / "airflow"
VENV = ROOT / ".airflow" / "venv"
README = (HERE / "README.md").read_text(encoding="utf-8")
RESULT = "RESULT "
SILENT_SECONDS = 300  # packages are fetched, or a job runs, between two lines

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def _commands() -> tuple[list[str], list[str]]:
    """Return README's commands: those that install, and those after."""
    (block,) = re.findall(r"<!-- run -->\n```sh\n(.*?)```", README, re.DOTALL)
    lines = block.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("export"))
    return lines[:first], lines[first:]


def _run_checked(words: list[object], cwd: Path, env: Mapping[str, str], given: str = "") -> str:
    """Return the output of a process that ends well. It may take any time, but fails after SILENT_SECONDS without
    output.
    """
    out = b""
    with tempfile.TemporaryFile("w+") as file:
        file.write(given)
        file.seek(0)
        with subprocess.Popen(
            list(map(str, words)), cwd=cwd, env=env, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            while select.select([process.stdout], [], [], SILENT_SECONDS)[0]:
                part = os.read(process.stdout.fileno(), 1 << 16)
                out += part
                if not part:
                    break
            else:
                process.kill()
    text = out.decode(errors="replace")
    assert process.returncode == 0, text
    return text


def _bash(lines: list[str], env: Mapping[str, str]) -> str:
    return _run_checked(["bash", "-euc", "\n".join(lines)], ROOT, env)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for Airflow's processes; its environment is there, as pinned, its home is empty."""
    mark = VENV / ".lastkey-pins"
    pins = hashlib.sha256((HERE / "requirements.txt").read_bytes() + sys.version.encode()).hexdigest()
    other = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "AIRFLOW", "LASTKEY")
    env = {name: value for name, value in os.environ.items() if not name.startswith(other)}
    env |= {"UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "180"}
    if not (mark.is_file() and mark.read_text() == pins):
        shutil.rmtree(VENV, ignore_errors=True)
        _bash([line.replace("python3 ", f"{sys.executable} ") for line in _commands()[0]], env)
        mark.write_text(pins)
    home = tmp_path_factory.mktemp("airflow")
    return env | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[*]"}',
        "LASTKEY_VENV": sys.prefix,
    }


# -- archives


def _break_indexes(archive: Path) -> Path:
    """Copy the example archive, with one index missing, one torn, one padded, and one with a wrong entry."""
    shutil.copytree(ROOT / "examples" / "archive", archive)
    (archive / "users-0" / f"{0:020}.index").unlink()
    torn = archive / "users-1" / f"{0:020}.timeindex"
    torn.write_bytes(torn.read_bytes()[:-5])
    padded = archive / "prices-0" / f"{0:020}.timeindex"
    padded.write_bytes(padded.read_bytes() + bytes(12 * 1000))
    wrong = archive / "clicks-0" / f"{0:020}.index"
    data = bytearray(wrong.read_bytes())
    data[15] ^= 1  # position of the second entry
    wrong.write_bytes(data)
    return archive


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def _files(archive: Path) -> dict[str, str]:
    return {
        str(path.relative_to(archive)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files_in(archive, "**/*")
        if path.is_file() and path.name != ".lock"
    }


ORIGINAL = _files(ROOT / "examples" / "archive")


# -- README's commands


def test_readme_commands_install_airflow_and_run_the_dag(environment, tmp_path):
    archive = _break_indexes(tmp_path / "archive")
    before = _files(archive)
    lines = [
        line.replace("~/airflow", environment["AIRFLOW_HOME"]).replace("examples/archive", str(archive))
        for line in _commands()[1]
    ]
    env = {name: value for name, value in environment.items() if not name.startswith("AIRFLOW")}
    log = _bash(lines, env)
    assert re.search(r"DagRun Finished: .*state=success", log)
    assert f"reindex {archive} --output={environment['AIRFLOW_HOME']}/lastkey-reindex/" in log
    assert _files(archive) == before


# -- runs


STUB = """#!/usr/bin/env bash
# Replaces a job, with an ending that no real job can be made to have. The endless one rings Airflow's own alarm. It
# waits until more was read than a pipe holds, so that Airflow knows the job, and until Airflow reads on: the alarm
# writes to the log, and where it interrupts a line of the log, Airflow waits for the log's lock for ever. It rings
# until somebody ends it: what Python raises in a callback is lost.
echo "called with $*" >&2
case "$CODE" in
  killed) kill -9 $$ ;;
  endless)
    echo "process $$" >&2 && printf '%200000s\\n' '' >&2
    while read -r waits < <(cat "/proc/$PPID/wchan" && echo); do
      case "$waits" in *pipe_read) kill -ALRM $PPID && sleep 10 ;; esac
    done ;;
  *) exit "$CODE" ;;
esac
"""


@contextmanager
def _listening() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the URL of a server, and what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/alerts", posted
        finally:
            server.shutdown()
            thread.join()


class Runs:
    """Results of one Airflow process, by the names of the runs."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, dict[str, Any]] = {}
        self.before: dict[str, dict[str, str]] = {}
        with _listening() as (url, self.posted):
            self._plan(url)
            self._run(env, folder)

    def _run(self, env: Mapping[str, str], folder: Path) -> None:
        for name, request in self.told.items():
            archive = Path(request["conf"]["archive"])
            self.before[name] = _files(archive) if archive.is_dir() else {}
        words = [VENV / "bin" / "python", Path(__file__).with_name("run_dags.py")]
        output = _run_checked(
            words, folder, env, json.dumps([{"dag": "lastkey_reindex"} | request for request in self.told.values()])
        )
        parts = re.split(rf"^{RESULT}(.*)\n", output, flags=re.MULTILINE)
        self.structure = json.loads(parts[1])
        self.parsing = parts[0]
        self.result = {name: json.loads(text) for name, text in zip(self.told, parts[3::2], strict=True)}
        self.log = dict(zip(self.told, parts[2::2], strict=False))

    def archive(self, name: str) -> Path:
        """Make a new archive with broken indexes."""
        return _break_indexes(self.folder / name)

    def _plan(self, url: str) -> None:
        run = self.told
        threads = self.folder / "threads.toml"  # a session takes seconds: those of README and `compacted` do
        threads.write_text('[job]\n"engine" = "threads"\n')
        here = {"config": str(threads)}
        in_place = here | {"in_place": True}
        mended = str(self.archive("mended"))
        run["first"] = {"conf": {"archive": mended, **in_place}}
        # a path is read as by any other process
        run["second"] = {"conf": {"archive": "mended", **in_place}}
        run["output"] = {"conf": {"archive": str(self.archive("kept")), **here, "output": str(self.folder / "rebuilt")}}
        run["default"] = {"conf": {"archive": str(self.archive("alone")), **here}}
        some = {"topics": "users,o*", "exclude": "orders"}
        run["topics"] = {"conf": {"archive": str(self.archive("some")), **some, **in_place}}
        run["usage"] = {"conf": {"archive": str(self.folder / "nowhere"), **in_place}}
        damaged = self.archive("damaged")
        _flip(damaged / "orders-0" / f"{0:020}.log", 5000)
        run["damaged"] = {"conf": {"archive": str(damaged), **in_place}}
        unsound = self.folder / "unsound"
        shutil.copytree(ROOT / "examples" / "archive", unsound)
        (unsound / "recovery-point-offset-checkpoint").write_text("nonsense\n")
        run["unsound"] = {"conf": {"archive": str(unsound), **in_place}}
        locked = self.archive("locked")
        run["locked"] = {"conf": {"archive": str(locked), **in_place}, "hold": str(locked / ".lock")}
        run["environment"] = {
            "conf": {"archive": mended, "in_place": True},
            "env": {"LASTKEY_VENV": str(self.folder / "none")},
        }
        run["nowhere"] = {
            "conf": {"archive": mended, "in_place": True},
            "env": {"AIRFLOW_VAR_LASTKEY_HOME": str(self.folder)},
        }
        home = self.folder / "stub"
        (home / "examples" / "airflow").mkdir(parents=True)
        shutil.copytree(HERE / "bin", home / "examples" / "airflow" / "bin")
        (home / "spark-submit.sh").write_text(STUB)
        (home / "spark-submit.sh").chmod(0o755)
        for code in ("1", "143", "killed", "endless"):
            run[code] = {
                "conf": {"archive": mended, "config": "settings.toml", "in_place": True},
                "env": {"AIRFLOW_VAR_LASTKEY_HOME": str(home), "CODE": code},
            }
        run["endless"]["timeout"] = 1000  # seconds: its alarm comes before
        topics = ROOT / "examples" / "topics.toml"
        threads = self.folder / "topics.toml"
        threads.write_text(topics.read_text() + '\n[job]\n"engine" = "threads"\n')
        for name, config in (("compacted", topics), ("uncleanable", threads)):
            archive = shutil.copytree(ROOT / "examples" / "archive", self.folder / name)
            conf = {"archive": str(archive), "store": f"{archive}-store", "config": str(config)}
            run[name] = {"dag": "lastkey_compact", "conf": conf | {"alert_url": url}}
        _flip(self.folder / "uncleanable" / "orders-0" / f"{0:020}.log", 5000)


@pytest.fixture(scope="module")
def runs(environment, tmp_path_factory) -> Runs:
    if not (Path(environment["AIRFLOW_HOME"]) / "airflow.db").is_file():  # README's commands make it
        _bash([f"{VENV}/bin/airflow db migrate"], environment)
    return Runs(environment, tmp_path_factory.mktemp("runs"))


def _states(runs: Runs, name: str) -> tuple[str, str, str]:
    tasks = runs.result[name]["tasks"]
    assert set(tasks) == {"check", "reindex", "verify"}
    return tasks["check"], tasks["reindex"], tasks["verify"]


def test_the_dag_imports_without_errors_or_warnings(runs):
    assert runs.structure["import_errors"] == {}
    assert runs.structure["captured_warnings"] == {}
    assert not re.search(r"warning|error", runs.parsing, re.IGNORECASE)


def test_dag_has_the_documented_tasks_and_order(runs):
    dag = runs.structure["dags"]["lastkey_reindex"]
    assert dag["max_active_runs"] == 1
    assert {name: task["downstream"] for name, task in dag["tasks"].items()} == {
        "check": ["reindex"], "reindex": ["verify"], "verify": []
    }  # fmt: skip
    assert dag["tasks"]["verify"]["trigger_rule"] == "none_failed"
    for task in dag["tasks"].values():
        assert "airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator" in task["kinds"]
        assert (task["retries"], task["retry_delay"], task["connection"]) == (3, 600, "spark_default")
    rows = re.findall(r"^\| `(\w+)` \| ", README.split("| parameter | |")[1].split("\n\n")[0], re.MULTILINE)
    assert rows == list(dag["params"])


def test_dag_rebuilds_broken_indexes(runs):
    result = runs.result["first"]
    assert _states(runs, "first") == ("success", "success", "success")
    codes = {name: summary["exit_code"] for name, summary in result["xcom"].items()}
    assert codes == {"check": 3, "reindex": 0, "verify": 0}
    for broken in ("users-0/{}.index", "users-1/{}.timeindex", "prices-0/{}.timeindex", "clicks-0/{}.index"):
        name = broken.format(f"{0:020}")
        assert any(name in problem for problem in result["xcom"]["check"]["findings"]), name
    assert result["xcom"]["reindex"]["totals"]
    assert runs.before["first"] != ORIGINAL
    assert _files(runs.folder / "mended") == ORIGINAL  # as the broker wrote them, and the logs as they were


def test_task_log_contains_the_report(runs):
    lines = [json.loads(text) for text in re.findall(r"\] (\{.*\}) +\[airflow\.", runs.log["first"])]
    assert [line["job"] for line in lines if "job" in line] == ["reindex", "reindex", "verify"]
    assert [line["exit_code"] for line in lines if "job" in line] == [3, 0, 0]
    partitions = [f"{line['topic']}-{line['partition']}" for line in lines if "topic" in line]
    existing = sorted(path.parent.name for path in files_in(ROOT / "examples" / "archive", "*/partition.metadata"))
    assert partitions == existing * 3
    differs = [file["path"] for line in lines for file in line.get("files", []) if file["status"] == "differs"]
    assert len(differs) == 4
    assert "same" not in {file["status"] for line in lines for file in line.get("files", [])}


def test_intact_archive_skips_reindex_and_runs_verify(runs):
    assert _states(runs, "second") == ("success", "skipped", "success")
    assert runs.result["second"]["state"] == "success"
    assert runs.result["second"]["xcom"]["check"]["n_findings"] == 0


def test_output_option_leaves_the_archive_unchanged(runs):
    assert _states(runs, "output") == ("success", "success", "skipped")
    assert runs.result["output"]["state"] == "success"
    assert _files(runs.folder / "kept") == runs.before["output"]
    assert list((runs.folder / "rebuilt").rglob("*.index"))


def test_default_writes_no_file_into_the_archive(runs, environment):
    assert _states(runs, "default") == ("success", "success", "skipped")
    assert _files(runs.folder / "alone") == runs.before["default"]
    assert list((Path(environment["AIRFLOW_HOME"]) / "lastkey-reindex").rglob("*.index"))


def test_topics_select_partitions(runs):
    assert _states(runs, "topics") == ("success", "success", "success")
    before, after = runs.before["topics"], _files(runs.folder / "some")
    changed = {name.split("/")[0] for name in after if after[name] != before.get(name)}
    assert changed == {"users-0", "users-1"}
    assert {name: digest for name, digest in after.items() if name.startswith("users")} == {
        name: digest for name, digest in ORIGINAL.items() if name.startswith("users")
    }


def test_wrong_path_fails_without_retry(runs):
    assert _states(runs, "usage") == ("failed", "upstream_failed", "upstream_failed")
    assert runs.result["usage"]["tries"]["check"] == 1
    assert runs.result["usage"]["xcom"]["check"]["exit_code"] == 2
    assert f"{runs.folder}/nowhere: expected a folder" in runs.result["usage"]["xcom"]["check"]["findings"][0]


def test_damaged_log_fails_with_the_reported_problem(runs):
    assert _states(runs, "damaged") == ("success", "failed", "upstream_failed")
    result = runs.result["damaged"]
    assert result["tries"]["reindex"] == 1
    assert result["xcom"]["reindex"]["exit_code"] == 3
    first = result["xcom"]["reindex"]["findings"][0]
    assert f"orders-0/{0:020}.log" in first
    assert "impossible" in first
    raised = runs.log["damaged"].split("AirflowFailException: reindex: exit code 3\n")[1]
    assert raised.startswith(first)
    assert (runs.folder / "damaged" / "users-0" / f"{0:020}.index").is_file()  # the others continued


def test_problem_that_only_verify_finds_fails_the_dag(runs):
    assert _states(runs, "unsound") == ("success", "skipped", "failed")
    assert runs.result["unsound"]["xcom"]["verify"]["exit_code"] == 3
    assert "recovery-point-offset-checkpoint" in runs.result["unsound"]["xcom"]["verify"]["findings"][0]


def test_task_is_retried_while_a_broker_holds_the_lock(runs):
    result = runs.result["locked"]
    ((task, messages),) = result["retried"]
    assert task == "reindex"
    assert "exit code 4" in messages
    assert f"{runs.folder}/locked: expected an unused log directory" in messages
    assert result["tries"]["reindex"] == 2
    assert _states(runs, "locked") == ("success", "success", "success")


@pytest.mark.parametrize(("name", "code"), [("environment", 5), ("1", 1)])
def test_defect_and_missing_environment_fail_without_retry(runs, name, code):
    assert _states(runs, name) == ("failed", "upstream_failed", "upstream_failed")
    assert runs.result[name]["tries"]["check"] == 1
    assert runs.result[name]["xcom"]["check"] == {"exit_code": code, "totals": {}, "n_findings": 0, "findings": []}


def test_wrong_lastkey_home_fails_without_retry(runs):
    assert _states(runs, "nowhere") == ("failed", "upstream_failed", "upstream_failed")
    assert runs.result["nowhere"]["tries"]["check"] == 1
    assert "is the variable lastkey_home a checkout?" in runs.log["nowhere"]


@pytest.mark.parametrize(("name", "code"), [("143", 143), ("killed", -9)])
def test_job_that_a_signal_terminated_is_retried(runs, name, code):
    assert _states(runs, name) == ("failed", "upstream_failed", "upstream_failed")
    assert runs.result[name]["tries"]["check"] == 2
    assert runs.result[name]["xcom"]["check"]["exit_code"] == code
    assert "--config=settings.toml" in runs.log[name]


def test_killed_task_terminates_its_job(runs):
    assert _states(runs, "endless") == ("failed", "upstream_failed", "upstream_failed")
    assert runs.result["endless"]["tries"]["check"] == 2
    jobs = [int(pid) for pid in re.findall(r"process (\d+)", runs.log["endless"])]
    assert len(jobs) == 2
    for pid in jobs:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nightly_dag_compacts_verifies_and_reports_needed_segments(runs):
    dag = runs.structure["dags"]["lastkey_compact"]
    rows = re.findall(r"^\| `(\w+)` \| ", README.split("## Compact at night")[1], re.MULTILINE)
    assert rows == list(dag["params"])
    result = runs.result["compacted"]
    assert result["state"] == "success"
    assert result["tasks"] == dict.fromkeys(("compact", "verify", "archive_needed"), "success") | {"alert": "skipped"}
    assert [post["run"] for post in runs.posted if post["tasks"]["compact"]["exit_code"] == 0] == []


def test_uncleanable_partition_fails_the_dag_run_and_is_reported(runs):
    """The others are compacted and verified."""
    result = runs.result["uncleanable"]
    assert result["state"] == "failed"
    assert result["tasks"]["compact"] == "failed"
    assert result["tasks"]["verify"] == "success"
    assert result["tasks"]["alert"] == "failed"
    assert result["tries"]["compact"] == 1
    [post] = runs.posted
    assert f"orders-0/{0:020}.log" in post["text"]
    assert post["tasks"]["compact"]["exit_code"] == 3
    assert post["tasks"]["verify"]["exit_code"] == 0
    assert sorted(p.name for p in (runs.folder / "uncleanable-store" / "segments").iterdir()) == [
        "prices-0", "users-0", "users-1"
    ]  # fmt: skip


def test_readme_names_every_exit_code():
    rows = re.findall(r"^\| ([\d, ]+)(?: \w+)? \|", README.split("## Exit codes")[1], re.MULTILINE)
    assert sorted(int(code) for row in rows for code in row.split(",")) == [0, 1, 2, 3, 4, 5, 6]
