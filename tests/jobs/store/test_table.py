"""A table changed by compare-and-swap: by real processes, on a real disk, torn as by a power cut, read by Spark."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import fs as pafs

from lastkey.jobs.errors import DAMAGED_TABLE, ConflictError, FileSystemError, UsageError
from lastkey.jobs.store import table
from lastkey.jobs.store.commit_file import check_name, is_whole
from lastkey.jobs.store.table import Change, Version
from lastkey.udfs.storage import open_root
from tests.builders.damage import flip
from tests.builders.errors import raises_kind

SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])


def change(folder: Path, **rows: int) -> int:
    """Put rows in place of those of the same names."""
    new = pa.table([list(rows), list(rows.values())], schema=SCHEMA)
    root = open_root(str(folder))
    return table.swap(root, "t", SCHEMA, lambda version: table.replaced(version, ["name"], new, {}))


def content(folder: Path) -> dict[str, int]:
    version = table.head(open_root(str(folder)), "t")
    return {row["name"]: row["n"] for row in table.rows(version, SCHEMA).to_pylist()}


def test_rows_are_replaced_and_added(tmp_path: Path) -> None:
    assert change(tmp_path, a=1, b=2) == 0
    assert change(tmp_path, b=3, c=4) == 1
    assert content(tmp_path) == {"a": 1, "b": 3, "c": 4}
    many = {f"k{i}": i for i in range(1000)}
    change(tmp_path, **many)
    change(tmp_path, k7=0)
    assert content(tmp_path) == many | {"a": 1, "b": 3, "c": 4, "k7": 0}
    version = table.head(open_root(str(tmp_path)), "t")
    assert 3 < len(version.files()) < 6


def test_any_other_byte_in_a_data_file_is_reported(tmp_path: Path) -> None:
    """Parquet has no checksum: a flipped bit in a page changes a number, and one in a name changes a column."""
    change(tmp_path, a=1, b=2)
    (file,) = (tmp_path / "state" / "t").glob("*.parquet")
    data = file.read_bytes()
    for at in range(len(data)):
        other = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(pa.ArrowInvalid, match="checksum"):
            check_name(file.name, other)
        if at % 50 == 0:  # whole reads
            file.write_bytes(other)
            with raises_kind(DAMAGED_TABLE, match=file.name):
                content(tmp_path)
    file.write_bytes(data)
    assert content(tmp_path) == {"a": 1, "b": 2}


def test_swapped_data_file_is_reported(tmp_path: Path) -> None:
    change(tmp_path, a=1)
    (old,) = (tmp_path / "state" / "t").glob("*.parquet")
    change(tmp_path, a=2)
    (new,) = set((tmp_path / "state" / "t").glob("*.parquet")) - {old}
    new.write_bytes(old.read_bytes())
    with raises_kind(DAMAGED_TABLE, match=new.name):
        content(tmp_path)


def test_data_file_of_an_older_version_has_no_checksum(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "state" / "t", pa.table([["a"], [1]], schema=SCHEMA))
    change(tmp_path, b=2)
    assert content(tmp_path) == {"a": 1, "b": 2}


def test_stale_version_is_not_committed_on_a_newer_head(tmp_path: Path) -> None:
    change(tmp_path, a=1)
    root, seen = open_root(str(tmp_path)), []

    def plan(version: Version) -> Change:
        seen.append(version.number)
        if len(seen) == 1:
            change(tmp_path, b=2)  # another writer commits first
        new = pa.table([["c"], [len(table.rows(version, SCHEMA))]], schema=SCHEMA)
        return table.replaced(version, ["name"], new, {})

    assert table.swap(root, "t", SCHEMA, plan) == 2
    assert seen == [0, 1]
    assert content(tmp_path) == {"a": 1, "b": 2, "c": 2}
    assert len([p for p in (tmp_path / "state" / "t").iterdir() if p.suffix == ".parquet"]) == 3, "the loser's is gone"


def test_error_of_a_plan_ends_the_commit(tmp_path: Path) -> None:
    def plan(version: Version) -> Change:
        raise ConflictError(path="x", expected="y", found="z")

    with pytest.raises(ConflictError):
        table.swap(open_root(str(tmp_path)), "t", SCHEMA, plan)
    assert table.head(open_root(str(tmp_path)), "t").number == -1


@pytest.mark.parametrize("commits", [1, 3])
def test_every_prefix_of_the_last_commit_is_refused(tmp_path: Path, commits: int) -> None:
    """A torn commit is damage: it is neither valid nor missing, because no power cut can tear a commit."""
    for i in range(commits):
        change(tmp_path, **{f"k{i}": i}, always=i)
    whole = tmp_path / f"state/t/_delta_log/{commits - 1:020}.json"
    data, after = whole.read_bytes(), content(tmp_path)
    assert [end for end in range(len(data) + 1) if is_whole(data[:end], "t", commits - 1)] == [len(data)]
    lines = [at for at, byte in enumerate(data, 1) if byte == ord("\n")]
    for end in {0, 1, *lines, *(at - 1 for at in lines), *(at + 1 for at in lines[:-1])} - {len(data)}:
        whole.write_bytes(data[:end])
        with raises_kind(DAMAGED_TABLE, match=whole.name):
            content(tmp_path)
        with raises_kind(DAMAGED_TABLE, match=whole.name):
            change(tmp_path, again=1)
    whole.write_bytes(data)
    assert content(tmp_path) == after


def test_commit_is_named_after_its_bytes_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is durable before the commit is reported."""
    flushed: list[Path] = []
    named: list[str] = []
    real_link, real_fsync = os.link, os.fsync

    def link(first: str, second: str) -> None:
        assert Path(first) in flushed
        real_link(first, second)
        named.append(Path(second).name)
        flushed.clear()

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_fsync(descriptor)

    change(tmp_path, a=1)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    change(tmp_path, a=2)
    log = tmp_path / "state/t/_delta_log"
    assert named == [f"{1:020}.json"]
    assert log in flushed
    assert sorted(path.name for path in log.iterdir()) == [f"{0:020}.json", f"{1:020}.json"]


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("kind", ["add", "remove"])
def test_a_commit_that_names_another_file_is_reported(tmp_path: Path, kind: str, newest: bool) -> None:
    """Otherwise the table would contain the old row and the new one."""
    change(tmp_path, a=1)
    change(tmp_path, a=2)
    commit = tmp_path / f"state/t/_delta_log/{1:020}.json"
    if not newest:
        change(tmp_path, a=3)
    data = commit.read_bytes()
    start = data.index(f'"{kind}"'.encode())
    for at in range(start - 2, data.index(b".parquet", start)):
        commit.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with raises_kind(DAMAGED_TABLE, match=commit.name):
            content(tmp_path)
    commit.write_bytes(data)
    assert content(tmp_path) == {"a": 2 if newest else 3}


