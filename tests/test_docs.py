"""What the docs say is so: options, settings, exit codes, fields, messages, paths; README's examples run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jobs import errors
from jobs.command import cli
from jobs.command.config import JOB_CHECKS, TOPIC_CHECKS, JobSettings, TopicSettings
from jobs.compact.report import CompactReport
from jobs.errors import JobError
from jobs.store import rows as state_rows
from jobs.store import tables as state
from tests.builders.trees import files_in
from udfs.compact.decide_kernels import COUNTER_NAMES
from udfs.compact.plan import PartitionResult

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("jobs", "logformat", "udfs", "conf", "examples", "tests")
PAGES = [*files_in(ROOT, "*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
COMMANDS = cli.lastkey.commands
CHECKS = {**TOPIC_CHECKS, **JOB_CHECKS}
# Kafka's, named where a page tells what a broker does; no settings of ours
KAFKAS_OWN = {"internal.segment.bytes", "log.segment.bytes", "segment.ms", "message.format.version"}


def _section(heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    level = heading.index(" ")
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {heading!r}"
    return found[1]


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


# -- the command line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name):
    assert COMMANDS[name].help
    for option in _options(COMMANDS[name]):
        assert option.help, option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_row_and_every_row_its_option(name):
    common, own = _section("## The jobs").split("\n### ")[0], _section(f"### {name}")
    options = {opt for option in _options(COMMANDS[name]) for opt in (*option.opts, *option.secondary_opts)}
    described, shared = (
        {
            option
            for cell in re.findall(r"^\| (`--.*?`) \|", text, re.MULTILINE)
            for option in re.findall(r"--[a-z-]+", cell)
        }
        for text in (own, common)
    )
    assert options - described - shared == set()
    assert (described | shared) - options == {"--help"}


def test_every_command_has_an_example():
    for name in COMMANDS:
        assert f"./spark-submit.sh {name} " in _section(f"### {name}")


def test_version_is_said_once_more_and_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = CliRunner().invoke(cli.lastkey, ["--version"])
    assert project["version"] in done.output
    assert f"\n## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


# -- exit codes


def test_exit_codes_are_those_of_the_program():
    codes = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    table = dict(re.findall(r"^\| (\d+) \| `([A-Z]+)` \|", _section("### Exit codes"), re.MULTILINE))
    assert {name: int(code) for code, name in table.items()} == codes
    for code in (*codes.values(), 130, 141, 143):
        assert re.search(rf"\b{code}\b", cli.EXIT_CODES), code


def test_every_error_has_one_of_them():
    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    for kind in below(JobError):
        assert kind.exit_code in (errors.USAGE, errors.PROBLEMS, errors.CONFLICT, errors.ENVIRONMENT), kind


# -- settings


def _defaults():
    topic, job = TopicSettings(), JobSettings()
    values = {name: getattr(topic if name in TOPIC_CHECKS else job, name.replace(".", "_")) for name in CHECKS}
    return values | {"cleanup.policy": "delete"}


def _shown(value):
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("checks", "upto"), [(TOPIC_CHECKS, "`[job]` changes only"), (JOB_CHECKS, "")])
def test_readme_has_every_setting_at_its_default(checks, upto):
    text = _section("## Settings")
    text = text.split("`[job]` changes only")[0 if upto else 1]
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| `?([^`|]+)`? \|", text, re.MULTILINE))
    assert rows == {name: _shown(_defaults()[name]) for name in checks}


def _comments() -> dict[str, str]:
    """conf/cleaner.toml: setting -> the comment above it."""
    found = re.findall(r'((?:^# .*\n)+)^"([a-z.]+)" = ', (ROOT / "conf/cleaner.toml").read_text(), re.MULTILINE)
    return {name: comment.replace("\n# ", " ").removeprefix("# ") for comment, name in found}


@pytest.mark.parametrize("name", CHECKS)
def test_a_settings_comment_says_unit_default_and_range_as_they_are(name):
    comment = _comments()[name]
    assert f"Default: {_shown(_defaults()[name])}" in comment
    bounds = re.match(r"(Milliseconds|Bytes|Partitions|Minutes), (\d+) (?:and up|to (\d+))", comment)
    if not bounds:
        assert re.match(r'0 to 1|true or false|"|What may happen .*?: "', comment), "a unit and a range, or the values"
        return
    check, low = CHECKS[name], int(bounds[2])
    assert check(low) == low
    with pytest.raises(ValueError, match="whole number"):
        check(low - 1)
    if bounds[3]:
        assert check(int(bounds[3])) == int(bounds[3])
        with pytest.raises(ValueError, match="whole number"):
            check(int(bounds[3]) + 1)


def test_settings_of_the_result_stand_apart_from_those_of_speed():
    tables = tomllib.loads((ROOT / "conf/cleaner.toml").read_text())
    assert set(tables) == {"defaults", "job"}
    assert set(tables["defaults"]) == set(TOPIC_CHECKS)
    assert set(tables["job"]) == set(JOB_CHECKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_that_a_page_names_exist(page):
    if page == ROOT / "tests/scenarios/README.md":
        return  # tells of Kafka's own tests
    named = set(re.findall(r"[`\"]([a-z]+(?:\.[a-z]+)+)[`\"= ]", page.read_text(encoding="utf-8")))
    looks = {name for name in named if name.rpartition(".")[2] in {key.rpartition(".")[2] for key in CHECKS}}
    assert looks - set(CHECKS) - KAFKAS_OWN == set()


# -- reports and tables


def _fields(text: str) -> set[str]:
    return set(re.findall(r"[a-z][a-z_]+", " ".join(re.findall(r"`([a-z_ ]+)`", text))))


def test_json_fields_of_compact():
    result = PartitionResult("t", 0, "cleaned", counters=dict.fromkeys(COUNTER_NAMES, 0))
    made = CompactReport("A", "S", "r", 0, False, [result]).to_json()
    table = _section("### JSON")
    top = re.search(r"^\| compact \| (.*?) \|$", table, re.MULTILINE)[1]
    assert _fields(top) == set(made)
    cells = re.findall(r"^\| (`[^|]*) \|", table.split("Of each partition")[1], re.MULTILINE)
    assert _fields(" ".join(cells)) == set(made["partitions"][0])


@pytest.mark.parametrize("job", ["verify", "reindex", "restore", "rollback", "rebuild-state", "vacuum"])
def test_json_fields_of_the_other_jobs(job):
    from jobs.rebuild_state import RebuildReport
    from jobs.reindex.report import ReindexReport
    from jobs.restore.job import RestoreReport
    from jobs.rollback import RollbackReport
    from jobs.vacuum import VacuumReport
    from jobs.verify.report import VerifyReport

    report = {"verify": lambda: VerifyReport("archive", "A"), "reindex": lambda: ReindexReport("A", "check"),
              "restore": lambda: RestoreReport("D"),
              "rebuild-state": lambda: RebuildReport("S", True),
              "rollback": lambda: RollbackReport("S", 1, True),
              "vacuum": lambda: VacuumReport("S", True)}[job]()  # fmt: skip
    top = re.search(rf"^\| {job} \| (.*?) \|$", _section("### JSON"), re.MULTILINE)[1]
    assert _fields(top) - ({"store"} if job == "verify" else set()) == set(report.to_json())


def test_fields_of_an_error():
    said = re.search(r'\{"error": \{(.*?)\}\}', _section("### JSON"))[1]
    assert re.findall(r'"(\w+)"', said) == list(errors.UsageError(message="x").to_json())


def test_tables_and_states():
    section = _section("## The store").split("### JSON")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(state.TABLES)
    row = re.search(r"^\| `cleaner_state` \| (.*)", section, re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", row)) == set(state_rows.STATES)
    added = set(state_rows.checkpoint_schema().names) - {field.name for field in fields(state_rows.Checkpoint)}
    assert all(f"`{name}`" in section for name in added)
    assert f"The store has a format, {state_rows.FORMAT}." in section


# -- messages and paths


def test_messages_of_the_troubleshooting_table_are_real():
    packages = ("jobs", "udfs", "logformat")
    files = [*(path for name in packages for path in files_in(ROOT / name, "**/*.py")), ROOT / "spark-submit.sh"]
    sources = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in files)  # strings in two parts
    table = _section("## When something goes wrong")
    cells = re.findall(r"^\| (.*?) \| ", table, re.MULTILINE)[1:]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 8
    for message in messages:
        for piece in re.split(r" ?\.\.\. ?", message):
            words = piece.removeprefix("expected ").replace("Delta's jars could", "could")
            assert words in sources, message


def _named_paths(text: str) -> set[str]:
    """What looks like a path of this project: a link's target, or `folder/name` in back quotes."""
    links = {target.split("#")[0] for target in re.findall(r"\]\(([^)#:\s]+)\)", text)}
    made = (".git", ".venv", ".kafka", "work")
    tops = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.name not in made)
    quoted = set(re.findall(rf"`(?:\./)?((?:{tops})(?:/[\w./-]*)?)`", text))
    commands = set(re.findall(rf"(?<![\w./-])((?:{tops})/[\w./-]*\w)(?![\w/*<])", text))
    return links | quoted | commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_names_exist(page):
    missing = [
        name for name in sorted(_named_paths(page.read_text(encoding="utf-8")))
        if not ((ROOT / name).exists() or (page.parent / name).exists())
    ]  # fmt: skip
    assert missing == []


