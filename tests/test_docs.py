"""Correctness of the pages: options, settings, exit codes, fields, messages, links, paths; the site builds; examples
run.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from docs import data_source_options, json_fields, option_tables, reference_pages, troubleshooting, worked_example
from docs.command_examples import EXAMPLES, NOT_RUN
from docs.report_schemas import schemas
from lastkey.jobs import errors
from lastkey.jobs.command import cli
from lastkey.jobs.command.declare import declared_values
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import JobError
from lastkey.jobs.store import rows as state_rows
from lastkey.jobs.store.paths import TABLES
from lastkey.logformat.errors import KINDS
from lastkey.udfs.compact.plan import PartitionResult, Work
from lastkey.udfs.compact.verdicts import COUNTER_NAMES
from lastkey.udfs.held_back import Rule
from lastkey.udfs.storage import open_root
from tests.builders.stopping import tracebacks
from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jobs", "logformat", "udfs", "conf", "examples", "notebooks", "docs", "tests")
PAGES = [*files_in(ROOT, "*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
README, STORE_PAGE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "jobs/store/STORE.md"))
GENERATED = reference_pages.pages()  # path below docs/ -> text
COMMANDS = {
    f"{group}{name}": command
    for group, commands in (("", cli.lastkey.commands), ("audit ", cli.lastkey.commands["audit"].commands))
    for name, command in commands.items()
    if name != "audit"
}
SETTINGS = {value.flag for declaration in option_tables.SETTINGS.values() for value in declared_values(declaration)}
# Kafka's, named where a page tells what a broker does; no settings of ours
KAFKAS_OWN = {  # and other programs'
    "internal.segment.bytes", "log.segment.bytes", "segment.ms", "message.format.version", "log.retention.ms",
    "log.retention.minutes", "offsets.retention.minutes", "delivery.timeout.ms", "linger.ms", "transaction.timeout.ms",
    "max.decompressed.message.bytes", "message.timestamp.type", "isolation.level", "kafka.isolation.level",
    "fs.gs.auth.type",
}  # fmt: skip


def _section(page: str, heading: str) -> str:
    """Return the text below a heading of a page, up to the next one of the same or a higher level."""
    level = heading.index(" ")
    match = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"{page.splitlines()[0]}: no section {heading!r}"
    return match[1]


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


# -- the command line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name):
    assert COMMANDS[name].help
    for option in _options(COMMANDS[name]):
        assert option.help, option.opts


def test_every_command_has_an_example_and_a_line_in_readme():
    assert {*EXAMPLES, *NOT_RUN} == set(COMMANDS)
    named = {name for row in re.findall(r"^\| (`.*?) \| ", _section(README, "## Commands"), re.MULTILINE)
             for name in re.findall("`([a-z-]+)`", row)}  # fmt: skip
    assert named == set(cli.lastkey.commands)


def test_page_sizes_are_limited():
    assert len(README.split()) <= 900
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()) <= 1500
    for page in (ROOT / "docs/how-to").glob("*.md"):
        assert len(page.read_text(encoding="utf-8").split()) <= 500, page


def test_pages_and_package_have_the_same_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    result = CliRunner().invoke(cli.lastkey, ["--version"])
    assert project["version"] in result.output
    assert f"\n## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_no_page_has_a_table_of_options():
    """An option of a command is in its declaration, one of the data sources in `docs.data_source_options`."""
    from lastkey.jobs.data_source.options import OPTIONS

    names = {opt for name in COMMANDS for option in _options(COMMANDS[name]) for opt in option.opts}
    names |= {name for kinds in OPTIONS.values() for name in kinds if name != name.lower()}
    for page in PAGES:
        rows = set(re.findall(r"^\| `([\w-]+)`? (?:[A-Z]+`)? *\|", page.read_text("utf-8"), re.MULTILINE))
        assert len(rows & names) <= 1 or page == ROOT / "docs/how-to/nightly.md", page


# -- exit codes


def test_documented_exit_codes_equal_those_of_the_program():
    codes = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    table = {name: code for code, (name, _) in troubleshooting.EXIT_CODES.items() if name}
    assert table == codes
    for code in (*codes.values(), 130, 141, 143):
        assert re.search(rf"\b{code}\b", cli.EXIT_CODES), code


def test_every_error_has_a_documented_exit_code():
    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    for kind in below(JobError):
        assert kind.exit_code in (errors.USAGE, errors.PROBLEMS, errors.CONFLICT, errors.ENVIRONMENT), kind


# -- settings


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_settings_that_a_page_names_exist(page):
    if page == ROOT / "tests/scenarios/README.md":
        return  # tells of Kafka's own tests
    named = set(re.findall(r"[`\"]([a-z]+(?:\.[a-z]+)+)[`\"= ]", page.read_text(encoding="utf-8")))
    looks = {name for name in named if name.rpartition(".")[2] in {key.rpartition(".")[2] for key in SETTINGS}}
    assert looks - SETTINGS - KAFKAS_OWN == set()


# -- reports and tables


def test_json_fields_of_compact_are_documented():
    result = PartitionResult("t", 0, "cleaned", work=Work(counters=dict.fromkeys(COUNTER_NAMES, 0)))
    made = CompactReport("A", "S", "r", 0, False, [result]).to_json()
    fields_of_compact = json_fields.FIELDS["compact"]
    named = {name.partition(".")[2] for name in fields_of_compact if name.startswith("partitions.")}
    assert named == set(made["partitions"][0])
    assert {name for name in fields_of_compact if "." not in name} - set(made) == set()
    assert set(json_fields.HELD_BACK) == set(get_args(Rule))


@pytest.mark.parametrize(
    "job",
    [
        "archive-needed",
        "verify",
        "reindex",
        "convert",
        "merge",
        "export",
        "restore",
        "rollback",
        "rebuild-state",
        "vacuum",
        "erase",
        "pack",
        "replay",
    ],
)
def test_json_fields_of_other_jobs_are_documented(job):
    from lastkey.jobs.archive_needed.job import ArchiveNeededReport
    from lastkey.jobs.convert.job import ConvertReport
    from lastkey.jobs.erase.report import EraseReport
    from lastkey.jobs.export.output import ExportedTopic, ExportReport
    from lastkey.jobs.merge.report import MergeReport
    from lastkey.jobs.pack import PackReport
    from lastkey.jobs.rebuild_state import RebuildReport
    from lastkey.jobs.reindex.job import ReindexReport
    from lastkey.jobs.replay import ReplayReport
    from lastkey.jobs.restore.job import RestoreReport
    from lastkey.jobs.rollback import RollbackReport
    from lastkey.jobs.vacuum import VacuumReport
    from lastkey.jobs.verify.job import VerifyReport

    report = {"verify": lambda: VerifyReport("A"), "reindex": lambda: ReindexReport("A", "check"),
              "convert": lambda: ConvertReport("A", "D", "v3"),
              "merge": lambda: MergeReport(["A", "B"], "D"),
              "export": lambda: ExportReport("D", "delta", topics=[ExportedTopic("t", 1)]),
              "restore": lambda: RestoreReport("D"),
              "rebuild-state": lambda: RebuildReport("S", True),
              "replay": lambda: ReplayReport("C", "G"),
              "rollback": lambda: RollbackReport("S", 1, True),
              "vacuum": lambda: VacuumReport("S", True),
              "erase": lambda: EraseReport("S", "e", 1, True, False),
              "archive-needed": lambda: ArchiveNeededReport(open_root("/A"), "S"),
              "pack": lambda: PackReport(path="P")}[job]()  # fmt: skip
    assert set(json_fields.FIELDS.get(job, {})) - set(report.to_json()) == set()
    assert set(report.to_json()) - json_fields.EVERY.keys() <= set(schemas()[job]["properties"])


def test_json_fields_of_an_error_are_documented():
    text = re.search(r'\{"error": \{(.*?)\}\}', GENERATED["reference/json.md"])[1]
    assert re.findall(r'"(\w+)"', text) == list(errors.UsageError(message="x").to_json())


def test_every_option_of_a_data_source_is_explained():
    from lastkey.jobs.data_source.options import OPTIONS

    named = {name for names in data_source_options.TEXTS for name in names.split(", ")}
    option_names = {name for names in OPTIONS.values() for name in names} - {"path", "paths"}
    aliases = {"subscribe", "subscribePattern", "assign", "kafka.isolation.level"}
    assert named == option_names - aliases
    assert all(f"`{name}`" in GENERATED["reference/data-source-options.md"] for name in aliases)


def test_store_tables_and_states_are_documented():
    section, tables = STORE_PAGE, _section(STORE_PAGE, "## Tables")
    named = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", tables, re.MULTILINE)
    assert {name for row in named for name in row if name} == set(TABLES)
    row = re.search(r"^\| `cleaner_state` \| (.*)", tables, re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", row)) - {"partition_state"} == set(state_rows.STATES)
    picture = _section(STORE_PAGE, "## States of a partition")
    assert all(re.search(rf"\b{name}\b", picture) for name in state_rows.STATES)
    added = set(state_rows.checkpoint_schema().names) - {field.name for field in fields(state_rows.Checkpoint)}
    assert all(f"`{name}`" in section for name in added)
    assert f"The store has a format, {state_rows.FORMAT}." in section


# -- messages and paths


def test_troubleshooting_messages_exist_and_are_listed_once():
    packages = ("jobs", "udfs", "logformat")
    files = [*(path for name in packages for path in files_in(ROOT / name, "**/*.py")), ROOT / "spark-submit.sh"]
    sources = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in files)  # strings in two parts
    messages = [message for cell in troubleshooting.NOTES for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 20
    assert len(set(messages)) == len(messages)
    for message in messages:
        for piece in re.split(r" ?\.\.\. ?", message):
            words = piece.removeprefix("expected ")
            assert words in sources, message


def _named_paths(text: str) -> set[str]:
    """Return words that look like paths of this project: a link's target, or `folder/name` in back quotes."""
    links = {target.split("#")[0] for target in re.findall(r"\]\(([^)#:\s]+)\)", text)}
    made = (".airflow", ".git", ".kafka", ".venv", ".venv-test", "work")
    tops = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.name not in made)
    quoted = set(re.findall(rf"`(?:\./)?((?:{tops})(?:/[\w./-]*)?)`", text))
    commands = set(re.findall(rf"(?<![\w./-])((?:{tops})/[\w./-]*\w)(?![\w/*<])", text))
    of_a_pack = ("lastkey/bin/", "lastkey/lib/")
    return {name for name in links | quoted | commands if not name.startswith(of_a_pack)}


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_paths_that_a_page_names_exist(page):
    missing = [
        name for name in sorted(_named_paths(page.read_text(encoding="utf-8")))
        if not ((ROOT / name).exists() or (page.parent / name).exists() or _generated(page.parent / name))
    ]  # fmt: skip
    assert missing == []


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _generated(path: Path) -> str | None:
    """Return the text of a page of the site that is made when it is built; None for any other path."""
    docs, path = ROOT / "docs", Path(os.path.normpath(path))
    return GENERATED.get(path.relative_to(docs).as_posix()) if path.is_relative_to(docs) else None


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_links_of_a_page_have_targets(page):
    """From the page itself, as a reader clicks them; anchors too. Only pages in docs/ lead to generated ones."""
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        name, _, anchor = target.partition("#")
        if name.startswith("https:"):
            continue
        file = page.parent / name if name else page
        made = _generated(file) if page.is_relative_to(ROOT / "docs") else None
        assert file.exists() or made, target
        assert not anchor or anchor in _anchors(made or file.read_text(encoding="utf-8")), target


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert {path.name for path in (tmp_path / "site").iterdir()} >= {"index.html", "tutorial", "how-to", "reference"}
    assert 'id="lastkey.open_partition"' in (tmp_path / "site/reference/api/index.html").read_text(encoding="utf-8")


