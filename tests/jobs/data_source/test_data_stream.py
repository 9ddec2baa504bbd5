"""readStream over an archive that grows: offsets and limits by calling the reader, checkpoints through Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from lastkey.jobs.data_source.source import KafkaLog, select_columns
from lastkey.jobs.data_source.stream import StreamReader
from lastkey.jobs.errors import DATA_LOSS, UsageError
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.schemas import RECORDS
from tests.builders.errors import raises_kind
from tests.builders.logs import TextWriter, parse, write_partition
from tests.builders.trees import files_in

SCHEMA = pa.schema([pa.field(name, RECORDS.field(name).type) for name in ("topic", "partition", "offset", "value")])


def problem_field() -> pa.Field:
    return select_columns(KafkaLog.columns, KafkaLog({"path": "x", "badRecords": "quarantine"}).parsed()).field(
        "problem"
    )


class Growing:
    """A partition's log that grows by batches, in one segment or in a new one, perhaps by half a batch at its end."""

    def __init__(self, folder: Path, text: str = "") -> None:
        self.folder, self.texts, self.next_offset = folder, TextWriter(), 0
        if text:
            self.add(text)

    def add(self, text: str, *, torn: int = 0, roll: bool = False) -> None:
        """Append batches; torn: of the last one only so many bytes are there yet."""
        from lastkey.logformat.writing.segment_writer import SegmentWriter

        temporary = self.folder.parent.parent / self.folder.name  # not in the archive, which a query lists meanwhile
        with SegmentWriter(temporary, self.next_offset) as writer:
            for batch in parse(text):
                self.texts.append(writer, batch)
            sizes = writer.size
        self.folder.mkdir(parents=True, exist_ok=True)
        logs = sorted(self.folder.glob("*.log"))
        target = self.folder / f"{self.next_offset:020d}.log" if roll or not logs else logs[-1]
        data = Path(writer.path).read_bytes()
        assert len(data) == sizes
        with target.open("ab") as file:
            file.write(data[: len(data) - torn] if torn else data)
        for path in temporary.iterdir():
            path.unlink()
        temporary.rmdir()
        self.missing = data[len(data) - torn :] if torn else b""
        self.next_offset = writer.next_offset

    def complete(self) -> None:
        with files_in(self.folder)[-1].open("ab") as file:
            file.write(self.missing)


def reader(path: Path, **options: str) -> StreamReader:
    source = KafkaLog({"path": str(path), **options})
    return StreamReader(source.parsed(), SCHEMA)


def rows(stream: StreamReader, start: dict, end: dict) -> list[str]:
    tasks = stream.partitions(start, end)
    return [v.decode() for task in tasks for batch in stream.read(task) for v in batch.column("value").to_pylist()]


def micro_batches(stream: StreamReader, start: dict, limit=None) -> list[list[str]]:
    """Run the stream until nothing comes any more."""
    out = []
    while (end := stream.latestOffset(start, limit or stream.getDefaultReadLimit())) != start:
        out.append(rows(stream, start, end))
        start = end
    return out


def test_new_stream_begins_at_the_end(tmp_path):
    """As Spark's Kafka source: a new stream begins at the latest offsets."""
    log = Growing(tmp_path / "archive" / "t-0", "a=1 b=2 | c=3")
    stream = reader(tmp_path / "archive")
    start = stream.initialOffset()
    assert start == {"t": {"0": 3}}
    assert micro_batches(stream, start) == []
    log.add("d=4")
    assert micro_batches(stream, start) == [["4"]]
    earliest = reader(tmp_path / "archive", startingOffsets="earliest")
    assert micro_batches(earliest, earliest.initialOffset()) == [["1", "2", "3", "4"]]
    at = reader(tmp_path / "archive", startingOffsets='{"t":{"0":1}}')
    assert at.initialOffset() == {"t": {"0": 1}}
    by_time = reader(tmp_path / "archive", startingTimestamp="1700000000002")
    assert by_time.initialOffset() == {"t": {"0": 2}}


def test_stream_does_not_read_past_a_torn_tail(tmp_path):
    log = Growing(tmp_path / "archive" / "t-0", "a=1")
    stream = reader(tmp_path / "archive", startingOffsets="earliest")
    log.add("b=2 | c=3 d=4", torn=10)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert first == {"t": {"0": 2}}
    assert rows(stream, stream.initialOffset(), first) == ["1", "2"]
    log.complete()
    assert micro_batches(stream, first) == [["3", "4"]]


