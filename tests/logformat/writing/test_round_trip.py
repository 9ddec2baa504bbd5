"""Any list of records, written and read back, is the same; and the slow reader of tests/reference sees the same."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.schemas import BATCHES, RECORDS
from lastkey.logformat.writing.encode import BatchOptions, encode_batches
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import Row, arrow_records, raw_batches
from tests.reference.log import NONE, Batch, Record, decode_log, encode_batch

FIELD = st.none() | st.just(b"") | st.binary(max_size=40) | st.integers(100, 300).map(lambda n: b"x" * n)
NAME = st.sampled_from(["h", "h", "é", "", "漢字"]) | st.text(max_size=5)
HEADERS = st.lists(st.tuples(NAME, FIELD), max_size=4).map(tuple)
TIMESTAMP = st.sampled_from([-1, 0, 5, 1_700_000_000_000]) | st.integers(-(2**61), 2**61)
GAP = st.sampled_from([1, 1, 1, 2, 70, 2**20])
RECORD = st.tuples(GAP, TIMESTAMP, FIELD, FIELD, st.just(()) | HEADERS)


@st.composite
def batch(draw):
    """Draw (gap before the batch, its records with the gap before each, gap at its end, options)."""
    producer = draw(st.booleans())
    options = BatchOptions(
        codec=draw(st.sampled_from(CODEC_NAMES)),
        producer_id=draw(st.integers(0, 2**40)) if producer else -1,
        producer_epoch=draw(st.integers(0, 2**15 - 1)) if producer else -1,
        base_sequence=draw(st.sampled_from([0, 7, 2**31 - 1, 2**31 - 3])) if producer else -1,
        transactional=producer and draw(st.booleans()),
        leader_epoch=draw(st.sampled_from([-1, 0, 3])),
        append_time_ms=draw(st.none() | st.integers(0, 2**41)),
        delete_horizon_ms=draw(st.none() | st.integers(0, 2**41)),
    )
    return draw(GAP) - 1, draw(st.lists(RECORD, max_size=8)), draw(st.sampled_from([0, 0, 1, 2**21])), options


NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "transactional": False}
HOSTILE = st.fixed_dictionaries(
    {
        "chunk_bytes": st.sampled_from([64, 200, 1 << 20]),
        "max_rows": st.sampled_from([1, 3, 1 << 16]),
        "max_bytes": st.sampled_from([1, 100, 1 << 20]),
        "soft_bytes": st.sampled_from([1, 1 << 20]),
    }
)


def expected_batches(base_offset, batches):
    """Return the twin's view of the log, and the writer's arguments for it."""
    offset, out, seen = base_offset, [], set()
    for before, rows, behind, drawn in batches:
        first = drawn.producer_id not in seen
        seen |= {drawn.producer_id} - {-1}
        offset += before
        base, records = offset, []
        offset -= 1
        for gap, timestamp, key, value, headers in rows:
            offset += gap
            records.append(Row(key, value, offset, timestamp, headers))
        last = max(offset, base) + behind
        options = replace(
            drawn if first else replace(drawn, **NO_PRODUCER), base_offset=base, last_offset=last, max_timestamp=17
        )
        horizon, append_time = options.delete_horizon_ms, options.append_time_ms
        base_timestamp = horizon if horizon is not None else records[0].timestamp if records else -1
        max_timestamp = max((row.timestamp for row in records), default=17)
        max_timestamp = max_timestamp if append_time is None else append_time
        whole = Batch(
            base, last, tuple(
                Record(
                    row.offset, row.timestamp if append_time is None else append_time, row.key, row.value,
                    tuple((name.encode(), content) for name, content in row.headers),
                )
                for row in records
            ),
            codec=CODEC_NAMES.index(options.codec) if records else NONE, append_time=append_time is not None,
            transactional=options.transactional, delete_horizon=horizon, base_timestamp=base_timestamp,
            max_timestamp=max_timestamp, leader_epoch=options.leader_epoch, producer_id=options.producer_id,
            producer_epoch=options.producer_epoch, base_sequence=options.base_sequence,
        )  # fmt: skip
        out.append((whole, records, options))
        offset = last + 1
    return out


def decode_rows(batches, path):
    """Return the records as RECORDS has them, one dictionary each."""
    position = 0
    for b in batches:
        for r in b.records:
            headers = [{"key": key.decode(), "value": value} for key, value in r.headers]
            sequence = -1 if b.base_sequence < 0 else (b.base_sequence + r.offset - b.base_offset) % 2**31
            fits = abs(r.timestamp) <= (2**63 - 1) // 1000
            yield {
                "key": r.key, "value": r.value, "topic": path.parent.name[:-2], "partition": 3, "offset": r.offset,
                "timestamp": r.timestamp * 1000 if fits else None, "timestampType": int(b.append_time),
                "headers": headers or None, "timestamp_ms": r.timestamp, "producer_id": b.producer_id,
                "producer_epoch": b.producer_epoch, "sequence": sequence, "transactional": b.transactional,
                "control": b.control, "base_offset": b.base_offset, "position": position,
                "leader_epoch": b.leader_epoch, "codec": CODEC_NAMES[b.codec], "magic": b.magic,
                "delete_horizon_ms": b.delete_horizon,
            }  # fmt: skip
        position += len(b.data)


def plain(table):
    """Return rows as dictionaries; the moment as a number, because Python's datetime may not hold it."""
    if "timestamp" in table.schema.names:
        column = table.schema.names.index("timestamp")
        table = table.set_column(column, "timestamp", table.column("timestamp").cast(pa.int64()))
    return table.to_pylist()


