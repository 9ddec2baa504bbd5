"""legacy against its twin, real messages of Kafka 2.8, and each rule for offsets and timestamps."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches import legacy_kernels
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.legacy import transcode_plain, transcode_wrapper
from lastkey.logformat.batches.span_kernels import BODY
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.primitives.codec import Scratch, compress
from tests.reference import legacy as twin
from tests.reference.legacy import Record, message

GZIP, SNAPPY, LZ4 = 1, 2, 3
LOG_APPEND_TIME = 8

# Batches of logs written by Kafka 2.8 with message format 0.10.2 (lz4) and 0.9.0 (gzip), and uncompressed ones.
V1_LZ4 = (
    "AAAAAAAAB88AAALcR/1QLQEDAAABi8/lthb/////AAACxgQiTRhgQIK3AgAAFgABAPNWf67snMIBAAAAAYvP5bXuAAAAEGY2NzFh"
    "YjMwYWZmZDFlYTMAAABZcWJlaHVhIG1md3F1dXBxYyB0dXlsYSBuaWV2IHdwbXd5IGN3diBscHFmeHhndyB5enggY2FpdiBtd2Zo"
    "byA+APIGeXJqcWdybm9sIGF5ZGlqZWVwbSAAAQAAggBQnklflvMJAAGLABD4iwDyazM3NmVjMmI3NmM1MTdkMjAAAAB4am1rd3Js"
    "Y2QgbW5mbCB5Z2l6dnEgaG50bWduYndtIGNtaXN5dHVjbSBlZ2xxdmxpciB2cm0gb3lvIGtzaWN1YnZ3IGZ6bmJmIHFncXB2cnJi"
    "dCB5Y2ViZXZrenIgc3JtZWpweXluXgDCb3Via2hjcXBzIHZ3qQCkAAIAAAB8CL/+vqoAELYSAPJdEDM3ZDcwZDEzMWM3MWNiMmYA"
    "AABWa29xYSBzbGEganFpbWtqZCB3d3F5IGZsbyB1ZWVpcGsgemZlIGx4cSBwY2R1eXcgY3pxYmVleXZxIHZyanJjIG9sZGR5eHcg"
    "eHRqYmQgZm9kZXZldXUAiQCVAwAAAJP1d24RiAAQDDIB9WQxZTNmNTU3ZmIyZDhkNWViAAAAbXZwZ2FzdmMgdnV5dWJhYmt3IG1l"
    "c3MgeGtnc2R4eWUgcWVkbnFlIHdrZ2lydnEgYXd2dGJ4dW5wIGZhY2Nra3FhIHVlZ3BkIGVuc25pIGhqdyBxZG92eiBna2N3Ymgg"
    "kQFEcHZudp8AlQQAAACZ4cwMpp8AEBafAPYqOTgyMDllYWZmY2I5ODhiNwAAAHNlcGUgZGRzayByYWFkIHV5cHd5d2Z0IGJha253"
    "aHFlIHVpaGRmjAD0AnBxcWJvamhkIHZua3pueXBniAAGrQEEKwHwCiBqeHZ2eHRqIHVlamltIGhkZWtta3cgd3EAAAAA"
)
V0_GZIP = (
    "AAAAAAAAB88AAAU0TQ1O0QAB/////wAABSYfiwgAAAAAAAD/dVU7yyRFFN1ME0EQwUhuoChG8+pvZkAzwUhQDIx0t579qq7uqq6u"
    "7ipWQVBwBdcNTEV/g5Gbubs+1vWF8YJmJhpqpKC3Z7rn+wKd4DJ9u6rvqXvOPXXp0vh74HMM7/OnyW+Hx4dFsufbHWVrebaVi/UG"
    "c3VQuSnbmkFjUwW6qCvpagIiVcar3AJzppZBNgxKJ9OiBJMXqsoJAVcEMIHzgasADXfB6FBD64aKmhxq4xkPjOArI9Khgd41poRL"
    "R2C3MFz7SzYvHoEl2wWTdLdfrpLkjC055krZS0irtrYU8oz6I75i8H5wBWjeMNNCpcp6AGU6V3LIOt+oGoSgsuvBp7KPeCoWTYXb"
    "yh5sSptGExPOD9fwwgGzE6jbGD588ta1146g9gvCV+xMEpGs6T7ZYs4bKrKOgB2ih6BrbY1HkFlaEgTlWWiKBnKWuUqAGhx0Sg8D"
    "SMJYWRpsal+L/Fi0stgiThqCnZ8PdfgqjVLj/0pLNZ/BT/juYLj+1CNvP3jEt14lK7k82+zpGknd7THXHLZ1QwuOWJ7ZQULnByzZ"
    "y7LIKQyxjc5C1Vep7yC22eDYgUcWY5YqrCXDoCP4AtNtSUPhcxAZwf1IQozSSIP7lBG8sOOmCdkXGN747OqVTyc6+YrsV3xJdvvF"
    "lm52mLvc+z4rWJ1BSmQKra1E0YSgQUZNESVTaZS2x2cRqEqhlFUda1/4i9WOEOe2HdqlpNa8SMsJyJcYrj763nqikJOECYkknp3x"
    "jSBLzL0es7ZV2g8ppFxntfcRCmRlKNOWD0GA1LS3XRAKtcO70AMS0jfSA+m9o0OnGzCu7I1iEKKRTQphKEpmxm+4YsLxFYY3r92/"
    "fveIY7EWdM0QxmrBdrvFGnNXdBsDZH3eKBwsAUPbpT1tUObtBUXlfV1WdQWyyE8ymVeeAy2dgzxonZ/agdM2Ifl6FPUTH1+WRyRL"
    "vpaLXYIo9tuNXIlR1JmRzogKspZ718+yKHQ/2LxCikJTpUXm4gnBQWVZ0cPJPDhvS/B9UUOmXZUisgolqAVkrEPEOA6VLcE6hi0T"
    "EMtBz04wdujxP1+4+fMknY3klIv1Yk+W63WS/IO/aeU3GN79+/ofd2Zut2dCysWebtZytxl7WpzsyLWq7cPclGhtHTyqaqDp4HOa"
    "61nUQre4oMqE1ITacWDbc6GJyqZEZ+C6to2ah1mbIc1n4d/DYNq7n3x0xCQJTShZjPpPKGXjSL5yLvWiKnurGIeSNV2OnDa1Gx1V"
    "2cKZUjH0Lt20omsryBVnk10cmh1o77NcM2C9h2wq/i0Gfe/+q34uvhNiy8iWo1ntE4K5l1QtQZVZ780F+R6+WKNXM6dsFkgJjOQe"
    "jRNbcVJciMMFCVhC+CiMqfJ3GN569rGffjlWPhObNVns+Wq5STiXY2V2vpf1qnHe84iNDIrgHSNyFVAqtOSNswGFR7pOZHndzeZ9"
    "bgfzsFfM8pjxDshgJTugoxOY78dr7PaNv57/bwVh7uW+kA0Qk0En0oZDyDsTY3fU4SGcF5zfKWMONniS1ImbkZap9A/jNfbOMw/d"
    "/F9HLlmVt8F1rAJPUnTVLGB9JqjwZbQXBDl58oH446V1ACa98Besd7p/uqJHY5I2VqTxdrpmZlA/Yvjg199vPHcEhZi2q2S3SMRe"
    "rHa7cZXxtoI6E6YA3slW0fSgq9im0TW6gB5HZ75NpxkYLcbSlqE7nZxysj9WWpqNS06WffT0yT5dm0LxL5j78O+QCAAA"
)
V0_PLAIN = "AAAAAAAAABkAAAAe2xldtwAAAAAAEDU5MzAyNTdhNjk0ZDEwODb/////"
V1_PLAIN = "AAAAAAAAAAMAAAAmct4Q/wEAAAABi8/o3VEAAAAQMDcxYjRiNWZlMzk0MDM4Yf////8="


def wrap(magic, offset, content, *, codec=GZIP, timestamp=-1, attributes=0, key=None):
    value = content if content is None else compress(codec, content)
    return message(magic, offset, key, value, timestamp=timestamp, attributes=codec | attributes)


def make_chunk(raw, position, sizes, last_offsets=0):
    """Return consecutive batches as a chunk whose bytes begin at a position of the file, and the first batch behind."""
    rows = np.zeros(len(sizes), BATCH)
    rows["size"], rows["last_offset"] = sizes, last_offsets
    rows["position"] = position + len(raw) - sum(sizes) + np.cumsum(sizes) - sizes
    return Chunk(position, raw, rows, path="a.log")


def transcoded(chunk, rows, out, at):
    """Return the starts and ends of uncompressed batches' records in `out`."""
    bodies = np.zeros(len(chunk.batches), BODY)
    transcode_plain(chunk, rows, bodies, out, at)
    return bodies["start"][rows], bodies["end"][rows]


