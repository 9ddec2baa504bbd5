"""Folders that a command writes to, with symbolic links in them or above: nothing outside of them changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.whole_file import METRICS, NEW, check_file, whole_file
from lastkey.jobs.errors import DONE, NOT_EMPTY, PROBLEMS, USAGE, UsageError
from lastkey.jobs.export.output import LATEST, MARK, UNFINISHED, ExportFolder
from lastkey.udfs.storage import open_root
from tests.builders.errors import raises_kind
from tests.builders.logs import write_partition
from tests.builders.steps import at_step
from tests.builders.trees import files_in, tree

pytestmark = pytest.mark.slow

FOLDERS = ("restore", "convert", "convert --store", "reindex", "inspect")


class Lab:
    """Two archives with a store each, and a folder of another user."""

    def __init__(self, root: Path) -> None:
        self.root, self.archive, self.store = root, root / "archive", root / "store"
        self.other_archive, self.other_store, self.output = root / "archive2", root / "store2", root / "output"
        for archive, store in ((self.archive, self.store), (self.other_archive, self.other_store)):
            write_partition(archive / "t-0", "a=1 b=1||a=2||b=3||")
            assert self.compact(archive, store) == DONE
        (root / "theirs").mkdir()
        (root / "theirs" / "empty").touch()

    def compact(self, archive: Path, store: Path) -> int:
        words = ["compact", str(archive), "--store", str(store), "--topics", "*", "--cleanup-policy", "compact"]
        return main([*words, "--engine", "threads", "--sealed", "--force"])

    def write(self, command: str, output: Path) -> int:
        """Run a command that writes a folder."""
        threads = ("--engine", "threads")
        words = {
            "restore": ("restore", "--store", str(self.store)),
            "convert": ("convert", str(self.archive), "--to", "v3", *threads),
            "convert --store": ("convert", "--store", str(self.store), "--to", "v3", *threads),
            "reindex": ("reindex", str(self.archive), *threads),
            "inspect": ("inspect", str(self.archive), *threads),
        }
        return main([*words[command], "--output", str(output)])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.mark.parametrize("command", FOLDERS)
def test_folder_with_a_dangling_link_is_not_empty(lab: Lab, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Listings of pyarrow leave such links out, and a file written by that name appeared where the link leads: in the
    archive, if it leads there.
    """
    lab.output.mkdir()
    for name in ("convert.part", "recovery-point-offset-checkpoint", ".lock", os.fsdecode(b"\xff")):
        link = lab.output / name
        link.symlink_to(lab.archive / "t-0" / "new")
        before = tree(lab.root)
        capsys.readouterr()
        assert lab.write(command, lab.output) == USAGE
        assert "expected an empty or absent folder, found" in capsys.readouterr().err
        assert tree(lab.root) == before
        link.unlink()


@pytest.mark.parametrize("command", FOLDERS)
def test_output_that_cannot_be_a_folder_is_refused(lab: Lab, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.root / "link").symlink_to(lab.root / "nothing")
    os.mkfifo(lab.root / "fifo")
    for output, description in (("link", "a broken link"), ("fifo", "a named pipe"), ("/dev/null", "a device")):
        assert lab.write(command, lab.root / output) == USAGE
        assert f"expected an empty or absent folder, found {description}" in capsys.readouterr().err
    assert not (lab.root / "nothing").exists()