def test_stream_reads_new_segments_and_partitions(tmp_path):
    archive = tmp_path / "archive"
    log = Growing(archive / "t-0", "a=1")
    stream = reader(archive)
    start = stream.initialOffset()
    log.add("b=2", roll=True)
    Growing(archive / "t-1", "x=7 | y=8")
    Growing(archive / "u-0", "z=9")
    begun = stream.latestOffset(start, ReadAllAvailable())
    assert begun == {"t": {"0": 2, "1": 0}, "u": {"0": 0}}
    assert rows(stream, start, begun) == ["2"]
    end = stream.latestOffset(begun, ReadAllAvailable())
    assert end == {"t": {"0": 2, "1": 2}, "u": {"0": 1}}
    assert sorted(rows(stream, begun, end)) == ["7", "8", "9"]
    assert stream.reportLatestOffset() == end
    only = reader(archive, topics="t", partitions="1", startingOffsets="earliest")
    assert micro_batches(only, only.initialOffset()) == [["7", "8"]]


def test_stream_of_an_initially_empty_archive_reads_new_records(tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    stream = reader(archive, topics="t")
    start = stream.initialOffset()
    assert start == {}
    assert stream.latestOffset(start, ReadAllAvailable()) == {}
    Growing(archive / "t-0", "a=1")
    assert micro_batches(stream, start) == [[], ["1"]]


def test_limits_of_a_trigger_move_every_partition_and_read_no_record_twice(tmp_path):
    """In proportion to what each partition has; every one moves, none reads a record twice."""
    archive = tmp_path / "archive"
    Growing(archive / "t-0", " | ".join(f"a={n}" for n in range(60)))
    Growing(archive / "t-1", " | ".join(f"b={n}" for n in range(100, 120)))
    expected = sorted([*map(str, range(60)), *map(str, range(100, 120))])
    for options, most in (({"maxOffsetsPerTrigger": "8"}, 8), ({"maxBytesPerTrigger": "600"}, 12), ({}, 80)):
        stream = reader(archive, startingOffsets="earliest", **options)
        got = micro_batches(stream, stream.initialOffset())
        assert sorted(value for batch in got for value in batch) == expected
        assert max(map(len, got)) <= most
        assert len(got) >= 80 // most
    stream = reader(archive, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert isinstance(stream.getDefaultReadLimit(), ReadMaxRows)
    whole = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())  # Trigger.Once: no limit counts
    assert whole == {"t": {"0": 60, "1": 20}}
    assert stream.latestOffset(stream.initialOffset(), ReadMaxBytes(1)) == {"t": {"0": 1, "1": 1}}


def test_available_now_reads_existing_records_only(tmp_path):
    log = Growing(tmp_path / "archive" / "t-0", "a=1 | b=2 | c=3")
    stream = reader(tmp_path / "archive", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    log.add("d=4")
    Growing(tmp_path / "archive" / "t-1", "x=9")
    assert micro_batches(stream, start) == [["1", "2"], ["3"]]


def test_read_committed_waits_for_the_marker(tmp_path):
    log = Growing(tmp_path / "archive" / "t-0", "a=1 | {pid=1 txn} b=2 | c=3")
    stream = reader(tmp_path / "archive", startingOffsets="earliest", isolationLevel="read_committed")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert (end, rows(stream, start, end)) == ({"t": {"0": 1}}, ["1"])
    log.add("{pid=1 abort} | d=4")
    assert micro_batches(stream, end) == [["3", "4"]]


def test_lost_offsets_are_reported(tmp_path):
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", "a=1 | b=2 || c=3 || d=4")
    stream = reader(archive)
    with raises_kind(DATA_LOSS, match="t-0: expected offset 9, where the stream continues, found offsets from 0 to 4"):
        stream.latestOffset({"t": {"0": 9}}, ReadAllAvailable())
    with raises_kind(DATA_LOSS, match="u-0: expected offset 3, where the stream continues, found no such partition"):
        stream.latestOffset({"t": {"0": 4}, "u": {"0": 3}}, ReadAllAvailable())
    for path in files_in(archive / "t-0", "00000000000000000000.*"):
        path.unlink()
    with raises_kind(DATA_LOSS, match="expected offset 1"):
        stream.latestOffset({"t": {"0": 1}}, ReadAllAvailable())
    lenient = reader(archive, failOnDataLoss="false")
    end = lenient.latestOffset({"t": {"0": 1}, "u": {"0": 3}}, ReadAllAvailable())
    assert end == {"t": {"0": 4}, "u": {"0": 3}}
    assert rows(lenient, {"t": {"0": 1}}, end) == ["3", "4"]
    assert lenient.latestOffset({"t": {"0": 9}}, ReadAllAvailable()) == {"t": {"0": 4}}


def test_restart_skips_no_offsets(tmp_path):
    """The first micro-batch is planned again; offsets that were deleted in between must not count as read."""
    archive = tmp_path / "archive"
    Growing(archive / "t-0", "a=1 | b=2")
    Growing(archive / "t-1", "c=3")
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 2, "1": 1}}
    assert rows(reader(archive), start, end) == ["1", "2", "3"]
    (archive / "t-1").rename(tmp_path / "t-1")  # as a disk that is not there for a while
    with raises_kind(DATA_LOSS, match="t-1: expected offset 0, where the stream continues, found no such partition"):
        rows(reader(archive), start, end)
    assert rows(reader(archive, failOnDataLoss="false"), start, end) == ["1", "2"]
    (tmp_path / "t-1").rename(archive / "t-1")
    (archive / "u").mkdir()
    write_partition(archive / "u" / "t-1", "c=3")
    several = KafkaLog({"paths": f'["{archive}", "{archive / "u"}"]'}).parsed()
    with pytest.raises(LogFormatError, match="duplicate"):
        rows(StreamReader(several, SCHEMA), start, end)


