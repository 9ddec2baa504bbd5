"""Listing of an archive names every entry that is not a partition's log, because the entry may be the only copy of a
log.
"""

from __future__ import annotations

import json
import os
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


def _metadata_log(archive: Path) -> None:
    (archive / "__cluster_metadata-0").mkdir()


def _loose_file(archive: Path) -> None:
    (archive / "u-0.tar").write_bytes(b"x")


def _stray(archive: Path) -> None:
    write_partition(archive / "u-0.6ba7b8109dad11d180b400c04fd430c8-stray", "a=1")


def _index_cache_with_a_log(archive: Path) -> None:
    (archive / "remote-log-index-cache").mkdir()
    (archive / "remote-log-index-cache" / LOG).write_bytes(b"x")


def _unfinished_file(archive: Path) -> None:
    (archive / "t-0" / "00000000000000000000.log.tmp").write_bytes(b"x")


def _damaged_checkpoint(archive: Path) -> None:
    (archive / "cleaner-offset-checkpoint").write_text("x")


def _bytes_as_name(archive: Path) -> None:
    (archive / "t-0" / os.fsdecode(b"00\xff.log")).write_bytes(b"x")


@pytest.mark.parametrize(
    ("put", "note", "entries"),
    [
        (_compressed, "u-0: no log in it; 00000000000000000000.log.gz left out", [f"u-0/{LOG}.gz"]),
        (_one_too_deep, "u-0: no log in it; u-0 left out", ["u-0/u-0"]),
        (_half_copied, "disk.part: an unfinished folder, by its name; left out", ["disk.part"]),
        (
            _other_name,
            "u-0.bak: files of a log, in a folder that is not named like a partition's; left out",
            ["u-0.bak"],
        ),
        (_beside_a_log, "t-0/old: a folder; ignored", ["t-0/old"]),
        (_metadata_log, "", ["__cluster_metadata-0"]),
        (_loose_file, "", ["u-0.tar"]),
        (
            _stray,
            "-stray: a folder marked -stray (--folders stray); left out",
            ["u-0.6ba7b8109dad11d180b400c04fd430c8-stray"],
        ),
        (_index_cache_with_a_log, "remote-log-index-cache: files of a log, in a folder", ["remote-log-index-cache"]),
        (_unfinished_file, "t-0/00000000000000000000.log.tmp: unfinished", ["t-0/00000000000000000000.log.tmp"]),
        (_damaged_checkpoint, "cleaner-offset-checkpoint", ["cleaner-offset-checkpoint"]),
        (_bytes_as_name, "", ["t-0: 1 names that are not UTF-8"]),
    ],
)
def test_archive_is_needed_while_it_has_excluded_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], None], note: str, entries: list[str]
) -> None:
    """compact and archive-needed give the same answer."""
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", "a=1 || a=2")
    put(archive)
    compact = ["compact", str(archive), "--store", str(tmp_path / "store"), "--sealed", "--json"]
    assert cli.main([*compact, "--topics", "*", "--cleanup-policy", "compact"]) == DONE
    report = json.loads(capsys.readouterr().out)
    assert [note in line for line in report["notes"]] == [True] * bool(note)
    because = {"kind": "entries", "message": "entries that no job reads", "names": entries}
    assert (report["archive_needed"], report["archive_needed_because"]) == (True, [because])
    assert cli.main(["archive-needed", str(archive), "--store", str(tmp_path / "store"), "--json"]) == DONE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["archive_needed_because"], answer["entries"]) == ([because], entries)


def test_folder_named_like_a_broker_file_is_searched(tmp_path: Path) -> None:
    for name in ("quorum-state", ".lock", "bootstrap.checkpoint", "remote-log-index-cache"):
        write_partition(tmp_path / name / f"in{name.replace('.', '')}-0", "a=1")
    archive = listed(str(tmp_path))
    assert sorted(topic for topic, _ in archive.partitions) == [
        "inbootstrapcheckpoint", "inlock", "inquorum-state", "inremote-log-index-cache"
    ]  # fmt: skip
    assert archive.not_read == []


def test_other_broker_files_are_skipped_without_a_note(tmp_path: Path) -> None:
    """A new partition's folder, and what brokers keep beside partitions."""
    write_partition(tmp_path / "t-0", "a=1")
    for name in ("u-0", "remote-log-index-cache", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "u-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "remote-log-index-cache" / "0_Qd7GwFDrRBGUyu3sYnGIVQ.index").write_bytes(b"x")
    (tmp_path / "__cluster_metadata-0" / LOG).write_bytes(b"x")
    (tmp_path / "recovery-point-offset-checkpoint.tmp").write_text("0\n")
    archive = listed(str(tmp_path))
    assert list(archive.partitions) == [("t", 0)]
    assert (archive.notes, archive.not_read) == ([], ["__cluster_metadata-0"])
