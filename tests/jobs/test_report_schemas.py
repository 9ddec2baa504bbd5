"""Reports in JSON have the schema of their command in schemas/; texts fit a terminal, and end with what was done."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest

from docs import report_schemas
from lastkey.jobs.command import cli
from lastkey.jobs.command.functions import JOBS
from lastkey.jobs.replay import ReplayReport
from lastkey.udfs.problem import Problem
from lastkey.udfs.replay import Replayed
from tests.builders.groups import checkpoint, commit, write_log
from tests.builders.logs import write_partition

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("--engine", "threads")  # options of commands that would start Spark
SETTINGS = ("--topics", "*", "--cleanup-policy", "compact", "--sealed", *THREADS)
# in order: a later one works on what the earlier ones made; PLACE in capitals is a path
COMMANDS = (
    "compact ARCHIVE --store STORE --dry-run",
    "compact ARCHIVE --store STORE",
    "compact ARCHIVE --store STORE --force",
    "compact ARCHIVE --store STORE",
    "verify ARCHIVE",
    "verify --store STORE",
    "archive-needed ARCHIVE --store STORE",
    "reindex ARCHIVE --check",
    "convert ARCHIVE --to v3 --output CONVERTED",
    "merge ARCHIVE COPY --output MERGED",
    "lookup ARCHIVE --offset 0 --offset 100 --time earliest",
    "lookup ARCHIVE --sizing",
    "report ARCHIVE --output PAGE",
    "report ARCHIVE OTHER --output PAGES",
    "inspect ARCHIVE --output TEXTS",
    "restore --store STORE --output RESTORED",
    "rollback --store STORE --generation 1 --dry-run",
    "rebuild-state --store STORE --dry-run",
    "runs --store STORE",
    "erase --store STORE --hmac-key KEY --key a",
    "vacuum --store STORE --grace-hours 1 --dry-run",
    f"policies {ROOT}/examples/topics-described.txt --output POLICIES",
)
OF_SPARK = (
    "export ARCHIVE --format ndjson --output LINES",
    "lookup ARCHIVE --store STORE --at 2020-01-01",
    "lookup ARCHIVE --queries QUERIES.csv --output ANSWERS.csv",
    "audit keys ARCHIVE --audits AUDITS",
    "audit delivery ARCHIVE --audits AUDITS",
    "audit delivery ARCHIVE --audits AUDITS --hide-keys",
    "audit mirror ARCHIVE COPY --audits AUDITS",
    "audit failover ARCHIVE COPY --audits AUDITS --group g",
    "audit failover ARCHIVE ARCHIVE --audits AUDITS --group g",
)


def command_arguments(command: str, folder: Path) -> list[str]:
    """Return the arguments of a command, with the places in a folder."""
    job = next(name for name in JOBS if f"{command} ".startswith(f"{name} "))
    arguments = [str(folder / word) if word.partition(".")[0].isupper() else word for word in command.split()]
    return arguments + list(
        SETTINGS if job == "compact" else THREADS if job in ("reindex", "convert", "erase", "merge") else ()
    )


def check(report: object, command: str) -> None:
    """Check a report with the schema of its command."""
    job = next(name for name in JOBS if f"{command} ".startswith(f"{name} "))
    schema = json.loads((report_schemas.FOLDER / f"{job.partition(' ')[0]}.json").read_text())
    jsonschema.validate(report, schema, jsonschema.Draft202012Validator)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for archive, topic in (("ARCHIVE", "t"), ("OTHER", "u")):
        write_partition(tmp_path / archive / f"{topic}-0", "a=1 b=1 || a=2 c=1")
        write_partition(tmp_path / archive / f"{topic}-1", "a=1 || b=2")
    shutil.copytree(tmp_path / "ARCHIVE", tmp_path / "COPY")
    (tmp_path / "COPY" / "t-0" / f"{0:020d}.log").write_bytes(b"damaged")
    (tmp_path / "KEY").write_bytes(bytes(range(32)))
    (tmp_path / "KEY").chmod(0o600)
    (tmp_path / "QUERIES.csv").write_text("topic,partition,offset\nt,0,1\n")
    return tmp_path


def test_schema_files_are_generated_from_the_reports():
    made = {f"{job}.json": report_schemas.text(schema) for job, schema in report_schemas.schemas().items()}
    existing = {path.name: path.read_text() for path in report_schemas.FOLDER.iterdir()}
    assert made == existing, "python -m docs.report_schemas writes them"
    assert {name.partition(" ")[0] for name in JOBS} == {name.removesuffix(".json") for name in made}
    for text in made.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_json_of_each_command_is_valid_for_its_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        code = cli.main([*command_arguments(command, folder), "--json"])
        out, err = capsys.readouterr()
        assert code in (0, 3), (command, out, err)
        check(json.loads(out), command)
    replayed = Replayed("t", 0, "u", 0, 1, 1, 1, problem=Problem("crc", "t-0", -1, "a", "b"))
    check(ReplayReport("c", "g", [replayed]).to_json(), "replay")


@pytest.mark.spark
@pytest.mark.slow
def test_json_of_each_spark_command_is_valid_for_its_schema(
    spark: object, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(folder / "ARCHIVE" / "__consumer_offsets-0", [[commit("g", "t", 0, 2), commit("g", "t", 1, 1)]])
    write_log(folder / "ARCHIVE" / "A.checkpoints.internal-0", [[checkpoint("g", "t", 2, 3)]])
    for command in ("compact ARCHIVE --store STORE", *OF_SPARK):
        code = cli.main([*command_arguments(command, folder), "--json"])
        out, err = capsys.readouterr()
        assert code in (0, 3), (command, out, err)
        told = json.loads(out)
        check(told, command)
        rows = [
            name for name, value in told.items() if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        for name in rows if command.startswith("audit") else ():
            with pytest.raises(jsonschema.ValidationError):
                check(told | {name: [told[name][0] | {"more": 1}]}, command)


def test_texts_fit_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only single words may be longer, such as paths. With NO_COLOR no text has a colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    for command in COMMANDS:
        assert cli.main([*command_arguments(command, folder), "--no-progress"]) in (0, 3), command
        lines = capsys.readouterr().out.splitlines()
        long = [line for line in lines if len(line) > 80 and max(map(len, line.split())) <= 40]
        assert long == [], command
        last = " ".join(" ".join(lines[-3:]).split())
        assert last.endswith(("exit code 0", "exit code 3")) and "\x1b" not in "".join(lines), command
