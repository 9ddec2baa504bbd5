"""A table changed by compare-and-swap: by real processes, on a real disk, torn as by a power cut, read by Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.errors import ConflictError, DamagedTableError, UsageError
from jobs.store import table
from jobs.store.commit_file import is_whole
from jobs.store.table import Change, Version
from udfs.storage import open_root

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


def test_any_other_byte_in_a_data_file_is_told(tmp_path: Path) -> None:
    """Parquet has no checksum of its own: a bit in a page is another number, one in a name another column."""
    change(tmp_path, a=1, b=2)
    (file,) = (tmp_path / "state" / "t").glob("*.parquet")
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(DamagedTableError, match=file.name):
            content(tmp_path)
    file.write_bytes(data)
    assert content(tmp_path) == {"a": 1, "b": 2}


def test_a_data_file_in_the_place_of_another_is_told(tmp_path: Path) -> None:
    change(tmp_path, a=1)
    (old,) = (tmp_path / "state" / "t").glob("*.parquet")
    change(tmp_path, a=2)
    (new,) = set((tmp_path / "state" / "t").glob("*.parquet")) - {old}
    new.write_bytes(old.read_bytes())
    with pytest.raises(DamagedTableError, match=new.name):
        content(tmp_path)


def test_a_data_file_of_an_older_version_says_no_checksum(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "state" / "t", pa.table([["a"], [1]], schema=SCHEMA))
    change(tmp_path, b=2)
    assert content(tmp_path) == {"a": 1, "b": 2}


def test_a_stale_version_is_never_put_on_another_head(tmp_path: Path) -> None:
    change(tmp_path, a=1)
    root, seen = open_root(str(tmp_path)), []

    def plan(version: Version) -> Change:
        seen.append(version.number)
        if len(seen) == 1:
            change(tmp_path, b=2)  # somebody is faster
        new = pa.table([["c"], [len(table.rows(version, SCHEMA))]], schema=SCHEMA)
        return table.replaced(version, ["name"], new, {})

    assert table.swap(root, "t", SCHEMA, plan) == 2
    assert seen == [0, 1]
    assert content(tmp_path) == {"a": 1, "b": 2, "c": 2}
    assert len([p for p in (tmp_path / "state" / "t").iterdir() if p.suffix == ".parquet"]) == 3, "the loser's is gone"


def test_what_a_plan_raises_ends_it(tmp_path: Path) -> None:
    def plan(version: Version) -> Change:
        raise ConflictError(path="x", expected="y", found="z")

    with pytest.raises(ConflictError):
        table.swap(open_root(str(tmp_path)), "t", SCHEMA, plan)
    assert table.head(open_root(str(tmp_path)), "t").number == -1


@pytest.mark.parametrize("commits", [1, 3])
def test_every_prefix_of_the_last_commit_counts_as_never_made(tmp_path: Path, commits: int) -> None:
    for i in range(commits):
        before = content(tmp_path) if i else {}
        change(tmp_path, **{f"k{i}": i}, always=i)
    whole = tmp_path / f"state/t/_delta_log/{commits - 1:020}.json"
    data = whole.read_bytes()
    after = content(tmp_path)
    needed = len(data.rstrip(b"\n"))
    assert [end for end in range(len(data) + 1) if is_whole(data[:end])] == list(range(needed, len(data) + 1))
    lines = [at for at, byte in enumerate(data, 1) if byte == ord("\n")]
    for end in {0, 1, needed - 1, needed, *lines, *(at - 1 for at in lines), *(at + 1 for at in lines[:-1])}:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "state", copy / "state")
        (copy / f"state/t/_delta_log/{commits - 1:020}.json").write_bytes(data[:end])
        version = table.head(open_root(str(copy)), "t")
        assert len(version.notes) == (end < needed), end
        assert content(copy) == (after if end >= needed else before), end
        change(copy, again=1)
        assert content(copy)["again"] == 1
        shutil.rmtree(copy)


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("kind", ["add", "remove"])
def test_a_commit_that_names_another_file_is_told(tmp_path: Path, kind: str, newest: bool) -> None:
    """No power cut does that: an old row beside the new one, or a commit that somebody was told of set aside."""
    change(tmp_path, a=1)
    change(tmp_path, a=2)
    commit = tmp_path / f"state/t/_delta_log/{1:020}.json"
    if not newest:
        change(tmp_path, a=3)
    data = commit.read_bytes()
    start = data.index(f'"{kind}"'.encode())
    for at in range(start - 2, data.index(b".parquet", start)):
        commit.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(UsageError, match=commit.name):
            content(tmp_path)
    commit.write_bytes(data)
    assert content(tmp_path) == {"a": 2 if newest else 3}


def test_a_commit_below_a_checkpoint_is_looked_at_before_it_is_believed(tmp_path: Path) -> None:
    for i in range(21):
        change(tmp_path, k=i)
    commit = tmp_path / f"state/t/_delta_log/{20:020}.json"
    commit.write_bytes(commit.read_bytes()[:365])
    with pytest.raises(DamagedTableError, match=commit.name):
        table.commit_info(open_root(str(tmp_path)), "t", 20)


@pytest.mark.parametrize("end", [0, 4, 1000, -1])
@pytest.mark.parametrize("which", ["*.checkpoint.parquet", "_last_checkpoint"])
def test_a_torn_checkpoint_costs_nothing_but_time(tmp_path: Path, which: str, end: int) -> None:
    for i in range(21):
        change(tmp_path, **{f"k{i}": i})
    [path] = (tmp_path / "state/t/_delta_log").glob(which)
    path.write_bytes(path.read_bytes()[:end])
    assert content(tmp_path) == {f"k{i}": i for i in range(21)}
    assert change(tmp_path, more=1) == 21


def test_a_checkpoint_spares_the_commits_before_it(tmp_path: Path) -> None:
    for i in range(25):
        change(tmp_path, k=i)
    log = tmp_path / "state/t/_delta_log"
    for number in range(20):
        (log / f"{number:020}.json").unlink()
    assert content(tmp_path) == {"k": 24}


@pytest.mark.parametrize("name", ["a b", "a%b", "a#b?c", "é", "a[b]{c}*", "a'\"b", "a+b&c=d;e,f@g!h(i)$~^`|<>:"])
def test_printable_characters_in_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    table.check_fit(open_root(str(folder)))
    for i in range(21):
        change(folder, k=i)
    assert content(folder) == {"k": 20}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert [path.name for path in folder.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\nb", "a\x01b"])
def test_a_path_that_delta_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(UsageError, match="nothing was written"):
        table.check_fit(open_root(str(folder)))
