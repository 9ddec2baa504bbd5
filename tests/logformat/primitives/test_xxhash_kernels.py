"""xxh32 against values of the reference implementation and a twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.primitives.xxhash_kernels import xxh32
from tests.reference import xxhash as twin


def array(data):
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_known_hashes_are_computed(data, expected):
    assert xxh32(array(data), 0, len(data)) == expected == twin.xxh32(data)


@settings(deadline=None)  # the first example compiles
@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_are_hashed_as_by_the_twin(data, start):
    start = min(start, len(data))
    assert xxh32(array(data), start, len(data)) == twin.xxh32(data[start:])