@pytest.mark.parametrize(
    ("place", "by"), [("t/1", "t/2"), ("t/2", "t/1"), ("t/2", "u/2"), ("u/0", "t/0"), ("t/3", "t/0")]
)
def test_swapped_commit_is_reported(tmp_path: Path, place: str, by: str) -> None:
    """Between versions and between tables, exchanged or copied; one that follows the newest would be built upon."""
    root = open_root(str(tmp_path))
    for name in ("t", "u"):
        for i in range(3):
            new = pa.table([["k"], [i]], schema=SCHEMA)
            table.swap(root, name, SCHEMA, lambda now, new=new: table.Change(added=[new], removed=now.files()))
    where, other = (
        tmp_path / f"state/{name}/_delta_log/{int(number):020}.json"
        for name, number in (place.split("/"), by.split("/"))
    )
    copied = other.read_bytes()
    if where.exists():
        other.write_bytes(where.read_bytes())
    where.write_bytes(copied)
    with raises_kind(DAMAGED_TABLE, match=r"expected a commit as it was put, found one .* of another version"):
        table.head(root, place[0])


@pytest.mark.parametrize("text", ['{"format": 2, "generation": {"run": {}}}', "2147483648\n{}"])
def test_malformed_commit_file_is_reported(tmp_path: Path, text: str) -> None:
    for i in range(2):
        change(tmp_path, k=i)
    (tmp_path / f"state/t/_delta_log/{1:020}.json").write_text(text)
    with raises_kind(DAMAGED_TABLE, match="expected a commit as it was put"):
        content(tmp_path)


def test_commit_below_a_checkpoint_is_verified(tmp_path: Path) -> None:
    for i in range(21):
        change(tmp_path, k=i)
    commit = tmp_path / f"state/t/_delta_log/{20:020}.json"
    commit.write_bytes(commit.read_bytes()[:365])
    with raises_kind(DAMAGED_TABLE, match=commit.name):
        table.commit_info(open_root(str(tmp_path)), "t", 20)