def test_every_page_is_on_the_site():
    """Pages in docs/ are: the build is strict."""
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {_id(page) for page in PAGES if not page.is_relative_to(ROOT / "docs")} - named == {"README.md"}


def _texts() -> dict[Path, str]:
    """Yield every text of ours that may refer to another: code, pages, settings; a text in several lines as one."""
    kinds = (".py", ".toml", ".txt", ".spec")
    paths = {*PAGES, *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in kinds)}
    return {path: re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text("utf-8")) for path in paths - {Path(__file__)}}


def test_referenced_sections_exist_and_all_sections_on_kafka_are_referenced():
    headings = {
        page.name: re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in PAGES if page.name != "README.md"
    }  # fmt: skip
    used: dict[str, set[str]] = {}
    for path, text in _texts().items():
        for page, sections in re.findall(r'\b([A-Z]+\.md)\)?((?:(?:,| and|, and) "[^"]+")+)', text):
            for section in re.findall('"([^"]+)"', sections):
                begins = (f"{section} ", f"{section},")
                assert any(each == section or each.startswith(begins) for each in headings[page]), (path, page, section)
                if path.name != page:
                    used.setdefault(page, set()).add(section)
    assert used["KAFKA.md"] == set(headings["KAFKA.md"][1:])


def test_references_do_not_leave_the_repository():
    outside = re.compile(r"§|kafka-semantics|(?<![\w/.-])(?:shared|seeds)/|\b(?:design|layout|examples)\.md")
    assert [(path, match[0]) for path, text in _texts().items() for match in outside.finditer(text)] == []