def opened(batch, *, at=0, limit=1 << 20, junk=b""):
    """Return the records of a wrapper, and its other results; `junk` precedes it in the file."""
    raw = np.frombuffer(junk + batch, np.uint8)
    out = Scratch(8)
    chunk = make_chunk(raw, 100 - len(junk), [len(batch)])
    got = transcode_wrapper(chunk, chunk.batches[0], Scratch(8), out, at, limit)
    data = out.array[at : at + got.n_bytes].tobytes()
    records = twin.decode(data, got.base_offset)
    assert data == twin.encode(records)
    assert len(records) == got.n_records
    assert (records[0].offset, records[-1].offset) == (got.base_offset, got.last_offset)
    assert max(record.timestamp for record in records) == got.max_timestamp
    return records


def refused(kind, batch, **options):
    with pytest.raises(LogFormatError) as caught:
        opened(batch, **options)
    error = caught.value
    assert (error.kind, error.path, error.position) == (kind, "a.log", 100)
    assert error.base_offset == struct.unpack_from(">q", batch)[0]
    return error


def test_message_set_of_kafka_in_magic_1_is_read():
    records = opened(base64.b64decode(V1_LZ4))
    assert [record.offset for record in records] == [1995, 1996, 1997, 1998, 1999]
    assert records[0] == Record(
        1995, 1700000019950, b"f671ab30affd1ea3",
        b"qbehua mfwquupqc tuyla niev wpmwy cwv lpqfxxgw yzx caiv mwfho qbehua yrjqgrnol aydijeepm ",
    )  # fmt: skip
    assert all(record.timestamp > 1_600_000_000_000 for record in records)


