"""NightlyArchive of audits against a first audit of the same archive, and against plain code."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lastkey.jobs.audit.records import Gathered
from lastkey.jobs.store.audits import audit_reads
from lastkey.jobs.store.table import Change, in_files
from lastkey.jobs.store.tables import open_state
from lastkey.udfs.audit.entries import Cuts
from tests.builders.audits import audit, read_entries, seen
from tests.builders.damage import flip
from tests.builders.faults import Fault, faults, happened
from tests.builders.logs import write_partition
from tests.builders.steps import at_step
from tests.builders.workers import InTurn
from tests.reference.audit import visible_records

pytestmark = pytest.mark.slow  # whole runs


def check_sums(root: Path, cuts: Cuts) -> Gathered:
    """Audit again with versions added up between cuts, and compare with plain code."""
    report = audit(root / "archive", root / "sums", cuts=cuts)
    counts, lasts = Counter[bytes](), dict[bytes, int]()
    for row in read_entries(root / "sums", report):
        assert not [cut for cut in cuts or () if (row["first_offset"] or row["offset"]) < cut <= row["offset"]]
        if row["key"] is not None:
            counts[row["key"]] += row["versions"] or 1
            lasts[row["key"]] = max(lasts.get(row["key"], -1), row["offset"])
    records = [record for record in visible_records(root / "archive" / "t-0") if record.key is not None]
    assert counts == Counter(record.key for record in records)
    assert lasts == {record.key: record.offset for record in records}
    return report


def check_night(root: Path, *, whole: bool = True) -> Gathered:
    """Audit again, and compare with an audit that has read nothing before. whole: also with plain code."""
    archive, audits, fresh = (root / name for name in ("archive", "audits", "fresh"))
    shutil.rmtree(fresh, ignore_errors=True)
    report, first = audit(archive, audits), audit(archive, fresh)
    assert seen(audits, report) == seen(fresh, first)
    assert {(p.kind, p.path) for p in report.all_problems} == {(p.kind, p.path) for p in first.all_problems}
    if whole:
        assert not report.all_problems
        assert seen(audits, report) == [(record.offset, record.key) for record in visible_records(archive / "t-0")]
    return report


NIGHTS = {
    "aborted, cut and rewritten": ("a=1 b=1 | {pid=7 txn} c=1 d=1 | {pid=7 abort}", "a=1 b=1 | x=1 y=1 | z=1 | q=1"),
    "committed, cut and aborted": ("{pid=7 txn} c=1 | {pid=7 commit}", "{pid=7 txn} c=1 | {pid=7 abort} | d=1"),
    "aborted, in stretches": ("a=1", "a=1 | {pid=7 txn} c=1 | {pid=7 abort}", "a=1 | x=1 y=1 z=1 | q=1 | r=1 s=1"),
    "open, then done": ("a=1 | {pid=7 txn} c=1 | b=1", "a=1 | {pid=7 txn} c=1 | b=1 || {pid=7 commit} | d=1"),
    "over more segments than a task names": (
        "{pid=7 txn} a=1 || b=1 || c=1 || d=1 || e=1 || f=1 || g=1 || h=1 || i=1 || j=1 || {pid=7 abort} || k=1",
    ),
    "cut, then grown": ("a=1 | b=1 | c=1 | d=1", "a=1 | b=1", "a=1 | b=1 | x=1 | y=1 | z=1"),
    "retention, null and empty keys": ("a=1 || -=1 =1 =- || c=1", "-=1 =1@2 =-@3 || c=1 | d=-"),
}  # fmt: skip


@pytest.mark.parametrize("nights", NIGHTS.values(), ids=NIGHTS)
def test_each_audit_counts_the_records_that_a_consumer_reads(tmp_path, nights):
    for text in nights:
        shutil.rmtree(tmp_path / "archive", ignore_errors=True)
        write_partition(tmp_path / "archive" / "t-0", text)
        check_night(tmp_path)


def test_problem_is_removed_when_its_cause_is_removed(tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    logs = write_partition(archive / "t-0", "a=1 || {pid=7 txn} b=1 || c=1 || {pid=7 commit} || d=1").logs
    moved = logs[2].rename(tmp_path / "away")
    flip(logs[3], 61)  # the marker
    assert {problem.kind for problem in check_night(tmp_path, whole=False).all_problems} == {"gap", "crc"}
    flip(logs[3], 61)
    assert {problem.kind for problem in check_night(tmp_path, whole=False).all_problems} == {"gap"}
    moved.rename(logs[2])
    check_night(tmp_path)
    os.utime(logs[2], (1, 1))
    with faults(tmp_path, Fault("read", "*2.log", error="EIO", times=None)):
        report = audit(archive, audits)
    assert happened(tmp_path) and {problem.kind for problem in report.all_problems} == {"unreadable"}
    check_night(tmp_path)


def test_ranges_of_deleted_files_are_removed_from_the_tables(tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 || b=1")
    write_partition(archive / "gone-0", "secret=1")
    audit(archive, audits)
    shutil.rmtree(archive / "gone-0")
    audit(archive, audits)
    state = open_state(str(audits))
    reads = audit_reads(state)
    assert {read.topic for read in reads} == {"t"}
    assert set(state.head("audit_entries").files()) == {read.file for read in reads}


def test_reads_of_two_concurrent_audits_count_once(tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 || b=1 | {pid=7 txn} c=1 | {pid=7 abort}")
    with at_step("rows written", lambda: audit(archive, audits)):
        audit(archive, audits)
    state = open_state(str(audits))
    assert len(audit_reads(state)) == 4
    assert check_night(tmp_path).bytes_read == 0
    reads = audit_reads(state)
    assert len(reads) == 2 and state.head("audit_entries").files() == sorted({read.file for read in reads})
    assert check_night(tmp_path).bytes_read == 0


def test_offsets_removed_by_a_cleaner_are_no_gap(tmp_path):
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1 || c=1@10 d=1@11 || e=1@20 f=1@22 || g=1", bases={1: 10})
    assert not check_night(tmp_path).all_problems


@pytest.mark.parametrize("seed", range(3))
def test_random_audit_sequences_equal_a_new_audit(tmp_path, seed):
    """Segments grow and roll, retention takes the first, files are moved away and back, the log is created again."""
    draw, drawn_cuts = random.Random(seed), random.Random(seed)
    folder, away = tmp_path / "archive" / "t-0", tmp_path / "away"
    segments: list[list[str]] = [["a=1"]]
    for _ in range(8):
        for _ in range(draw.randint(0, 4)):
            if draw.random() < 0.3:
                segments.append([])
            pid = draw.choice([1, 2])
            key = draw.choice(["a", "b", "-", ""])
            drawn = [f"{key}=1", f"{{pid={pid} txn}} {key}=2 c=-", f"{{pid={pid} commit}}", f"{{pid={pid} abort}}"]
            segments[-1].append(draw.choice(drawn))
        if draw.random() < 0.15:
            segments = [["x=1 | y=1"]]
        segments = [batches for batches in segments if batches]
        shutil.rmtree(folder, ignore_errors=True)
        logs = write_partition(folder, " || ".join(" | ".join(batches) for batches in segments)).logs
        for log in logs:  # files with equal bytes have equal times
            os.utime(log, (zlib.crc32(log.read_bytes()),) * 2)
        is_missing = len(logs) > 2 and draw.random() < 0.3
        if is_missing:
            draw.choice(logs[:-1]).rename(away)
        check_night(tmp_path, whole=not is_missing)
        if not is_missing:
            n_offsets = 1 + max((record.offset for record in visible_records(folder)), default=0)
            cuts = tuple(sorted({drawn_cuts.randrange(n_offsets) for _ in range(drawn_cuts.choice([0, 0, 1, 3]))}))
            check_sums(tmp_path, drawn_cuts.choice([cuts, cuts, cuts, None]))
            assert check_sums(tmp_path, ()).bytes_read == 0  # entries of any cuts tell what those without would


def test_sums_are_used_only_if_all_their_segments_are_unchanged(tmp_path):
    """New segments of a log are read alone; after the loss of one, or with a new cut, the others are read again."""
    text = "a=1 b=1 | a=2 || a=3 || b=2 a=4"
    logs = write_partition(tmp_path / "archive" / "t-0", text).logs
    sizes = [log.stat().st_size for log in logs]
    assert check_sums(tmp_path, ()).bytes_read == sum(sizes)
    assert [check_sums(tmp_path, cuts).bytes_read for cuts in ((0,), (2,), (2,), ())] == [0, sum(sizes), 0, 0]
    write_partition(tmp_path / "more" / "t-0", f"{text} || c=1 a=5")
    for path in (tmp_path / "more" / "t-0").iterdir():
        if not (tmp_path / "archive" / "t-0" / path.name).exists():
            shutil.copy2(path, tmp_path / "archive" / "t-0")
    new = max((tmp_path / "archive" / "t-0").glob("*.log"))
    assert check_sums(tmp_path, (2,)).bytes_read == new.stat().st_size
    assert check_sums(tmp_path, (2, 6)).bytes_read == 0  # between the two reads
    logs[0].unlink()
    assert check_sums(tmp_path, (2,)).bytes_read == sum(sizes[1:])
    assert [audit(tmp_path / "archive", tmp_path / "sums").bytes_read for _ in range(2)][1] == 0  # entries apart
    assert check_sums(tmp_path, (3,)).bytes_read == 0


def test_stretches_are_added_up_in_even_parts(tmp_path, monkeypatch):
    """A partition a little larger than a worker's share stays whole; a larger one is divided without a small rest."""
    monkeypatch.setattr("lastkey.jobs.audit.records._TASK_BYTES", 1)
    one = " || ".join(f"a={n}" for n in range(1, 10))
    for name, text in (("t-0", one), ("t-1", f"{one} || b=1")):
        write_partition(tmp_path / "archive" / name, text)
    for cores, sizes in ((1, [9, 10]), (2, [9, 10]), (4, [4, 5, 5, 5]), (19, [1] * 19)):
        monkeypatch.setattr(InTurn, "cores", cores)
        report = audit(tmp_path / "archive", tmp_path / f"audits-{cores}", cuts=())
        assert sorted(Counter(part.read.entries_id for part in report.parts).values()) == sizes


def test_tables_of_an_earlier_version_are_replaced(tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 b=1 || c=1")
    report = audit(archive, audits)
    state = open_state(str(audits))
    new = {"entries_id", "cuts", "entries", "first_offset", "last_offset", "newest_ms"}
    rows = [vars(read) | {"records": read.entries, "file": "in_audit_versions.parquet"} for read in audit_reads(state)]
    old = pa.Table.from_pylist([{name: row[name] for name in row if name not in new} for row in rows])
    shutil.rmtree(audits / "state" / "audit_reads")
    shutil.rmtree(audits / "state" / "audit_entries")
    state = open_state(str(audits))
    state.swap("audit_reads", old.schema, lambda _: Change(added=in_files(old)))
    again = check_night(tmp_path)
    assert again.bytes_read == report.bytes_read > 0 == check_night(tmp_path).bytes_read
