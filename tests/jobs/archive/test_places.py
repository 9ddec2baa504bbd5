"""Comparison of folders by the file system, not by text: equality and containment; and the checks of every job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lastkey.jobs import inspect_log, vacuum
from lastkey.jobs.archive.listing import listed
from lastkey.jobs.archive.places import (
    Place,
    check_apart,
    check_outside,
    is_same,
    lies_in,
    local_path,
    shared_mounts,
    within_mount,
)
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions, ReindexOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import InspectOptions, LookupOptions, ReportOptions
from lastkey.jobs.command.store_options import RestoreOptions, VacuumOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.errors import UsageError
from lastkey.jobs.lookup.tables import run_table
from lastkey.jobs.reindex import job as reindex
from lastkey.jobs.report import job as archive_report
from lastkey.jobs.restore import job as restore
from lastkey.jobs.topics import TopicFilter
from tests.builders.logs import write_partition
from tests.builders.stores import StoreMaker
from tests.builders.trees import read_tree

NOW_MS = 1_790_000_000_000


COMPACTED = parse_config({"defaults": {"cleanup.policy": "compact"}, "job": {"engine": "threads"}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """archive/t-0; link -> archive; deep -> archive/t-0; other/up -> the folder of all of them."""
    (tmp_path / "archive" / "t-0").mkdir(parents=True)
    (tmp_path / "link").symlink_to("archive")
    (tmp_path / "deep").symlink_to(tmp_path / "archive" / "t-0")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "up").symlink_to("..")
    return tmp_path


INSIDE = [
    "{0}/archive",
    "{0}/archive/",
    "{0}/archive/store",
    "{0}/archive/not/there/yet",
    "{0}/link",
    "{0}/link/store",
    "{0}/link/not/there/yet/",
    "{0}/deep/../store",  # the link's target, as the kernel resolves it
    "{0}/other/../archive/store",
    "{0}/other/up/archive/store",
    "{0}/other/up/link/store",
    "file://{0}/archive/store",
    "file:{0}/link/store",
    "file://localhost{0}/archive/store",
    "FILE://{0}/archive/store",
    "file://{0}/%61rchive/store",
    "file://{0}//archive//store",
]
OUTSIDE = [
    "{0}",
    "{0}/archive-2",
    "{0}/archiv",
    "{0}/other/store",
    "file://{0}/store",
    "{0}/archive/../store",
    "s3://b/k",
]


@pytest.mark.parametrize("spelt", INSIDE)
def test_nested_path_is_detected_in_any_spelling(folder, spelt):
    inner = spelt.format(folder)
    for outer in (folder / "archive", folder / "link", f"file://{folder}/link/", f"{folder}/other/../archive"):
        assert lies_in(inner, str(outer)), outer
    assert not lies_in(inner, f"{folder}/other")


@pytest.mark.parametrize("spelt", OUTSIDE)
def test_path_outside_is_not_inside_the_archive(folder, spelt):
    assert not lies_in(spelt.format(folder), str(folder / "archive"))


def test_relative_paths_and_paths_below_a_file_are_compared(folder, monkeypatch):
    monkeypatch.chdir(folder / "other")
    assert lies_in("../archive/store", f"{folder}/link")
    assert is_same("up/link", "file:" + str(folder / "archive"))
    (folder / "archive" / "file").write_text("x")
    assert lies_in("../archive/file/below", f"{folder}/archive")


def test_paths_that_do_not_exist_are_compared_by_their_parts(tmp_path):
    assert lies_in(f"{tmp_path}/a/b/c", f"{tmp_path}/a/b")
    assert lies_in(f"{tmp_path}/a/b", f"{tmp_path}/a/b/")
    assert not lies_in(f"{tmp_path}/a/bc", f"{tmp_path}/a/b")
    assert not lies_in(f"{tmp_path}/a", f"{tmp_path}/a/b")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert lies_in(f"{loop}/below", f"{loop}")


@pytest.mark.parametrize(
    ("one", "other", "inside"),
    [
        ("s3://bucket/archive/store", "s3a://bucket/archive", True),
        ("s3n://bucket//archive/./store/", "s3://bucket/archive/", True),
        ("s3://bucket/archive", "s3://bucket", True),
        ("s3://bucket/x/../archive/store", "s3://bucket/archive", True),
        ("s3://bucket/archive%2Fstore", "s3://bucket/archive", True),
        ("s3://bucket/archive/store?region=eu-central-1", "s3://bucket/archive", True),
        ("s3://bucket/archive#1/store", "s3://bucket/archive#1", True),
        ("s3://bucket/archive-2", "s3://bucket/archive", False),
        ("s3://bucket-2/archive", "s3://bucket/archive", False),
        ("s3://bucket/archive", "gs://bucket/archive", False),
        ("gcs://bucket/a/b", "gs://bucket/a", True),
        ("hdfs://Name:8020/archive/store", "hdfs://name/archive", True),
        ("hdfs:///archive/store", "hdfs://name/archive", True),  # whose it is depends on Hadoop's settings
        ("hdfs://name/archive/store", "hdfs://other/archive", False),
        ("abfss://container@account.dfs.core.windows.net/a/b", "abfs://container@account.dfs.core.windows.net/a", True),
        ("abfs://container@account.dfs.core.windows.net/a/b", "abfs://other@account.dfs.core.windows.net/a", False),
        ("/archive/store", "s3://archive", False),
    ],
)
def test_paths_in_buckets_are_compared(one, other, inside):
    assert lies_in(one, other) is inside
    assert not lies_in(other, one)


def test_two_spellings_of_one_folder_are_equal(folder):
    archive = str(folder / "archive")
    for spelt in [*INSIDE[:2], "{0}/link", "file://{0}/archive/", "file:{0}/deep/.."]:
        assert is_same(spelt.format(folder), archive), spelt
    assert not is_same(f"{archive}/t-0", archive)
    assert is_same("s3a://bucket/key/", "s3://bucket/key")
    assert not is_same("s3://bucket/key?endpoint_override=a", "s3://bucket/key?endpoint_override=b")


MOUNTS = r"""
21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 21 8:16 / /data rw,relatime shared:2 - ext4 /dev/sdb rw
31 21 8:16 /kafka/logs /archive ro,relatime shared:2 - ext4 /dev/sdb rw
32 21 8:16 /kafka/logs/lost\040store /store rw,relatime shared:2 - ext4 /dev/sdb rw
33 21 8:16 /elsewhere /data/kafka/tmp rw,relatime shared:2 - ext4 /dev/sdb rw
""".strip()


def test_mount_is_identified_by_its_path_in_its_file_system():
    """As in a container that mounts a folder twice: as the archive, and as the store inside the archive."""
    assert within_mount("/home/me", MOUNTS) == ("259:1", "home", "me")
    assert within_mount("/data/kafka/logs/t-0", MOUNTS) == ("8:16", "kafka", "logs", "t-0")
    assert within_mount("/archive/t-0", MOUNTS) == ("8:16", "kafka", "logs", "t-0")
    assert within_mount("/store/state", MOUNTS) == ("8:16", "kafka", "logs", "lost store", "state")
    assert within_mount("/data/kafka/tmp/x", MOUNTS) == ("8:16", "elsewhere", "x")
    assert within_mount("/archives", MOUNTS) == ("259:1", "archives")
    assert within_mount("/x", "") == ()
    assert within_mount(os.path.realpath("."), Path("/proc/self/mountinfo").read_text())[0]


def test_error_names_both_paths_and_their_roles(folder):
    with pytest.raises(UsageError) as raised:
        check_apart(Place("--output", f"{folder}/link/out"), Place("the archive", f"{folder}/archive"))
    assert str(raised.value) == (
        f"--output {folder}/link/out (that is {folder}/archive/out) lies in the archive {folder}/archive: "
        "nothing was written; --output needs a place outside of it"
    )
    with pytest.raises(UsageError, match=r"the archive .*/archive lies in the store .*: nothing was written"):
        check_apart(Place("the store", str(folder)), Place("the archive", f"{folder}/archive"))


def test_output_behind_a_link_in_the_archive_is_refused(folder):
    """disk1 of the archive is a link to a log directory; files in that directory belong to the archive too."""
    (folder / "disks" / "one" / "u-0").mkdir(parents=True)
    shutil.copy(EXAMPLE / "users-0" / "00000000000000000000.log", folder / "disks" / "one" / "u-0")
    (folder / "archive" / "disk1").symlink_to(folder / "disks" / "one")
    archive = listed(str(folder / "archive"), TopicFilter(("nothing*",)))
    for inside in ("disks/one", "disks/one/out", "disks/one/u-0/x"):
        with pytest.raises(UsageError, match="lies in the archive's folder"):
            check_outside(Place("--output", f"{folder}/{inside}"), archive)
    check_outside(Place("--output", f"{folder}/disks/two"), archive)


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "archive"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Copy a part of the example, with a symbolic link to it."""
    for name in ("users-0", "log-start-offset-checkpoint"):
        source, target = EXAMPLE / name, tmp_path / "archive" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
    (tmp_path / "link").symlink_to("archive")
    return tmp_path / "archive"