def test_message_set_of_kafka_in_magic_0_is_read():
    records = opened(base64.b64decode(V0_GZIP))
    assert [record.offset for record in records] == list(range(1984, 2000))
    assert {record.timestamp for record in records} == {-1}
    assert records[0] == Record(
        1984, -1, b"e59d78bc3f67f034",
        b"yliqksoc prgl njomftoa eglqvlir ctqofyfpc ktfgjk qijlmiaa tjy qyddxdly "
        b"pdtyqnyo stxmbqi oqvcdycay pqegxp wtpqk ",
    )  # fmt: skip


def test_uncompressed_messages_of_kafka_are_read():
    first, second = base64.b64decode(V0_PLAIN), base64.b64decode(V1_PLAIN)
    raw = np.frombuffer(b"junk" + first + second, np.uint8)
    out = Scratch(8)
    begins, ends = transcoded(make_chunk(raw, 0, [len(first), len(second)]), np.arange(2), out, 3)
    assert begins[0] == 3
    assert begins[1] == ends[0]
    records = [twin.decode(out.array[a:b].tobytes(), 0)[0] for a, b in zip(begins, ends, strict=True)]
    assert records == [Record(0, -1, b"5930257a694d1086", None), Record(0, 1700000226641, b"071b4b5fe394038a", None)]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_legacy_messages_are_opened(codec, magic):
    content = message(magic, 0, b"k", b"v") + message(magic, 1, None, None)
    offset = 1 if magic == 0 else 9
    records = opened(wrap(magic, offset, content, codec=codec), at=5, junk=b"before")
    assert records == [Record(offset - 1, -1, b"k", b"v"), Record(offset, -1, None, None)]


def test_lz4_of_magic_0_with_kafkas_wrong_checksum_is_read():
    value = bytearray(compress(LZ4, message(0, 0, b"k", b"v")))
    value[6] = 0x1A
    assert len(opened(message(0, 0, None, bytes(value), attributes=LZ4))) == 1
    refused("compressed", message(1, 0, None, bytes(value), attributes=LZ4))


def test_offsets_of_magic_0_are_absolute():
    content = message(0, 70, b"a", b"1") + message(0, 75, b"b", b"2")
    assert [record.offset for record in opened(wrap(0, 99, content))] == [70, 75]


def test_offsets_of_magic_1_end_at_the_offset_of_the_wrapper():
    content = message(1, 0, b"a", b"1") + message(1, 4, b"b", b"2")  # compaction has left a gap
    assert [record.offset for record in opened(wrap(1, 99, content))] == [95, 99]


def test_wrapper_offset_0_means_base_0():
    content = message(1, 0, b"a", b"1") + message(1, 1, b"b", b"2")
    assert [record.offset for record in opened(wrap(1, 0, content))] == [0, 1]


def test_absolute_offsets_in_magic_1_are_read():
    content = message(1, 41, b"a", b"1") + message(1, 42, b"b", b"2")
    assert [record.offset for record in opened(wrap(1, 42, content))] == [41, 42]
    refused("offsets", wrap(1, 41, content))


