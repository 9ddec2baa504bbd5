"""Magic 3: ours are the bytes of the plain twin, nothing is lost on the way there and back, and damage is named."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import NO_END, Chunk
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.primitives.codec import compress
from lastkey.logformat.writing.formats import Converter
from tests.builders.trees import files_in
from tests.golden import case_names
from tests.reference import log, v3
from tests.reference.log import GZIP, LZ4, NONE, SNAPPY, ZSTD, Batch, Record

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
I64 = st.integers(-(2**61), 2**61)  # differences are drawn too
DATA = st.one_of(st.none(), st.binary(max_size=70), st.just(b"x" * 300))
HEADERS = st.lists(st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=70))), max_size=3)


def read_rows(data):
    raw = np.frombuffer(data, np.uint8)
    rows = np.empty(len(raw) // 45 + 1, BATCH)
    n, end, status, expected, result = walk.walk_batches(raw, len(raw), 0, -1, NO_END, walk.CHECK_ALL, rows)
    assert (end, status) == (len(raw), walk.MORE), (end, status, expected, result)
    return raw, rows[:n]


def convert(data, magic):
    """Return a log in another format, and which batches changed."""
    raw, rows = read_rows(data)
    parts = list(Converter(magic).convert(Chunk(0, raw, rows, path="t-0/0.log")))
    changed = np.concatenate([np.zeros(0, np.bool_), *(part.changed for part in parts)])
    return b"".join(part.data.tobytes() for part in parts), changed.tolist()


def split_batches(data):
    """Return the bytes of each batch."""
    _, rows = read_rows(data)
    return [data[r["position"] : r["position"] + r["size"]] for r in rows]


def packed(batch: Batch) -> Batch:
    """Return a batch with its body compressed by the product: a codec of which equal bytes may be expected."""
    plain = replace(batch, codec=NONE).encoded().data
    body = compress(batch.codec, plain[61:]) if batch.records else b""
    data = bytearray(plain[:61] + body)
    data[22] |= batch.codec
    return replace(batch, data=signed(data))


def signed(data: bytearray) -> bytes:
    struct.pack_into(">i", data, 8, len(data) - 12)
    crc = google_crc32c.value(bytes(data[21:])) ^ (0xFFFFFFFF if data[16] == 3 else 0)
    struct.pack_into(">I", data, 17, crc)
    return bytes(data)


@st.composite
def batch(draw):
    n = draw(st.sampled_from([0, 1, 2, 5, 70]))
    offset, records = draw(st.integers(0, 2**40)), []
    base = offset - draw(st.sampled_from([0, 0, 1, 90]))
    base = max(base, 0)
    for _ in range(n):
        headers = tuple(draw(HEADERS)) if draw(st.booleans()) else ()
        timestamp = draw(st.one_of(I64, st.integers(1_700_000_000_000, 1_700_000_000_100)))
        records.append(Record(offset, timestamp, draw(DATA), draw(DATA), headers))
        offset += draw(st.sampled_from([1, 1, 1, 2, 100]))
    made = Batch(
        base, max(offset - 1, base) + draw(st.sampled_from([0, 7])), tuple(records),
        codec=draw(st.sampled_from(CODECS)) if records else NONE, transactional=draw(st.booleans()),
        delete_horizon=draw(st.sampled_from([None, 5])), base_timestamp=draw(I64), max_timestamp=draw(I64),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)), producer_id=draw(I64), producer_epoch=draw(st.integers(-1, 9)),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
    )  # fmt: skip
    return replace(made, base_timestamp=5) if made.delete_horizon is not None else made


@example([Batch(0, 1, (Record(0, -(2**63), b"", None), Record(1, 2**63 - 1, None, b"")), base_timestamp=0)])
@example([Batch(0, 2**31 - 1, (), base_timestamp=2**63 - 1, max_timestamp=-(2**63))])
@settings(max_examples=40)
@given(st.lists(batch(), min_size=1, max_size=3))
def test_random_batch_equals_the_twin_and_is_read_as_written(drawn):
    data, start = b"", 0
    for original in drawn:
        moved = start - original.base_offset  # offsets rise from batch to batch
        records = tuple(replace(r, offset=r.offset + moved) for r in original.records)
        made = packed(replace(original, base_offset=start, last_offset=original.last_offset + moved, records=records))
        data, start = data + made.data, made.last_offset + 1
    there, changed = convert(data, 3)
    assert all(changed)
    for before, after in zip(split_batches(data), split_batches(there), strict=True):
        if before[22] & 7 in (NONE, ZSTD):  # the twin's libraries write the same bytes
            assert after == v3.to_v3(before)
        assert v3.as_v2(after) == log.decode_batch(before)
    assert convert(there, 2) == (data, changed)


@pytest.mark.parametrize("name", case_names())
def test_golden_logs_are_equal_after_conversion_to_magic_3_and_back(cases, name, tmp_path):
    """Batches of magic 2 come back; bytes are the same where our codec writes what a broker's does."""
    for partition in cases[name].partitions:
        for path in files_in(cases[name].input(partition)):
            data = path.read_bytes()
            there, changed = convert(data, 3)
            back, _ = convert(there, 2)
            assert len(there) <= len(data) or not all(changed)
            for before, after, moved in zip(split_batches(data), split_batches(back), changed, strict=True):
                assert moved == (before[16] == 2 and not before[22] & 0x20)
                if not moved or before[22] & 7 in (NONE, GZIP, LZ4):
                    assert after == before
                else:
                    assert log.decode_batch(after) == log.decode_batch(before)
            file = tmp_path / path.name
            file.write_bytes(there)
            columns = ["offset", "timestamp_ms", "key", "value", "headers", "sequence", "control", "delete_horizon_ms"]
            assert open_segment(file).to_arrow(columns) == open_segment(path).to_arrow(columns)
            columns = ["offset", "timestamp_ms", "key", "sequence"]
            assert open_segment(file).to_arrow(columns) == open_segment(path).to_arrow(columns)


