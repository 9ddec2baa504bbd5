"""The time index: read, write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import time_index
from tests.reference.index_entries import lawful_time_index

# From a segment that a 4.3.0 broker cleaned; base offset 1071.
REAL = bytes.fromhex("0000018bcfe5d8da000001850000018bcfe5dcf4000001b7")
REAL_BASE = 1071


@st.composite
def tables(draw):
    """Return rows (timestamp, offset from the base): both rise; the first offset may be the base itself."""
    steps = np.array(draw(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 1000)), max_size=20)), np.int64)
    table = np.cumsum(steps.reshape(-1, 2), axis=0)
    table -= [1, draw(st.integers(0, 1)) * (table[0, 1] if len(table) else 0)]
    return table


def decode_entries(base, table):
    out = np.empty(len(table), time_index.ENTRY)
    out["timestamp"], out["offset"] = table[:, 0], table[:, 1] + base
    return out


@given(st.integers(0, 2**60), tables(), st.integers(0, 5))
def test_time_index_with_zero_padding_is_read_as_written(base, table, zeros):
    entries = decode_entries(base, table)
    data = time_index.write(entries, base, "p")
    assert len(data) == 12 * len(entries)
    if zeros and table.tolist() == [[0, 0]]:
        entries = entries[:0]  # is not distinguishable from a preallocated file without entries
    elif zeros == 1 and len(table) == 0:
        zeros = 2  # one entry of zeros is an entry
    assert np.array_equal(time_index.read(data + bytes(12 * zeros), base, "p"), entries)
    assert lawful_time_index(entries, base)


def test_time_index_of_a_broker_is_read_and_written_unchanged():
    entries = time_index.read(REAL, REAL_BASE, "p")
    assert entries.tolist() == [(1700000028890, 1460), (1700000029940, 1510)]
    assert time_index.write(entries, REAL_BASE, "p") == REAL
    assert lawful_time_index(entries, REAL_BASE)


def test_padding_of_zeros_is_no_entry():
    assert len(time_index.read(bytes(10485756), 0, "p")) == 0
    assert len(time_index.read(b"", 0, "p")) == 0
    assert time_index.read(bytes(12), 7, "p").tolist() == [(0, 7)]  # one batch of one record at the epoch
    two = bytes(12) + bytes.fromhex("0000000000000005 00000003")
    assert time_index.read(two + bytes(24), 7, "p").tolist() == [(0, 7), (5, 10)]


def test_torn_time_index_is_refused_at_the_torn_entry():
    with pytest.raises(LogFormatError) as caught:
        time_index.read(bytes(30), 0, "p")
    assert (caught.value.kind, caught.value.position) == ("index", 24)


def test_entries_that_do_not_fit_a_time_index_are_refused():
    with pytest.raises(LogFormatError) as caught:
        time_index.write(decode_entries(7, np.array([[1, 1], [2, 2**31]])), 7, "p")
    assert (caught.value.kind, caught.value.position) == ("relative_offset", 12)
