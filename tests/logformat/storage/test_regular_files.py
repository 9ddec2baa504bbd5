"""Pipes, sockets, devices and folders in place of a file never block a reader; cyclic links are handled."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import Archive, list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import Config
from lastkey.jobs.restore.copy_files import copy_log, copy_small
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file
from lastkey.logformat.search.windows import open_window
from lastkey.logformat.storage.regular_files import open_local
from lastkey.udfs.reindex.judge import read_bounded
from lastkey.udfs.reindex.segment import ReindexTask, reindex_segments
from lastkey.udfs.reindex.write import Target
from lastkey.udfs.segments import LogSettings
from lastkey.udfs.storage import open_root, opened, read_file
from lastkey.udfs.verify.partition import check_partition
from tests.builders.damage import SEGMENT_OFFSETS, Partition, build
from tests.builders.opened import open_partition
from tests.builders.sources import list_tasks, read

LOG = f"t-0/{segment_file(SEGMENT_OFFSETS, 'log')}"


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Fail the test of a reader that waits for ever."""

    def stop(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


INSTEAD = [(pipe, "a named pipe"), (unix_socket, "a socket"), (device, "a device"), (folder, "a folder")]


def put(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


OPENERS = [
    lambda root, path: opened(open_root(root), path).__enter__(),
    lambda root, path: read_file(open_root(root), path),
    lambda root, path: read_bounded(open_root(root), path, 10),
    lambda root, path: open_segment(f"{root}/{path}").headers(),
]


@pytest.mark.parametrize(("make", "description"), INSTEAD, ids=[found for _, found in INSTEAD])
@pytest.mark.parametrize("opener", OPENERS, ids=range(len(OPENERS)))
def test_special_files_are_not_opened(
    part: Partition, opener: Callable[[str, str], object], make: Callable[[Path], None], description: str
) -> None:
    put(part.root / LOG, make)
    with pytest.raises(LogFormatError) as error:
        opener(str(part.root), LOG)
    assert (error.value.kind, error.value.path.endswith(LOG)) == ("unreadable", True)
    assert description in error.value.found


@pytest.mark.parametrize(("make", "description"), INSTEAD, ids=[found for _, found in INSTEAD])
def test_log_replaced_after_the_listing_is_unreadable(
    part: Partition, make: Callable[[Path], None], description: str
) -> None:
    """Every job has listed it as a file."""
    plan, listed = part.plan(), part.listed()
    tasks = list_tasks("kafka_log", part.root, badRecords="quarantine")
    size = part.log(SEGMENT_OFFSETS).stat().st_size
    put(part.root / LOG, make)
    result = part.compact(plan=plan)
    assert result.problem is not None
    assert (result.status, result.problem.kind, result.problem.path) == ("uncleanable", "unreadable", LOG)
    assert description in result.problem.found
    checked = check_partition(plan_archived(listed, Config(), sealed=False))
    assert [(p.kind, p.path, description in p.found) for p in checked.problems] == [("unreadable", LOG, True)]
    for check_crc in (True, False):
        target = Target("check", str(part.root))
        segment = Segment(str(part.root), LOG, SEGMENT_OFFSETS, size, 0)
        (outcome,) = reindex_segments(ReindexTask(target, "t-0", (segment,), LogSettings(), check_crc=check_crc))
        assert outcome.problem is not None
        assert (outcome.problem.kind, description in outcome.problem.found) == ("unreadable", True)
    local, path = pafs.LocalFileSystem(), str(part.root / LOG)
    with pytest.raises(LogFormatError, match=description):
        open_window(local, path, size)
    assert len(tasks) == 1
    root, store = open_root(str(part.root)), open_root(str(part.store))
    part.store.mkdir(exist_ok=True)
    with pytest.raises(OSError, match=description):
        copy_log(root, LOG, store, "copy.log", size, 0)
    with pytest.raises(OSError, match=description):
        copy_small(root, LOG, store, "copy.log")


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "snapshot"])
def test_side_file_replaced_after_the_listing_is_unreadable(part: Partition, kind: str) -> None:
    path = part.folder / segment_file(SEGMENT_OFFSETS, kind)
    if not path.exists():
        path.write_bytes(b"")
    plan, listed = part.plan(), part.listed()
    put(path, pipe)
    result = part.compact(plan=plan)
    assert (result.status, result.problem and result.problem.kind) == ("uncleanable", "unreadable"), result
    assert result.problem is not None and "a named pipe" in result.problem.found
    assert result.problem.path.endswith(kind)
    checked = check_partition(plan_archived(listed, Config(), sealed=False))
    assert "a named pipe" in " ".join(p.found for p in checked.problems if p.path.endswith(kind))


@pytest.mark.parametrize(("make", "description"), INSTEAD, ids=[found for _, found in INSTEAD])
def test_listed_log_that_is_not_a_regular_file_is_unreadable(
    part: Partition, make: Callable[[Path], None], description: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(part.root / LOG, make)
    problem = part.listed().problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.found) == ("unreadable", LOG, description)
    assert cli.main(["verify", str(part.root), "--no-progress"]) == 3
    assert f"{LOG} at byte 0: unreadable: expected a readable file, found {description}" in capsys.readouterr().out
    with pytest.raises(LogFormatError, match=description):
        open_partition(part.folder)
    if make is not folder:
        assert cli.main(["inspect", str(part.root / LOG), "--no-progress"]) == 3
        assert description in capsys.readouterr().err