def test_new_partition_without_its_beginning_at_a_restart_is_reported(tmp_path):
    """The checkpoint contains the start offset of a partition before the stream reads any of its records."""
    archive = tmp_path / "archive"
    Growing(archive / "t-0", "a=1")
    stream, start = reader(archive), {"t": {"0": 1}}
    log = Growing(archive / "t-1", "x=1 | x=2")
    log.add("x=3", roll=True)
    begun = stream.latestOffset(start, ReadAllAvailable())
    end = stream.latestOffset(begun, ReadAllAvailable())
    assert (begun, end) == ({"t": {"0": 1, "1": 0}}, {"t": {"0": 1, "1": 3}})
    files_in(archive / "t-1")[0].unlink()  # by a retention, while no stream is at work
    for planned in ((start, begun), (begun, end)):
        with pytest.raises(UsageError, match=r"t-1: .*expected an offset from 2 to 3, found 0"):
            rows(reader(archive), *planned)
    with raises_kind(DATA_LOSS, match=r"t-1: expected offset 0, .* found offsets from 2 to 3"):
        reader(archive).latestOffset(begun, ReadAllAvailable())
    lenient = reader(archive, failOnDataLoss="false")
    assert (rows(lenient, start, begun), rows(lenient, begun, end)) == ([], ["3"])


def test_unreadable_partition_at_the_start_of_a_stream_is_reported(tmp_path):
    """Such a partition never starts at another offset than the options state, whenever it becomes readable."""
    archive = tmp_path / "archive"
    Growing(archive / "t-0", "a=1")
    Growing(archive / "t-1", "x=1 | x=2")
    copy = archive / "copy" / "t-1"
    shutil.copytree(archive / "t-1", copy)
    aside = {"path": str(archive), "badRecords": "quarantine"}
    schema = pa.schema([*SCHEMA, problem_field()])

    def stream(**options: str) -> StreamReader:
        return StreamReader(KafkaLog({**aside, **options}).parsed(), schema)

    for options in ({}, {"startingTimestamp": "1700000000001"}):
        with pytest.raises(
            UsageError, match=r"t-1: the log cannot be read, so the stream's first offset is unknown .*duplicate"
        ):
            stream(**options).initialOffset()
    at = stream(startingOffsets='{"t":{"0":-1,"1":1}}').initialOffset()
    earliest = stream(startingOffsets="earliest").initialOffset()
    assert (at, earliest) == ({"t": {"0": 1, "1": 1}}, {"t": {"0": 0}})
    assert stream().latestOffset(at, ReadAllAvailable()) == at  # it waits
    shutil.rmtree(copy)
    assert micro_batches(stream(), at) == [["2"]]
    assert micro_batches(stream(), earliest) == [["1"], ["1", "2"]]
    (archive / "log-start-offset-checkpoint").write_text("0\n1\nt 1 9\n")
    assert stream().initialOffset() == {"t": {"0": 1, "1": 9}}  # above its end: nothing below can ever be read


