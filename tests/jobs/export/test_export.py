"""Exports against a plain reader of the same logs."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.errors import NOT_EMPTY, ConflictError, UsageError
from lastkey.jobs.export import job
from lastkey.jobs.export.output import MARK, ExportFolder
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.storage import open_root
from tests.builders.archives import COMPACT, Lab
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.logs import START_MS, Row, arrow_records, write_partition
from tests.builders.steps import at_step, interrupt
from tests.builders.trees import files_in
from tests.reference.log import decode_log
from tests.reference.read_committed import committed_offsets

pytestmark = pytest.mark.spark
ORDERS = "a=1 b=2 c=- | {codec=zstd} a=4 -=5 | {pid=1 txn} b=6 | {pid=1 abort} || a=7 d=- | {pid=2 txn} e=8"


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "archive"
    write_partition(folder / "orders-0", ORDERS)
    write_partition(folder / "orders-1", "a=10 z=11 || a=12 \xff=")
    write_partition(folder / "users-0", "u=1 | {codec=gzip} v=2")
    return folder


def options(archive: Path | None, output: Path, kind: str = "parquet", **given) -> ExportOptions:
    return ExportOptions(None if archive is None else str(archive), output=str(output), format=kind, **given)


def export(archive: Path | None, output: Path, kind: str = "parquet", **given):
    return job.run(options(archive, output, kind, **given), Silent())


def records(folder: Path, *, committed: bool = True) -> dict[tuple[int, int], tuple]:
    """Return (partition, offset) -> timestamp, key, value, headers of a topic's records: the slow way."""
    out = {}
    for part in sorted(folder.parent.glob(f"{folder.name}-*")):
        batches = [batch for log in files_in(part) for batch in decode_log(log.read_bytes())]
        shown = committed_offsets(batches)
        for record in (r for batch in batches if not batch.control for r in batch.records):
            if not committed or record.offset in shown:
                headers = [(key.decode(), value) for key, value in record.headers]
                place = int(part.name.rpartition("-")[2]), record.offset
                out[place] = record.timestamp, record.key, record.value, headers
    return out


def rows(spark, output: Path, kind: str) -> dict[tuple[int, int], tuple]:
    """Return the same of what an export wrote, as bytes."""
    table = spark.read.format(kind).load(str(output))
    return {
        (r.partition, r.offset): (r.timestamp_ms, r.key, r.value, [(h.key, h.value) for h in r.headers or []])
        for r in table.collect()
    }


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["spark", "threads"])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_every_record_that_a_consumer_sees_is_exported(spark, archive, tmp_path, kind, engine):
    report = export(archive, tmp_path / "out", kind, engine=engine)
    assert report.exit_code == 0
    for topic in ("orders", "users"):
        assert rows(spark, tmp_path / "out" / topic, kind) == records(archive / topic)
    assert [(t.topic, t.partitions, t.records, t.tombstones) for t in report.topics] == [
        ("orders", 2, 11, 2),
        ("users", 1, 2, 0),
    ]
    assert report.notes == ["orders-0: ends at offset 9 of 10: an open transaction, or the high watermark, is there"]


@pytest.mark.slow
def test_isolation_level_and_topics_select_exported_records(spark, archive, tmp_path):
    out = tmp_path / "out"
    arguments = ["export", str(archive), "--topics", "orders", "--format", "parquet", "--output", str(out)]
    assert main([*arguments, "--isolation", "read_uncommitted"]) == 0
    assert rows(spark, out / "orders", "parquet") == records(archive / "orders", committed=False)
    assert not (out / "users").exists()


