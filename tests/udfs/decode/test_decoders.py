"""Decoders of keys and values against Python's own struct, uuid, base64 and json; Kafka's: tests/kafka."""

from __future__ import annotations

import base64
import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.udfs.decode.decoders import DECODERS, DecodeError, decode, find_problems

VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=12)
NUMBERS = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}


def column(values, first=0):
    return pa.array([b"before"] * first + list(values), pa.binary())[first:]


def twin(value: bytes, name: str):
    """Return the value; None if it is malformed."""
    if name in NUMBERS:
        return struct.unpack(NUMBERS[name], value)[0] if len(value) == struct.calcsize(NUMBERS[name]) else None
    if name == "boolean":
        return {b"\0": False, b"\1": True}.get(value)
    if name == "hex":
        return value.hex()
    if name == "base64":
        return base64.b64encode(value).decode()
    if name == "uuid":
        return str(uuid.UUID(bytes=value)) if len(value) == 16 else None
    if name == "schema_id":
        return int.from_bytes(value[1:5], signed=True) if value[:1] == b"\0" and len(value) >= 5 else None
    if name == "schema_guid":
        return str(uuid.UUID(bytes=value[1:17])) if value[:1] == b"\1" and len(value) >= 17 else None
    sizes = {b"\0": 5, b"\1": 17}
    size = sizes.get(value[:1], 99)
    return value[size:] if len(value) >= size else None


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(DECODERS) - {"string", "json"}))
@settings(max_examples=40)
@given(values=VALUES, first=st.integers(0, 3), magic=st.sampled_from([b"", b"\0", b"\1"]))
def test_each_decoder_equals_its_twin(name, values, first, magic):
    values = [value if value is None else magic + value for value in values]
    expected = [None if value is None else twin(value, name) for value in values]
    got = decode(column(values, first), name)
    got.validate(full=True)
    assert got.type == DECODERS[name].result
    np.testing.assert_equal(got.to_pylist(), expected)  # NaN is NaN
    has_problem = [reason is not None for reason in find_problems(column(values, first), name).to_pylist()]
    assert has_problem == [value is not None and one is None for value, one in zip(values, expected, strict=True)]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 36])
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_fixed_width_decoders_refuse_other_lengths(name, width):
    values = [bytes(range(first, first + width)) for first in range(20)]
    if name not in ("string", "json"):
        np.testing.assert_equal(decode(column(values), name).to_pylist(), [twin(value, name) for value in values])
    else:
        assert len(decode(column(values), name)) == 20


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_keep_empty_columns_and_nulls(name):
    for values in ([], [None], [None, None]):
        for kind in (pa.binary(), pa.null()):
            assert decode(pa.array(values, kind), name).to_pylist() == values
            assert find_problems(pa.array(values, kind), name).to_pylist() == values


def test_string_decoder_replaces_malformed_bytes_as_java_and_gives_a_reason():
    values = column([b"ab", None, "é€😀".encode(), b"a\xffb", b"\xed\xa0\x80", b""])
    assert decode(values, "string").to_pylist() == ["ab", None, "é€😀", "a�b", "�", ""]
    has_problem = [reason is not None for reason in find_problems(values, "string").to_pylist()]
    assert has_problem == [False, False, False, True, True, False]
    with pytest.raises(DecodeError, match="row 3 cannot be decoded as string"):
        decode(values, "string", errors="fail")


def test_malformed_uuids_are_refused():
    text = "0F8FAD5B-d9cb-469f-a165-70867728950e"
    values = [text.encode(), text.replace("-", "x").encode(), (text[:-1] + "g").encode(), text[:-1].encode()]
    assert decode(column(values), "uuid").to_pylist() == [text.lower(), None, None, None]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b'{"a": [1, 2.5e3, true, null, "\\u00e9"]}', None),
        (b" 1 ", None),
        (b"", "Expecting value"),
        (b"{'a': 1}", "property name"),
        (b"[1,]", "column 4"),
        (b"NaN", "NaN is not a JSON number"),
        (b"1 2", "Extra data"),
        (b'"\xff"', "can't decode byte 0xff"),
        (b"[" * 100_000, "nested too deep"),
        (b"9" * 5000, "integer"),
    ],
    ids=range(10),
)
def test_malformed_json_has_a_reason(value, problem):
    reason = find_problems(column([value]), "json")[0].as_py()
    assert reason is None if problem is None else problem in reason
    assert decode(column([value]), "json").to_pylist() == [None if problem else value.decode()]


def test_failure_names_decoder_position_and_bytes():
    values = column([struct.pack(">q", 7), None, b"\x01\x02", b"x"])
    with pytest.raises(
        DecodeError,
        match="row 2 cannot be decoded as long: expected 8 bytes, found 2 bytes, the first 0x01; its bytes: 0102",
    ):
        decode(values, "long", errors="fail")
    assert decode(values[:2], "long", errors="fail").to_pylist() == [7, None]


def test_wrong_decoders_and_columns_are_refused():
    with pytest.raises(ValueError, match="no such decoder: 'lnog'; did you mean long"):
        decode(column([]), "lnog")
    with pytest.raises(ValueError, match='expected "null" or "fail", found \'ignore\''):
        decode(column([]), "long", errors="ignore")
    with pytest.raises(TypeError, match="expected a column of bytes, found int64"):
        decode(pa.array([1]), "long")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.binary(4)])
def test_decoders_accept_other_binary_columns(kind):
    text = pa.array(["abcd", None])
    values = text.cast(pa.binary()).cast(kind) if "binary" in str(kind) else text.cast(kind)
    assert decode(values, "int").to_pylist() == [0x61626364, None]
    assert decode(pa.chunked_array([values, values]), "string").to_pylist() == ["abcd", None] * 2