def test_missing_partition_is_reported_in_addition_to_damage(tmp_path):
    archive = tmp_path / "archive"
    Growing(archive / "t-0", "a=1")
    with raises_kind(DATA_LOSS, match="t-1: expected offset 1, where the stream continues, found no such"):
        reader(archive, badRecords="quarantine").latestOffset({"t": {"0": 1, "1": 1}}, ReadAllAvailable())


def test_truncated_log_is_reported_in_addition_to_damage(tmp_path):
    """The log may have been recreated: a stream that waited would never read new records below its old offset."""
    archive = tmp_path / "archive"
    Growing(archive / "t-0", "a=1 | b=2")
    for options in ({}, {"isolationLevel": "read_committed"}):
        stream = reader(archive, badRecords="quarantine", **options)
        assert stream.latestOffset({"t": {"0": 2}}, ReadAllAvailable()) == {"t": {"0": 2}}
        with raises_kind(DATA_LOSS, match=r"t-0: expected offset 9, .* found offsets from 0 to 2"):
            stream.latestOffset({"t": {"0": 9}}, ReadAllAvailable())
    path = archive / "t-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:78] + b"\xff" * 4 + path.read_bytes()[82:])  # the second batch's length
    assert stream.latestOffset({"t": {"0": 9}}, ReadAllAvailable()) == {"t": {"0": 9}}  # it may be there


@pytest.mark.parametrize("aside", [{}, {"badRecords": "quarantine"}], ids=["strict", "quarantine"])
def test_stream_continues_at_the_end_of_a_truncated_log(tmp_path, aside):
    """Without failOnDataLoss the stream continues, as Spark's Kafka source does, and misses no later record."""
    archive = tmp_path / "archive"
    log, other = Growing(archive / "t-0", "a=1 | b=2"), Growing(archive / "t-1", "x=1 | x=2 | x=3")
    start = {"t": {"0": 9, "1": 0}}
    for option, expected in (("maxOffsetsPerTrigger", 2), ("maxBytesPerTrigger", 1)):
        stream = reader(archive, failOnDataLoss="false", **{option: "2"}, **aside)
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert end == {"t": {"0": 2, "1": expected}}
        assert len(rows(stream, start, end)) == expected
    stream = reader(archive, failOnDataLoss="false", **aside)
    stream.prepareForTriggerAvailableNow()
    log.add("c=3")
    other.add("x=4")
    start = stream.latestOffset(start, ReadAllAvailable())
    assert stream.latestOffset(start, ReadAllAvailable()) == start == {"t": {"0": 2, "1": 3}}
    assert micro_batches(reader(archive, failOnDataLoss="false", **aside), start) == [["3", "4"]]


@pytest.mark.parametrize("options", [{}, {"badRecords": "quarantine"}], ids=["strict", "quarantine"])
def test_stream_waits_while_the_high_watermark_is_below_its_position(tmp_path, monkeypatch, options):
    """After a broker's restart its high watermark may be below what the stream has read. A copy may bring the snapshot
    that knows of an open transaction last. No data is gone: the stream waits.
    """
    archive = tmp_path / "archive"
    log = Growing(archive / "t-0", "a=1 | b=2 | c=3")
    watermark = archive / "replication-offset-checkpoint"
    (archive / ".lock").touch()
    monkeypatch.setattr("lastkey.jobs.archive.listing.is_locked", lambda _: True)
    stream, at = reader(archive, **options), {"t": {"0": 3}}
    for text in ("0\n1\nt 0 2\n", "torn"):
        watermark.write_text(text)
        assert stream.latestOffset(at, ReadAllAvailable()) == at
        with raises_kind(DATA_LOSS, match=r"t-0: expected offset 4, .* found offsets from 0 to 3"):
            stream.latestOffset({"t": {"0": 4}}, ReadAllAvailable())
    log.add("d=4")
    watermark.write_text("0\n1\nt 0 4\n")
    assert micro_batches(stream, at) == [["4"]]

    snapshots = tmp_path / "snapshots"
    folder = write_partition(snapshots / "t-0", "{pid=7 txn} a=1 || {pid=8} b=2 | {pid=8} c=3").folder
    for path in folder.glob(f"{0:020d}.*"):
        path.unlink()
    committed = reader(snapshots, isolationLevel="read_committed", **options)
    assert committed.latestOffset({"t": {"0": 1}}, ReadAllAvailable()) == {"t": {"0": 1}}
    assert committed.latestOffset(at, ReadAllAvailable()) == at