def test_named_modules_exist():
    """Also in comments, by their file names alone."""
    existing = {path.name for path in (*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py")))}
    other = {"sitecustomize.py", "kernels.py", "program.py", "twice.py", "wrong.py"}  # Python's, and tests make some
    texts = {path: text for path, text in _texts().items() if path.name != "CHANGELOG.md"}
    named = {(path, name) for path, text in texts.items() for name in re.findall(r"(?<![\w*])[a-z]\w*\.py\b", text)}
    assert len(named) > 50
    assert {(path, name) for path, name in named if name not in existing | other} == set()


def test_no_page_names_a_machine():
    places = re.compile(r"(?<![\w.~$-])/(?:root|work/[a-z]|home/[a-z]|tmp/w)(?:/|\b)")
    kinds = (".py", ".md", ".toml", ".sh", ".java", ".spec", ".txt", ".properties", ".xml", ".conf")
    files = [path for folder in (*FOLDERS, ".ci") for path in files_in(ROOT / folder, "**/*")] + list(ROOT.glob("*"))
    machine_names = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path.is_file() and (path.suffix in kinds or path.name == "run") and path != Path(__file__)
        for match in places.finditer(path.read_text(encoding="utf-8"))
    ]
    assert machine_names == []


# -- pictures, and the worked example


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    return worked_example.run(tmp_path_factory.mktemp("example"))


def test_worked_example_equals_the_output_of_the_code(passes):
    page = (ROOT / "udfs/compact/COMPACTION.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- made by docs/worked_example\.py -->\n\n(.*?)\n<!-- until here -->", page, re.DOTALL)[1]
    assert shown == worked_example.example(passes)


def test_every_kind_of_problem_has_a_remedy():
    listed = {kind for kinds in troubleshooting.REMEDIES for kind in kinds} - troubleshooting.STATES.keys()
    assert listed == KINDS.keys() - troubleshooting.NOT_UNCLEANABLE


def test_pictures_equal_those_generated_by_the_code(passes):
    from docs import make_pictures

    drawn = make_pictures.drawings(passes)
    assert {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in drawn} == drawn


def test_pictures_of_runs_by_yield_can_be_generated():
    from docs import make_pictures, yield_pictures

    colours = make_pictures.THEMES["light"]
    aged = yield_pictures.aged_segments(keys=2_000, nights=2)
    assert sum(s.records - s.dead for s in aged) == 2_000, "each key has one live record"
    assert sum(s.dead for s in aged) > 0
    assert yield_pictures.segments_by_age(colours, aged).count("<rect") == 2 * len(aged) + 3
    costs = {"by rank": {"one": [(1.1, 20.0), (1.3, 5.0), (1.9, 3.0)], "other": [(1.0, 80.0)]}}
    drawn = yield_pictures.io_against_space(colours, costs)
    assert re.findall(r'points="([^"]+)"', drawn)[0].count(",") == 2, "what lies beyond the panel is left out"
    assert all(f">{name}</text>" in drawn for name in ("by rank updates", "one", "other"))


def test_every_picture_is_shown_and_none_is_large():
    shown = {
        Path(target).name for page in PAGES for target in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text())
    }
    pictures = [*files_in(ROOT / "docs", "*.svg"), *files_in(ROOT / "docs", "*.png")]
    assert {path.name for path in pictures} == shown
    assert all(path.stat().st_size < 200_000 for path in pictures)


