"""crc32_kernel against zlib."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.primitives.crc32 import crc32_kernel


def test_crc32_has_the_published_check_value():
    assert crc32_kernel(np.frombuffer(b"123456789", np.uint8), 0, 9) == 0xCBF43926


@pytest.mark.parametrize("size", [*range(40), 1000, 100_003])
def test_crc32_of_each_size_equals_that_of_zlib(size):
    data = np.random.default_rng(size).bytes(size + 5)
    assert crc32_kernel(np.frombuffer(data, np.uint8), 5, 5 + size) == zlib.crc32(data[5:])


@settings(deadline=None)  # the first example compiles
@given(st.binary(min_size=1, max_size=400), st.data())
def test_crc32_accepts_read_only_and_writable_arrays(data, draw):
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))
    expected = zlib.crc32(data[start:end])
    assert crc32_kernel(np.frombuffer(data, np.uint8), start, end) == expected
    assert crc32_kernel(np.frombuffer(bytearray(data), np.uint8), start, end) == expected
