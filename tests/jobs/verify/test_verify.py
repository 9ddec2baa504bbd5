"""`verify ARCHIVE` as a job: what it lists, counts and returns. Without Spark: these archives are small."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.errors import DONE, PROBLEMS, MissingPathError
from lastkey.jobs.store.manifests import read_manifest, write_manifests
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify.job import VerifyReport, run
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file
from tests.builders.archives import COMPACT, Lab, offset_checkpoint
from tests.builders.damage import NOW_MS, Partition, build, flip
from tests.builders.logs import START_MS, write_partition


def verify(root: Path, **options: object) -> VerifyReport:
    return run(VerifyOptions(archive=str(root), **options), Silent())  # type: ignore[arg-type]


def test_intact_archive_has_no_problems(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    (part.root / "replication-offset-checkpoint").write_text("0\n1\nt 0 48\n")
    report = verify(part.root)
    assert report.exit_code == DONE
    answer = json.loads(json.dumps(report.to_json()))
    assert answer["checked"] == {
        "partitions": 1, "segments": 4, "batches": 12, "records": 48, "compared_records": 0, "log_directory_files": 1,
        "bytes": sum(part.log(base).stat().st_size for base in (0, 12, 24, 36)),
    }  # fmt: skip
    assert "no problem found" in report.to_text()


def test_every_problem_has_path_position_expected_and_found(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    flip(part.log(0), 30)
    flip(part.log(12), part.positions(12)[2] + 70)
    (part.root / "cleaner-offset-checkpoint").write_text("0\n7\n")
    report = verify(part.root)
    assert report.exit_code == PROBLEMS
    answer = report.to_json()
    rows = answer["problems"]
    assert rows[1:] == answer["partitions"][0]["problems"]
    assert [(r["kind"], r["path"], r["position"]) for r in rows] == [
        ("side_file", "cleaner-offset-checkpoint", 4),
        ("crc", f"t-0/{segment_file(0, 'log')}", 0),
        ("crc", f"t-0/{segment_file(12, 'log')}", part.positions(12)[2]),
    ]
    text = report.to_text()
    for row in rows:
        assert row["expected"] and row["found"]
        assert f"{row['path']} at byte {row['position']}" in text
        assert f"expected {row['expected']}, found {row['found']}" in text
    assert "3 problems" in text


def test_checkpoint_above_the_log_end_is_a_problem(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    (part.root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 49\n")
    (problem,) = verify(part.root).problems
    assert (problem.kind, problem.path, problem.found) == ("side_file", "t-0", "49")


def test_topics_select_partitions(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    flip(part.log(0), 30)
    write_partition(part.root / "other-0", "a=1")
    assert verify(part.root, topics=TopicFilter(("other*",))).exit_code == DONE
    assert verify(part.root, topics=TopicFilter(("t*",))).exit_code == PROBLEMS


def test_unlistable_partition_is_reported_as_not_checked(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    part.log(12).unlink()
    part.log(12).mkdir()
    report = verify(part.root)
    assert report.exit_code == PROBLEMS
    assert [p.kind for p in report.problems] == ["unreadable"]
    assert report.to_json()["not_checked"] == ["t-0: its segments"]


def test_partition_without_files_is_not_checked(tmp_path: Path) -> None:
    """A broker that loads its folder begins at offset 0."""
    part = build(tmp_path / "archive")
    (part.root / "u-0").mkdir()
    report = verify(part.root)
    assert (report.exit_code, report.not_checked) == (DONE, ["u-0: a partition's folder without a segment"])
    (part.root / "replication-offset-checkpoint").write_text("0\n1\nu 0 7\n")
    report = verify(part.root)
    (problem,) = report.problems
    assert (report.exit_code, problem.kind, problem.path) == (PROBLEMS, "gap", "u-0")
    assert problem.expected == "segments up to offset 7, as replication-offset-checkpoint says"
    write_partition(part.root / "disk" / "u-0", "a=1")  # it moved, and left its folder
    report = verify(part.root)
    assert (report.exit_code, report.not_checked) == (DONE, ["u-0: a partition's folder without a segment"])


def test_leader_epochs_of_a_generation_are_compared_with_the_archive(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    config = tmp_path / "settings.toml"
    config.write_text('[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n')
    words = ["compact", str(part.root), "--store", str(part.store), "--config", str(config), "--now", str(NOW_MS)]
    assert main(words) == DONE
    of_store = VerifyOptions(store=str(part.store))
    assert run(of_store, Silent()).exit_code == DONE
    [epochs] = part.store.glob("segments/t-0/*/leader-epoch-checkpoint")
    epochs.write_text("0\n2\n3 0\n4 20\n")  # no batch from 20 to 23 is left
    problems = run(of_store, Silent()).problems
    assert {(p.kind, p.path) for p in problems} == {("side_file", str(epochs.relative_to(part.store)))}
    by_archive = "leader epoch 3 at offset 27, as its batch and the archive's file say", "4"
    assert by_archive in {(p.expected, p.found) for p in problems}
    (part.folder / "leader-epoch-checkpoint").unlink()  # only the manifest's checksum is left
    problems = run(of_store, Silent()).problems
    assert by_archive not in {(p.expected, p.found) for p in problems}


@pytest.fixture
def stored(tmp_path: Path) -> Partition:
    """Make a partition, and a generation of it."""
    part = build(tmp_path / "archive")
    config = tmp_path / "settings.toml"
    config.write_text('[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n')
    words = ["compact", str(part.root), "--store", str(part.store), "--config", str(config), "--now", str(NOW_MS)]
    assert main([*words, "--sealed"]) == DONE
    return part


def test_damaged_archive_of_a_store_is_a_problem(
    stored: Partition, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generation that could not be compared must not be reported as "no problem found" with exit code 0."""
    of_store = VerifyOptions(store=str(stored.store), archive_moved=str(stored.root))
    assert run(of_store, Silent()).exit_code == DONE
    flip(stored.log(12), 70)
    assert main(["verify", "--store", str(stored.store), "--archive", str(stored.root)]) == PROBLEMS
    output = capsys.readouterr().out
    assert f"problem: t-0/{segment_file(12, 'log')} at byte 0" in output and "no problem found" not in output
    assert "not checked: t-0: comparison with its source, which has problems" in output

    stored.log(12).unlink()  # deleted without a trace
    report = run(of_store, Silent())
    [problem] = report.problems
    assert (report.exit_code, problem.kind, problem.path) == (PROBLEMS, "changed", "t-0")
    assert "bytes of batches in offsets" in problem.expected

    stored.log(12).mkdir()  # the folder cannot be listed as a partition's
    report = run(of_store, Silent())
    assert (report.exit_code, [p.kind for p in report.problems]) == (PROBLEMS, ["unreadable"])