@pytest.mark.parametrize("command", FOLDERS)
def test_output_in_a_store_or_partition_is_refused(lab: Lab, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if no option names either, and through a link or `..`."""
    (lab.root / "link").symlink_to(lab.other_store / "segments")
    before = tree(lab.root)
    for output in (
        lab.other_store / "new",
        lab.root / "link" / "t-0" / "new",
        lab.root / "theirs" / ".." / "archive2" / "t-0" / "new",
    ):
        assert lab.write(command, output) == USAGE
        assert "lies in" in capsys.readouterr().err
        assert tree(lab.root) == before


def test_new_store_in_a_store_or_archive_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(lab.root)
    for store in (lab.other_store / "new", lab.other_archive / "t-0" / "new", lab.other_archive):
        assert lab.compact(lab.archive, store) == USAGE
        assert "lies in" in capsys.readouterr().err
        assert tree(lab.root) == before


@pytest.mark.parametrize("name", ["new", "empty"])
def test_output_file_in_a_store_or_partition_is_refused(lab: Lab, name: str) -> None:
    """A file of 0 bytes may be replaced elsewhere, but .lock and `committed` of a store are such, and logs."""
    for folder in (lab.other_store, lab.other_store / "state", lab.other_archive / "t-0"):
        if name == "empty":
            (folder / name).touch()
        with pytest.raises(UsageError, match="lies in"):
            check_file("--output", str(folder / name), METRICS)


@pytest.mark.parametrize("link", [True, False], ids=["link", "hard link"])
@pytest.mark.parametrize("command", ["convert", "convert --store"])
def test_conversion_writes_its_marker_only_into_its_output(lab: Lab, command: str, *, link: bool) -> None:
    """A mark of 0 bytes comes from a killed run and is replaced. The file that its name links to must not change."""
    lab.output.mkdir()
    if link:
        (lab.output / "convert.part").symlink_to(lab.root / "theirs" / "empty")
    else:
        os.link(lab.root / "theirs" / "empty", lab.output / "convert.part")
    before = tree(lab.root / "theirs")
    assert lab.write(command, lab.output) == (USAGE if link else DONE)
    assert tree(lab.root / "theirs") == before


def test_conversion_does_not_follow_a_link(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """After the kill of the run, a partition's folder was moved to another disk and linked."""
    assert lab.write("convert", lab.output) == DONE
    whole = lab.root / "whole"
    lab.output.rename(whole)
    with at_step("partition converted", _stop):
        assert lab.write("convert", lab.output) not in (DONE, USAGE)
    (part := lab.output / "t-0.part").rename(moved := lab.root / "another disk")
    part.symlink_to(moved)
    before = tree(lab.root)
    capsys.readouterr()
    assert lab.write("convert", lab.output) == USAGE
    assert "t-0.part: a symbolic link" in capsys.readouterr().err
    assert tree(lab.root) == before


def _stop() -> None:
    raise RuntimeError("killed")


def test_malformed_marker_of_a_conversion_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.output.mkdir()
    os.mkfifo(lab.output / "convert.part")
    assert lab.write("convert", lab.output) == USAGE
    assert "expected an empty or absent folder, found convert.part" in capsys.readouterr().err


@pytest.mark.parametrize("linked", ["archive/t-0", "archive"], ids=["partition", "log directory"])
def test_in_place_indexes_are_not_replaced_through_a_link(
    tmp_path: Path, linked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder may be another archive's, or that of the archive which was copied. An archive that is reached through
    a link is the one that the user named.
    """
    root = tmp_path / "root"
    for name in ("archive/t-0", "beside/u-0"):
        write_partition(root / name, "a=1 b=1||a=2||b=3||")
        for index in files_in(root / name, "*.index"):
            index.write_bytes(b"\1" * 8)
    (root / "archive" / "t-0" / "00000000000000000000.index.1.reindex.tmp").touch()
    moved = (root / linked).rename(tmp_path / "moved")
    (root / linked).symlink_to(moved)
    before = tree(moved)
    words = ["reindex", "--in-place", "--engine", "threads"]
    assert main([*words, str(root)]) == PROBLEMS
    assert f"{linked}: " in (output_text := capsys.readouterr().out) and "a symbolic link" in output_text
    assert tree(moved) == before
    assert all(index.read_bytes() != b"\1" * 8 for index in files_in(root / "beside" / "u-0", "*.index"))
    (tmp_path / "named").symlink_to(root / "beside")
    files_in(root / "beside" / "u-0", "*.index")[0].write_bytes(b"\1" * 8)
    assert main([*words, str(tmp_path / "named")]) == DONE
    assert all(index.read_bytes() != b"\1" * 8 for index in files_in(root / "beside" / "u-0", "*.index"))


def test_file_created_during_the_run_is_kept(tmp_path: Path) -> None:
    """A run may take hours, so the file to be replaced is checked again before the new file gets its name."""
    path = tmp_path / "file"
    for kind in (NEW, METRICS):
        path.unlink(missing_ok=True)
        with pytest.raises(UsageError, match="found another file"), whole_file(path, kind, "--proof") as part:
            part.write(b"ours")
            path.write_bytes(b"theirs")
        assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"theirs")]
        with pytest.raises(UsageError, match="found a symbolic link"), whole_file(path, kind, "--proof"):
            path.unlink()
            path.symlink_to(tmp_path / "nothing")
        assert path.is_symlink() and not (tmp_path / "nothing").exists()


def test_missing_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(__file__).resolve().parents[2] / "examples" / "topics-described.txt"
    assert main(["policies", str(source), "--output", str(tmp_path / "no" / "file")]) == USAGE
    assert f"expected a folder {tmp_path / 'no'}, found none" in capsys.readouterr().err


@pytest.mark.parametrize("name", [f"{MARK}.part", MARK, "t", "t/_delta_log"])
@pytest.mark.parametrize("state", [UNFINISHED, LATEST])
def test_export_writes_and_deletes_nothing_through_a_link(tmp_path: Path, name: str, state: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_bytes(b"theirs")
    output = ExportFolder(open_root(str(tmp_path / "out")), {"format": "delta"})
    (tmp_path / "out").mkdir()
    output.mark(state, {"t": {}})
    (tmp_path / "out" / "t").mkdir()
    link = tmp_path / "out" / name
    link.unlink(missing_ok=True) if name != "t" else link.rmdir()
    link.symlink_to(theirs / "file" if name.startswith(MARK) else theirs)
    before = tree(tmp_path)
    with raises_kind(NOT_EMPTY, match=f"{name}: a symbolic link"):
        output.resume() if state == LATEST else output.begin(["t"])
    assert tree(tmp_path) == before


def test_export_beside_a_dangling_link_is_refused(tmp_path: Path) -> None:
    output = ExportFolder(open_root(str(tmp_path / "out")), {"format": "delta"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{MARK}.part").symlink_to(tmp_path / "nothing")
    for begin in (lambda: output.begin(["t"]), output.resume):
        with raises_kind(NOT_EMPTY, match="a symbolic link"):
            begin()
    assert not (tmp_path / "nothing").exists()
