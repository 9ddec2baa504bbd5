"""`audit mirror` on small archives and stores, written by hand. With a real mirror: tests/kafka/test_mirrors.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lastkey.jobs.audit.mirror_job import MirrorReport, run
from lastkey.jobs.command.kinds import audit_side
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import AuditMirrorOptions
from tests.builders.archives import COMPACT, HOUR, Lab
from tests.builders.damage import flip
from tests.builders.logs import START_MS, write_partition
from tests.builders.place import Place
from tests.builders.trees import files_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOG = "a=1 b=1 | a=2 -=7 || c=1 d=- | e=1 e=2"


def audit(a: Path | str, b: Path | str, audits: Path, **given: object) -> MirrorReport:
    sides = {"a": audit_side(str(a)), "b": audit_side(str(b))}
    return run(AuditMirrorOptions(**sides, audits=str(audits), **given), Silent())


def kinds(report: MirrorReport) -> dict[str, str]:
    return {row["key"]: row["kind"] for row in report.first}


@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_unreadable_records_are_unknown(spark, tmp_path, engine):
    """A copy with a damaged batch, and a whole one; then the damaged one as the original."""
    for name in ("whole", "damaged"):
        write_partition(tmp_path / name / "t-0", LOG)
    log = files_in(tmp_path / "damaged" / "t-0")[1]
    flip(log, 61 + 10)
    report = audit(tmp_path / "whole", tmp_path / "damaged", tmp_path / "audits", engine=engine)
    assert (report.exit_code, report.findings) == (3, 1), report.to_text()
    assert kinds(report) == {"c": "unknown"}  # not d: a tombstone may be missing
    assert [problem.kind for problem in report.problems] == ["crc"]
    report = audit(tmp_path / "damaged", tmp_path / "whole", tmp_path / "audits", engine=engine)
    assert set(kinds(report).values()) == {"unknown"}
    assert report.bytes_read == 0  # both were read before


def test_missing_segment_makes_absent_keys_unknown(spark, tmp_path):
    for name in ("whole", "gap"):
        write_partition(tmp_path / name / "t-0", "a=1 | a=2 || b=1 || c=1")
    for path in files_in(tmp_path / "gap" / "t-0", "00000000000000000002.*"):
        path.unlink()
    report = audit(tmp_path / "whole", tmp_path / "gap", tmp_path / "audits")
    assert kinds(report) == {"b": "unknown"}
    assert report.exit_code == 3
    accepted = audit(tmp_path / "whole", tmp_path / "gap", tmp_path / "audits", overrides={"gaps": "accept"})
    assert kinds(accepted) == {"b": "missing"}


def test_generations_and_renamed_topics_are_compared(spark, tmp_path, capsys):
    """A compacted generation is an equal copy; another archive has the topic by another name, and topics of its own."""
    place = Place(tmp_path, capsys)
    place.write("a=1 b=1 | a=2 c=1 || c=- d=1 || e=1")
    code, out = place.compact()
    assert code == 0, out
    report = audit(tmp_path / "archive", f"{place.store}@current", place.store)
    assert (report.exit_code, report.findings) == (0, 0), report.to_text()
    assert report.sources == [str(tmp_path / "archive"), f"{place.store}@current"]
    assert report.summary["missing_versions"] > 0
    assert any("--every-version" in note for note in report.notes)
    every = audit(tmp_path / "archive", f"{place.store}@1", place.store, every_version=True)
    assert set(kinds(every).values()) == {"missing_version"}
    write_partition(tmp_path / "other" / "A.t-0", "a=2~1700000000002 a=3 | b=1~1700000000001")
    write_partition(tmp_path / "other" / "t-0", "x=1")
    report = audit(f"{place.store}@1", tmp_path / "other", place.store, renames=(r"A\.(.*)=\1",), hide_keys=True)
    assert sorted(kinds(report).values()) == ["ahead", "missing", "missing"], report.to_text()  # not c: its tombstone
    assert all(key.startswith("#") for key in kinds(report))
    report = audit(tmp_path / "archive", tmp_path / "other", place.store)
    assert set(kinds(report).values()) == {"missing", "extra"}
    assert "topics of B that A does not have: A.t: not compared" in report.notes
    assert json.loads(json.dumps(report.to_json()))["job"] == "audit mirror"


def test_original_and_mirror_in_one_archive_with_different_partition_counts(spark, tmp_path):
    write_partition(tmp_path / "both" / "t-0", "a=1 a=2 b=1")
    write_partition(tmp_path / "both" / "t-1", "c=1~1700000000007 d=1~1700000000008")
    write_partition(
        tmp_path / "both" / "copy.t-0", "c=1~1700000000007 a=1~1700000000000 a=2~1700000000001 | b=1~1700000000002"
    )
    report = audit(tmp_path / "both", tmp_path / "both", tmp_path / "audits", renames=(r"copy\.(.*)=\1",))
    assert kinds(report) == {"d": "missing"}, report.to_text()
    assert report.sources == [str(tmp_path / "both")]
    assert report.notes[0] == "t: another number of partitions in B: compared as a whole"
    again = audit(tmp_path / "both", tmp_path / "both", tmp_path / "audits")
    assert (again.exit_code, again.stretches_read) == (0, 0)


def test_topic_missing_in_the_copy_is_reported(spark, tmp_path):
    for name in ("a/t-0", "a/u-0", "b/t-0", "a/mm2-offset-syncs.B.internal-0"):
        write_partition(tmp_path / name, "k=1 -=2")
    report = audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits")
    assert [(r["topic"], r["key"], r["kind"]) for r in report.first] == [
        ("u", "k", "missing"),
        ("u", None, "missing_record"),
    ]
    assert report.notes[0] == "B has no topic u"


RIGHT = "a=1 b=1 c=1 | d=1 a=2 | b=- e=1 | {horizon=1000} g=1 g=- || x=1"
# A wrong cleaner's result: what `audit mirror ARCHIVE STORE@current` finds in it
WRONG = {
    "c=1@2 | d=1@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {},
    "c=1@2 | d=1@3 | b=-@5 e=1@6 | {last=8} || x=1": {"a": "missing"},
    "a=1@0 c=1@2 | d=1@3 | b=-@5 e=1@6 | {last=8} || x=1": {"a": "stale"},
    "b=1@1 c=1@2 | d=1@3 a=2@4 | e=1@6 | {last=8} || x=1": {"b": "stale"},
    "c=1@2 | d=9@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"d": "different"},
    "c=1@2 | d=1@3~7 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"d": "stale"},
    "c=1@2 | z=1@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"d": "missing", "z": "extra"},
    "c=1@2 | d=1@3 a=2@4 | b=-@5 e=1@6 | g=1@7 | {last=8} || x=1": {"g": "stale"},
}


def test_mirror_compares_a_generation_with_its_archive(spark, tmp_path, monkeypatch):
    """`verify` compares with the generation before; this finds what an earlier run lost."""
    settings = {"defaults": COMPACT | {"delete.retention.ms": 24 * HOUR}, "job": {"engine": "threads"}}
    lab = Lab(None, tmp_path, settings)
    for number, text in enumerate(WRONG):
        write_partition(lab.archive / f"t-{number}", f"{text} || w=1@11")
    assert lab.run(START_MS).exit_code == 0
    shutil.rmtree(lab.archive)  # now the log that a right cleaner would have read
    for number in range(len(WRONG)):
        write_partition(lab.archive / f"t-{number}", f"{RIGHT} || w=1@11")
    monkeypatch.setattr("lastkey.jobs.audit.mirror_job.MOST", 100)
    report = audit(lab.archive, f"{lab.store}@current", tmp_path / "audits")
    kinds_by_key = [{r["key"]: r["kind"] for r in report.first if r["partition"] == n} for n in range(len(WRONG))]
    assert kinds_by_key == list(WRONG.values()), report.to_text()
    assert report.exit_code == 3
