"""SegmentWriter: the files that a segment has, raw batches, markers, and what it refuses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey import logformat
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import END_TXN_MARKER_SIZE
from lastkey.logformat.side_files import producer_snapshot, transaction_index
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import Row, arrow_records, log_text, raw_batches, write_partition, write_segment
from tests.builders.opened import open_partition
from tests.reference.index_entries import index_entries
from tests.reference.log import COMMIT, decode_log, marker_batch

ONE = arrow_records([Row(b"a", b"1", 0, 5)])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_segment_is_written_with_all_side_files(tmp_path):
    log = write_segment(tmp_path / "t-0", "a=1 | {pid=7 txn} b=2 | {pid=7 abort coordinator=3}", 40)
    stem = f"{40:020d}"
    assert names(log.parent) == [f"{stem}.{k}" for k in ("index", "log", "timeindex", "txnindex")] + [
        f"{43:020d}.snapshot"
    ]
    [aborted] = transaction_index.read(log.with_suffix(".txnindex").read_bytes(), "x")
    assert aborted.tolist() == (0, 7, 41, 42, 43)
    [producer] = producer_snapshot.read((log.parent / f"{43:020d}.snapshot").read_bytes(), "x")
    assert (producer["producer_id"], producer["last_offset"], producer["coordinator_epoch"]) == (7, 41, 3)


def test_written_indexes_equal_the_twin(tmp_path):
    with SegmentWriter(tmp_path, 10, index_interval_bytes=300) as writer:
        for i in range(40):
            writer.append_records(arrow_records([Row(b"k", b"v" * (7 * i % 90), 10 + i, 1000 + 13 * i % 50)]))
    rows = open_segment(writer.path).headers()
    batches = [(int(r["last_offset"]), int(r["size"]), int(r["max_timestamp"])) for r in rows]
    offsets, times = index_entries(batches, 10, 300, 10**6, 10**6)
    stem = tmp_path / f"{10:020d}"
    index = np.frombuffer(stem.with_suffix(".index").read_bytes(), ">i4").reshape(-1, 2)
    assert [(10 + o, p) for o, p in index.tolist()] == [tuple(entry) for entry in offsets]
    assert len(stem.with_suffix(".timeindex").read_bytes()) == 12 * len(times)


def test_written_marker_equals_that_of_kafka(tmp_path):
    with SegmentWriter(tmp_path, 5) as writer:
        [row] = writer.append_marker(producer_id=9, producer_epoch=2, commit=True, timestamp=77)
    data = (tmp_path / f"{5:020d}.log").read_bytes()
    assert len(data) == row["size"] == END_TXN_MARKER_SIZE
    assert data == marker_batch(5, 9, COMMIT, timestamp=77, epoch=2, leader_epoch=0).data


def test_raw_batches_are_copied(tmp_path):
    log = write_segment(tmp_path / "a", "a=1 b=2 | {codec=gzip pid=3} c=3 | {pid=4 txn} d=4 | {pid=4 abort}", 7)
    data = log.read_bytes()
    with SegmentWriter(tmp_path / "b", 7) as writer:
        assert len(writer.append_raw(b"")) == 0
        assert len(writer.append_raw(raw_batches(open_segment(log))[0])) == 1
        rows = writer.append_raw(data[writer.size :])
        assert rows["base_offset"].tolist() == [9, 10, 11]
        assert rows["position"].tolist() == open_segment(log).headers()["position"][1:].tolist()
        assert writer.next_offset == 12
    assert names(tmp_path / "b") == names(tmp_path / "a")
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda data: data[:-1], "length"),
        (lambda data: data + bytes(5), "length"),
        (lambda data: data[:-1] + b"\1", "crc"),
        (lambda data: data + data, "offsets"),
        (lambda data: bytes(7) + b"\1" + data[8:], "offsets"),
    ],
)
def test_a_refused_batch_leaves_nothing_behind(tmp_path, damage, kind):
    data = write_segment(tmp_path / "a", "a=1 b=2", 2).read_bytes()
    with SegmentWriter(tmp_path / "b", 2) as writer:
        with pytest.raises(LogFormatError) as caught:
            writer.append_raw(damage(data))
        assert caught.value.kind == kind
        assert writer.size == 0
        writer.append_raw(data)  # nothing of what was refused is left
    assert (tmp_path / "b" / f"{2:020d}.log").read_bytes() == data


def test_failed_segment_has_no_index(tmp_path):
    with pytest.raises(KeyError), SegmentWriter(tmp_path, 0) as writer:
        writer.append_records(ONE)
        raise KeyError
    assert names(tmp_path) == [f"{0:020d}.log"]


def test_writer_can_be_closed_twice_and_validates_options(tmp_path):
    writer = SegmentWriter(tmp_path, 0)
    with pytest.raises(TypeError, match="either options"):
        from lastkey.logformat.writing.encode import BatchOptions

        writer.append_records(ONE, BatchOptions(), codec="gzip")
    with pytest.raises(TypeError):
        writer.append_records(ONE, codecs="gzip")
    writer.close()
    writer.close()
    assert writer.next_offset == 0
    assert names(tmp_path)[-1] == f"{0:020d}.timeindex"


def test_transactions_can_span_segments(tmp_path):
    producers = ProducerState()
    with SegmentWriter(tmp_path, 0, producers=producers) as first:
        first.append_records(ONE, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    with SegmentWriter(tmp_path, first.next_offset, producers=producers) as second:
        second.append_marker(producer_id=1, producer_epoch=0, commit=False, timestamp=9)
    [aborted] = transaction_index.read((tmp_path / f"{1:020d}.txnindex").read_bytes(), "x")
    assert (aborted["first_offset"], aborted["last_offset"]) == (0, 1)
    [entry] = producer_snapshot.read((tmp_path / f"{1:020d}.snapshot").read_bytes(), "x")
    assert entry["current_txn_first_offset"] == 0


def test_refused_marker_does_not_end_a_transaction(tmp_path):
    """A marker that a segment's indexes cannot reach goes into the next one."""
    producers, end = ProducerState(), 2**31
    marker = {"producer_id": 1, "producer_epoch": 0, "commit": False, "timestamp": 9, "offset": end}
    with SegmentWriter(tmp_path, 0, producers=producers) as first:
        first.append_records(ONE, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        with pytest.raises(LogFormatError) as caught:
            first.append_marker(**marker)
        assert caught.value.kind == "relative_offset"
    with SegmentWriter(tmp_path, end, producers=producers) as second:
        second.append_marker(**marker)
    [entry] = producer_snapshot.read((tmp_path / f"{1:020d}.snapshot").read_bytes(), "x")
    assert (entry["current_txn_first_offset"], entry["coordinator_epoch"]) == (0, -1)
    [aborted] = transaction_index.read((tmp_path / f"{end:020d}.txnindex").read_bytes(), "x")
    assert (aborted["first_offset"], aborted["last_offset"]) == (0, end)


def test_segment_is_written_to_other_file_systems(tmp_path):
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    with SegmentWriter("x/t-0", 0, filesystem) as writer:
        writer.append_records(ONE)
    assert open_segment(writer.path, filesystem).to_arrow(["key"]).to_pylist() == [{"key": b"a"}]
    assert open_segment(tmp_path / "x" / "t-0" / f"{0:020d}.log").topic == "t"


def test_empty_batches_and_delete_horizons_are_written(tmp_path):
    log = write_segment(
        tmp_path, "{last=4 pid=3 seq=8 max_ts=99} | {horizon=5000 ts=1} a=- b=- | {append_time=7 ts=3} c=1"
    )
    empty, horizon, appended = decode_log(log.read_bytes())
    assert (empty.last_offset, empty.base_sequence, empty.max_timestamp, empty.records) == (4, 8, 99, ())
    assert len(empty.data) == 61
    assert (horizon.delete_horizon, [r.timestamp for r in horizon.records]) == (5000, [1, 2])
    assert (appended.append_time, appended.records[0].timestamp, appended.base_timestamp) == (True, 7, 3)


def test_log_described_as_text_is_printed_as_the_same_text(tmp_path):
    files = write_partition(
        tmp_path / "t-0",
        "a=1 b=2 a=3 | {codec=lz4} a=- =4 -=x || {pid=7 txn} a=1 | {pid=7 commit} | {base=20 last=25} d=4@22~5"
        " ||  || e=",
        base_offset=3,
    )
    assert log_text(*files.logs) == "3:a=1 4:b=2 5:a=3 | 6:a=- 7:=4 8:-=x || 9:a=1 | COMMIT | 22:d=4 ||  || 27:e="
    assert files.bases == (3, 9, 26, 27)
    assert [int(name[:20]) for name in names(files.folder) if name.endswith("snapshot")] == [9, 26, 27, 28]
    assert (files.folder / "leader-epoch-checkpoint").read_text() == "0\n1\n0 3\n"
    rows = open_segment(files.logs[1]).to_arrow(["timestamp_ms", "sequence", "offset"]).to_pylist()
    assert [row["timestamp_ms"] for row in rows] == [1_700_000_000_009, 1_700_000_000_010, 5]
    with pytest.raises(ValueError, match="no such option"):
        write_segment(tmp_path / "x", "{colour=red} a=1")
    with pytest.raises(ValueError, match="not a record"):
        write_segment(tmp_path / "x", "a")


def test_sequences_continue_over_batches(tmp_path):
    log = write_segment(
        tmp_path, "{pid=7} a=1 b=2 | {pid=8} c=3 | {pid=7} d=4 | {pid=7 seq=2147483647} e=5 f=6 | {pid=7} g=7"
    )
    table = open_segment(log).to_arrow(["sequence"])
    assert table.column(0).to_pylist() == [0, 1, 0, 2, 2**31 - 1, 0, 1]
    assert isinstance(table, pa.Table)


def test_package_exports_the_writer(tmp_path):
    """As the package's docstring has it."""
    with logformat.SegmentWriter(tmp_path / "orders-0", 0) as writer:
        writer.append_records(pa.record_batch({"key": [b"a"], "value": [b"1"], "offset": [0], "timestamp_ms": [0]}))
    assert open_partition(tmp_path / "orders-0").lookup_offset(0).position == 0
