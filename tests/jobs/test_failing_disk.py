"""Disk failures during a job are reported as environment errors and never ignored. tests/attack found each case."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.errors import DAMAGED_TABLE, FileSystemError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store import delta, table, writing
from lastkey.jobs.store.tables import open_state
from tests.builders.damage import Partition, build
from tests.builders.errors import raises_kind
from tests.builders.faults import Fault, faults, happened
from tests.builders.steps import at_step
from tests.builders.stores import StoreMaker, make_commit, run_id


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


_WORDS = (
    ["verify"], ["reindex", "--check"], ["compact", "--store", "STORE"], ["lookup", "--offset", "0"],
    ["lookup", "--offset", "0", "--partition", "t-0"], ["lookup", "--sizing"],
)  # fmt: skip


@pytest.mark.parametrize("words", _WORDS)
def test_unlistable_archive_is_a_problem(
    part: Partition, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive must not be treated as empty."""
    store = str(tmp_path / "store")
    arguments = [words[0], str(part.root), *(store if word == "STORE" else word for word in words[1:]), "--json"]
    with faults(tmp_path, Fault("list", str(part.root), error="EIO", times=None)):
        assert main(arguments) == 3
    assert happened(tmp_path)[0] > 0
    report = json.loads(capsys.readouterr().out)
    assert any("left out" in note for note in report["notes"])
    assert report["problems"]  # reason of the exit code


@pytest.mark.parametrize("name", ["compaction_checkpoints", "cleaner_runs"])
@pytest.mark.parametrize("size", [None, 0, 100])
def test_damaged_file_of_a_table_is_reported(tmp_path: Path, name: str, size: int | None) -> None:
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(0, 1, run_id(1))])
    (file,) = (tmp_path / "state" / name).glob("*.parquet")
    if size is None:
        file.unlink()
    else:
        os.truncate(file, size)
    with raises_kind(DAMAGED_TABLE, match=str(file)) as raised:
        table.rows(table.head(state.root, name), table.pq.read_schema(_good(tmp_path, name)))
    assert "rebuild-state" in raised.value.line()


def test_damaged_checkpoint_is_reported_by_vacuum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other jobs do not read removed files."""
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    root, name = maker.state.root, "cleaner_runs"
    table.checkpoint(root, name, table.head(root, name).number)
    [checkpoint] = (maker.store / "state" / name / "_delta_log").glob("*.checkpoint.parquet")
    next(checkpoint.parent.glob("*.lastkey-crc32c")).unlink()  # as an older version leaves it
    whole = checkpoint.read_bytes()
    field = b"cardinality"  # field of a deletion vector; the schema has it for existing files and for removed ones
    at = whole.index(field, whole.index(field, len(whole) - _footer_bytes(whole)) + 1)
    checkpoint.write_bytes(whole[:at] + b"C" + whole[at + 1 :])
    assert main(["runs", "--store", str(maker.store)]) == 0
    capsys.readouterr()
    assert main(["vacuum", "--store", str(maker.store), "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "DamagedTableError"
    assert error["message"].startswith(f"{maker.store}/state/{name}: expected Delta's log, found ")
    checkpoint.write_bytes(whole)
    assert main(["vacuum", "--store", str(maker.store)]) == 0


def _footer_bytes(parquet: bytes) -> int:
    """Return the bytes of the footer, its size and the magic number behind it."""
    return int.from_bytes(parquet[-8:-4], "little") + 8


def _good(folder: Path, name: str) -> Path:
    good = folder.with_name(f"{folder.name}-good")  # a store may not lie in another one
    writing.commit_wave(open_state(str(good)), [make_commit(0, 1, run_id(1))])
    return next((good / "state" / name).glob("*.parquet"))


def test_table_with_unreadable_commits_is_not_treated_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs treats files that it has no permission to read as missing."""
    writing.commit_wave(open_state(str(tmp_path)), [make_commit(0, 1, run_id(1))])

    def nothing(*_: object, **__: object) -> None:
        raise TableNotFoundError("no log files")

    monkeypatch.setattr(delta, "DeltaTable", nothing)
    with pytest.raises(FileSystemError, match="could not be read"):
        open_state(str(tmp_path)).checkpoints()


def test_vacuum_ignores_files_that_are_already_deleted(tmp_path: Path) -> None:
    """Another writer used the name, or the server accepted the request and its answer was lost."""
    maker = StoreMaker(tmp_path)
    for generation in (1, 2, 3):
        maker.generation("t", 0, generation, {0: b"a"})
    maker.age(400, *(maker.run_folder("t", 0, generation) for generation in (1, 2, 3)))

    def delete() -> None:
        (maker.run_folder("t", 0, 1) / f"{0:020}.log").unlink()
        shutil.rmtree(maker.run_folder("t", 0, 2))

    with at_step("deletions announced", delete):
        assert main(["vacuum", "--store", str(maker.store)]) == 0
    assert not maker.run_folder("t", 0, 1).exists()


def _flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    name = lambda descriptor: str(Path(f"/proc/self/fd/{descriptor}").readlink())  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(name(descriptor)))
    return paths


def test_directory_entries_of_a_new_store_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders above the store are flushed, so a power cut after the first run cannot remove the store."""
    flushed = _flushed(monkeypatch)
    writing.commit_wave(open_state(str(tmp_path / "new" / "store")), [make_commit(0, 1, run_id(1))])
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "store")} <= set(flushed)


def test_directory_entries_of_a_restored_folder_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    flushed = _flushed(monkeypatch)
    restore.run(RestoreOptions(str(maker.store), output=str(tmp_path / "new" / "out")), Silent())
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "out")} <= set(flushed)


def test_lookup_answers_for_listable_partitions(
    part: Partition, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lookup reports a problem, because the answer may be in the other folder."""
    shutil.copytree(part.root, part.root / "disk")
    shutil.move(part.root / "disk" / "t-0", part.root / "disk" / "t-1")
    with faults(tmp_path, Fault("list", str(part.root / "disk"), error="EACCES", times=None)):
        assert main(["lookup", str(part.root), "--offset", "5", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    (partition,), (problem,) = report["partitions"], report["problems"]  # as text says it
    assert "disk" in problem and "EACCES" not in problem
    assert [answer["status"] for answer in partition["answers"]] == ["found"]


@pytest.mark.parametrize("times", [1, 2])
def test_unreadable_commit_is_not_treated_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """delta-rs returns the version before the unreadable commit. A rollback to that version must not report success."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(0, 1, run_id(1))])
    writing.commit_wave(state, [make_commit(0, 2, run_id(2), run_id(1))])
    real, failed = delta.DeltaTable, []

    def older(uri: str, version: int | None, **given: Any) -> DeltaTable:
        if uri.endswith("compaction_checkpoints") and len(failed) < times:
            failed.append(uri)
            return real(uri, 0, **given)
        return real(uri, version, **given)

    monkeypatch.setattr(delta, "DeltaTable", older)
    if times == 1:  # it can be looked at when it is tried again
        assert table.head(state.root, "compaction_checkpoints").number == 1
    else:
        with pytest.raises(FileSystemError, match=r"00000000000000000001\.json: a commit that could not be read"):
            table.head(state.root, "compaction_checkpoints")
    assert len(failed) == times