def test_beginning_retained_only_in_the_store_is_no_problem(stored: Partition) -> None:
    """`archive-needed` permits the deletion. Without the store, the archive lacks the segment: its first leader epoch
    begins there.
    """
    stored.log(0).unlink()
    of_store = run(VerifyOptions(store=str(stored.store), archive_moved=str(stored.root)), Silent())
    assert of_store.exit_code == DONE
    assert "its first offset was 0, and is now 12" in of_store.all_not_checked[0]
    report = run(VerifyOptions(archive=str(stored.root)), Silent())
    assert report.exit_code == PROBLEMS
    assert ("gap", "the first one at 12") in {(p.kind, p.found) for p in report.problems}


def test_beginning_that_was_never_read_is_a_problem(stored: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastkey.jobs.verify.plan_checks.read_by", lambda _: [])
    stored.log(0).unlink()
    report = run(VerifyOptions(store=str(stored.store), archive_moved=str(stored.root)), Silent())
    assert report.exit_code == PROBLEMS
    assert ("gap", "the first one at 12") in {(p.kind, p.found) for p in report.problems}


def test_deliberately_deleted_segments_are_no_problem(stored: Partition, tmp_path: Path) -> None:
    """The broker cleaned the archive, as its checkpoint shows, or the archive was deleted as unneeded. An archive that
    the user names must exist.
    """
    of_store = VerifyOptions(store=str(stored.store))
    stored.log(12).unlink()
    (stored.root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 36\n")
    report = run(of_store, Silent())
    assert report.exit_code == DONE and "bytes when the generation was made" in report.all_not_checked[0]
    stored.log(0).unlink()  # retention: a broker's checkpoint does not name a log start at the first segment's base,
    (stored.folder / "leader-epoch-checkpoint").write_text("0\n2\n3 24\n4 28\n")  # and its first epoch moves up
    report = run(of_store, Silent())
    assert report.exit_code == DONE and ", and is now 24" in report.all_not_checked[0]
    stored.root.rename(tmp_path / "elsewhere")
    report = run(of_store, Silent())
    assert report.exit_code == DONE and "no longer holds this partition" in report.all_not_checked[0]
    with pytest.raises(MissingPathError):
        run(VerifyOptions(store=str(stored.store), archive_moved=str(stored.root)), Silent())


def test_bytes_above_the_high_watermark_count_for_retention(tmp_path: Path) -> None:
    """The generation ends below it, and holds less than retention.bytes."""
    part = build(tmp_path / "archive")
    (part.root / "replication-offset-checkpoint").write_text("0\n1\nt 0 24\n")
    sizes = [part.log(base).stat().st_size for base in (0, 12, 24, 36)]
    config = tmp_path / "settings.toml"
    config.write_text(f'[defaults]\n"cleanup.policy" = "delete"\n"retention.bytes" = {sum(sizes[1:])}\n')
    words = ["compact", str(part.root), "--store", str(part.store), "--config", str(config), "--now", str(NOW_MS)]
    assert main(words) == DONE
    report = run(VerifyOptions(store=str(part.store)), Silent())
    assert (report.exit_code, report.problems) == (DONE, [])
    assert [r.bytes for r in report.results] == [sizes[1]]


def test_missing_archive_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError):
        verify(tmp_path / "nowhere")


def test_name_that_is_not_utf8_is_ignored(tmp_path: Path) -> None:
    """No file or folder of Kafka has such a name, and pyarrow raises an error for it."""
    part = build(tmp_path / "archive")
    for folder in (part.root, part.log(0).parent):
        (folder / os.fsdecode(b"\xff-0")).mkdir()
    report = verify(part.root)
    assert report.exit_code == DONE
    assert report.to_json()["checked"]["records"] == 48


def test_records_deleted_by_a_tombstone_below_the_log_start_are_not_read(tmp_path: Path) -> None:
    """A run drops the tombstone past its horizon, and leaves the older record of its key in the file, as Kafka does."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 0}
    lab = Lab(None, tmp_path, {"defaults": settings, "job": {"engine": "threads"}})
    for n, text in enumerate(("k=1 | k=- | x=1 y=1 ||", "k=1 | k=- | x=1 y=1 || x=2 z=1 ||"), 1):
        shutil.rmtree(lab.archive / "t-0", ignore_errors=True)
        write_partition(lab.archive / "t-0", text)
        offset_checkpoint(lab.archive / "log-start-offset-checkpoint", {"t-0": 3})
        lab.run(START_MS + n * 30 * 86_400_000)
        report = run(VerifyOptions(store=str(lab.store)), Silent())
        assert report.problems == []
    assert b"k" in {r.key for b in lab.batches(_rows(lab)) for r in b.records}


def test_retention_of_a_deleted_generation_explains_missing_records(tmp_path: Path) -> None:
    """After vacuum and rebuild-state only the second run's checkpoint shows the deletions by retention in the first
    run. Other records are missing.
    """
    job = {"engine": "threads"}
    lab = Lab(None, tmp_path, {"job": job})
    expiring = {"cleanup.policy": "compact,delete", "retention.bytes": 0}
    for n, (text, policy) in enumerate((("k=1 | x=1 || y=1 ||", expiring), ("k=1 | x=1 || y=1 || z=1 ||", {}))):
        shutil.rmtree(lab.archive / "t-0", ignore_errors=True)
        write_partition(lab.archive / "t-0", text)
        lab.run(START_MS + n, settings={"defaults": COMPACT | policy, "job": job})
    of_store = ["--store", str(lab.store)]
    assert main(["vacuum", *of_store, "--grace-hours", "0"]) == DONE
    folder = f"segments/t-0/{lab.folder().name}"
    for is_recorded, missing in ((True, []), (False, [0, 1, 2])):
        if not is_recorded:
            commit = read_manifest(lab.state().root, folder)
            write_manifests(lab.state().root, [replace(commit, checkpoint=replace(commit.checkpoint, expired_until=0))])
        shutil.rmtree(lab.store / "state")
        assert main(["rebuild-state", *of_store]) == DONE
        report = run(VerifyOptions(store=str(lab.store)), Silent())
        assert ([p.base_offset for p in report.problems], report.all_not_checked) == (missing, [])


def test_beginning_removed_after_the_run_is_no_problem(tmp_path: Path) -> None:
    """The second run drops k=2, which k=1 outranks by its timestamp, and then deletes k=1 by size. `archive-needed`
    lets somebody delete the archive's first segment, in which k=1 was.
    """
    job = {"engine": "threads"}
    lab = Lab(None, tmp_path, {"job": job})
    topic = COMPACT | {"compaction.strategy": "timestamp", "segment.bytes": 100}
    expiring = {"cleanup.policy": "compact,delete", "retention.bytes": 1}
    first = f"k=1~{START_MS + 9}"
    for n, (text, policy) in enumerate(((f"{first} || ", {}), (f"{first} || k=2 | y=1 | z=1 || ", expiring))):
        shutil.rmtree(lab.archive / "t-0", ignore_errors=True)
        write_partition(lab.archive / "t-0", text)
        lab.run(START_MS + n, settings={"defaults": topic | policy, "job": job})
    assert [r.key for b in lab.batches(_rows(lab)) for r in b.records] == [b"y", b"z"]
    (lab.archive / "t-0" / segment_file(0, "log")).unlink()
    report = run(VerifyOptions(store=str(lab.store)), Silent())
    assert (report.problems, report.all_not_checked) == ([], [])


def _rows(lab: Lab) -> list[Segment]:
    state = lab.state()
    (row,) = state.checkpoints().values()
    return state.manifests([row])[row.key]
