"""Kafka's partitioner over Arrow columns against its twin and values that Kafka's own tests hold."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.udfs.decode.partitioner import default_partitions, murmur2
from tests.reference import murmur2 as twin


def test_kafkas_known_hashes_are_computed():
    """UtilsTest.testMurmur2 of Kafka."""
    hashes = {
        "21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
        "a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        "abc": 479470107,
    }  # fmt: skip
    assert murmur2(pa.array(list(hashes))).to_pylist() == list(hashes.values())


@given(st.lists(st.none() | st.binary(max_size=70), max_size=20), st.integers(1, 2**31 - 1), st.integers(0, 3))
def test_any_key_is_hashed_and_partitioned_as_by_the_twin(keys, n, first):
    array = pa.array(keys, pa.binary())[first:]
    keys = keys[first:]
    assert murmur2(array).to_pylist() == [None if k is None else twin.murmur2(k) for k in keys]
    expected = [None if k is None else twin.default_partition(k, n) for k in keys]
    assert default_partitions(array, n).to_pylist() == expected
    assert default_partitions(array, pa.array([n] * len(keys), pa.int64())).to_pylist() == expected


@pytest.mark.parametrize("length", range(66))
def test_hash_of_every_key_length_ignores_following_bytes(length):
    key = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    alone, among = pa.array([key]), pa.array([b"?", key, b"!"])[1:2]
    assert murmur2(alone).to_pylist() == murmur2(among).to_pylist() == [twin.murmur2(key)]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary(3), pa.binary_view(), pa.string_view()],
    ids=str,
)
def test_partitioner_accepts_several_column_types(kind):
    keys = pa.array([b"abc", None, b"xyz"]).cast(pa.string() if "string" in str(kind) else pa.binary()).cast(kind)
    assert default_partitions(keys, 12).to_pylist() == [
        twin.default_partition(b"abc", 12),
        None,
        twin.default_partition(b"xyz", 12),
    ]


@pytest.mark.parametrize(
    ("kind", "code"), [("int16", "h"), ("int32", "i"), ("int64", "q"), ("float", "f"), ("double", "d")]
)
def test_numeric_keys_are_hashed_as_serialized_by_kafka(kind, code):
    keys = pa.array([1, None, -7], kind)
    expected = [None if v is None else twin.default_partition(struct.pack(f">{code}", v), 50) for v in (1, None, -7)]
    assert default_partitions(keys, 50).to_pylist() == expected


def test_null_keys_have_no_partition():
    assert default_partitions(pa.array([], pa.binary()), 3).to_pylist() == []
    assert default_partitions(pa.nulls(2), 3).to_pylist() == [None, None]
    assert default_partitions(pa.array([None, b""], pa.binary()), pa.array([4, None], pa.int32())).to_pylist() == [
        None,
        None,
    ]


def test_invalid_arguments_of_the_partitioner_are_refused():
    with pytest.raises(ValueError, match="expected 1 or more, found 0"):
        default_partitions(pa.array([b"a"]), 0)
    with pytest.raises(ValueError, match="found -3"):
        default_partitions(pa.array([b"a", b"b"]), pa.array([3, -3]))
    with pytest.raises(TypeError, match=r"found date32\[day\]: cast it"):
        default_partitions(pa.array([1], pa.date32()), 3)
    with pytest.raises(ValueError, match="expected at most 2147483647, found 2147483648"):
        default_partitions(pa.array([b"a"]), 2**31)
    with pytest.raises(ValueError, match="expected one, or 3 \\(one per key\\); found 2"):
        default_partitions(pa.array([b"a", b"b", b"c"]), pa.array([3, 3]))


def test_partitioner_accepts_chunked_and_dictionary_columns():
    keys = pa.chunked_array([[b"a"], [b"b", None]])
    expected = [twin.default_partition(b"a", 12), twin.default_partition(b"b", 12), None]
    assert default_partitions(keys, np.int64(12)).to_pylist() == expected
    assert default_partitions(keys.dictionary_encode(), pa.chunked_array([[12, 12], [12]])).to_pylist() == expected
    assert murmur2(keys).to_pylist() == [twin.murmur2(b"a"), twin.murmur2(b"b"), None]
    assert default_partitions(keys, pa.nulls(3)).to_pylist() == [None] * 3
