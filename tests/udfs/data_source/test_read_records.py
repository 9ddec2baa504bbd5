"""Rows of a task of the data source, called directly, against a whole reading of the files and the text of logs.

The oracle for whole files is Segment.to_arrow (itself held against kafka-dump-log); with a consumer: tests/kafka.
"""

from __future__ import annotations

import itertools
import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.data_source import records as read_records
from lastkey.udfs.data_source.pieces import Piece, ReadSpec
from lastkey.udfs.data_source.records import read_batches
from tests.builders.logs import START_MS, write_partition
from tests.builders.place import NO_PRODUCERS
from tests.builders.sources import list_tasks, read
from tests.builders.trees import files_in
from tests.golden import case_names
from tests.reference.log import GZIP, Batch, Record, with_timestamps

HOSTILE = {"maxRecordsPerBatch": "3", "splitBytes": "2000"}
ALL = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,timestamp_ms,producer_id,producer_epoch,sequence,"
    "transactional,control,base_offset,position,leader_epoch,codec,magic,delete_horizon_ms"
)


def plain(table: pa.Table) -> pa.Table:
    """Remove what only the schemas of logformat say: nullability, metadata, chunks."""
    fields = [pa.field(field.name, field.type) for field in table.schema]
    return table.cast(pa.schema(fields)).combine_chunks()


def whole(folder: Path) -> pa.Table:
    """Return all records of a partition's folder, control records too."""
    logs = files_in(folder)
    return plain(pa.concat_tables([open_segment(path).to_arrow(ALL.split(",")) for path in logs]))


QUICK = {"txn-zstd", "v1-gzip-append"}
UNDER = [
    pytest.param(name, options, id=name + id_, marks=[] if name in QUICK else pytest.mark.slow)
    for name in case_names()
    for id_, options in (("", {}), ("-hostile", HOSTILE))
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), UNDER)
def test_every_record_equals_that_of_a_segment_reader(cases, name, options, monkeypatch):
    if options:
        monkeypatch.setattr(read_records, "CHUNK_BYTES", 100)  # less than a batch
    case = cases[name]
    for partition in case.partitions:
        for folder in (case.input(partition), case.expected(1, partition)):
            given = {"columns": ALL, "includeControl": "true", **options}
            assert plain(read("kafka_log", folder, **given)).equals(whole(folder)), folder


def test_default_columns_equal_those_of_the_kafka_source_of_spark(cases):
    case = cases["few-keys"]
    table = read("kafka_log", case.input(case.partitions[0]))
    assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    headers = read("kafka_log", case.input(case.partitions[0]), includeHeaders="true")
    assert headers.schema.names == [*table.schema.names, "headers"]
    assert "value" not in read("kafka_log", case.input(case.partitions[0]), includeValue="false").schema.names


@pytest.mark.parametrize("magic", [0, 1])
def test_file_with_any_name_and_a_leading_legacy_wrapper_is_read(tmp_path, magic):
    """Its header has the last offset; the records before that one are read too."""
    (tmp_path / "copy.of.a.log").write_bytes(compressed(magic, 10, 14, 16))
    assert read("kafka_log", tmp_path / "copy.of.a.log")["offset"].to_pylist() == list(range(10, 16))


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_batches_above_the_end_are_not_read(tmp_path, magic):
    """A piece that no index has cut, as in a bucket: each header has only the last offset."""
    data = compressed(magic, 0, 4, 10, 13, 15)
    (tmp_path / f"{0:020}.log").write_bytes(data)
    spec = ReadSpec(pa.schema([("base_offset", pa.int64()), ("last_offset", pa.int64())]))
    for end in range(16):
        piece = Piece("t", 0, str(tmp_path), f"{0:020}.log", end=len(data), end_offset=end)
        offsets_read = [row for batch in read_batches(spec, [piece]) for row in batch["last_offset"].to_pylist()]
        assert offsets_read == [last for first, last in ((0, 3), (4, 9), (10, 12), (13, 14)) if first < end]


def compressed(magic, *borders):
    """Return batches of records between these offsets."""
    data = b""
    for first, end in itertools.pairwise(borders):
        times = [-1 if magic == 0 else 1000 + offset for offset in range(first, end)]
        records = tuple(Record(first + i, time, b"k", b"v") for i, time in enumerate(times))
        batch = Batch(first, end - 1, records, magic=magic, codec=GZIP, max_timestamp=1000 + end)
        data += with_timestamps(batch).encoded().data
    return data


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, HOSTILE], ids=["", "hostile"])
def test_any_range_of_offsets_selects_its_records(tmp_path, options):
    files = write_partition(tmp_path / "t-0", "a=1 b=2 c=3 | a=4 b=5 || c=6 | a=7 b=8 c=9 || a=10")
    for start in range(0, files.end_offset + 1):
        for end in range(start, files.end_offset + 1):
            given = {"startingOffsets": f'{{"t":{{"0":{start}}}}}', "endingOffsets": f'{{"t":{{"0":{end}}}}}'}
            table = read("kafka_log", tmp_path, **given, **options)
            assert table["offset"].to_pylist() == list(range(start, end))