@pytest.mark.slow
def test_json_lines_keep_bytes_that_are_not_text(spark, tmp_path):
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", "a=1 b=- -=x")
    bad = b"\xff\x00"
    (archive / "t-1").mkdir()
    with SegmentWriter(archive / "t-1", 0) as writer:
        writer.append_records(arrow_records([Row(b"k", bad, headers=(("h", b"\x01"), ("h", None))), Row(b"", b"")]))
    report = export(archive, tmp_path / "out", "ndjson")
    texts = [file.read_text() for file in (tmp_path / "out" / "t").glob("*.json")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    lines_by_offset = {(line["partition"], line["offset"]): line for line in lines}
    assert len(lines_by_offset) == len(lines) == 5
    assert lines_by_offset[0, 1]["value"] is None
    assert [lines_by_offset[0, n]["tombstone"] for n in range(3)] == [False, True, False]
    assert lines_by_offset[0, 2]["key"] is None
    assert (lines_by_offset[1, 1]["key"], lines_by_offset[1, 1]["value"], lines_by_offset[1, 1]["tombstone"]) == (
        "",
        "",
        False,
    )
    assert lines_by_offset[1, 0]["timestamp"] == "2023-11-14T22:13:20.000Z"
    assert lines_by_offset[1, 0]["timestamp_ms"] == START_MS
    assert base64.b64decode(lines_by_offset[1, 0]["value_malformed"]) == bad
    assert lines_by_offset[1, 0]["headers"] == [{"key": "h", "value": "AQ=="}, {"key": "h", "value": None}]
    assert report.notes == ["t: 1 value cannot be decoded as string; the bytes are in the column value_malformed"]


@pytest.mark.slow
def test_decoders_write_types_and_keep_malformed_bytes(spark, tmp_path):
    archive, out = tmp_path / "archive", tmp_path / "out"
    write_partition(archive / "t-0", "a=true b={} c=- d=12345678")
    export(archive, out, "parquet", key_decoder="hex", value_decoder="long")
    table = spark.read.parquet(str(out / "t")).orderBy("offset")
    rows = [(r.key, r.value, r.value_malformed, r.tombstone) for r in table.collect()]
    assert rows == [
        ("61", None, b"true", False),
        ("62", None, b"{}", False),
        ("63", None, None, True),
        ("64", int.from_bytes(b"12345678", "big"), None, False),
    ]


@pytest.mark.slow
def test_damage_is_reported_and_other_records_are_exported(spark, archive, tmp_path):
    copy, out = tmp_path / "archive", tmp_path / "out"
    shutil.copytree(archive, copy)
    log = files_in(copy / "orders-0")[0]
    flip(log, 70)  # in the first batch's records
    flip(files_in(copy / "users-0")[0], 65)
    report = export(copy, out)
    assert report.exit_code == 3
    answer = report.to_json()["problems"]
    assert {(Path(p["path"]).parent.name, p["position"]) for p in answer} == {("orders-0", 0), ("users-0", 0)}
    lost = {(0, offset) for offset in (0, 1, 2)}
    wanted = records(archive / "orders")
    assert rows(spark, out / "orders", "parquet") == {at: row for at, row in wanted.items() if at not in lost}
    assert json.loads((out / MARK).read_text())["state"] == "with problems"


@pytest.mark.slow
def test_current_and_older_generations_are_exported(spark, tmp_path):
    lab = Lab(None, tmp_path, {"topics": {"t": COMPACT}})
    write_partition(lab.archive / "t-0", "a=1 b=2 a=3 || c=4")
    lab.run(START_MS)
    write_partition(lab.archive / "t-0", "a=1 b=2 a=3 || c=4 | b=5 || d=6")
    lab.run(START_MS)
    offsets = {}
    for generation in (1, None):
        out = tmp_path / f"out-{generation}"
        assert export(None, out, store=str(lab.store), generation=generation).exit_code == 0
        offsets[generation] = sorted(offset for _, offset in rows(spark, out / "t", "parquet"))
    assert offsets == {1: [1, 2, 3], None: [2, 3, 4, 5]}


@pytest.mark.slow
def test_only_an_unfinished_export_of_the_same_request_is_restarted(spark, archive, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{MARK}.part").write_text("{")  # a run that was killed as it began
    with at_step("files exported", interrupt), pytest.raises(KeyboardInterrupt):
        export(archive, out)
    assert not (out / "orders" / "_SUCCESS").exists()
    assert json.loads((out / MARK).read_text())["state"] == "unfinished"
    with raises_kind(NOT_EMPTY, match="another export that did not end"):
        export(archive, out, "delta")
    (out / "mine").touch()
    with raises_kind(NOT_EMPTY, match="mine"):
        export(archive, out)
    (out / "mine").unlink()
    export(archive, out)
    assert rows(spark, out / "orders", "parquet") == records(archive / "orders")
    with raises_kind(NOT_EMPTY, match="a finished export"):
        export(archive, out)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_later_of_two_concurrent_exports_into_a_bucket_remains(archive, tmp_path, kind):
    """On a disk a lock keeps the second one out; the mark decides in any place."""
    out = tmp_path / "out"

    def replace_mark() -> None:
        ExportFolder(open_root(str(out)), job.describe_request(options(archive, out, kind))).begin(["orders", "users"])

    with at_step("files exported", replace_mark), pytest.raises(ConflictError, match="a newer one"):
        export(archive, out, kind, engine="threads")
    assert [path.name for path in out.iterdir()] == [MARK]
    export(archive, out, kind, engine="threads")
    assert json.loads((out / MARK).read_text())["state"] == "whole"


def test_marker_that_names_other_folders_is_ignored(archive, tmp_path):
    """The folders that a mark names are deleted."""
    out, other = tmp_path / "out", tmp_path / "other"
    for folder in (out, other):
        folder.mkdir()
    (other / "mine").touch()
    (out / MARK).write_text(json.dumps({"state": "unfinished", "request": {}, "topics": {"../other": {}}}))
    root = open_root(str(out))
    with raises_kind(NOT_EMPTY):
        ExportFolder(root, {}).begin(["t"])
    assert (other / "mine").exists()


def test_invalid_requests_fail_before_the_first_read(archive, tmp_path):
    with pytest.raises(UsageError, match="did you mean long"):
        export(archive, tmp_path / "out", value_decoder="lnog")
    with pytest.raises(UsageError, match="lies in"):
        export(archive, archive / "out")
    assert main(["export", "--format", "delta", "--output", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