def _tour() -> dict[str, str]:
    """What CONTRIBUTING's picture of the tree says of each path: {"udfs/compact": "...", ...}."""
    told: dict[str, str] = {}
    folder = ""
    for line in (ROOT / "CONTRIBUTING.md").read_text().split("```")[1].splitlines():
        if line.strip():
            name, _, text = line.strip().partition(" ")
            folder = folder if line.startswith(" ") else name.rstrip("/")
            path = f"{folder}/{name.rstrip('/')}" if line.startswith(" ") else folder
            told[path] = text.strip()
    return told


def test_the_tour_of_contributing_is_the_tree():
    told = _tour()
    assert [path for path in told if not (ROOT / path).exists()] == []
    assert [path for path, text in told.items() if not text] == []
    rooms = {
        str(path.relative_to(ROOT))
        for package in ("logformat", "udfs", "jobs")
        for path in (ROOT / package).iterdir()
        if path.suffix in (".py", ".md") or (path / "__init__.py").exists()
    }
    assert {path for path in rooms if Path(path).stem not in ("__init__", "__main__")} - set(told) == set()


def _texts() -> dict[Path, str]:
    """Every text of ours that may refer to another: code, pages, settings; a text in several lines as one."""
    kinds = (".py", ".toml", ".txt", ".spec")
    found = {*PAGES, *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in kinds)}
    return {path: re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text("utf-8")) for path in found - {Path(__file__)}}