# -- what is run


def test_ci_runs_the_test_command_of_readme():
    (command,) = re.findall(r"```sh\n(\./spark-submit\.sh test.*)\n```", README)
    assert command in (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)


NEEDS_A_BROKER = "replay"  # tests/kafka/test_replay.py runs an example
AIRFLOWS = ROOT / "examples/airflow/README.md"  # tests/airflow runs its commands


def _runnable() -> list[str]:
    """Return the commands of all pages, each once: README's, those of the reference, then the other pages."""
    of_reference = [f"./spark-submit.sh {example}" for examples in EXAMPLES.values() for example in examples]
    blocks = [*_marked(ROOT / "README.md"), *of_reference]
    return list(dict.fromkeys([*blocks, *(line for page in PAGES if page != AIRFLOWS for line in _marked(page))]))


def _marked(page: Path) -> list[str]:
    blocks = re.findall(r"<!-- run -->\n```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_commands_of_a_page_are_marked_as_run_or_not_run(page):
    for before, block in re.findall(r"([^\n]*)\n```(?:sh|bash|console)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        tests = re.fullmatch(r"\./spark-submit\.sh test [^\n]*\n", block)  # the command that runs this test
        assert tests or re.fullmatch(r"<!-- run -->|<!-- not run: .+ -->", before), block


def test_examples_of_every_job_are_run():
    words = [shlex.split(line)[1:3] for line in _runnable()]
    assert {" ".join(word) if word[0] == "audit" else word[0] for word in words} == set(COMMANDS) - {NEEDS_A_BROKER}


def _table(text: str) -> list[tuple[str, ...]]:
    """Return partition, state, and records before and after; sizes depend on the clock, by a few bytes."""
    row = r"^(\S+) +(\S+) +([\d,]+) +([\d,]+) +[\d.]+ .iB +[\d.]+ .iB"
    return re.findall(row, text, re.MULTILINE)


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory) -> tuple[Path, list[tuple[list[str], int, str, str]]]:
    """Run all examples. Return the folder that they write to, and of each: command, exit code, stdout, stderr.

    The first one runs unchanged; the others as the script ends, by `cli.main`, in the session of the tests.
    """
    work = tmp_path_factory.mktemp("work")
    examples = [shlex.split(re.sub(r"(?<= )work/", f"{work}/", example)) for example in _runnable()]
    assert {script for script, *_ in examples} == {"./spark-submit.sh"}
    completed = subprocess.run(
        examples[0], cwd=ROOT, env={**os.environ, "LASTKEY_VENV": sys.prefix},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    out = [(examples[0], completed.returncode, completed.stdout, completed.stderr)]
    with contextlib.chdir(ROOT):
        for script, *words in examples[1:]:
            with (
                (work / "stdout").open("w+") as stdout, contextlib.redirect_stdout(stdout),
                (work / "stderr").open("w+") as stderr, contextlib.redirect_stderr(stderr),
            ):  # fmt: skip
                code = cli.main(words)
            out.append(([script, *words], code, *((work / name).read_text() for name in ("stdout", "stderr"))))
    return work, out


@pytest.mark.spark
@pytest.mark.slow
def test_examples_of_all_pages_run(ran):
    for example, code, out, err in ran[1]:
        assert code == 0, (example, out, err)
        assert tracebacks(err) == []
    first, shown = ran[1][0][2], _section(README, "## Two commands")
    assert _table(first) == _table(shown) != []
    lines = re.findall(r"^(?:records dropped|note|the archive).*", shown, re.MULTILINE)
    assert len(lines) > 1
    for line in lines:
        assert line in first
    assert re.search("`(checked .*? found)`", shown)[1] in ran[1][1][2]


def _blocks(page: Path, language: str, work: Path) -> list[str]:
    """Return a page's blocks of a language, with the paths of the examples' archive and of `work` put in."""
    archive = ROOT / "examples" / "archive"
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    here = [re.sub(r"(?<=[\"'])archive(?=[\"'])", str(archive), block) for block in blocks]
    return [re.sub(r"(?<=[\"'])work/", f"{work}/", block) for block in here]


@pytest.mark.spark
@pytest.mark.slow
def test_python_and_sql_of_all_pages_run(spark, ran, monkeypatch):
    """Statement by statement; a DataFrame has rows. Blocks of a page share a namespace, and all one session."""
    monkeypatch.chdir(ROOT)
    spark.read.format("kafka_log").load(str(ROOT / "examples" / "archive")).createOrReplaceTempView("topic")
    frames = []
    for page in PAGES:
        names: dict[str, object] = {"spark": spark}
        for block in _blocks(page, "python", ran[0]):
            for statement in ast.parse(block).body:
                if isinstance(statement, ast.Expr):
                    frames.append(eval(compile(ast.Expression(statement.value), _id(page), "eval"), names))
                else:
                    exec(compile(ast.Module([statement], []), _id(page), "exec"), names)
        for block in _blocks(page, "sql", ran[0]):
            frames += [spark.sql(statement) for statement in block.split(";") if statement.strip()]
    shown = [frame for frame in frames if hasattr(frame, "isStreaming") and not frame.isStreaming and frame.columns]
    assert len(shown) == 5
    assert all(frame.limit(1).count() for frame in shown)
    spark.catalog.dropTempView("orders")
