"""`audit compaction`: right generations keep every promise; each kind of wrong one is found, and nothing else."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.audit.compaction import run
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.options import AuditCompactionOptions
from lastkey.jobs.command.progress import Silent
from tests.builders.archives import COMPACT, HOUR, Lab, put
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import files_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAY = 24 * HOUR
SETTINGS = COMPACT | {"delete.retention.ms": DAY}


def audit(lab: Lab, **given: Any) -> AuditReport:
    return run(AuditCompactionOptions(store=str(lab.store), audits=str(lab.root / "audits"), **given), Silent())


def lab_of(root: Path, **settings: Any) -> Lab:
    return Lab(None, root, {"defaults": SETTINGS | settings, "job": {"engine": "threads"}})


def kinds(report: AuditReport) -> Counter[str]:
    return Counter(row["kind"] for row in report.details["found"])


def test_generations_of_real_logs_keep_every_promise(spark, tmp_path, cases, now_ms):
    lab = lab_of(tmp_path)
    names = ("txn-zstd", "none-tomb", "v1-none", "v0-gzip")
    for part in (2, None):
        for name in names:
            for partition in cases[name].partitions:
                put(cases[name].input(partition), lab.archive / partition, segments=part)
        report = lab.run(now_ms + (part or 9) * DAY, sealed=part is None)
        assert report.exit_code == 0, report.to_text()
        found = audit(lab)
        assert (found.exit_code, found.findings) == (0, 0), found.to_text()
    assert found.summary["partitions"] == {"the generation before": 4, "the archive": 4}
    assert found.bytes_read > 0 and audit(lab).bytes_read == 0
    shutil.rmtree(lab.archive)
    gone = audit(lab)
    assert gone.findings == 0 and any("not compared with the archive" in note for note in gone.notes)
    assert {problem.kind for problem in gone.problems} == {"unreadable"}  # segments that generations use of it


RIGHT = "a=1 b=1 c=1 | d=1 a=2 | b=- e=1 | {horizon=1000} g=1 g=- || x=1"
# A wrong cleaner's result: what the audit finds in it
WRONG = {
    "c=1@2 | d=1@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {},
    "c=1@2 | d=1@3 | b=-@5 e=1@6 | {last=8} || x=1": {"lost": 1},
    "a=1@0 c=1@2 | d=1@3 | b=-@5 e=1@6 | {last=8} || x=1": {"lost": 1},
    "b=1@1 c=1@2 | d=1@3 a=2@4 | e=1@6 | {last=8} || x=1": {"lost": 1},
    "c=1@2 | d=9@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"changed": 1},
    "c=1@2 | d=1@3~7 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"changed": 1},
    "c=1@2 | z=1@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1": {"changed": 1},
    "c=1@2 | d=1@3 a=2@4 | b=-@5 e=1@6 | g=1@7 | {last=8} || x=1": {"returned": 1},
    "c=1@2 | d=1@3 a=2@4 | b=-@5 e=1@6 | {last=8} || x=1@9 y=2@10": {"added": 1},
}


def test_each_wrong_generation_is_found(spark, tmp_path):
    lab = lab_of(tmp_path)
    for number, text in enumerate(WRONG):
        write_partition(lab.archive / f"t-{number}", f"{text} || w=1@11")
    assert lab.run(START_MS).exit_code == 0
    shutil.rmtree(lab.archive)  # now the log that a right cleaner would have read
    for number in range(len(WRONG)):
        write_partition(lab.archive / f"t-{number}", f"{RIGHT} || w=1@11")
    report = audit(lab, most=100)
    found = report.details["found"]
    by_partition = [Counter(r["kind"] for r in found if r["partition"] == n) for n in range(len(WRONG))]
    assert by_partition == [Counter(kinds) for kinds in WRONG.values()], report.to_text()
    assert report.exit_code == 3 and report.findings == sum(sum(kinds.values()) for kinds in WRONG.values())


def test_a_tombstone_that_went_in_time_is_not_missed(spark, tmp_path):
    lab = lab_of(tmp_path)
    write_partition(lab.archive / "t-0", "a=1 b=1 || a=- c=1 || d=1")
    assert lab.run(START_MS).exit_code == 0  # sets the horizon
    write_partition(lab.archive / "t-0", "a=1 b=1 || a=- c=1 || d=1 || e=1")
    for days in (1, 3):
        assert lab.run(START_MS + days * DAY, force=True).exit_code == 0
        assert audit(lab).findings == 0
    batches = lab.batches(lab.state().current()[1]["t", 0])
    assert b"a" not in {record.key for batch in batches for record in batch.records}


def test_what_cannot_be_read_is_not_lost(spark, tmp_path):
    lab = lab_of(tmp_path)
    write_partition(lab.archive / "t-0", "a=1 b=1 | c=1 d=1 || e=1 || f=1")
    assert lab.run(START_MS).exit_code == 0
    log = files_in(lab.folder(), "*.log")[0]
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    report = audit(lab)
    assert report.exit_code == 3 and report.findings == 0 and len(report.problems) == 1
    assert any("whether records are missing" in note for note in report.notes)
