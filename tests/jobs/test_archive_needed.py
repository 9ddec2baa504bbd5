"""`archive-needed`: deletable segments of an archive, and the reasons for needed segments."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.command.cli import main
from lastkey.jobs.errors import DONE, PROBLEMS, USAGE
from lastkey.jobs.store.rows import Commit
from lastkey.udfs.storage import Root, open_root
from tests.attack.model_judge import read_folder
from tests.builders.archives import Lab
from tests.builders.damage import flip
from tests.builders.logs import START_MS, write_partition
from tests.builders.stores import commit_with_files

pytestmark = pytest.mark.slow  # whole runs

DAY = 86_400_000
NIGHTS = ["a=1 b=1 c=1", "a=2 d=1 | b=2", "d=2 a=3", "e=1 c=-", "a=4 f=1"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 99 * DAY}
    return Lab(None, tmp_path, {"defaults": settings, "job": {"engine": "threads"}})


def night(lab: Lab, n: int, **options: Any) -> None:
    """Let the archive grow to n segments and an empty active one, and compact it."""
    write_partition(lab.root / "whole" / "t-0", "||".join([*NIGHTS[:n], ""]))
    folder, first = lab.archive / "t-0", min(_bases(lab.archive / "t-0"), default=0)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (lab.root / "whole" / "t-0").iterdir():
        if not path.stem.isdigit() or int(path.stem) >= first:
            shutil.copy2(path, folder)
    shutil.rmtree(lab.root / "whole")
    lab.run(START_MS + n * DAY, **options)


def _bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def needed_segments(lab: Lab, capsys: Any, *options: str, code: int = DONE) -> dict[str, Any]:
    """Return the answer about t-0."""
    assert main(["archive-needed", str(lab.archive), "--store", str(lab.store), *options, "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    (partitions,) = report["partitions"]
    assert partitions["not_needed"]["segments"] + partitions["needed"]["segments"] == len(partitions["segments"])
    return partitions | {"kinds": {reason["kind"] for reason in partitions["because"]}, "problems": report["problems"]}


def delete(lab: Lab, capsys: Any, *options: str) -> list[str]:
    """Delete what --format paths lists, one after the other; return the names."""
    assert main(["archive-needed", str(lab.archive), "--store", str(lab.store), *options, "--format", "paths"]) == DONE
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    for path in paths:
        path.unlink()
        if path.suffix == ".log":  # if the deletion stops here, no index is left without its log
            assert not list(path.parent.glob(f"{path.stem}.*index"))
    return [path.name for path in paths]


def test_year_of_runs_equals_one_full_compaction_of_the_archive(lab, capsys, tmp_path):
    deleted = []
    for n in range(1, len(NIGHTS) + 1):
        night(lab, n)
        if n % 2:  # a rollback is given up
            assert main(["vacuum", "--store", str(lab.store), "--grace-hours", "0"]) == DONE
            capsys.readouterr()
        deleted += delete(lab, capsys)
        assert main(["verify", "--store", str(lab.store), "--engine", "threads"]) == DONE
        capsys.readouterr()
    assert [name for name in deleted if name.endswith(".log")]
    assert len(_bases(lab.archive / "t-0")) <= 2
    whole = Lab(None, tmp_path / "other", lab.settings)
    write_partition(whole.archive / "t-0", "||".join([*NIGHTS, ""]))
    whole.run(START_MS + len(NIGHTS) * DAY)
    assert restored(lab) == restored(whole)


def restored(lab: Lab, *options: str) -> dict[int, Any]:
    """Return the records of t-0 as restore gives them, by offset."""
    output = lab.root / "restored"
    shutil.rmtree(output, ignore_errors=True)
    assert main(["restore", "--store", str(lab.store), "--output", str(output), *options]) == DONE
    return {offset: row.record for offset, row in read_folder(output / "t-0").rows.items()}


def test_files_that_a_rollback_reads_are_needed_until_vacuum(lab, capsys):
    night(lab, 2)
    night(lab, 4)
    assert "rollback" in needed_segments(lab, capsys)["kinds"]
    delete(lab, capsys)
    assert main(["rollback", "--store", str(lab.store), "--generation", "1"]) == DONE
    night(lab, 5)
    assert lab.state().states()["t", 0].state == "clean"
    for folder in (lab.store / "segments" / "t-0").iterdir():
        for path in folder.iterdir():
            os.utime(path, (1, 1))
    assert main(["vacuum", "--store", str(lab.store)]) == DONE
    capsys.readouterr()
    needed = needed_segments(lab, capsys)
    assert "rollback" not in needed["kinds"]


def test_gap_after_a_rollback_ends_with_a_second_rollback(lab, capsys):
    night(lab, 2)
    night(lab, 4)
    for base in _bases(lab.archive / "t-0")[:-1]:
        (lab.archive / "t-0" / f"{base:020d}.log").unlink()
    assert main(["rollback", "--store", str(lab.store), "--generation", "1"]) == DONE
    assert "not in the archive any more" in capsys.readouterr().out
    report = lab.run(START_MS + 5 * DAY)
    assert [r.problem.kind for r in report.results] == ["gap"]
    assert report.results[0].problem.hint.startswith("this is a rollback: rollback --generation 2 goes forward to what")
    assert needed_segments(lab, capsys)["kinds"] == {"uncleanable"}
    assert main(["rollback", "--store", str(lab.store), "--generation", "2"]) == DONE
    capsys.readouterr()
    night(lab, 5)
    assert lab.state().states()["t", 0].state == "clean"


def damaged_store(lab: Lab) -> None:
    flip(next(path for path in lab.folder().glob("*.log") if path.stat().st_size), 40)


def lost_in_store(lab: Lab) -> None:
    next(lab.folder().glob("*.timeindex")).unlink()


def lost_manifest(lab: Lab) -> None:
    (lab.folder() / "manifest.json").unlink()


@pytest.mark.parametrize("harm", [damaged_store, lost_in_store, lost_manifest])
def test_archive_missing_in_the_store_is_needed_completely(lab, capsys, harm):
    night(lab, 4)
    before = needed_segments(lab, capsys)
    assert before["not_needed"]["segments"]
    shutil.rmtree(lab.store / "state" / "cleaner_runs")
    assert needed_segments(lab, capsys) == before
    harm(lab)
    needed = needed_segments(lab, capsys, code=PROBLEMS)
    assert (needed["kinds"], needed["not_needed"]["segments"], needed["files"]) == ({"not_judged"}, 0, [])
    assert needed["problems"]
    assert not needed["judged"]


def test_changed_file_and_all_later_files_are_needed(lab, capsys):
    night(lab, 5)
    before = needed_segments(lab, capsys)
    second = sorted((lab.archive / "t-0").glob("*.log"))[1]
    flip(second, 70)
    needed = needed_segments(lab, capsys, code=PROBLEMS)
    assert needed["needed_from"] == int(second.stem)
    assert "changed" in needed["kinds"]
    assert needed_segments(lab, capsys, "--skip-crc")["needed_from"] == before["needed_from"]
    with second.open("ab") as file:
        file.write(b"more")
    needed = needed_segments(lab, capsys, "--skip-crc")
    assert (needed["needed_from"], "changed" in needed["kinds"]) == (int(second.stem), True)


def test_store_without_read_ranges_needs_all_segments(lab, capsys):
    """A generation of an older version has no `archived_files`."""
    night(lab, 4)
    state = lab.state()
    (row,) = state.checkpoints().values()
    (run,) = state.histories()["t", 0]
    segments = state.manifests([row])[row.key]
    new = {"generation": 2, "run_id": "2" * 32}
    back = {"back_to": 1, "back_to_run_id": row.run_id}
    fields = {"generation_before": 1, "generation_after": 2, "parent_run_id": run.run_id, "run_id": new["run_id"]}
    old = dataclasses.replace(row, archived_files=None, **new, **back)
    commit_with_files(state, Commit(old, segments, dataclasses.replace(run, **fields, **back)))
    needed = needed_segments(lab, capsys)
    assert ("unread" in needed["kinds"], needed["needed_from"]) == (True, 0)


def test_uncleanable_and_unknown_files_are_needed(lab, capsys):
    night(lab, 4)
    (lab.archive / "t-0" / "00000000000000000000.log.swap").write_bytes(b"")
    assert needed_segments(lab, capsys)["kinds"] == {"entries"}
    (lab.archive / "t-0" / "00000000000000000000.log.swap").unlink()
    metadata = lab.archive / "t-0" / "partition.metadata"
    was = metadata.read_text()
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    needed = needed_segments(lab, capsys)
    assert ("uncleanable" in needed["kinds"], needed["needed_from"]) == (True, 0)
    metadata.write_text(was)
    assert needed_segments(lab, capsys)["not_needed"]["segments"]
    write_partition(lab.archive / "u-0", "a=1 || b=1 ||")
    assert main(["archive-needed", str(lab.archive), "--store", str(lab.store), "--json"]) == DONE
    of_u = json.loads(capsys.readouterr().out)["partitions"][1]
    assert [(reason["kind"], reason["from"]) for reason in of_u["because"]] == [("no_generation", 0)]
    shutil.rmtree(lab.archive / "u-0")
    other = lab.root / "elsewhere"
    shutil.copytree(lab.archive, other)
    assert main(["archive-needed", str(other), "--store", str(lab.store)]) == USAGE


def test_active_run_leaves_partition_unjudged(lab, capsys):
    night(lab, 4)
    running = lab.store / "state" / "running"
    running.mkdir(exist_ok=True)
    (running / ("a" * 32 + ".json")).write_text("no lease")
    needed = needed_segments(lab, capsys, code=PROBLEMS)
    assert (needed["kinds"], needed["files"]) == ({"not_judged"}, [])


def test_files_beside_and_above_an_accepted_gap_are_needed(lab, capsys):
    write_partition(lab.archive / "t-0", "||".join([*NIGHTS, ""]))
    logs = sorted((lab.archive / "t-0").glob("*.log"))
    for path in (lab.archive / "t-0").glob(f"{logs[2].stem}.*"):
        path.unlink()
    lab.run(START_MS + 9 * DAY, overrides={"gaps": "accept"})
    needed = needed_segments(lab, capsys)
    assert ("gap" in needed["kinds"], needed["needed_from"]) == (True, int(logs[1].stem))
    assert needed_segments(lab, capsys, "--set", "gaps=accept")["needed_from"] > int(logs[3].stem)


def test_sealed_archive_needs_only_the_last_segment_of_each_log(lab, capsys, tmp_path):
    """Later runs identify the log by its last segment, so that segment is needed although the store replaces it."""
    write_partition(lab.archive / "t-0", "||".join(NIGHTS))
    assert lab.run(START_MS + DAY, sealed=True, force=True).archive_needed == []
    answer = archive_answer(lab, capsys)
    last = _bases(lab.archive / "t-0")[-1]
    (partitions,) = answer["partitions"]
    kinds = {reason["kind"] for reason in partitions["because"]}
    assert (answer["archive_needed_because"], kinds, partitions["needed_from"]) == ([], {"anchor"}, last)
    flip(lab.archive / "t-0" / f"{last:020d}.log", 70)  # the anchor is compared too
    assert archive_answer(lab, capsys, code=PROBLEMS)["archive_needed_because"][0]["kind"] == "changed"
    flip(lab.archive / "t-0" / f"{last:020d}.log", 70)
    delete(lab, capsys)
    assert _bases(lab.archive / "t-0") == [last]
    whole = Lab(None, tmp_path / "other", lab.settings)
    write_partition(whole.archive / "t-0", "||".join([*NIGHTS, "a=9 | g=1", ""]))
    for path in (whole.archive / "t-0").iterdir():
        if not path.stem.isdigit() or int(path.stem) > last:
            shutil.copy2(path, lab.archive / "t-0")
    for side in (lab, whole):
        side.run(START_MS + 2 * DAY)
    assert lab.state().states()["t", 0].state == "clean"
    assert restored(lab) == restored(whole)


def archive_answer(lab: Lab, capsys: Any, code: int = DONE) -> dict[str, Any]:
    """Return the whole answer."""
    capsys.readouterr()
    assert main(["archive-needed", str(lab.archive), "--store", str(lab.store), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_archive_needed_writes_no_file(lab, capsys):
    night(lab, 3)
    before = {path: path.stat().st_mtime_ns for path in lab.root.rglob("*")}
    needed_segments(lab, capsys)
    assert {path: path.stat().st_mtime_ns for path in lab.root.rglob("*")} == before
    text = main(["archive-needed", str(lab.archive), "--store", str(lab.store)]), capsys.readouterr().out
    assert text[0] == DONE
    assert "alone holds what was in them: compact --reset would start without them" in text[1]


def test_path_with_a_line_break_is_not_listed(lab, capsys):
    night(lab, 4)
    assert needed_segments(lab, capsys)["files"]
    hostile = lab.archive / "disk\n" / "etc"
    hostile.mkdir(parents=True)
    (lab.archive / "t-0").rename(hostile / "t-0")
    needed = needed_segments(lab, capsys)
    assert (needed["kinds"], needed["files"]) == ({"entries"}, [])


def test_paths_of_a_bucket_have_the_notation_of_its_tools():
    bucket = pafs.S3FileSystem(anonymous=True, region="eu-west-1")
    root = Root("s3://bucket/archive?endpoint_override=localhost", bucket, "bucket/archive")
    assert root.full_uri("t-0/0.log") == "s3://bucket/archive/t-0/0.log"
    assert open_root("/some where?").full_uri("t-0/0.log") == "/some where?/t-0/0.log"