@pytest.mark.slow
@pytest.mark.long
@settings(deadline=None, max_examples=40)  # the first example compiles
@given(st.integers(0, 2**40), st.lists(batch(), max_size=6), HOSTILE, st.data())
@example(0, [], {"chunk_bytes": 64, "max_rows": 3, "max_bytes": 100, "soft_bytes": 1}, None)
def test_records_are_read_as_written(base_offset, batches, hostile, data):
    expected = expected_batches(base_offset, batches)
    with tempfile.TemporaryDirectory() as folder:
        with SegmentWriter(Path(folder) / "a-b-3", base_offset) as writer:
            for _, records, options in expected:
                writer.append_records(arrow_records(records), options)
        path = Path(writer.path)
        log = decode_log(path.read_bytes())
        assert log == [whole for whole, _, _ in expected]
        for whole, actual in zip(expected, log, strict=True):
            if actual.codec == NONE and not actual.append_time:
                assert actual.data == encode_batch(whole[0])

        chunk_bytes = hostile.pop("chunk_bytes")
        segment = open_segment(path, chunk_bytes=chunk_bytes, sealed=True)
        assert (segment.topic, segment.partition) == ("a-b", 3)
        arrow = list(segment.records(**hostile))
        for one in arrow:
            one.validate(full=True)
            assert one.schema == RECORDS
            assert 0 < one.num_rows <= hostile["max_rows"]
        rows = list(decode_rows(log, path))
        assert plain(pa.Table.from_batches(arrow, RECORDS)) == rows

        headers = pa.Table.from_batches(segment.batches(), BATCHES)
        headers.validate(full=True)
        assert headers.column("base_offset").to_pylist() == [b.base_offset for b in log]
        assert headers.column("size_bytes").to_pylist() == [len(b.data) for b in log]
        assert headers.column("delete_horizon_ms").to_pylist() == [b.delete_horizon for b in log]
        assert raw_batches(segment) == [b.data for b in log]
        if data is not None and rows:
            columns = data.draw(st.lists(st.sampled_from(RECORDS.names), min_size=1, unique=True))
            start, end = (data.draw(st.sampled_from([row["offset"] + i for row in rows for i in (0, 1)])) for _ in "ab")
            part = plain(segment.to_arrow(columns, start_offset=start, end_offset=end, **hostile))
            assert part == [{c: row[c] for c in columns} for row in rows if start <= row["offset"] < end]


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=20), st.integers(70, 600), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_records_are_divided_into_batches(rows, max_bytes, max_records, sequence):
    whole, records, _ = expected_batches(5, [(0, rows, 0, BatchOptions())])[0]
    options = BatchOptions(
        max_batch_bytes=max_bytes,
        max_batch_records=max_records,
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
    )
    cut = decode_log(encode_batches(arrow_records(records), 0, options).tobytes())
    assert [record for b in cut for record in b.records] == list(whole.records)
    for b, after in zip(cut, [*cut[1:], None], strict=True):
        assert len(b.records) <= max_records
        assert len(b.data) <= max_bytes or len(b.records) == 1
        assert b.base_sequence == (sequence + b.base_offset - cut[0].base_offset) % 2**31
        assert b.base_timestamp == b.records[0].timestamp
        assert b.last_offset == b.records[-1].offset
        if after is not None and len(b.records) < max_records:
            more = replace(b, records=(*b.records, after.records[0]), last_offset=after.base_offset)
            assert len(encode_batch(more)) > max_bytes, "a batch is as large as it may be"


