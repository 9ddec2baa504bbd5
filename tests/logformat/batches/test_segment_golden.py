"""A real broker's logs: our records are those of the slow reader, and of kafka-dump-log where its text is there."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import raw_batches
from tests.builders.trees import files_in
from tests.golden import DUMPED, case_names
from tests.reference import legacy, log

COLUMNS = ["offset", "timestamp_ms", "key", "value", "headers", "base_offset", "codec", "magic"]
BATCH_LINE = re.compile(
    r"(?:baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) baseSequence: (?P<seq>-?\d+) "
    r"lastSequence: -?\d+ producerId: (?P<pid>-?\d+) producerEpoch: (?P<epoch>-?\d+) "
    r"partitionLeaderEpoch: (?P<leader>-?\d+) isTransactional: (?P<txn>\w+) isControl: (?P<control>\w+) "
    r"deleteHorizonMs: (?P<horizon>\S+)|offset: (?P<offset>\d+)) position: (?P<position>\d+) (?P<type>\w+): "
    r"(?P<ts>-?\d+) size: (?P<size>\d+) magic: (?P<magic>\d) compresscodec: (?P<codec>\w+) "
    r"crc: (?P<crc>\d+) isvalid: true"
)
RECORD_LINE = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<type>\w+): (?P<ts>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+)"
    r"(?: isValid: true crc: \d+)?(?: sequence: (?P<seq>-?\d+) headerKeys: \[(?P<headers>[^\]]*)\])?"
    r"(?: key: (?P<key>\S*))?(?: payload: (?P<value>.*)|"
    r" endTxnMarker: (?P<marker>\w+) coordinatorEpoch: (?P<coordinator>\d+))?"
)
TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def slow_records(data):
    """Return (offset, timestamp, key, value, headers) of a log of any magic; None: the slow reader cannot open it."""
    out = []
    while data:
        offset, size = struct.unpack_from(">qi", data)
        part, data = data[: size + 12], data[size + 12 :]
        if part[16] == 2:
            out += [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in log.decode_batch(part).records]
            continue
        magic, attributes = part[16:18]
        codec = attributes & 7
        timestamp = struct.unpack_from(">q", part, 18)[0] if magic else -1
        if codec == 0:
            *_, key, value = legacy.parse(part[12:])
            out.append((offset, timestamp, key, value, ()))
            continue
        if codec == log.LZ4 and magic == 0:
            return None  # KAFKA-3160: no other library takes that frame
        content = log.decompress(codec, part[34 if magic else 26 :])
        records_of_wrapper = legacy.inner_records(content, magic, offset, timestamp, attributes)
        out += [(r.offset, r.timestamp, r.key, r.value, ()) for r in records_of_wrapper]
    return out


@pytest.mark.parametrize("name", case_names())
def test_golden_segments_are_read_as_by_the_slow_reader(cases, name):
    for partition in cases[name].partitions:
        for path in files_in(cases[name].input(partition)):
            expected = slow_records(path.read_bytes())
            rows = open_segment(path, chunk_bytes=20_000).to_arrow(COLUMNS).to_pylist()
            if expected is not None:
                assert [
                    (
                        r["offset"], r["timestamp_ms"], r["key"], r["value"],
                        tuple((h["key"].encode(), h["value"]) for h in r["headers"] or ()),
                    )
                    for r in rows
                ] == expected  # fmt: skip


def text(data):
    return None if data is None else data.decode()


@pytest.mark.parametrize("name", DUMPED)
def test_golden_segments_are_read_as_kafka_dump_log_prints_them(cases, name):
    logs = {path: dump for path, dump in cases[name].dumps().items() if path.suffix == ".log"}
    assert logs
    for path, dump in logs.items():
        batches, records = [], []
        for line in dump.read_text().splitlines()[2:]:
            pattern, parsed = (RECORD_LINE, records) if line.startswith("|") else (BATCH_LINE, batches)
            match = pattern.fullmatch(line)
            assert match is not None, line
            parsed.append(match)
        segment = open_segment(path)
        rows = [row for batch in segment.batches() for row in batch.to_pylist()]
        assert len(rows) == len(batches)
        for row, line in zip(rows, batches, strict=True):
            assert (row["position"], row["size_bytes"], row["crc"], row["magic"], row["codec"]) == (
                int(line["position"]), int(line["size"]), int(line["crc"]), int(line["magic"]), line["codec"],
            )  # fmt: skip
            assert (row["timestampType"], row["max_timestamp_ms"]) == (TYPES[line["type"]], int(line["ts"]))
            if row["magic"] < 2:
                assert row["last_offset"] == int(line["offset"])
                continue
            horizon = (
                "OptionalLong.empty"
                if row["delete_horizon_ms"] is None
                else f"OptionalLong[{row['delete_horizon_ms']}]"
            )
            assert horizon == line["horizon"]
            assert (str(row["transactional"]).lower(), str(row["control"]).lower()) == (line["txn"], line["control"])
            assert [
                row[c] for c in (
                    "base_offset", "last_offset", "records_count", "base_sequence", "producer_id", "producer_epoch",
                    "leader_epoch",
                )
            ] == [int(line[g]) for g in ("base", "last", "count", "seq", "pid", "epoch", "leader")]  # fmt: skip
        rows = segment.to_arrow().to_pylist()
        assert len(rows) == len(records)
        for row, line in zip(rows, records, strict=True):
            sizes = [-1 if row[c] is None else len(row[c]) for c in ("key", "value")]
            assert [row["offset"], row["timestamp_ms"], *sizes] == [
                int(line[g]) for g in ("offset", "ts", "key_size", "value_size")
            ]
            assert row["timestampType"] == TYPES[line["type"]]
            if row["magic"] == 2:
                assert row["sequence"] == int(line["seq"])
                assert [h["key"] for h in row["headers"] or []] == [w for w in line["headers"].split(",") if w]
            if row["control"]:
                kind, epoch = struct.unpack_from(">h", row["key"], 2)[0], struct.unpack_from(">i", row["value"], 2)[0]
                assert (["ABORT", "COMMIT"][kind], epoch) == (line["marker"], int(line["coordinator"]))
            else:
                assert (text(row["key"]), text(row["value"])) == (line["key"], line["value"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["txn-zstd", "snappy-zipf", "gzip-headers", "lz4-append"])
def test_rewritten_records_of_a_broker_are_equal(cases, name, tmp_path):
    """The records of a real batch, encoded by us under its header, are the broker's record for record."""
    [partition] = cases[name].partitions
    path = min(cases[name].input(partition).glob("*.log"))
    segment = open_segment(path)
    with SegmentWriter(tmp_path / partition, 0) as writer:
        for b in segment.headers():
            whole = {"start_offset": int(b["base_offset"]), "end_offset": int(b["last_offset"]) + 1}
            [records] = segment.to_arrow(**whole).combine_chunks().to_batches()
            append_time = int(b["max_timestamp"]) if b["attributes"] & 8 else None
            writer.append_records(
                records, codec=CODEC_NAMES[b["attributes"] & 7], producer_id=int(b["producer_id"]),
                producer_epoch=int(b["producer_epoch"]), base_sequence=int(b["base_sequence"]),
                transactional=bool(b["attributes"] & 16), control=bool(b["attributes"] & 32),
                leader_epoch=int(b["partition_leader_epoch"]), append_time_ms=append_time,
            )  # fmt: skip
    ours = open_segment(writer.path)
    names = [c for c in segment.to_arrow().schema.names if c != "position"]
    assert ours.to_arrow(names).equals(segment.to_arrow(names))
    same = [one == other for one, other in zip(raw_batches(ours), raw_batches(segment), strict=True)]
    if name == "gzip-headers":  # lz4-append: its records' own times, which LogAppendTime hides, are in its bytes
        assert np.mean(same) > 0.5, "gzip comes out as Kafka's own, byte for byte"
