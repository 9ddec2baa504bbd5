"""--folders: folders that a broker marked are read as the partition of their name, and never mixed with another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.errors import UsageError
from lastkey.logformat import names
from lastkey.logformat.side_files.checkpoints import write_offset_checkpoint
from lastkey.udfs.storage import open_root
from tests.builders.logs import write_partition

IDS = {"delete": "a" * 32, "stray": "b" * 32, "future": "c" * 32}
KINDS = {"deleted": "delete", "stray": "stray", "future": "future"}


def marked(archive: Path, partition: str, mark: str, text: str = "a=1 b=2 a=3") -> str:
    """Write a log in a marked folder; return the folder's name."""
    topic, _, number = partition.rpartition("-")
    name = names.partition_folder(topic, int(number), mark, IDS[mark])
    write_partition(archive / partition, text)
    (archive / partition).rename(archive / name)
    return name


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = cli.main([*map(str, words), "--json", "--no-progress"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", KINDS)
def test_folders_with_each_suffix_are_read_by_option(tmp_path: Path, kind: str) -> None:
    folders = {k: marked(tmp_path, f"{k}-7", mark) for k, mark in KINDS.items()}
    write_partition(tmp_path / "plain-0", "a=1")
    archive = list_archive(open_root(str(tmp_path)), lambda _: True, [KINDS[kind]])
    assert archive.partitions.keys() == {(kind, 7), ("plain", 0)}
    partition = archive.partitions[kind, 7]
    assert (partition.path, partition.mark, len(partition.segments)) == (folders[kind], KINDS[kind], 1)
    assert f"{folders[kind]}: read as partition {kind}-7" in partition.notes[0]
    left = {name for k, name in folders.items() if k != kind}
    assert set(archive.not_read) == left
    assert all(any(note.startswith(name) and "--folders" in note for note in archive.notes) for name in left)


def test_checkpoints_do_not_apply_to_folders_with_a_suffix(tmp_path: Path) -> None:
    """A broker that makes a folder stray begins an empty log: its high watermark of 0 would hide every record."""
    marked(tmp_path, "t-0", "stray")
    for name in names.OFFSET_CHECKPOINTS:
        (tmp_path / name).write_bytes(write_offset_checkpoint({("t", 0): 0, ("u", 0): 1}))
    write_partition(tmp_path / "u-0", "a=1 b=2")
    archive = list_archive(open_root(str(tmp_path)), lambda _: True, ["stray"])
    partition, other = archive.partitions["t", 0], archive.partitions["u", 0]
    assert (partition.high_watermark, partition.cleaner_checkpoint, partition.log_start_checkpoint) == (
        None,
        None,
        None,
    )
    assert other.high_watermark == 1


@pytest.mark.parametrize("second", ["t-0", "t-0 stray"])
def test_two_folders_of_one_partition_are_a_problem(tmp_path: Path, second: str) -> None:
    one = marked(tmp_path, "t-0", "future")
    other = marked(tmp_path, "t-0", "stray") if second.endswith("stray") else "t-0"
    if other == "t-0":
        write_partition(tmp_path / "t-0", "x=1 y=2")
    partition = list_archive(open_root(str(tmp_path)), lambda _: True, ["future", "stray"]).partitions["t", 0]
    assert partition.problem is not None and partition.problem.kind == "duplicate"
    assert {partition.problem.path, partition.problem.found.removeprefix("the same partition in ")} == {one, other}


def test_compaction_reads_only_the_selected_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, store = tmp_path / "archive", tmp_path / "store"
    name = marked(archive, "t-0", "stray")
    words = ["compact", archive, "--store", store, "--topics", "*", "--cleanup-policy", "compact", "--sealed"]
    code, error = run_json(capsys, *words)
    assert code == 2 and f"(1 -stray): {name}" in error["error"]["message"]
    assert "--folders stray reads it" in error["error"]["message"]
    code, report = run_json(capsys, *words, "--folders", "stray", "--force")
    assert code == 0 and [p["topic"] for p in report["partitions"]] == ["t"]
    assert run_json(capsys, "verify", "--store", store)[0] == 0
    code, _ = run_json(capsys, "restore", "--store", store, "--output", tmp_path / "restored")
    assert code == 0 and {p.name for p in (tmp_path / "restored").iterdir() if p.is_dir()} == {"t-0"}
    write_partition(archive / "t-0", "x=1")
    code, report = run_json(capsys, *words, "--folders", "stray,future", "--force")
    [partition] = report["partitions"]
    assert code == 3 and partition["problem"]["kind"] == "duplicate"


def test_commands_that_read_an_archive_accept_the_folders_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    marked(archive, "t-0", "stray")
    for words in (
        ("verify", archive),
        ("report", archive, "--output", tmp_path / "page.html"),
        ("lookup", archive, "--partition", "t-0", "--offset", "1"),
        ("reindex", archive, "--check"),
        ("convert", archive, "--output", tmp_path / "v3", "--to", "v3"),
        ("export", archive, "--format", "ndjson", "--output", tmp_path / "rows"),
    ):
        code, report = run_json(capsys, *words, "--folders", "stray")
        assert code == 0, report
        assert "t-0" in json.dumps(report) or '"topic": "t"' in json.dumps(report), words


def test_topic_filter_keeps_the_folders_option(tmp_path: Path) -> None:
    options = ReportOptions("a", output="x", folders=["stray", "deleted"], topics="t")
    assert options.topics.marks == ("stray", "delete") and options.topics.include == ("t",)
    assert CompactOptions("a", "s", topics=options.topics).topics.marks == ("stray", "delete")
    with pytest.raises(UsageError, match=r"--folders: expected stray, future, deleted"):
        ReportOptions("a", output="x", folders="delete")
