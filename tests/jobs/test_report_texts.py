"""Reports name every reason and problem, the worst first. Of many partitions they list those that need attention."""

from __future__ import annotations

import ast
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import rebuild_state
from lastkey.jobs.command import cli, reporting
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions
from lastkey.jobs.errors import DONE, PROBLEMS
from tests.builders.logs import write_partition

pytestmark = pytest.mark.slow

MANY = 25  # more than a table lists where only some rows have something to say


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1 || a=2")
    return tmp_path / "archive"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(MANY):
        write_partition(tmp_path / "archive" / f"t-{number}", "a=1 || a=2")
    return tmp_path / "archive"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def compact_words(archive: Path, topics: str = "*") -> list[object]:
    store = archive.parent / "store"
    return ["compact", archive, "--store", store, "--topics", topics, "--cleanup-policy", "compact", "--sealed"]


def damage(archive: Path, partition: str) -> str:
    """Give the first batch of the first log a size that cannot be; the log's path."""
    path = archive / partition / "00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\0\0\0\1" + data[12:])
    return f"{partition}/{path.name}"


def test_report_names_the_reasons_of_all_topics(archive, tmp_path, capsys):
    """One of two partitions is uncleanable, and the archive has other topics: the report names both reasons."""
    write_partition(archive / "t-1", "-=1 a=1 || -=2")
    write_partition(archive / "other-0", "a=1")
    settings = tmp_path / "topics.toml"
    settings.write_text('[topics."t"]\n"cleanup.policy" = "compact"\n')
    words = ["compact", archive, "--store", tmp_path / "store", "--config", settings, "--sealed"]
    code, out, _ = run(capsys, *words)
    assert code == PROBLEMS
    needed = [line for line in out.splitlines() if line.startswith("the archive is")]
    assert needed == [
        "the archive is still needed: the partition is uncleanable: t-1",
        "the archive is still needed: topics that were not selected: other",
    ]
    assert "problem: t-1: null_key: expected a key in every record, found 2 records without one" in out
    code, out, _ = run(capsys, *words, "--json")
    report = json.loads(out)
    assert (code, report["exit_code"], report["archive_needed"]) == (PROBLEMS, PROBLEMS, True)
    assert [reason["kind"] for reason in report["archive_needed_because"]] == [
        "uncleanable",
        "not_compared",
        "other_topics",
    ]
    [problem] = report["problems"]
    assert (problem["kind"], problem["path"], problem["position"]) == ("null_key", "t-1", -1)


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "--store", "STORE", "--topics", "*", "--cleanup-policy", "compact"],
        ["verify"],
        ["reindex", "--check"],
        ["lookup", "--offset", "0"],
        ["lookup", "--sizing"],
        ["report", "--output", "PAGE"],
        ["inspect", "--output", "TEXTS"],
        ["convert", "--to", "v3", "--output", "OUT"],
        ["export", "--format", "ndjson", "--output", "OUT"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_json_at_exit_code_3_has_problems(archive, tmp_path, capsys, words):
    path = damage(archive, "t-0")
    job, *more = (str(tmp_path / word) if word.isupper() else word for word in words)
    code, out, _ = run(capsys, job, archive, *more, "--json")
    problems = json.loads(out)["problems"]
    assert code == PROBLEMS
    assert any(path in (problem if isinstance(problem, str) else problem["path"]) for problem in problems)
    assert not any(str(problem).count("t-0: t-0") for problem in problems)


def test_exit_codes_are_derived_from_reports_only_in_the_base_class():
    """The exit code is 3 for problems. An audit also has findings, `inspect` prints lines, and the other commands add
    codes.
    """
    own = {
        node.name
        for path in Path(reporting.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.FunctionDef) and each.name == "exit_code" for each in node.body)
    }
    assert own - {"JobReport"} == {"AuditReport", "CompactReport", "EraseReport", "InspectReport"}