INTO = ["{0}/link/new", "file://{0}/archive/new", "file:{0}/link/new", "{0}/archive/users-0/../new"]


@pytest.mark.parametrize("spelt", INTO)
def test_every_job_refuses_an_output_in_an_archive(archive, spelt):
    into, before = spelt.format(archive.parent), read_tree(archive)
    tried = {
        "compact": lambda: compact.run(CompactOptions(str(archive), into, now_ms=NOW_MS), Silent()),
        "compact, the other way round": lambda: compact.run(
            CompactOptions(into, str(archive), now_ms=NOW_MS), Silent()
        ),
        "reindex": lambda: reindex.run(ReindexOptions(str(archive), output=into), Silent()),
        "inspect": lambda: inspect_log.run(InspectOptions((str(archive),), output=into), Silent(), print),
        "inspect, a partition": lambda: inspect_log.run(
            InspectOptions((str(archive / "users-0"),), output=into), Silent(), print
        ),
        "inspect, a file": lambda: inspect_log.run(
            InspectOptions((str(next((archive / "users-0").glob("*.log"))),), output=into), Silent(), print
        ),
        "report": lambda: archive_report.run(ReportOptions(str(archive), f"{into}.html", now_ms=NOW_MS), Silent()),
        "lookup": lambda: run_table(
            LookupOptions(archive=str(archive), queries="q.csv", output=f"{into}.csv"), [], [], Silent()
        ),
    }
    for name, job in tried.items():
        with pytest.raises(UsageError, match="lies in") as raised:
            job()
        assert raised.value.exit_code == 2, name
        assert read_tree(archive) == before, name