def test_sliced_and_text_columns_are_written():
    """Slices of slices, text keys, no columns: what users have at hand."""
    table = arrow_records(
        [Row(b"k%d" % i, None if i % 3 else b"v%d" % i, i, i, (("h", b"%d" % i),) * i) for i in range(9)]
    )
    part = table.slice(1, 7).slice(2, 4)
    [batches] = decode_log(encode_batches(part, 0, BatchOptions()).tobytes())
    assert [(r.offset, r.key, r.value, len(r.headers)) for r in batches.records] == [
        (i, b"k%d" % i, None if i % 3 else b"v%d" % i, i) for i in range(3, 7)
    ]
    text = pa.record_batch({"key": pa.array(["a", None, "é"]), "value": pa.array(["x", "", None], pa.large_string())})
    [batches] = decode_log(encode_batches(text, 40, BatchOptions()).tobytes())
    assert [(r.offset, r.timestamp, r.key, r.value) for r in batches.records] == [
        (40, -1, b"a", b"x"), (41, -1, None, b""), (42, -1, "é".encode(), None),
    ]  # fmt: skip
    times = pa.record_batch({"key": pa.array([b"a"]), "timestamp": pa.array([1_500_000], pa.timestamp("us", "UTC"))})
    assert decode_log(encode_batches(times, 0, BatchOptions()).tobytes())[0].max_timestamp == 1500


def test_smallest_and_largest_timestamps_are_written(tmp_path):
    ends = [2**63 - 1, -(2**63), 0, -1, (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1]
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append_records(arrow_records([Row(b"k", b"v", None, t) for t in ends]))
    table = open_segment(writer.path).to_arrow(["timestamp", "timestamp_ms"])
    assert table.column("timestamp_ms").to_pylist() == ends
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [None, None, 0, -1000, ends[4] * 1000, None]


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        ({"key": [b"a"]}, {"codec": "brotli"}, "no such codec: 'brotli'"),
        ({"key": [b"a", b"b"], "offset": [3, 3]}, {}, "offsets that do not rise"),
        ({"key": [b"a"], "offset": [None]}, {}, "without offset"),
        ({"key": [b"a"], "offset": [3]}, {"base_offset": 4}, "offsets that do not rise"),
        ({"key": [b"a"], "offset": [3]}, {"last_offset": 2}, "offsets that do not rise"),
        ({"key": [b"a"], "offset": [3]}, {"last_offset": 3 + 2**31}, "more than 2.31 offsets"),
        ({"key": []}, {}, "needs a last offset"),
        ({"key": [b"a"], "headers": [[{"key": None, "value": b"x"}]]}, {}, "a header without key"),
        ({"key": [b"a"], "headers": [[None]]}, {}, "a header that is null"),
    ],
)
def test_records_too_large_for_a_batch_are_refused(records, options, message):
    from lastkey.logformat.schemas import HEADERS

    kinds = {"key": pa.binary(), "offset": pa.int64(), "headers": HEADERS}
    table = pa.record_batch({name: pa.array(column, kinds[name]) for name, column in records.items()})
    with pytest.raises(ValueError, match=message):
        encode_batches(table, 0, BatchOptions(**options))


def test_offsets_too_far_apart_for_one_batch_are_divided():
    table = pa.record_batch({"key": pa.array([b"a", b"b", b"c"]), "offset": pa.array([0, 2**31 - 1, 2**31])})
    first, second = decode_log(encode_batches(table, 0, BatchOptions()).tobytes())
    assert [(first.base_offset, first.last_offset), second.base_offset] == [(0, 2**31 - 1), 2**31]
    assert np.array_equal([len(first.records), len(second.records)], [2, 1])
