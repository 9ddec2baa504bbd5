"""Partitions of the store that the archive lacks, for example on an unmounted disk, or has in another folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, PROBLEMS, USAGE
from tests.builders.logs import write_partition

NOTE = "u-0: not in the archive any more; generation 1 uses 1 segment of it, from u-0/00000000000000000001.log on"


@pytest.mark.parametrize("left", ["others", "an empty folder"])
def test_segments_of_a_missing_partition_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    archive = tmp_path / "archive"

    def run(*words: str, topics: str = "*") -> dict[str, Any]:
        where = [str(archive), "--store", str(tmp_path / "store"), "--topics", topics]
        assert cli.main(["compact", *where, "--cleanup-policy", "compact", "--json", *words]) == DONE
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    write_partition(archive / "t-0", "a=1 || a=2")
    write_partition(archive / "u-0", "a=1 || a=2")
    write_partition(archive / "v-0", "a=1")
    run()
    run("--sealed", "--force", topics="[tv]")
    shutil.rmtree(archive)
    archive.mkdir()
    if left == "others":
        write_partition(archive / "t-0", "a=1 || a=2")
    else:
        assert (
            cli.main(["compact", str(archive), "--store", str(tmp_path / "store")]) == USAGE
        )  # the archive has no partition
        capsys.readouterr()
        (archive / "u-0").mkdir()
    report = run()
    assert report["notes"] == [NOTE]  # all of the others is in the store
    assert report["archive_needed"]
    if left != "an empty folder":
        assert run(topics="t")["notes"] == []  # the other was not selected


def test_moved_segments_are_reported_until_a_generation_references_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, store = tmp_path / "archive", str(tmp_path / "store")

    def run(*words: str) -> list[str]:
        where = [str(archive), "--store", store]
        assert cli.main(["compact", *where, "--topics", "*", "--cleanup-policy", "compact", "--json", *words]) == DONE
        notes: list[str] = json.loads(capsys.readouterr().out)["notes"]
        return notes

    name = "t-0/00000000000000000001.log"
    write_partition(archive / "disk1" / "t-0", "a=1 || a=2")
    assert run() == []
    (archive / "disk1").rename(archive / "disk2")
    [note] = run()
    assert note.startswith(f"disk1/{name}: generation 1 uses it, but it has moved to disk2/{name}; ")
    assert cli.main(["verify", "--store", store]) == PROBLEMS
    capsys.readouterr()
    assert run("--force") == []
    assert cli.main(["verify", "--store", store]) == DONE