def test_restore_and_vacuum_refuse_a_store_in_the_archive(tmp_path, monkeypatch):
    maker = StoreMaker(tmp_path)
    maker.archived("t", 0, 0, b"x")
    maker.generation("t", 0, 1, {0: b"x"})
    (tmp_path / "link").symlink_to("archive")
    (tmp_path / "shop").symlink_to("store")
    (tmp_path / "disk").mkdir()
    (maker.archive / "disk1").symlink_to(tmp_path / "disk")
    before = read_tree(tmp_path)
    for output in ("link/new", "archive/new", "shop/new", "store/segments/new", "disk/new"):
        with pytest.raises(UsageError, match="lies in"):
            restore.run(RestoreOptions(str(maker.store), str(tmp_path / output)), Silent())
    moved = tmp_path / "moved"
    moved.mkdir()
    with pytest.raises(UsageError, match="lies in the archive"):
        restore.run(RestoreOptions(str(maker.store), f"file://{moved}/new", archive=str(moved)), Silent())
    assert read_tree(tmp_path) == before
    vacuum.run(VacuumOptions(str(maker.store)), Silent())

    shutil.move(maker.store, maker.archive / "store")  # as an older version let it be
    (tmp_path / "store").symlink_to(maker.archive / "store")
    with pytest.raises(UsageError, match=r"the store .* lies in the archive"):
        vacuum.run(VacuumOptions(str(maker.store)), Silent())


def test_store_accepts_its_archive_in_any_spelling(folder):
    write_partition(folder / "archive" / "t-0", "a=1 || a=2 || b=1")
    for archive in (f"file://{folder}/link/", str(folder / "archive")):
        assert compact.run(
            CompactOptions(archive, str(folder / "store"), now_ms=NOW_MS, config=COMPACTED), Silent()
        ).results
    shutil.copytree(folder / "archive", folder / "other" / "archive")
    with pytest.raises(UsageError, match="this store serves the archive"):
        compact.run(
            CompactOptions(f"{folder}/other/archive", str(folder / "store"), now_ms=NOW_MS, config=COMPACTED), Silent()
        )
    assert local_path("s3://bucket/key") is None


SHARED = """\
36 1 8:1 / / rw - ext4 /dev/sda1 rw
37 36 8:1 /one/segments/t-0 /copy/segments/t-0 rw - ext4 /dev/sda1 rw
38 36 8:32 / /copy/segments/u-0 rw - ext4 /dev/sdc1 rw
39 36 8:48 / /copy/segments/v-0 rw - ext4 /dev/sdd1 rw
40 36 8:48 / /elsewhere rw - ext4 /dev/sdd1 rw
41 36 8:1 /one /mounted rw - ext4 /dev/sda1 rw
42 41 8:64 /a\\040disk /mounted/state rw - ext4 /dev/sde1 rw
"""


def test_shared_mounts_of_a_store_are_listed() -> None:
    """A disk that is mounted inside a store belongs to the store, and so does the mount of a whole store."""
    assert shared_mounts("/copy", SHARED) == ["segments/t-0", "segments/v-0"]
    assert shared_mounts("/copy/segments/t-0", SHARED) == []
    assert shared_mounts("/mounted", SHARED) == []
    assert shared_mounts("/one", SHARED) == []
    assert shared_mounts("/copy", "") == []