def test_timestamp_of_a_wrapper_is_used_only_with_log_append_time():
    content = message(1, 0, b"a", b"1", timestamp=500) + message(1, 1, b"b", b"2", timestamp=-1)
    assert [r.timestamp for r in opened(wrap(1, 1, content, timestamp=700))] == [500, -1]
    assert [r.timestamp for r in opened(wrap(1, 1, content, timestamp=700, attributes=LOG_APPEND_TIME))] == [700, 700]
    # a wrapper of magic 0 has no timestamp type
    assert [r.timestamp for r in opened(wrap(0, 1, content, attributes=LOG_APPEND_TIME))] == [500, -1]


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_inner_magic_0_in_magic_1_is_read(attributes):
    """KAFKA-4298: no timestamp, but offsets by the wrapper's rule."""
    content = message(0, 0, b"a", b"1") + message(1, 1, b"b", b"2", timestamp=700)
    records = opened(wrap(1, 11, content, timestamp=700, attributes=attributes))
    assert records == [Record(10, -1, b"a", b"1"), Record(11, 700, b"b", b"2")]


@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_is_null(length):
    content = message(1, 0, None, None, null=length)
    assert opened(wrap(1, 5, content)) == [Record(5, -1, None, None)]


def test_empty_key_and_value_are_not_null():
    assert opened(wrap(1, 5, message(1, 0, b"", b""))) == [Record(5, -1, b"", b"")]


def test_bytes_after_a_value_are_skipped():
    content = message(1, 0, b"a", b"1", extra=b"xyz") + message(1, 1, b"b", b"2")
    assert [r.value for r in opened(wrap(1, 1, content))] == [b"1", b"2"]


def test_truncated_last_message_is_skipped():
    whole = message(1, 0, b"a", b"1")
    for cut in range(1, len(message(1, 1, b"b", b"2"))):
        assert opened(wrap(1, 7, whole + message(1, 1, b"b", b"2")[:cut])) == [Record(7, -1, b"a", b"1")]


def test_wrapper_with_a_key_is_read():
    assert len(opened(wrap(1, 0, message(1, 0, b"a", b"1"), key=b"key"))) == 1


def test_malformed_legacy_messages_are_refused():
    good = message(1, 0, b"a", b"1")
    refused("count", wrap(1, 0, b""))
    refused("count", wrap(1, 0, good[:-1]))
    refused("compressed", wrap(1, 0, None))
    refused("compressed", message(1, 0, None, b"no gzip", attributes=GZIP))
    refused("codec", message(1, 0, None, b"x", attributes=4))
    refused("codec", message(1, 0, None, b"x", attributes=7))
    refused("codec", wrap(1, 1, good + wrap(1, 1, good)))
    refused("length", wrap(1, 0, good + struct.pack(">qi", 1, 13) + bytes(40)))
    refused("length", wrap(1, 0, struct.pack(">qi", 1, -1) + bytes(40)))
    refused("magic", wrap(1, 0, message(2, 0, b"a", b"1")))
    refused("offsets", wrap(1, 2**31, message(1, 0, b"a", b"1") + message(1, 2**31, b"b", b"2")))
    refused("bomb", wrap(1, 0, message(1, 0, b"a", bytes(5000))), limit=1000)
    assert f"at byte {len(good)} of" in str(refused("codec", wrap(1, 1, good + wrap(1, 1, good))))


@pytest.mark.parametrize("key_length", [1, 9, 2**31 - 1])
def test_lengths_beyond_the_message_are_refused(key_length):
    good = bytearray(message(1, 0, b"", b"12345678"))
    struct.pack_into(">i", good, 26, key_length)
    refused("record", wrap(1, 0, bytes(good)))
    refused("record", bytes(good[:17]) + b"\1" + bytes(good[18:]))  # the same in the wrapper itself
    good = bytearray(message(1, 0, b"", b""))
    struct.pack_into(">i", good, 30, key_length)
    refused("record", wrap(1, 0, bytes(good)))
    refused("record", bytes(good[:17]) + b"\1" + bytes(good[18:]))


def test_magic_1_with_the_size_of_magic_0_is_refused():
    body = b"\1\0" + bytes(8)
    short = struct.pack(">qiI", 0, 14, zlib.crc32(body)) + body
    refused("record", wrap(1, 0, short))
    raw = np.frombuffer(b"xx" + short, np.uint8)
    with pytest.raises(LogFormatError) as caught:
        transcoded(make_chunk(raw, 50, [26]), np.arange(1), Scratch(8), 0)
    assert (caught.value.kind, caught.value.position, caught.value.base_offset) == ("record", 52, 0)