def test_sections_that_are_referred_to_exist_and_kafkas_are_all_in_use():
    headings = {
        page.name: re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in PAGES if page.name != "README.md"
    }  # fmt: skip
    used: dict[str, set[str]] = {}
    for path, text in _texts().items():
        for page, said in re.findall(r'\b([A-Z]+\.md)\)?((?:(?:,| and|, and) "[^"]+")+)', text):
            for section in re.findall('"([^"]+)"', said):
                begins = (f"{section} ", f"{section},")
                assert any(each == section or each.startswith(begins) for each in headings[page]), (path, page, section)
                if path.name != page:
                    used.setdefault(page, set()).add(section)
    assert used["KAFKA.md"] == set(headings["KAFKA.md"][1:])


def test_no_reference_leads_outside_of_the_repository():
    outside = re.compile(r"§|kafka-semantics|(?<![\w/.-])(?:shared|seeds)/|\b(?:design|layout|examples)\.md")
    assert [(path, match[0]) for path, text in _texts().items() for match in outside.finditer(text)] == []


def test_modules_that_are_named_exist():
    """Also in comments, by their file names alone."""
    there = {path.name for path in (*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py")))}
    other = {"sitecustomize.py", "kernels.py"}  # Python's own, and one that tests make
    texts = {path: text for path, text in _texts().items() if path.name != "CHANGELOG.md"}
    named = {(path, name) for path, text in texts.items() for name in re.findall(r"(?<![\w*])[a-z]\w*\.py\b", text)}
    assert len(named) > 50
    assert {(path, name) for path, name in named if name not in there | other} == set()


def test_every_room_stands_in_contributings_table():
    said = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Who may import whom\n")[1].split("\n## ")[0]
    floors = dict(re.findall(r"^(logformat|udfs|jobs) +(.*)$", said, re.MULTILINE))
    rooms = {(package, path.parent.name) for package in floors for path in (ROOT / package).glob("*/__init__.py")}
    assert len(rooms) > 20
    missing = {room for room in rooms if not re.search(rf"\b{room[1]}\b", floors[room[0]])}
    planned = set(re.findall(r"^\| `(\w+)`[^|]*\| ", said.split("Rooms are planned")[1], re.MULTILINE))
    assert missing == set()
    assert planned
    assert planned & {room for _, room in rooms} == set()


def test_nothing_names_a_machine():
    places = re.compile(r"(?<![\w.~$-])/(?:root|work/[a-z]|home/[a-z]|tmp/w)(?:/|\b)")
    kinds = (".py", ".md", ".toml", ".sh", ".java", ".spec", ".txt", ".properties", ".xml", ".conf")
    files = [path for folder in (*FOLDERS, ".ci") for path in files_in(ROOT / folder, "**/*")] + list(ROOT.glob("*"))
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path.is_file() and (path.suffix in kinds or path.name == "run") and path != Path(__file__)
        for match in places.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


# -- what is run


def test_ci_runs_the_tests_as_readme_says():
    (command,) = re.findall(r"```sh\n(\./spark-submit\.sh test.*)\n```", README)
    assert command in (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)


def _runnable() -> list[str]:
    blocks = re.findall(r"<!-- run -->\n```sh\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_examples_of_every_job_are_run():
    assert {shlex.split(line)[1] for line in _runnable()} == set(COMMANDS)


def _table(text: str) -> list[tuple[str, ...]]:
    """Partition, state, records and segments before and after. Sizes depend on the clock, by a few bytes."""
    row = r"^(\S+) +(\S+) +([\d,]+)  ->  +([\d,]+) .* (\d+) -> (\d+)$"
    return re.findall(row, text, re.MULTILINE)


@pytest.mark.spark
@pytest.mark.slow
def test_examples_of_readme_run(spark, tmp_path, monkeypatch, capfd):
    """The first as it stands; the others as the script ends, `cli.main`, in the session that is there."""
    monkeypatch.chdir(ROOT)
    examples = [shlex.split(re.sub(r"(?<= )work/", f"{tmp_path}/", example)) for example in _runnable()]
    assert {script for script, *_ in examples} == {"./spark-submit.sh"}
    done = subprocess.run(
        examples[0], env={**os.environ, "LASTKEY_VENV": sys.prefix}, capture_output=True, text=True, check=False
    )
    ran = [(examples[0], done.returncode, done.stdout, done.stderr)]
    for script, *words in examples[1:]:
        capfd.readouterr()
        code = cli.main(words)
        ran.append(([script, *words], code, *capfd.readouterr()))
    for example, code, out, err in ran:
        assert code == 0, (example, out, err)
        assert "Traceback" not in err
    shown = _section("## Two commands")
    assert _table(ran[0][2]) == _table(shown) != []
    told = re.findall(r"^(?:records dropped|note|the archive).*", shown, re.MULTILINE)
    assert len(told) > 1
    for said in told:
        assert said in ran[0][2]


def _blocks(language: str) -> list[str]:
    """README's blocks of a language, with the examples' archive for `archive`."""
    archive = ROOT / "examples" / "archive"
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [re.sub(r"(?<=[\"'])archive(?=[\"'])", str(archive), block) for block in found]


@pytest.mark.spark
@pytest.mark.slow
def test_python_and_sql_of_readme_run(spark, monkeypatch):
    """Statement by statement; a DataFrame has rows. All blocks share one session and one namespace."""
    monkeypatch.chdir(ROOT)
    spark.read.format("kafka_log").load(str(ROOT / "examples" / "archive")).createOrReplaceTempView("topic")
    names: dict[str, object] = {"spark": spark}
    frames = []
    for block in _blocks("python"):
        for statement in ast.parse(block).body:
            if isinstance(statement, ast.Expr):
                frames.append(eval(compile(ast.Expression(statement.value), "README.md", "eval"), names))
            else:
                exec(compile(ast.Module([statement], []), "README.md", "exec"), names)
    frames += [spark.sql(statement) for block in _blocks("sql") for statement in block.split(";") if statement.strip()]
    shown = [frame for frame in frames if hasattr(frame, "isStreaming") and not frame.isStreaming and frame.columns]
    assert len(shown) == 5
    assert all(frame.limit(1).count() for frame in shown)
    spark.catalog.dropTempView("orders")