def test_partitions_that_are_not_due_are_counted(many, capsys):
    words = compact_words(many)
    code, out, _ = run(capsys, *words)
    assert (code, "the archive is no longer needed" in out) == (DONE, True)
    _, out, _ = run(capsys, *words)
    hidden = f"not due: {MANY} partitions, at most 0 % dirty; --all lists them"
    not_read = "the archive is still needed: not compared by this run; archive-needed compares every byte: t-0, "
    rule = "not due: t-0: nothing was appended at offset 2, up to which everything is clean (and 24 more partitions by"
    assert out.splitlines()[0] == hidden and out.splitlines()[1].startswith(rule)
    assert out.splitlines()[2].startswith(not_read)
    archive_and_store = many, "--store", many.parent / "store"
    code, answer, _ = run(capsys, "archive-needed", *archive_and_store)
    assert (code, "the archive is no longer needed" in answer) == (DONE, True)
    write_partition(many / "u-0", "a=1 || a=2 a=3")
    _, out, _ = run(capsys, *words)
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("t-", "u-"))] == ["u-0"]
    assert out.splitlines()[-2].startswith("seconds: ")
    summary = f"{MANY + 1} partitions: {MANY} not due, 1 committed; 149 B -> 70 B; archive still needed; exit code 0"
    assert out.splitlines()[-1] == summary
    _, out, _ = run(capsys, *words, "--all")
    assert sum(line.startswith(("t-", "u-")) for line in out.splitlines()) == MANY + 1
    assert "--all lists" not in out
    report = json.loads(run(capsys, *words, "--json")[1])
    assert len(report["partitions"]) == MANY + 1