def test_side_files_that_are_not_regular_files_are_noted(part: Partition) -> None:
    put(part.folder / segment_file(SEGMENT_OFFSETS, "index"), pipe)
    (part.folder / segment_file(SEGMENT_OFFSETS, "snapshot")).symlink_to("nowhere")
    for name in ("partition.metadata", "00000000000000000000.txnindex"):
        pipe(part.folder / name)
    for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint", ".lock", "meta.properties"):
        pipe(part.root / name)
    archive = listed(part.root)
    notes = " ".join(archive.notes)
    assert "log-start-offset-checkpoint: a named pipe; left out" in notes
    assert "cleaner-offset-checkpoint: a named pipe; left out" in notes
    assert "meta.properties: a named pipe; left out" in notes
    partition = archive.partitions["t", 0]
    assert partition.problem is None
    assert f"t-0/{segment_file(SEGMENT_OFFSETS, 'index')}: a named pipe; ignored" in partition.notes
    assert f"t-0/{segment_file(SEGMENT_OFFSETS, 'snapshot')}: a broken link; ignored" in partition.notes
    assert "t-0/partition.metadata: a named pipe; ignored" in partition.notes
    assert cli.main(["verify", str(part.root), "--no-progress"]) == 0


def test_reads_return_all_requested_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 300
    (tmp_path / "x").write_bytes(data)
    with open_local(str(tmp_path / "x")) as file:
        assert file.size() == len(data)
        assert file.read(1000) == data[:1000]
        assert file.read(0) == b""
        assert file.read() == data[1000:]
        assert file.read(5) == b""


# -- links


def listed(root: Path) -> Archive:
    return list_archive(open_root(str(root)), lambda _: True)


def check(root: Path, *same: str) -> None:
    """Check that one healthy partition is listed under its own name, with a note for each other name of a folder."""
    archive = listed(root)
    assert [(p.path, p.problem) for p in archive.partitions.values()] == [("t-0", None)]
    assert sorted(note.partition(":")[0] for note in archive.notes if "counted once" in note) == sorted(same)
    assert len(archive.notes) == len(same)
    assert read("kafka_log", root)["offset"].to_pylist() == list(range(4 * SEGMENT_OFFSETS))


def test_links_to_the_folder_or_its_parents_are_skipped(part: Partition) -> None:
    (part.root / "a").mkdir()
    (part.root / "a" / "up").symlink_to("..")
    (part.root / "self").symlink_to(".")
    (part.root / "t-0" / "loop").symlink_to("..")  # not searched within a partition's folder
    check(part.root, "a/up", "self")


def test_folders_linked_to_each_other_are_listed_once(part: Partition) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (part.root / one).mkdir()
        (part.root / one / "over").symlink_to(part.root / other)
    check(part.root, "a/over", "b/over")


def test_partition_with_a_second_linked_name_is_listed_once(part: Partition) -> None:
    (part.root / "a").mkdir()
    (part.root / "a" / "t-0").symlink_to(part.folder)
    check(part.root, "a/t-0")


def test_folder_with_two_links_is_listed_once(part: Partition, tmp_path: Path) -> None:
    shutil.move(part.folder, tmp_path / "elsewhere")
    part.folder.symlink_to(tmp_path / "elsewhere")
    (part.root / "b").mkdir()
    (part.root / "b" / "t-0").symlink_to(tmp_path / "elsewhere")
    (part.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    archive = listed(part.root)
    assert [(p.path, p.problem, p.log_start_checkpoint) for p in archive.partitions.values()] == [("t-0", None, 3)]
    assert archive.notes == ["b/t-0: the same folder as t-0; counted once"]
    assert part.compact().status == "cleaned"


def test_two_copies_are_two_folders(part: Partition) -> None:
    shutil.copytree(part.folder, part.root / "a" / "t-0")
    problem = listed(part.root).partitions["t", 0].problem
    assert problem is not None
    assert problem.kind == "duplicate"


def test_folder_given_by_two_names_is_read_once(part: Partition, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(part.root)
    everything = list(range(4 * SEGMENT_OFFSETS))
    both = [str(part.root), str(tmp_path / "link")]
    assert read("kafka_log", both)["offset"].to_pylist() == everything
    logs = [f"{root}/t-0/{segment_file(base, 'log')}" for root, base in zip(both, (0, SEGMENT_OFFSETS), strict=True)]
    assert read("kafka_log", [*logs, logs[0]])["offset"].to_pylist() == everything[: 2 * SEGMENT_OFFSETS]


def test_inspect_ends_at_cyclic_links(part: Partition, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Two links to the folder itself: each name on the way doubles those that come."""
    for name in ("one", "two"):
        (part.folder / name).symlink_to(".")
    assert cli.main(["inspect", str(part.root), "--no-progress"]) == 0
    out = capsysbinary.readouterr().out
    assert out.count(b"Dumping ") == len([path for path in part.folder.iterdir() if path.is_file()])