def record(fields: bytes) -> bytes:
    return bytes([2 * len(fields)]) + fields


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (record(b"\0\0\0\1\1\0"), 1),
        (record(b"\0\x80\0\0\1\1\0"), 1),  # 0 in two bytes
        (record(b"\0\0\0\x81\0\1\0"), 1),
        (record(b"\0\0\0\3\1\0"), 1),  # -2, which means null too
        (record(b"\7\0\0\1\1\0") + record(b"\0\0\2\1\1\0"), 2),  # attributes of a record
        (record(b"\0\0\0\1\1\2\2h\1"), 1),
        (record(b"\0\0\0\1\1\x82\0\2h\1"), 1),  # the count of headers in two bytes, which v3 keeps as it is
        (record(b"\0\0\0\1\1\x80\0"), 1),
    ],
)
@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_body_that_cannot_be_reproduced_is_copied(body, count, codec):
    head = bytearray(Batch(0, 5, base_timestamp=7, max_timestamp=9).encoded().data)
    struct.pack_into(">i", head, 57, count)
    head[22] |= codec
    data = signed(head + compress(codec, body))
    there, _ = convert(data, 3)
    assert convert(there, 2)[0] == data


def test_batches_that_magic_3_cannot_hold_are_copied():
    marker = log.marker_batch(0, 7, log.COMMIT, timestamp=1)
    torn = bytearray(log.data_batch(1, [(1, b"k", b"v")]).data)
    torn[-1] = 9  # a header that is not there
    flagged = bytearray(log.data_batch(2, [(1, b"k", b"v")]).data)
    flagged[22] |= 0x80
    high = bytearray(log.data_batch(3, [(1, b"k", b"v")]).data)
    high[21] = 1
    legacy = Batch(4, 4, (Record(4, 1, b"k", b"v"),), 1, max_timestamp=1).encoded().data
    good = log.data_batch(5, [(1, b"k", b"v")]).data
    kept = marker.data + signed(torn) + signed(flagged) + signed(high) + legacy
    there, changed = convert(kept + good, 3)
    assert changed == [False] * 5 + [True]
    assert there == kept + v3.to_v3(good)


def three_batches(codec):
    records = [(1_700_000_000_000 + i, b"key-%d" % (i % 3), b"value" * i or None) for i in range(6)]
    with_headers = Batch(
        6, 9, (Record(6, 5, None, b"", ((b"h", b"1"), (b"", None))), Record(9, 6, b"k", None)), codec=codec,
        base_timestamp=5, max_timestamp=6,
    )  # fmt: skip
    return [packed(log.data_batch(0, records, codec=NONE if codec == LZ4 else codec)).data, packed(with_headers).data]


