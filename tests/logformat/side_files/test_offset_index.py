"""The offset index: read, write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import offset_index
from tests.reference.index_entries import lawful_offset_index

# From a segment that a 4.3.0 broker cleaned; base offset 1071.
REAL = bytes.fromhex("000001850000173c000001b700002bf2")
REAL_BASE = 1071

RISING = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=20).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


def decode_entries(base, table):
    out = np.empty(len(table), offset_index.ENTRY)
    out["offset"], out["position"] = table[:, 0] + base, table[:, 1]
    return out


@given(st.integers(0, 2**60), RISING, st.integers(0, 5))
def test_offset_index_with_zero_padding_is_read_as_written(base, table, zeros):
    entries = decode_entries(base, table)
    data = offset_index.write(entries, base, "p")
    assert len(data) == 8 * len(entries)
    assert np.array_equal(offset_index.read(data + bytes(8 * zeros), base, "p"), entries)
    assert lawful_offset_index(entries, base)


def test_offset_index_of_a_broker_is_read_and_written_unchanged():
    entries = offset_index.read(REAL, REAL_BASE, "p")
    assert entries.tolist() == [(1460, 5948), (1510, 11250)]
    assert offset_index.write(entries, REAL_BASE, "p") == REAL
    assert lawful_offset_index(entries, REAL_BASE, 14379)


def test_preallocated_and_empty_offset_indexes_have_no_entries():
    assert len(offset_index.read(bytes(10485760), 0, "p")) == 0
    assert len(offset_index.read(b"", 0, "p")) == 0


def test_torn_offset_index_is_refused_at_the_torn_entry():
    with pytest.raises(LogFormatError) as caught:
        offset_index.read(REAL + b"\1\2\3", REAL_BASE, "p")
    assert (caught.value.kind, caught.value.position) == ("index", len(REAL))


def test_entries_that_do_not_fit_an_offset_index_are_refused():
    for table, kind in (([[2**31, 5]], "relative_offset"), ([[-1, 5]], "relative_offset"), ([[5, 2**31]], "index")):
        with pytest.raises(LogFormatError) as caught:
            offset_index.write(decode_entries(7, np.array([[1, 1], *table])), 7, "p")
        assert (caught.value.kind, caught.value.position) == (kind, 8)
    largest = decode_entries(2**62, np.array([[2**31 - 1, 2**31 - 1]]))
    assert offset_index.write(largest, 2**62, "p").hex() == "7fffffff7fffffff"
