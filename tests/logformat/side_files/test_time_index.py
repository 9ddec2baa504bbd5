"""The time index: read, write, look up, sanity."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import LogFormatError
from logformat.side_files import time_index

# From a segment that a 4.3.0 broker cleaned; base offset 1071.
REAL = bytes.fromhex("0000018bcfe5d8da000001850000018bcfe5dcf4000001b7")
REAL_BASE = 1071


@st.composite
def tables(draw):
    """Rows (timestamp, offset from the base): both rise; the first offset may be the base itself."""
    steps = np.array(draw(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 1000)), max_size=20)), np.int64)
    table = np.cumsum(steps.reshape(-1, 2), axis=0)
    table -= [1, draw(st.integers(0, 1)) * (table[0, 1] if len(table) else 0)]
    return table


def entries_of(base, table):
    out = np.empty(len(table), time_index.ENTRY)
    out["timestamp"], out["offset"] = table[:, 0], table[:, 1] + base
    return out


@given(st.integers(0, 2**60), tables(), st.integers(0, 5))
def test_write_then_read_with_any_zero_tail(base, table, zeros):
    entries = entries_of(base, table)
    data = time_index.write(entries, base, "p")
    assert len(data) == 12 * len(entries)
    if zeros and table.tolist() == [[0, 0]]:
        entries = entries[:0]  # cannot be told from a preallocated file without entries
    elif zeros == 1 and len(table) == 0:
        zeros = 2  # one entry of zeros is an entry
    assert np.array_equal(time_index.read(data + bytes(12 * zeros), base, "p"), entries)
    time_index.sanity_check(entries, base, "p")


@given(st.integers(0, 2**60), tables(), st.lists(st.integers(-2, 10**7), max_size=9))
def test_lookup_is_the_floor(base, table, targets):
    entries = entries_of(base, table)
    rows = [(-1, base), *(tuple(row) for row in entries.tolist())]
    for target, row in zip(targets, time_index.lookup(entries, targets, base), strict=True):
        assert row.tolist() == rows[bisect.bisect_right([timestamp for timestamp, _ in rows[1:]], target)]


def test_lookup_takes_any_shape():
    entries = entries_of(100, np.array([[1000, 5], [2000, 9]]))
    assert time_index.lookup(entries, 1999, 100).item() == (1000, 105)
    assert time_index.lookup(entries, [[999], [2000]], 100)["offset"].tolist() == [[100], [109]]


def test_a_real_file():
    entries = time_index.read(REAL, REAL_BASE, "p")
    assert entries.tolist() == [(1700000028890, 1460), (1700000029940, 1510)]
    assert time_index.write(entries, REAL_BASE, "p") == REAL
    time_index.sanity_check(entries, REAL_BASE, "p")


def test_zeros():
    assert len(time_index.read(bytes(10485756), 0, "p")) == 0
    assert len(time_index.read(b"", 0, "p")) == 0
    assert time_index.read(bytes(12), 7, "p").tolist() == [(0, 7)]  # one batch of one record at the epoch
    two = bytes(12) + bytes.fromhex("0000000000000005 00000003")
    assert time_index.read(two + bytes(24), 7, "p").tolist() == [(0, 7), (5, 10)]


def test_torn():
    with pytest.raises(LogFormatError) as caught:
        time_index.read(bytes(30), 0, "p")
    assert (caught.value.kind, caught.value.position) == ("index", 24)


def test_what_does_not_fit():
    with pytest.raises(LogFormatError) as caught:
        time_index.write(entries_of(7, np.array([[1, 1], [2, 2**31]])), 7, "p")
    assert (caught.value.kind, caught.value.position) == ("relative_offset", 12)


@pytest.mark.parametrize(
    "table", [[[5, 1], [5, 2]], [[5, 1], [6, 1]], [[5, 3], [6, 2]], [[5, 1], [4, 2]], [[5, 1], [6, -1]]]
)
def test_sanity(table):
    with pytest.raises(LogFormatError) as caught:
        time_index.sanity_check(entries_of(50, np.array(table)), 50, "p")
    assert (caught.value.kind, caught.value.position) == ("index", 12)


def test_no_entry_without_a_timestamp():
    with pytest.raises(LogFormatError):
        time_index.sanity_check(entries_of(50, np.array([[-1, 1]])), 50, "p")