def test_offsets_outside_the_log_are_refused(tmp_path):
    write_partition(tmp_path / "t-0", "a=1 b=2", base_offset=10)
    with pytest.raises(Exception, match="t-0: startingOffsets: expected an offset from 10 to 12, found 3"):
        read("kafka_log", tmp_path, startingOffsets='{"t":{"0":3}}')
    with pytest.raises(Exception, match="endingOffsets: expected an offset from 10 to 12, found 13"):
        read("kafka_log", tmp_path, endingOffsets='{"t":{"0":13}}')
    lenient = {"startingOffsets": '{"t":{"0":3}}', "endingOffsets": '{"t":{"0":99}}', "failOnDataLoss": "false"}
    assert read("kafka_log", tmp_path, **lenient)["offset"].to_pylist() == [10, 11]
    assert read("kafka_log", tmp_path, startingOffsets='{"t":{"0":-1}}').num_rows == 0
    assert read("kafka_log", tmp_path, endingOffsets='{"t":{"0":-2}}').num_rows == 0


DISORDER = "a=1~500 b=2~100 | a=3~300 b=4~900 || a=5~200 | b=6~901 a=7~50 | a=8~700 || a=9~400"


def test_timestamps_limit_offsets_as_in_the_kafka_source_of_spark(tmp_path):
    """The first record with a timestamp at or above: an offset from then on."""
    write_partition(tmp_path / "t-0", DISORDER)
    table = read("kafka_log", tmp_path, startingTimestamp="600", endingTimestamp="901")
    assert table["offset"].to_pylist() == [3, 4]
    assert read("kafka_log", tmp_path, startingTimestamp="902").num_rows == 0
    assert read("kafka_log", tmp_path, endingTimestamp="902").num_rows == 9
    with pytest.raises(Exception, match="no record with a timestamp of 902 ms or later"):
        read("kafka_log", tmp_path, startingTimestamp="902", startingOffsetsByTimestampStrategy="error")
    table = read("kafka_log", tmp_path, startingOffsetsByTimestamp='{"t":{"0":700}}', endingOffsets="latest")
    assert table["offset"].to_pylist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, HOSTILE], ids=["", "hostile"])
def test_time_limit_selects_every_record_of_the_window(tmp_path, options):
    write_partition(tmp_path / "t-0", DISORDER)
    times = [500, 100, 300, 900, 200, 901, 50, 700, 400]
    for start in (0, 100, 301, 900, 902):
        for end in (0, 101, 500, 901, 1000):
            table = read("kafka_log", tmp_path, pushed={"start_ms": start, "end_ms": end}, **options)
            assert table["offset"].to_pylist() == [i for i, ms in enumerate(times) if start <= ms < end]


def test_append_time_needs_no_decompression_for_an_upper_limit(tmp_path):
    write_partition(tmp_path / "t-0", "{append_time=1000} a=1 b=2 | {append_time=2000} a=3 | {append_time=3000} b=4")
    table = read("kafka_log", tmp_path, pushed={"start_ms": 1500, "end_ms": 2500})
    assert table["offset"].to_pylist() == [2]


@pytest.mark.parametrize("options", [{}, HOSTILE], ids=["", "hostile"])
def test_key_option_selects_its_records(tmp_path, options):
    write_partition(tmp_path / "t-0", "a=1 b=2 =3 -=4 | {codec=zstd} a=5 | b=6 || a=7")
    assert read("kafka_log", tmp_path, key="a", **options)["value"].to_pylist() == [b"1", b"5", b"7"]
    assert read("kafka_log", tmp_path, key="0x62", **options)["value"].to_pylist() == [b"2", b"6"]
    assert read("kafka_log", tmp_path, key="", **options)["value"].to_pylist() == [b"3"]
    pushed = {"keys": frozenset({b"a", b"z"})}
    assert read("kafka_log", tmp_path, key="a", pushed=pushed, includeValue="false").num_rows == 3
    assert read("kafka_log", tmp_path, key="b", pushed=pushed).num_rows == 0


TRANSACTIONS = (
    "{pid=1 txn} a=1 b=2 | {pid=2 txn} c=3 | x=0 | {pid=1 abort} | {pid=1 txn} a=5 || {pid=2 commit} | {pid=1 commit} |"
    " {pid=3 txn} d=6 || y=7 | {pid=3 abort} | {pid=4 txn} e=8 | z=9"
)