def test_damage_before_the_end_of_a_log_is_reported_and_skipped(tmp_path):
    """Records before the damage are read, the damage is reported, and records of a new segment are read."""
    archive = tmp_path / "archive"
    log = Growing(archive / "t-0", "a=1 | b=2 | c=3")
    path = archive / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70 + 8 : 70 + 12] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(LogFormatError, match="at byte 70"):
        reader(archive).latestOffset({"t": {"0": 0}}, ReadAllAvailable())
    schema = pa.schema([SCHEMA.field("value"), problem_field()])
    stream = StreamReader(KafkaLog({"path": str(archive), "badRecords": "quarantine"}).parsed(), schema)

    def found(start: dict, end: dict) -> list:
        batches = [batch for task in stream.partitions(start, end) for batch in stream.read(task)]
        return [row["value"] or row["problem"]["position"] for batch in batches for row in batch.to_pylist()]

    end = stream.latestOffset({"t": {"0": 0}}, ReadAllAvailable())
    assert (end, found({"t": {"0": 0}}, end)) == ({"t": {"0": 1}}, [b"1", 70])
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    log.add("d=4", roll=True)
    last = stream.latestOffset(end, ReadAllAvailable())
    assert (last, found(end, last)) == ({"t": {"0": 4}}, [70, b"4"])
    with raises_kind(DATA_LOSS, match="expected offset 0"):  # quarantine covers damage, not removed records
        path.unlink()
        stream.latestOffset({"t": {"0": 0}}, ReadAllAvailable())


def test_streams_refuse_end_options(tmp_path):
    Growing(tmp_path / "archive" / "t-0", "a=1")
    with pytest.raises(UsageError, match="endingOffsets: a stream has no end"):
        reader(tmp_path / "archive", endingOffsets='{"t":{"0":1}}')
    with pytest.raises(UsageError, match="endingTimestamp: a stream has no end"):
        reader(tmp_path / "archive", endingTimestamp="5")
    with pytest.raises(UsageError, match="store: a generation does not grow"):
        reader(tmp_path / "archive", store="x")


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_continues_from_its_checkpoint(spark, tmp_path):
    """Runs of availableNow on an archive that grows between them, and one that runs on while it grows."""
    archive, out, checkpoint = tmp_path / "archive", tmp_path / "out", tmp_path / "checkpoint"
    log = Growing(archive / "t-0", "a=1 | b=2")

    def run() -> DataFrame:
        frame = spark.readStream.format("kafka_log").option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", "3").load(str(archive))
        query = (
            frame.selectExpr("string(value) AS v", "partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()
        return spark.read.parquet(str(out))

    def check(*rows: tuple[str, int, int]) -> None:
        expected = spark.createDataFrame(rows, "v string, partition int, offset bigint")
        assert_df_equality(run(), expected, ignore_row_order=True)

    check(("1", 0, 0), ("2", 0, 1))
    log.add("c=3 d=4 | e=5 | f=6 g=7", torn=5)
    Growing(archive / "t-1", "x=8")
    first = [(str(n), 0, n - 1) for n in range(1, 6)]
    check(*first, ("8", 1, 0))
    check(*first, ("8", 1, 0))
    log.complete()
    check(*first, ("6", 0, 5), ("7", 0, 6), ("8", 1, 0))
    Growing(archive / "t-2", "y=9")  # alone: the micro-batch that writes its begin down has no task
    check(*first, ("6", 0, 5), ("7", 0, 6), ("8", 1, 0), ("9", 2, 0))
    offsets = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    last = max(offsets, key=lambda path: int(path.name)).read_text().splitlines()[-1]
    assert last == '{"t": {"0": 7, "1": 1, "2": 1}}'


@pytest.mark.spark
@pytest.mark.slow
def test_running_query_reads_appended_records(spark, tmp_path):
    archive = tmp_path / "archive"
    log = Growing(archive / "t-0", "a=1")
    frame = spark.readStream.format("kafka_log").option("startingOffsets", "earliest").load(str(archive))
    query = frame.selectExpr("string(value) AS v").writeStream.format("memory").queryName("grown").start()
    try:
        query.processAllAvailable()
        log.add("b=2", roll=True)
        query.processAllAvailable()
        expected = spark.createDataFrame([("1",), ("2",)], "v string")
        assert_df_equality(spark.table("grown"), expected, ignore_row_order=True)
    finally:
        query.stop()
