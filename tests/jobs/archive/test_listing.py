"""Listing of an archive names all that is no partition's log, because it may be the only copy of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE
from tests.builders.logs import write_partition

LOG = "00000000000000000000.log"


def _compressed(archive: Path) -> None:
    write_partition(archive / "u-0", "a=1")
    (archive / "u-0" / LOG).rename(archive / "u-0" / f"{LOG}.gz")
    for path in (archive / "u-0").iterdir():
        if path.suffix != ".gz":
            path.unlink()


def _one_too_deep(archive: Path) -> None:
    write_partition(archive / "u-0" / "u-0", "a=1")


def _half_copied(archive: Path) -> None:
    write_partition(archive / "disk.part" / "u-0", "a=1")


def _other_name(archive: Path) -> None:
    write_partition(archive / "u-0.bak", "a=1")


def _beside_a_log(archive: Path) -> None:
    write_partition(archive / "t-0" / "old", "a=1")


@pytest.mark.parametrize(
    ("put", "note"),
    [
        (_compressed, "u-0: no log in it; 00000000000000000000.log.gz left out"),
        (_one_too_deep, "u-0: no log in it; u-0 left out"),
        (_half_copied, "disk.part: an unfinished folder, by its name; left out"),
        (_other_name, "u-0.bak: files of a log, in a folder that is not named like a partition's; left out"),
        (_beside_a_log, "t-0/old: a folder; ignored"),
    ],
)
def test_the_archive_is_needed_as_long_as_it_holds_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], None], note: str
) -> None:
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", "a=1 || a=2")
    put(archive)
    words = ["compact", str(archive), "--store", str(tmp_path / "store"), "--sealed", "--json"]
    assert cli.main([*words, "--topics", "*", "--cleanup-policy", "compact"]) == DONE
    report = json.loads(capsys.readouterr().out)
    assert report["notes"] == [note]
    assert report["archive_needed_because"] == [{"kind": "notes", "message": "see the notes", "names": []}]


def test_other_files_of_a_broker_are_passed_over_in_silence(tmp_path: Path) -> None:
    """A new partition's folder, and what brokers keep beside partitions."""
    write_partition(tmp_path / "t-0", "a=1")
    for name in ("u-0", "remote-log-index-cache", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "u-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "remote-log-index-cache" / "00000000000000000000_x.index").write_bytes(b"x")
    (tmp_path / "__cluster_metadata-0" / LOG).write_bytes(b"x")
    (tmp_path / "recovery-point-offset-checkpoint.tmp").write_text("0\n")
    found = listed(str(tmp_path))
    assert list(found.partitions) == [("t", 0)]
    assert found.notes == []
