"""A store with a part of it on another disk, behind a symbolic link, and a copy of that store by `cp -a`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.jobs.errors import DONE, PROBLEMS, USAGE
from tests.builders.logs import write_partition
from tests.builders.trees import read_tree, tree

pytestmark = pytest.mark.slow


class Place:
    """An archive of two partitions, a store with two generations of each, and another disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.archive, self.store, self.copy = root, root / "archive", root / "store", root / "copy"
        for name in ("t-0", "u-0"):
            write_partition(self.archive / name, "a=1 b=1||a=2||b=3||")
        for _ in range(2):
            assert self.compact(self.store) == DONE

    def compact(self, store: Path) -> int:
        words = ["compact", str(self.archive), "--store", str(store), "--topics", "*", "--cleanup-policy", "compact"]
        return main([*words, "--engine", "threads", "--force", "--sealed", "--json"])

    def move(self, path: str) -> Path:
        """Move a part of the store to another disk, link it, and copy the store as `cp -a` does."""
        disk = self.root / "disk2"
        disk.mkdir()
        moved = (self.store / path).rename(disk / "moved")
        (self.store / path).symlink_to(moved)
        shutil.copytree(self.store, self.copy, symlinks=True)
        return moved

    def restored(self, store: Path, name: str) -> dict[str, bytes]:
        assert main(["restore", "--store", str(store), "--output", str(self.root / name)]) == DONE
        return read_tree(self.root / name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_copied_store_does_not_write_a_linked_partition(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.restored(place.store, "before")
    moved = place.move("segments/t-0")
    files = tree(moved)
    capsys.readouterr()
    assert place.compact(place.copy) == PROBLEMS
    report = json.loads(capsys.readouterr().out)
    states = {partition["topic"]: partition["status"] for partition in report["partitions"]}
    assert states == {"t": "uncleanable", "u": "cleaned"}
    problem = report["partitions"][0]["problem"]
    assert (problem["path"], problem["found"]) == ("segments/t-0", "a symbolic link")
    assert main(["vacuum", "--store", str(place.copy), "--grace-hours", "0"]) == DONE
    output = capsys.readouterr().out
    assert "segments/t-0: a symbolic link; left alone" in output and "u-0" in output
    assert main(["rollback", "--store", str(place.copy), "--generation", "1", "--topics", "t"]) == USAGE
    assert "segments/t-0: expected a folder or file of the store, found a symbolic link" in capsys.readouterr().err
    assert tree(moved) == files
    assert place.restored(place.store, "after") == before
    assert place.restored(place.copy, "copied") == before
    (place.store / "segments" / "t-0").unlink()
    moved.rename(place.store / "segments" / "t-0")
    assert place.compact(place.store) == DONE


@pytest.mark.parametrize(
    "path", ["state", "state/compaction_checkpoints", "state/compaction_checkpoints/_delta_log", "segments"]
)
def test_store_whose_folder_is_a_link_is_not_written(
    place: Place, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also nothing about the run itself. Commands that only read follow the link."""
    before = place.restored(place.store, "before")
    place.move(path)
    files = tree(place.root)
    for words in (["vacuum"], ["rollback", "--generation", "1"]):
        assert main([*words, "--store", str(place.copy)]) == USAGE
    assert place.compact(place.copy) == USAGE
    assert f"{path}: expected a folder or file of the store, found a symbolic link" in capsys.readouterr().err
    assert tree(place.root) == files
    assert place.restored(place.copy, "after") == before


def test_commit_marker_is_not_written_through_a_dangling_link(place: Place) -> None:
    """A vacuum writes it where it is missing, and a link to no file looked like that."""
    for path in (place.store / "segments" / "t-0").glob("*/committed"):
        path.unlink()
        path.symlink_to(place.root / "elsewhere")
    assert main(["vacuum", "--store", str(place.store), "--grace-hours", "0"]) == DONE
    assert not (place.root / "elsewhere").exists()
