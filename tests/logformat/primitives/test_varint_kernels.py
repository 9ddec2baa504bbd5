"""varint_kernels against their twin, and against bytes worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.primitives.varint_kernels import read_varint, read_varlong, size_of_varlong, write_varlong
from tests.reference import varint as twin

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = sorted({sign * (2**k + d) for sign in (-1, 1) for k in (0, 6, 7, 13, 14, 20, 27, 30, 34, 48, 55, 62)
                for d in (-1, 0, 1)} | {2**31 - 1, -(2**31), 2**63 - 1, -(2**63)})  # fmt: skip


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def written(value: int) -> bytes:
    buf = np.full(12, 0xAA, np.uint8)
    end = write_varlong(buf, 1, value)
    assert (buf[0], buf[end]) == (0xAA, 0xAA), "bytes outside are left alone"
    return buf[1:end].tobytes()


@pytest.mark.parametrize(
    ("value", "coded"),
    [
        (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (300, "d804"),
        (2**31 - 1, "feffffff0f"), (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01"),
    ],
)  # fmt: skip
def test_known_varlongs_are_written_and_read(value, coded):
    data = bytes.fromhex(coded)
    assert written(value) == data
    assert size_of_varlong(value) == len(data)
    assert read_varlong(array(data), 0, len(data)) == (value, len(data))
    if -(2**31) <= value < 2**31:
        assert read_varint(array(data), 0, len(data)) == (value, len(data))


@pytest.mark.parametrize("value", EDGES)
def test_limits_of_each_size_are_written_and_read(value):
    data = twin.write(value)
    assert written(value) == data
    assert size_of_varlong(value) == len(data)
    assert read_varlong(array(data), 0, len(data)) == (value, len(data)) == twin.read(data, 0, len(data), bits=64)


@settings(deadline=None)  # the first example compiles
@given(INT64)
def test_int64_values_are_read_as_written(value):
    data = written(value)
    assert data == twin.write(value)
    assert size_of_varlong(value) == len(data)
    assert read_varlong(array(data), 0, len(data)) == (value, len(data))


@settings(deadline=None)  # the first example compiles
@given(INT32)
def test_int32_values_are_read_as_written(value):
    data = written(value)
    assert read_varint(array(data), 0, len(data)) == (value, len(data))


@settings(deadline=None)  # the first example compiles
@given(st.binary(max_size=14) | st.binary(max_size=14).map(lambda data: bytes(b | 0x80 for b in data) + data),
       st.integers(0, 3), st.integers(0, 3))  # fmt: skip
def test_any_bytes_are_read_as_by_the_twin(data, pos, cut):
    end = max(len(data) - cut, 0)
    assert read_varint(array(data), pos, end) == twin.read(data, pos, end, bits=32)
    assert read_varlong(array(data), pos, end) == twin.read(data, pos, end, bits=64)


@pytest.mark.parametrize(
    ("coded", "expected"),
    [
        ("8080808000", (0, 5)),  # longer than needed: read
        ("808080808000", (0, -1)),  # sixth byte: error
        ("ffffffff7f", (-(2**31), 5)),  # bits beyond the 32nd dropped, as in ByteUtils
        ("80", (0, -1)),
        ("", (0, -1)),
    ],
)
def test_varints_out_of_range_are_refused(coded, expected):
    data = bytes.fromhex(coded)
    assert read_varint(array(data), 0, len(data)) == expected


@pytest.mark.parametrize(
    ("coded", "expected"),
    [
        ("80" * 9 + "00", (0, 10)),
        ("80" * 10 + "00", (0, -1)),
        ("ff" * 9 + "7f", (-(2**63), 10)),  # bits beyond the 64th dropped
        ("ff" * 9, (0, -1)),
    ],
)
def test_varlongs_out_of_range_are_refused(coded, expected):
    data = bytes.fromhex(coded)
    assert read_varlong(array(data), 0, len(data)) == expected