@pytest.mark.parametrize(("job", "more"), [("verify", []), ("reindex", ["--check"])])
def test_text_lists_only_partitions_with_a_problem(many, capsys, job, more):
    assert run(capsys, job, many, *more)[0] == DONE
    damage(many, "t-5")
    code, out, _ = run(capsys, job, many, *more)
    assert code == PROBLEMS
    assert [line.split()[0] for line in out.splitlines() if line.startswith("t-")] == ["t-5"]
    assert f"and {MANY - 1} more, which need no attention: --all lists them" in out
    _, out, _ = run(capsys, job, many, *more, "--all")
    assert sum(line.startswith("t-") for line in out.splitlines()) == MANY
    (many / "t-0").rename(many.parent / "t-0")
    for number in range(6, MANY):
        (many / f"t-{number}").rename(many.parent / f"t-{number}")
    _, out, _ = run(capsys, job, many, *more)
    assert [line.split()[0] for line in out.splitlines() if line.startswith("t-")] == [f"t-{n}" for n in range(1, 6)]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (
            ["compact", "ARCHIVE", "--store", "STORE", "--topics", "*", "--cleanup-policy", "compact", "--force"],
            "t-0 state commit",
        ),
        (["verify", "ARCHIVE"], "list t-0 check"),
        (["reindex", "ARCHIVE", "--check"], "list t-0 reindex"),
        (["lookup", "ARCHIVE", "--offset", "0"], "list t-0 lookup"),
        (["inspect", "ARCHIVE/t-0/00000000000000000000.log"], "1 file"),
        (["restore", "--store", "STORE", "--output", "OUT"], "plan t-0 total"),
        (["rollback", "--store", "STORE", "--generation", "1"], "t-0 total"),
        (["rebuild-state", "--store", "STORE", "--dry-run"], "t-0 total"),
        (["runs", "--store", "STORE"], "total"),
        (["vacuum", "--store", "STORE"], "t-0 total"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_verbose_reports_steps_and_durations_on_stderr(archive, tmp_path, capsys, monkeypatch, words, steps):
    """Its lines were held back: the handler was set to warnings."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for _ in range(2):  # so that there is a second generation
        assert run(capsys, *compact_words(archive), "--force")[0] == DONE
    places = {"ARCHIVE": str(archive), "STORE": str(tmp_path / "store"), "OUT": str(tmp_path / "out")}
    options = []
    for word in words:
        for name, place in places.items():
            word = word.replace(name, place)  # noqa: PLW2901
        options.append(word)
    level = logging.getLogger("lastkey").level
    try:
        code, _, err = run(capsys, *options, "--verbose", "--no-progress")
        lines = err.splitlines()
        assert code == DONE
        for step in [steps] if steps == "1 file" else steps.split():
            assert any(step in line.partition(":")[0] and line.endswith(" s") for line in lines), (step, lines)
        if "out" in err:
            (tmp_path / "out").rename(tmp_path / "away")
        code, _, err = run(capsys, *(w if w != places["OUT"] else f"{w}2" for w in options), "--no-progress")
        assert (code, err) == (DONE, "")
    finally:
        logging.getLogger("lastkey").setLevel(level)


class _Counted(Silent):
    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        self.total = total

    def advance(self, n: int = 1) -> None:
        self.done += n


def test_rebuild_state_counts_every_folder(archive, tmp_path, capsys):
    """A folder with a manifest was passed over, and so nothing moved."""
    for _ in range(3):
        assert run(capsys, *compact_words(archive), "--force")[0] == DONE
    counted = _Counted()
    rebuild_state.run(RebuildStateOptions(str(tmp_path / "store"), dry_run=True), counted)
    assert counted.done == counted.total == 3


def run_report(capsys: pytest.CaptureFixture[str], archive: Path, *words: Any) -> tuple[dict[str, Any], str, str]:
    page = archive.parent / "page.html"
    code, out, _ = run(capsys, "report", archive, "--output", page, *words)
    assert code == DONE
    return json.loads(run(capsys, "report", archive, "--output", page, *words, "--json")[1]), out, page.read_text()


@pytest.mark.slow
def test_report_without_settings_estimates_savings(archive, tmp_path, capsys):
    write_partition(archive / "u-0", "a=1 a=2 b=1 b=2 | a=3 || c=1")
    write_partition(archive / "keyless-0", "-=1 -=2 a=1 a=2 || c=1")
    report, text, page = run_report(capsys, archive)
    assert report["savings"]["by_settings_bytes"] == 0
    possible = report["savings"]["if_all_compacted_bytes"]
    dry = run(
        capsys, "compact", archive, "--store", tmp_path / "store", "--topics", "*", "--cleanup-policy", "compact",
        "--set", "null.keys=keep", "--dry-run", "--force", "--json",
    )  # fmt: skip
    rows = {row["topic"]: row for row in json.loads(dry[1])["partitions"]}
    assert possible == sum(row["bytes_before"] - row["bytes_after"] for row in rows.values()) > 0
    for p in report["partitions"]:
        assert p["bytes_if_compacted"] == rows[p["topic"]]["bytes_after"]
        assert sum(s["dead_records"] for s in p["segments"]) == 0  # by the policy nothing is
    assert "a compaction would save, by the settings: 0 B of " in text
    assert f"a compaction would save, if every topic were compacted: {possible} B of " in text
    assert "give --config FILE, or --topics GLOB with --cleanup-policy compact" in text
    assert "note: keyless-0: 2 records without a key count as kept; compact needs --set null.keys=keep" in text
    assert "if every topic were compacted" in page and f"<b>{possible} B</b>" in page
    assert "if cleanup.policy of its topic were compact." in page  # the most to gain

    write_partition(archive / "packed-0", "{codec=gzip} a=1 a=2 b=1 || c=1")
    _, text, _ = run_report(capsys, archive, "--topics", "packed")
    assert "if every topic were compacted: ~" in text  # compression decides

    some, text, page = run_report(capsys, archive, "--topics", "[tu]", "--cleanup-policy", "compact")
    assert some["savings"]["by_settings_bytes"] == some["savings"]["if_all_compacted_bytes"] > 0
    assert "if every topic" not in text + page and "if compacted" not in text


def test_problem_without_position_omits_it():
    from lastkey.udfs.problem import Problem

    problem = Problem("null_key", "clicks-0", -1, "a key", "none")
    assert str(problem) == "clicks-0: null_key: expected a key, found none"
    assert str(replace(problem, position=0)).startswith("clicks-0 at byte 0: ")