@pytest.mark.parametrize("options", [{}, HOSTILE], ids=["", "hostile"])
@pytest.mark.parametrize("lost", [(), ("txnindex",), ("snapshot",), ("txnindex", "snapshot", "index", "timeindex")])
def test_read_committed_omits_aborted_and_open_transactions(tmp_path, lost, options):
    """Aborted data is left out, and all from the first open transaction on, whatever files there are beside the log."""
    write_partition(tmp_path / "t-0", TRANSACTIONS)
    for kind in lost:
        for path in files_in(tmp_path / "t-0", f"*.{kind}"):
            path.unlink()
    committed = read("kafka_log", tmp_path, isolationLevel="read_committed", **options)
    assert [v.decode() for v in committed["value"].to_pylist()] == ["3", "0", "5", "7"]
    same = read("kafka_log", tmp_path, **{"kafka.isolation.level": "read_committed"})
    assert same.equals(read("kafka_log", tmp_path, isolationLevel="read_committed"))
    all_data = read("kafka_log", tmp_path, **options)
    assert [v.decode() for v in all_data["value"].to_pylist()] == ["1", "2", "3", "0", "5", "6", "7", "8", "9"]
    control = read("kafka_log", tmp_path, includeControl="true", columns="control", **options)
    assert pc.sum(control["control"]).as_py() == 4


def test_read_committed_uses_markers_above_the_requested_offsets(tmp_path):
    """Markers behind the end of what is read decide as well."""
    write_partition(tmp_path / "t-0", TRANSACTIONS)
    options = {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":3}}', "isolationLevel": "read_committed"}
    assert read("kafka_log", tmp_path, **options)["value"].to_pylist() == [b"3"]


@pytest.mark.parametrize(("end", "seen"), [("abort", [b"x"]), ("commit", [b"a", b"x", b"b"])])
def test_transaction_over_many_segments_is_decided(tmp_path, end, seen):
    between = " || ".join(f"{{last={10 + i}}}" for i in range(20))
    text = f"{{pid=1 txn}} k=a || x=x || {{pid=1 txn}} k=b || {between} || {{pid=1 {end}}}"
    write_partition(tmp_path / "t-0", text)
    [task] = list_tasks("kafka_log", tmp_path, isolationLevel="read_committed")
    assert {(len(piece.later), piece.more_later) for piece in task} == {(n, False) for n in range(1, 8)} | {
        (8, True), (8, False),
    }  # fmt: skip
    assert read("kafka_log", tmp_path, isolationLevel="read_committed")["value"].to_pylist() == seen


def test_smallest_splits_need_bounded_memory(tmp_path):
    """At most one for each entry of the index: an array by bytes of a log of 2 GB would be one of 16."""
    files = write_partition(tmp_path / "t-0", "a=1 | b=2 | c=3", index_interval_bytes=1)
    size = 64 << 20
    with files.logs[0].open("r+b") as file:
        file.truncate(size)  # zeros, as of a preallocated log
    tracemalloc.start()
    tasks = list_tasks("kafka_log", tmp_path, splitBytes="1")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tasks) == 3
    assert most < 50e6


def test_index_files_are_spread_over_tasks(tmp_path):
    write_partition(tmp_path / "t-0", "a=1 || b=2 || c=3 || d=4")
    assert len(list_tasks("kafka_log_index", tmp_path)) == 1
    assert len(list_tasks("kafka_log_index", tmp_path, minPartitions="3")) >= 3
    assert len(list_tasks("kafka_log_index", tmp_path, splitBytes="1")) == sum(
        path.suffix != ".log" and path.name != "partition.metadata" for path in (tmp_path / "t-0").iterdir()
    )


@pytest.mark.long
def test_large_files_are_split_and_small_files_are_packed(tmp_path):
    batches = " | ".join(" ".join(f"k{i}={'v' * 300}{i}" for _ in range(10)) for i in range(60))
    for number in range(3):
        write_partition(tmp_path / f"large-{number}", batches)
    for number in range(40):
        write_partition(tmp_path / f"small-{number}", "a=1")
    split = list_tasks("kafka_log", tmp_path, splitBytes="50000", topics="large")
    assert len(split) == 12
    pieces = [piece for task in split for piece in task]
    assert sum(p.end - p.start for p in pieces) == sum(
        path.stat().st_size for path in files_in(tmp_path, "large*/*.log")
    )
    assert read("kafka_log", tmp_path, splitBytes="50000", topics="large").equals(
        read("kafka_log", tmp_path, topics="large")
    )
    assert len(list_tasks("kafka_log", tmp_path, topics="small")) == 1
    assert len(list_tasks("kafka_log", tmp_path, topics="small*,large")) == 1