@pytest.mark.parametrize("killed", ["at the checksum", "at the checkpoint", "no"])
def test_checkpoint_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    """delta-rs writes the checkpoint to another folder first, because it does not flush."""
    for i in range(20):
        change(tmp_path, **{f"k{i}": i})
    log, real, put = tmp_path / "state/t/_delta_log", table.put_if_absent, []

    def put_if_absent(root: Any, path: str, data: bytes) -> bool:
        put.append(path.rpartition(".")[2])
        if put[1:] == {"at the checksum": ["lastkey-crc32c"], "at the checkpoint": ["lastkey-crc32c", "parquet"]}.get(
            killed
        ):
            raise KeyboardInterrupt
        return real(root, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(table, "put_if_absent", put_if_absent)
        with pytest.raises(KeyboardInterrupt) if killed != "no" else nullcontext():
            change(tmp_path, k20=20)
    assert len(list(log.glob("*.checkpoint.parquet"))) == (killed == "no")
    assert [path.name for path in tmp_path.rglob("_last_checkpoint")] == []
    assert [path.name for path in (tmp_path / "state/t").iterdir() if path.is_dir()] == ["_delta_log"]
    assert content(tmp_path) == {f"k{i}": i for i in range(21)}
    assert change(tmp_path, more=1) == 21


def test_any_other_byte_in_a_checkpoint_is_reported(tmp_path: Path) -> None:
    """Parquet has no checksum: rows could be missing, or belong to another file."""
    for i in range(21):
        change(tmp_path, **{f"k{i}": i})
    [path] = (tmp_path / "state/t/_delta_log").glob("*.checkpoint.parquet")
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        flip(path, at, at % 8)
        with raises_kind(DAMAGED_TABLE, match=path.name):
            content(tmp_path)
        path.write_bytes(whole)
    path.unlink()  # the commits before it are still there
    assert content(tmp_path) == {f"k{i}": i for i in range(21)}


@pytest.mark.parametrize("hint", [b"", b'{"version":1', b'{"version":20,"size":4}'])
def test_outdated_checkpoint_hint_is_ignored(tmp_path: Path, hint: bytes) -> None:
    for i in range(41):
        change(tmp_path, k=i)
    log = tmp_path / "state/t/_delta_log"
    (log / "_last_checkpoint").write_bytes(hint)
    (log / f"{20:020}.checkpoint.parquet").unlink()
    assert content(tmp_path) == {"k": 40}


def test_checkpoint_that_makes_delta_rs_panic_is_reported(tmp_path: Path) -> None:
    """A page of a map says another number of values: a panic of Rust's is no Exception. (Of a checkpoint that an older
    version has made, without a checksum.)
    """
    for i in range(21):
        change(tmp_path, k=i)
    next((tmp_path / "state/t/_delta_log").glob("*.lastkey-crc32c")).unlink()
    [path] = (tmp_path / "state/t/_delta_log").glob("*.checkpoint.parquet")
    [group] = [pq.read_metadata(path).row_group(0)]
    columns = [group.column(number) for number in range(group.num_columns)]
    [column] = [c for c in columns if c.path_in_schema == "add.partitionValues.key_value.key"]
    flip(path, (column.dictionary_page_offset or column.data_page_offset) + 5, 1)
    with raises_kind(DAMAGED_TABLE, match="_delta_log: expected commits and checkpoints that delta-rs can read"):
        content(tmp_path)


def test_commits_before_a_checkpoint_are_not_read(tmp_path: Path) -> None:
    for i in range(25):
        change(tmp_path, k=i)
    log = tmp_path / "state/t/_delta_log"
    for number in range(20):
        (log / f"{number:020}.json").unlink()
    assert content(tmp_path) == {"k": 24}


@pytest.mark.parametrize("name", ["a b", "a%b", "a#b?c", "é", "a[b]{c}*", "a'\"b", "a+b&c=d;e,f@g!h(i)$~^`|<>:"])
def test_table_path_may_have_printable_characters(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    table.check_fit(open_root(str(folder)))
    for i in range(21):
        change(folder, k=i)
    assert content(folder) == {"k": 20}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert [path.name for path in folder.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\nb", "a\x01b"])
def test_path_that_delta_misreads_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(UsageError, match="nothing was written"):
        table.check_fit(open_root(str(folder)))


@pytest.mark.parametrize("number", [errno.EIO, None])
def test_unreadable_data_file_is_not_reported_as_damaged(tmp_path: Path, number: int | None) -> None:
    """Arrow's own error has no number where the file does not close: as on a network share that is full."""
    change(tmp_path, a=1)

    class Failing(pafs.LocalFileSystem):
        def open_input_file(self, path: str) -> None:
            raise OSError("error closing file") if number is None else OSError(number, os.strerror(number))

    version = table.head(open_root(str(tmp_path)), "t")
    root = replace(version.root, filesystem=Failing())
    with pytest.raises(OSError if number else FileSystemError, match="error closing file" if number is None else None):
        table.rows(replace(version, root=root), SCHEMA)


def test_commit_without_read_permission_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs leaves it out of its list, and finds a gap; one that is really there is damage."""
    for i in range(3):
        change(tmp_path, a=i)
    log = tmp_path / "state" / "t" / "_delta_log"
    for path in log.glob(f"{1:020}.*"):
        path.rename(tmp_path / path.name)
    with raises_kind(DAMAGED_TABLE, match="contiguous"):
        content(tmp_path)
    real = os.listdir
    seen = [f"{i:020}.json" for i in range(3)]
    monkeypatch.setattr(os, "listdir", lambda path: seen if Path(path) == log else real(path))
    with pytest.raises(FileSystemError, match="contiguous"):
        content(tmp_path)
