"""`audit keys` against plain code over decoded logs. A later audit reads only new data, and unread data is never
reported as absent.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lastkey.jobs.audit.keys import KeysReport, run
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import AuditKeysOptions
from lastkey.jobs.errors import DAMAGED_AUDIT, UsageError
from lastkey.jobs.store.audits import audit_reads
from lastkey.jobs.store.tables import open_state
from tests.builders.archives import Lab, borders, put
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.logs import START_MS, write_partition
from tests.builders.steps import at_step, interrupt
from tests.reference.audit import key_rows, visible_records

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GOLDEN = ("txn-zstd", "txn-hang", "two-parts", "v0-gzip", "v1-none", "lz4-append", "null-keys", "zstd-headers")


def audit(archive: Path, audits: Path, **given: Any) -> KeysReport:
    return run(AuditKeysOptions(str(archive), audits=str(audits), **given), Silent())


def read_table(audits: Path, name: str = "audit_keys") -> list[dict[str, Any]]:
    """Return the rows of a table, by the data files that delta-rs names, without sizes and source."""
    version = open_state(str(audits)).head(name)
    rows = [row for path in version.files() for row in pq.read_table(audits / "state" / name / path).to_pylist()]
    for row in rows:
        assert row.pop("source") and 0 < row.pop("last_bytes") <= row.pop("bytes")
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["key"]))


def expected(archive: Path) -> list[dict[str, Any]]:
    folders = sorted(folder for folder in archive.iterdir() if folder.is_dir())
    places = {(f.name.rpartition("-")[0], int(f.name.rpartition("-")[2])): visible_records(f) for f in folders}
    return key_rows(places)


@pytest.fixture
def archive(tmp_path, cases):
    for name in GOLDEN:
        for partition in cases[name].partitions:
            put(cases[name].input(partition), tmp_path / "archive" / partition)
    return tmp_path / "archive"


@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_keys_of_golden_logs_equal_the_twin(spark, archive, tmp_path, engine):
    report = audit(archive, tmp_path / "audits", engine=engine)
    assert report.exit_code == 0, report.to_text()
    assert report.work is not None and bool(report.work.threads) == (engine == "threads")
    rows = expected(archive)
    assert read_table(tmp_path / "audits") == rows and len(rows) > 3000
    assert report.summary["keys"] == len(rows) and report.summary["versions"] == sum(r["versions"] for r in rows)
    assert report.summary["misplaced"] == sum(r["misplaced"] for r in rows) > 0
    assert json.loads(json.dumps(report.to_json()))["findings"] == 0
    assert 0 < report.bytes_read < sum(log.stat().st_size for log in archive.rglob("*.log"))  # txn-hang ends early


def test_later_audits_read_only_new_segments(spark, tmp_path, cases):
    source, archive, audits = cases["txn-zstd"].input("txn-zstd-0"), tmp_path / "archive", tmp_path / "audits"
    n = len(list(source.glob("*.log")))
    read = 0
    for segments, batches in ((1, 3), (1, 9), (3, 2), (n, 0)):
        put(source, archive / "txn-zstd-0", segments=segments, batches=batches)
        report = audit(archive, audits)
        assert report.exit_code == 0, report.to_text()
        assert read_table(audits) == expected(archive), (segments, batches)
        assert report.bytes_read > 0
        read += report.bytes_read
    size = sum(log.stat().st_size for log in archive.rglob("*.log"))
    assert read - size < 3 * 16384  # after an open transaction, reading continues behind the last data
    again = audit(archive, audits)
    assert (again.bytes_read, again.stretches_read, again.exit_code) == (0, 0, 0)

    first = min((archive / "txn-zstd-0").glob("*.log"))
    for path in (archive / "txn-zstd-0").glob(f"{first.stem}.*"):
        path.unlink()
    (archive / "log-start-offset-checkpoint").write_text(
        f"0\n1\ntxn-zstd 0 {int(sorted((archive / 'txn-zstd-0').glob('*.log'))[0].stem)}\n"
    )
    assert audit(archive, audits).exit_code == 0
    assert read_table(audits) == expected(archive)


def test_replaced_log_with_more_offsets_is_read_completely(spark, tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 b=1 | c=1")
    assert audit(archive, audits).exit_code == 0
    shutil.rmtree(archive / "t-0")  # the topic was recreated
    write_partition(archive / "t-0", "x=1 y=1 | z=1 | w=1 | v=2")
    assert audit(archive, audits).exit_code == 0
    assert read_table(audits) == expected(archive)
    assert {row["key"] for row in read_table(audits)} == {b"x", b"y", b"z", b"w", b"v"}
    assert len(audit_reads(open_state(str(audits)))) == 1


def test_unreadable_files_are_named_by_every_audit(spark, tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    log = write_partition(archive / "t-0", "a=1 b=1 | c=1 | d=1 || e=1").logs[0]
    data = bytearray(log.read_bytes())
    whole = bytes(data)
    data[borders(bytes(data))[1] - 1] ^= 1
    log.write_bytes(data)
    for read in (True, False):
        report = audit(archive, audits)
        assert report.exit_code == 3 and (report.bytes_read > 0) == read
        (problem,) = report.problems
        assert problem.path.endswith(log.name) and problem.position == borders(whole)[0]
        assert [row["key"] for row in read_table(audits)] == [b"a", b"b", b"d", b"e"]
    log.write_bytes(whole)  # from a backup: of the same size, with another time
    report = audit(archive, audits)
    assert report.exit_code == 0 and len(read_table(audits)) == 5


def test_a_missing_segment_is_a_problem(spark, tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    logs = write_partition(archive / "t-0", "a=1 || b=1 || c=1").logs
    logs[1].unlink()
    report = audit(archive, audits)
    assert report.exit_code == 3 and [problem.kind for problem in report.problems] == ["gap"]
    assert audit(archive, audits, overrides={"gaps": "accept"}).exit_code == 0


def test_hidden_keys_do_not_appear_in_any_file(spark, tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "secret-key-1=1 secret-key-2=1 secret-key-1=2")
    write_partition(archive / "t-1", "secret-key-1=3")
    report = audit(archive, audits, hide_keys=True)
    assert report.exit_code == 0 and report.summary["versions"] == 4
    hidden = read_table(audits)
    files = [path for path in audits.rglob("*") if path.is_file()]
    assert not any(b"secret-key" in path.read_bytes() for path in files)
    assert "secret-key" not in report.to_text() + json.dumps(report.to_json())
    assert audit(archive, audits).exit_code == 0
    shown = read_table(audits)
    assert sorted(row["versions"] for row in hidden) == sorted(row["versions"] for row in shown) == [1, 1, 2]
    names = ("partition", "last_offset", "misplaced", "partitions")
    figures = [{tuple(row[name] for name in names) for row in rows} for rows in (hidden, shown)]
    assert figures[0] == figures[1]
    assert audits.joinpath("state", "audit.key").stat().st_mode & 0o777 == 0o600
    audits.joinpath("state", "audit.key").unlink()
    assert audit(archive, audits).bytes_read > 0  # hashes of another secret are of no use


def test_hidden_keys_have_the_order_of_shown_keys(spark, tmp_path):
    """A hash modulo the partitions that are here would say nothing of the partitions of the topic."""
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    for number in (0, 1):
        write_partition(archive / f"t-{number}", " ".join(f"key{i}=1" for i in range(number, 40, 2)))
    reports = [audit(archive, audits, hide_keys=hide, n_partitions=(("t", 3),)) for hide in (False, True)]
    assert reports[0].summary == reports[1].summary and reports[0].summary["misplaced"]


def test_damaged_table_is_never_read_as_fewer_rows(spark, tmp_path):
    """Changed pages of a file may be decoded to other rows."""
    archive, audits = tmp_path / "archive", tmp_path / "a[1]"
    write_partition(archive / "t-0", " ".join(f"key{i}=1" for i in range(500)))
    summary = audit(archive, audits).summary
    for damage in (Path.unlink, lambda path: path.write_bytes(b"")):
        (file,) = open_state(str(audits)).head("audit_entries").files()
        damage(audits / "state" / "audit_entries" / file)
        assert audit(archive, audits).summary == summary
    (file,) = open_state(str(audits)).head("audit_entries").files()
    flip(audits / "state" / "audit_entries" / file, 3000)
    assert audit(archive, audits).summary == summary  # the earlier result still holds: the file is not read
    shutil.rmtree(audits / "state" / "audit_keys")
    with raises_kind(DAMAGED_AUDIT, match=file):
        audit(archive, audits)
    (audits / "state" / "audit_entries" / file).unlink()
    (audits / "state" / "audit.key").write_bytes(b"short")
    with raises_kind(DAMAGED_AUDIT, match=r"audit\.key: expected the 16 bytes"):
        audit(archive, audits)


def test_audits_of_two_generations_share_entries(spark, tmp_path):
    lab = Lab(None, tmp_path, {"topics": {"t": {"cleanup.policy": "compact"}}, "job": {"engine": "threads"}})
    write_partition(lab.archive / "t-0", "a=1 b=1 a=2 || c=1 b=2 || d=1")
    assert lab.run(START_MS).exit_code == 0
    stored = AuditKeysOptions(store=str(lab.store))
    report = run(stored, Silent())
    assert report.exit_code == 0 and report.summary["versions"] == 4
    assert report.audits == str(lab.store)
    before = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(lab.archive.rglob("*.log")))).hexdigest()
    both = run(AuditKeysOptions(str(lab.archive), audits=str(lab.store)), Silent())
    assert both.summary["versions"] == 6
    active = sorted((lab.archive / "t-0").glob("*.log"))[-1]
    assert both.bytes_read == sum(p.stat().st_size for p in lab.archive.rglob("*.log") if p != active)
    assert before == hashlib.sha256(b"".join(p.read_bytes() for p in sorted(lab.archive.rglob("*.log")))).hexdigest()
    with pytest.raises(UsageError, match="--audits"):
        audit(lab.archive, lab.archive / "t-0")


def test_entries_of_a_killed_audit_are_ignored(spark, tmp_path):
    archive, audits = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 b=1 a=2")
    with pytest.raises(KeyboardInterrupt), at_step("rows written", interrupt):
        audit(archive, audits)
    assert list((audits / "state" / "audit_entries").glob("*.parquet"))
    assert audit(archive, audits).summary["versions"] == 3