def read(raw, keys_only):
    """Return (offset, timestamp, key hash, is null) of every record."""
    rows = np.empty(4, BATCH)
    n, end, status, _, _ = walk.walk_batches(raw, len(raw), 0, -1, NO_END, walk.CHECK_ALL, rows)
    if status != walk.MORE or end < len(raw):
        return None
    loader = BodyLoader(max_batch_bytes=1 << 16, keys_only=keys_only, secret=(1, 2))
    try:
        runs = loader.runs(Chunk(0, raw, rows[:n], path="t-0/0.log"))
        return [
            (
                int(b) + int(s["offset_delta"]),
                int(t) + int(s["timestamp_delta"]),
                int(s["key_low"]),
                bool(s["null_value"]),
            )
            for run in runs
            for b, t, s in zip(
                np.repeat(run.bodies["base_offset"], run.bodies["n_records"]),
                np.repeat(run.bodies["base_timestamp"], run.bodies["n_records"]),
                run.spans,
                strict=True,
            )
        ]
    except LogFormatError:
        return None


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_changed_byte_is_an_error_or_is_read_as_by_the_twin(codec, tmp_path):
    """Bytes behind the checksum change one by one, and the checksum is made to fit again."""
    named = equal = 0
    for whole in map(v3.to_v3, three_batches(codec)):
        for at in range(17, len(whole)):
            for mask in (0x01, 0x80, 0xFF, 0x42):
                data = bytearray(whole)
                data[at] ^= mask
                if at >= 21:
                    data[:] = signed(data)
                result = read(np.frombuffer(bytes(data), np.uint8), keys_only=False)
                if result is None:
                    named += 1
                    continue
                keys = read(np.frombuffer(bytes(data), np.uint8), keys_only=True)
                assert keys == result
                twin = v3.as_v2(bytes(data))
                by_twin = [(r.offset, r.timestamp, r.value is None) for r in twin.records]
                if not twin.append_time:
                    assert [(o, (t + 2**63) % 2**64 - 2**63, null) for o, t, _, null in result] == by_twin
                equal += 1
    assert named > 200
    assert equal > 100


@pytest.mark.parametrize("codec", CODECS)
def test_reading_keys_only_skips_payloads(codec):
    """A payloads section that cannot be read is no obstacle, and is one for who wants values."""
    data = log.data_batch(0, [(i, b"k%d" % i, hashlib.sha512(bytes([i])).digest()) for i in range(50)], codec=NONE)
    whole, _ = convert(packed(replace(data, codec=codec)).data, 3)
    bad = bytearray(whole)
    del bad[-100:]
    raw = np.frombuffer(signed(bad), np.uint8)
    assert read(raw, keys_only=True) == read(np.frombuffer(whole, np.uint8), keys_only=False)
    assert read(raw, keys_only=False) is None


@pytest.mark.parametrize("keys_only", [False, True])
def test_empty_batch_has_no_records(keys_only):
    """Compaction keeps such a batch for its producer's sequence numbers."""
    data = v3.to_v3(Batch(0, 5, producer_id=7, max_timestamp=9).encoded().data)
    assert read(np.frombuffer(data, np.uint8), keys_only) == []
    assert read(np.frombuffer(signed(bytearray(data + b"x")), np.uint8), keys_only=False) is None


def test_checksum_is_invalid_for_the_other_magic():
    v2 = log.data_batch(0, [(1, b"k", b"v")]).data
    for data, other in ((bytearray(v2), 3), (bytearray(v3.to_v3(v2)), 2)):
        data[16] = other
        assert read(np.frombuffer(bytes(data), np.uint8), keys_only=False) is None


def test_sections_above_the_limit_are_refused(tmp_path):
    data = log.data_batch(0, [(i, b"k%d" % i, bytes(1000)) for i in range(50)], codec=ZSTD).data
    (tmp_path / "0.log").write_bytes(convert(data, 3)[0])
    segment = open_segment(tmp_path / "0.log", max_batch_bytes=40_000)
    with pytest.raises(LogFormatError, match=r"max\.decompressed\.batch\.bytes"):
        segment.to_arrow()
    assert segment.to_arrow(["key"]).num_rows == 50


def test_batch_that_exceeds_the_limit_in_magic_3_is_copied():
    """Steps between timestamps that jump take more bytes than their deltas."""
    data = log.data_batch(0, [(2**60 * (i % 2), b"k", b"v") for i in range(100)]).data
    raw, rows = read_rows(data)
    for limit, changed in ((len(data) - 61, False), (2 * len(data), True)):
        (part,) = Converter(3, max_batch_bytes=limit).convert(Chunk(0, raw, rows, path="t-0/0.log"))
        assert part.changed.tolist() == [changed]
        assert (part.data.tobytes() == data) != changed
