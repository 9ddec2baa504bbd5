"""open_segment: paths, names, damage, limits, and Python cost that grows with bytes and not with batches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey import logformat
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.schemas import RECORDS
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import Row, arrow_records, write_segment
from tests.reference.log import Batch, Record, encode_batch

TEXT = "a=1 b=2 | {codec=zstd} a=- =3 -= | {pid=7 txn} c=4 | {pid=7 abort} | {base=9 last=12}"


@pytest.fixture
def log(tmp_path):
    return write_segment(tmp_path / "some-topic-5", TEXT)


@pytest.mark.process
def test_package_exports_public_names():
    """`logformat.open_segment(path)`; and `from lastkey import logformat` alone loads no kernels."""
    code = "import sys; from lastkey import logformat; assert 'numba' not in sys.modules;"
    code += "print(logformat.open_segment.__module__)"
    root = Path(logformat.__file__).parents[1]
    assert (
        subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True).strip()
        == "lastkey.logformat.batches.segment"
    )
    assert {name: getattr(logformat, name).__name__ for name in logformat.__all__} == {n: n for n in logformat.__all__}
    with pytest.raises(AttributeError, match="has no attribute 'open_segmnt'"):
        _ = logformat.open_segmnt


def test_segment_accepts_paths_and_names(log, monkeypatch):
    rows = open_segment(log).to_arrow().to_pylist()
    assert len(rows) == 7
    assert {(row["topic"], row["partition"]) for row in rows} == {("some-topic", 5)}
    folder = pafs.SubTreeFileSystem(str(log.parent.parent), pafs.LocalFileSystem())
    monkeypatch.chdir(log.parent.parent)
    for segment in (
        open_segment(str(log)),
        open_segment(log.as_uri()),
        open_segment(f"some-topic-5/{log.name}"),
        open_segment(f"some-topic-5/{log.name}", folder),
        open_segment(log, pafs.LocalFileSystem()),
    ):
        assert segment.to_arrow().to_pylist() == rows


def test_file_with_any_name_is_read(log, tmp_path):
    other = tmp_path / "copy.bin"
    other.write_bytes(log.read_bytes())
    segment = open_segment(other)
    assert (segment.topic, segment.partition, segment.base_offset) == (None, None, None)
    table = segment.to_arrow(["offset", "topic", "partition"])
    assert table.column("topic").null_count == table.column("partition").null_count == 7
    assert open_segment(other, topic="t", partition=0).to_arrow(["topic"]).to_pylist()[0] == {"topic": "t"}


def test_headers_are_complete_in_chunks_and_as_columns(log):
    segment = open_segment(log, chunk_bytes=100)
    headers = segment.headers()
    assert headers["base_offset"].tolist() == [0, 2, 5, 6, 9]
    assert headers["control_type"].tolist() == [-1, -1, -1, 0, -1]
    assert [len(part) for part in segment.iter_headers()] == [1, 1, 1, 1, 1]
    assert segment.torn_bytes == 0
    table = pa.Table.from_batches(segment.batches(["control", "last_offset", "codec"]))
    assert table.to_pylist()[3] == {"control": True, "last_offset": 6, "codec": "none"}


def test_pandas_gets_nullable_integers_and_times_in_utc(log):
    frame = open_segment(log).to_pandas(start_offset=2, end_offset=5)
    assert frame["key"].tolist() == [b"a", b"", None]
    assert frame["partition"].tolist() == [5] * 3
    assert str(frame["producer_id"].dtype) == "int64"
    assert str(frame["delete_horizon_ms"].dtype) == "Int64"
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"


def test_empty_file_has_no_records_and_the_same_schema(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.touch()
    segment = open_segment(path)
    assert len(segment.headers()) == 0
    assert segment.to_arrow().num_rows == len(segment.to_pandas()) == 0
    assert segment.to_arrow().schema == RECORDS


def test_wrong_arguments_are_refused_with_the_nearest_name(log):
    segment = open_segment(log)
    with pytest.raises(ValueError, match="did you mean key"):
        segment.records(["keys"])
    with pytest.raises(ValueError, match="no columns"):
        segment.records([])
    for wrong in ({"max_rows": 0}, {"max_bytes": 0}, {"max_bytes": 2**31}):
        with pytest.raises(ValueError, match="impossible limits"):
            list(segment.records(**wrong))


def test_concurrent_iterators_do_not_interfere(log):
    segment = open_segment(log, chunk_bytes=64)
    rows = [row for batch in segment.records(["offset"]) for row in batch.to_pylist()]
    left, right = segment.records(["offset"], max_rows=1), segment.records(["offset"], max_rows=1)
    first = [next(left), next(left)]
    both = [next(right), *right]
    assert [r for batch in [*first, *left] for r in batch.to_pylist()] == rows
    assert [r for batch in both for r in batch.to_pylist()] == rows


def test_returned_arrow_batches_own_their_bytes(log):
    """Arrow batches own their bytes: the buffers behind them are used again."""
    kept = list(open_segment(log, chunk_bytes=64).records(max_rows=1, soft_bytes=1))
    assert pa.Table.from_batches(kept).to_pylist() == open_segment(log).to_arrow().to_pylist()


@pytest.mark.parametrize("zeros", [False, True])
def test_torn_tail_ends_the_segment(log, zeros):
    whole = open_segment(log).to_arrow(["offset"]).num_rows
    data = log.read_bytes()
    log.write_bytes(data + (bytes(500) if zeros else data[:70]))
    segment = open_segment(log)
    assert segment.to_arrow(["offset"]).num_rows == whole
    assert segment.torn_bytes == (500 if zeros else 70)
    with pytest.raises(LogFormatError) as caught:
        list(open_segment(log, sealed=True).records())
    assert (caught.value.kind, caught.value.position) == ("torn_tail", len(data))


def test_damaged_batch_is_an_error_with_its_position(log):
    data = bytearray(log.read_bytes())
    second = int(open_segment(log).headers()["position"][1])
    data[second + 70] ^= 1
    log.write_bytes(data)
    with pytest.raises(LogFormatError) as caught:
        open_segment(log).to_arrow()
    error = caught.value
    assert (error.kind, error.position, error.base_offset, error.path) == ("crc", second, 2, str(log))
    with pytest.raises(LogFormatError) as caught:
        open_segment(log, check_crc=False).to_arrow()
    assert caught.value.kind != "crc"


def test_name_that_contradicts_the_content_is_an_error(log):
    log = log.rename(log.with_name("00000000000000000001.log"))
    with pytest.raises(LogFormatError) as caught:
        open_segment(log).headers()
    assert (caught.value.kind, caught.value.expected) == ("name", "offsets from 1 on, as its name says")


def test_batch_above_the_size_limit_is_an_error(tmp_path):
    log = write_segment(tmp_path / "t-0", f"{{codec=zstd}} a={'x' * 5000}")
    assert open_segment(log, max_batch_bytes=6000).to_arrow().num_rows == 1
    with pytest.raises(LogFormatError) as caught:
        open_segment(log, max_batch_bytes=4000).to_arrow()
    assert caught.value.kind == "bomb"


def test_unreadable_file_is_an_error(tmp_path):
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(LogFormatError) as caught:
            open_segment(path).headers()
        assert caught.value.kind == "unreadable"


def test_malformed_header_names_are_decoded_as_by_java(tmp_path):
    """As Kafka reads them: new String(bytes, UTF_8)."""
    names = [b"ok", b"\xff", b"a\xc3", "é".encode(), b"\xff"]
    records = tuple(Record(i, 0, None, None, ((name, b"v"),)) for i, name in enumerate(names))
    path = tmp_path / "x.log"
    path.write_bytes(encode_batch(Batch(0, 4, records, base_timestamp=0, max_timestamp=0)))
    table = open_segment(path).to_arrow(["headers"])
    table.validate(full=True)
    assert [row["headers"][0]["key"] for row in table.to_pylist()] == ["ok", "�", "a�", "é", "�"]


def test_legacy_batches_are_read(tmp_path):
    def legacy(base, records, **fields):
        return Batch(base, records[-1].offset, tuple(records), **fields).encoded().data

    records = [Record(i, 100 + i, b"k%d" % i if i else None, b"v" if i % 2 else None) for i in range(12)]
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(
        legacy(0, records[:1], magic=0)
        + legacy(1, records[1:2], magic=1, max_timestamp=101)
        + legacy(2, records[2:3], magic=1, max_timestamp=555, append_time=True)
        + legacy(3, records[3:6], magic=0, codec=1)
        + legacy(6, records[6:9], magic=1, codec=1, max_timestamp=108)
        + legacy(9, records[9:], magic=1, codec=2, max_timestamp=777, append_time=True)
    )
    for chunk_bytes in (64, 1 << 20):
        segment = open_segment(path, chunk_bytes=chunk_bytes)
        rows = segment.to_arrow().to_pylist()
        assert [row["timestamp_ms"] for row in rows] == [-1, 101, 555, -1, -1, -1, 106, 107, 108, 777, 777, 777]
        assert [row["timestampType"] for row in rows] == [-1, 0, 1, -1, -1, -1, 0, 0, 0, 1, 1, 1]
        assert [row["base_offset"] for row in rows] == [0, 1, 2, 3, 3, 3, 6, 6, 6, 9, 9, 9]
        assert [(row["key"], row["value"]) for row in rows] == [(r.key, r.value) for r in records]
        assert {row["sequence"] for row in rows} == {row["leader_epoch"] for row in rows} == {-1}
        assert {row["delete_horizon_ms"] for row in rows} == {None}
        part = segment.to_arrow(["offset"], start_offset=4, end_offset=8).to_pylist()
        assert [row["offset"] for row in part] == [4, 5, 6, 7]


def many(folder, n, per_batch, value=b"v" * 100):
    records = arrow_records([Row(b"key-%09d" % i, value, i, i) for i in range(n)])
    with SegmentWriter(folder, 0) as writer:
        writer.append_records(records, max_batch_records=per_batch)
    return writer.path


def test_small_batches_are_merged_in_kernels(tmp_path, monkeypatch):
    """A log of one-record batches takes hardly more calls of Python and of kernels than one of full batches."""
    small, full = many(tmp_path / "a", 5000, 1), many(tmp_path / "b", 5000, 500)

    def calls(path):
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event in ("call", "c_call")

        segment = open_segment(path)
        sys.setprofile(count)
        try:
            n = sum(batch.num_rows for batch in segment.records())
        finally:
            sys.setprofile(None)
        assert n == 5000
        return counted

    calls(small), calls(full)  # compiled, and caches filled
    assert calls(small) < 1.5 * calls(full) < 1500


@pytest.mark.slow
def test_one_record_batches_are_at_most_50_times_slower(tmp_path):
    """Generous: measured 3 to 4 times, since each has a header of 61 bytes to read and to check."""
    times = []
    for name, per_batch in (("small", 1), ("full", 500)):
        path = many(tmp_path / name, 200_000, per_batch)
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            assert sum(batch.num_rows for batch in open_segment(path).records()) == 200_000
            best = min(best, time.perf_counter() - begin)
        times.append(best)
    assert times[0] < 25 * times[1]


READER = """
import os, resource, sys
if os.fork():  # a started process has its starter's peak from the beginning, a forked one has not
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
from lastkey.logformat.batches.segment import open_segment
for one in open_segment(sys.argv[2]).records(): pass  # everything compiled, loaded and grown
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
n = sum(one.num_rows for one in open_segment(sys.argv[1]).records())
print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_segment_is_read_in_bounded_memory(tmp_path, codec):
    """More than 200 MB of records; memory above that of reading a small segment, in a separate process."""
    records = arrow_records([Row(b"key-%09d" % i, bytes(200) + b"%09d" % i, i, i) for i in range(20_000)])
    small = write_segment(tmp_path / "small", "a=1 | {codec=zstd} a=2")
    with SegmentWriter(tmp_path / "large", 0) as writer:
        for _ in range(50):
            writer.append_records(records.drop_columns(["offset"]), codec=codec, max_batch_bytes=1 << 20)
    completed = subprocess.run(
        [sys.executable, "-c", READER, writer.path, small], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    )  # fmt: skip
    n, kib = map(int, completed.stdout.split())
    assert n == 1_000_000
    assert kib < 120 * 1024, "a chunk of 8 MiB, 32 MiB of decompressed batches with their spans, Arrow batches"