def test_legacy_batches_have_their_ranges_of_rows():
    wrapper = wrap(1, 12, message(1, 0, b"a", b"1") + message(1, 2, b"b", b"2", timestamp=9))
    plain = [message(0, 13, b"c", None), message(1, 14, b"d", b"4", timestamp=77)]
    raw = np.frombuffer(b"??" + wrapper + b"".join(plain), np.uint8)
    chunk = make_chunk(raw, 1000, [len(wrapper), *map(len, plain)], [12, 13, 14])
    bodies, out = np.zeros(3, BODY), Scratch(8)
    end = transcode_plain(chunk, np.array([1, 2]), bodies, out, 6)
    assert bodies["start"][1] == 6
    assert bodies["end"][2] == end
    assert bodies["in_scratch"][1:].all()
    assert bodies["n_records"][1:].tolist() == [1, 1]
    assert bodies["base_offset"][1:].tolist() == [13, 14]
    records = [
        r for b in bodies[1:] for r in twin.decode(out.array[b["start"] : b["end"]].tobytes(), int(b["base_offset"]))
    ]
    assert records == [Record(13, -1, b"c", None), Record(14, 77, b"d", b"4")]
    assert transcode_plain(chunk, np.array([], np.int64), bodies, out, 99) == 99


FIELD = st.none() | st.binary(max_size=80)
TIMESTAMP = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2**41)
MESSAGE = st.builds(
    message, st.integers(0, 1), st.integers(0, 2**33), FIELD, FIELD, timestamp=TIMESTAMP,
    attributes=st.sampled_from([0, 0, 0, 8]), extra=st.just(b"") | st.binary(max_size=3),
)  # fmt: skip


def transcode(content, wrapper):
    """Return the kernel's answer in the twin's form; check that the kernel keeps to its room."""
    src = np.frombuffer(b"<<<" + content + b">>>", np.uint8)
    out = np.full(len(content) + 20, 0xAA, np.uint8)
    status, n_bytes, n, first, last, top, _ = legacy_kernels.transcode_messages(
        src, 3, 3 + len(content), *wrapper, out, 10
    )
    assert set(out[:10]) | set(out[10 + len(content) :]) <= {0xAA}, "no more room is needed than the messages took"
    if status != legacy_kernels.OK:
        return status
    records = twin.decode(out[10 : 10 + n_bytes].tobytes(), first)
    assert (len(records), records[-1].offset, max(r.timestamp for r in records)) == (n, last, top)
    return records


KIND = {
    legacy_kernels.BAD_SIZE: "length", legacy_kernels.BAD_MAGIC: "magic", legacy_kernels.NESTED: "codec",
    legacy_kernels.BAD_FIELD: "record", legacy_kernels.EMPTY: "count",
    legacy_kernels.BAD_WRAPPER_OFFSET: "offsets", legacy_kernels.BAD_OFFSET: "offsets",
}  # fmt: skip


def compare(content, wrapper):
    got = transcode(content, wrapper)
    try:
        expected = twin.inner_records(content, *wrapper)
    except twin.Bad as bad:
        assert not isinstance(got, list)
        assert KIND[got] == str(bad)
    else:
        assert got == expected


WRAPPER = st.tuples(st.integers(0, 1), st.just(0) | st.integers(0, 2**34), TIMESTAMP, st.sampled_from([1, 2, 9, 11]))


@settings(deadline=None)  # the first example compiles
@given(st.lists(MESSAGE, max_size=8).map(b"".join), WRAPPER, st.integers(0, 3))
def test_legacy_messages_are_opened_as_by_the_twin(content, wrapper, cut):
    compare(content[: len(content) - cut], wrapper)


@pytest.mark.long
@settings(deadline=None)  # the first example compiles
@given(st.lists(MESSAGE, min_size=1, max_size=4).map(b"".join), WRAPPER, st.data())
def test_damaged_batches_are_decoded_as_by_the_twin(content, wrapper, data):
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 13, 14, 127, 128, 255])
        )
    compare(bytes(damaged), wrapper)


@pytest.mark.long
@settings(deadline=None)  # the first example compiles
@given(st.lists(MESSAGE, min_size=1, max_size=8))
def test_uncompressed_messages_are_read_as_by_the_twin(messages):
    raw = np.frombuffer(b"".join(messages), np.uint8)
    sizes = np.array([len(encoded) for encoded in messages])
    out = Scratch(1)
    begins, ends = transcoded(make_chunk(raw, 0, sizes), np.arange(len(sizes)), out, 2)
    for encoded, begin, end in zip(messages, begins, ends, strict=True):
        _, _, timestamp, key, value = twin.parse(encoded[12:])
        assert twin.decode(out.array[begin:end].tobytes(), 0) == [Record(0, timestamp, key, value)]
        assert end - begin <= len(encoded)