def test_topics_are_selected_by_name_by_file_and_excluded(tmp_path):
    for topic in ("a-one", "a-two", "b", "c"):
        write_partition(tmp_path / "archive" / f"{topic}-0", "k=1")
    (tmp_path / "list").write_text("# ours\na-*\n\nc # too\n")

    def topics(**given):
        return sorted(read("kafka_log", tmp_path / "archive", **given).column("topic").to_pylist())

    assert topics(topics="b", topicsFrom=str(tmp_path / "list"), exclude="*-two,z*") == ["a-one", "b", "c"]
    assert topics(subscribe="b,c", exclude="c") == ["b"]
    assert topics(subscribePattern="^a", exclude="a-one") == ["a-two"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "foreign", "random"])
def test_wrong_index_hides_no_record(tmp_path, kind, damage):
    text = " | ".join(f"k{i}={'v' * 500} l{i}={'w' * 500}" for i in range(40))
    files = write_partition(tmp_path / "t-0", f"{text} || {text}")
    other = write_partition(tmp_path.parent / f"{tmp_path.name}-other" / "t-0", " | ".join(["a=b " * 50] * 30))
    path, its = (next(folder.glob(f"*.{kind}")) for folder in (files.folder, other.folder))
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "foreign":
        shutil.copy(its, path)
    else:
        path.write_bytes(bytes(range(1, 97)) * 3)
    for start in (0, 33, 79, 100):
        table = read("kafka_log", tmp_path, startingOffsets=f'{{"t":{{"0":{start}}}}}', splitBytes="7000")
        assert table["offset"].to_pylist() == list(range(start, files.end_offset))
        table = read("kafka_log", tmp_path, startingTimestamp=str(START_MS + start))
        assert table["offset"].to_pylist() == list(range(start, files.end_offset))
        table = read("kafka_log", tmp_path, pushed={"start_ms": START_MS + start}, splitBytes="7000")
        assert table["offset"].to_pylist() == list(range(start, files.end_offset))


def test_a_torn_tail_ends_the_log_and_is_damage_before_its_end(tmp_path):
    files = write_partition(tmp_path / "t-0", "a=1 | b=2 || c=3 | d=4")
    with files.logs[1].open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\x06\0\0\1")
    assert read("kafka_log", tmp_path)["offset"].to_pylist() == [0, 1, 2, 3]
    with files.logs[0].open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\x02\0\0\1")
    with pytest.raises(LogFormatError, match=r"t-0/00000000000000000000.log at byte .*torn_tail: expected whole"):
        read("kafka_log", tmp_path)
    table = read("kafka_log", tmp_path, badRecords="quarantine")
    assert table["offset"].to_pylist() == [0, 1, None, 2, 3]
    assert table["problem"].to_pylist()[2]["kind"] == "torn_tail"


def test_batch_and_index_rows_are_read(cases):
    case = cases["txn-zstd"]
    folder = case.input(case.partitions[0])
    logs = files_in(folder)
    expected = pa.concat_tables([pa.Table.from_batches(open_segment(path).batches()) for path in logs])
    rows = read("kafka_log_batches", folder, **HOSTILE)
    assert rows.drop_columns(["path"]).num_rows == expected.num_rows
    for name in expected.schema.names:
        assert rows[name].to_pylist() == expected[name].to_pylist(), name
    entries = read("kafka_log_index", folder)
    assert set(entries["kind"].to_pylist()) == {"offset", "time", "transaction", "producer", "leader_epoch"}
    from lastkey.logformat.side_files import offset_index

    first = files_in(folder, "*.index")[0]
    raw = offset_index.read(first.read_bytes(), int(first.stem), str(first))
    of_first = entries.filter(pc.equal(entries["path"], str(first)))
    assert of_first["position"].to_pylist() == raw["position"].tolist()
    assert of_first["offset"].to_pylist() == raw["offset"].tolist()
    only = read("kafka_log_index", folder, kinds="transaction, leader_epoch")
    assert set(only["kind"].to_pylist()) == {"transaction", "leader_epoch"}


def test_snapshot_that_lacks_an_open_transaction_is_corrected_by_the_log(tmp_path):
    """A broker believes the snapshot, and serves the open transaction's records (tests/kafka)."""
    folder = tmp_path / "t-0"
    write_partition(folder, "k=1 | {pid=1 txn} k=2 || x=1 || z=1")
    options = {"columns": "offset", "isolationLevel": "read_committed"}
    assert read("kafka_log", folder, **options)["offset"].to_pylist() == [0]
    (folder / "00000000000000000003.snapshot").write_bytes(NO_PRODUCERS)
    with pytest.raises(LogFormatError, match=r"at byte 70 \(batch at offset 1\): transaction: expected a marker"):
        read("kafka_log", folder, **options)
    table = read("kafka_log", folder, **options | {"badRecords": "quarantine"})
    assert table["offset"].to_pylist() == [None, 0, 2, 3]
    assert read("kafka_log", folder, columns="offset")["offset"].to_pylist() == [0, 1, 2, 3]
