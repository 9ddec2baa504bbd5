"""Index files: read, write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import offset_index, time_index, transaction_index
from tests.reference.index_entries import lawful_offset_index, lawful_time_index, lawful_txn_index

# From segments that a 4.3.0 broker cleaned, with base offset 1071, and wrote, with base offset 1055
REAL_BASE = 1071
REAL_OFFSETS = bytes.fromhex("000001850000173c000001b700002bf2")
REAL_TIMES = bytes.fromhex("0000018bcfe5d8da000001850000018bcfe5dcf4000001b7")
REAL_TRANSACTIONS = bytes.fromhex(
    "0000000000000000000b0000000000000431000000000000044300000000000003fd"
    "0000000000000000000b000000000000044400000000000004990000000000000469"
    "0000000000000000000b000000000000049a00000000000004bd0000000000000469"
    "0000000000000000000c000000000000049200000000000004ce0000000000000469"
    "0000000000000000000c000000000000053a00000000000005410000000000000469"
    "0000000000000000000c00000000000005cc00000000000005fd0000000000000469"
    "0000000000000000000c00000000000005fe00000000000005ff0000000000000469"
    "0000000000000000000c000000000000060d00000000000006110000000000000469"
)

RISING = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=20).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


def make_index(dtype, base, table):
    """Return entries of rows whose offsets count from the base."""
    out = np.empty(len(table), dtype)
    for name, column in zip(dtype.names, table.T, strict=True):
        out[name] = column + (base if name == "offset" else 0)
    return out


@given(st.integers(0, 2**60), RISING, st.integers(0, 5))
def test_offset_index_with_zero_padding_is_read_as_written(base, table, zeros):
    entries = make_index(offset_index.ENTRY, base, table)
    data = offset_index.write(entries, base, "p")
    assert len(data) == 8 * len(entries)
    assert np.array_equal(offset_index.read(data + bytes(8 * zeros), base, "p"), entries)
    assert lawful_offset_index(entries, base)


def test_offset_index_of_a_broker_is_read_and_written_unchanged():
    entries = offset_index.read(REAL_OFFSETS, REAL_BASE, "p")
    assert entries.tolist() == [(1460, 5948), (1510, 11250)]
    assert offset_index.write(entries, REAL_BASE, "p") == REAL_OFFSETS
    assert lawful_offset_index(entries, REAL_BASE, 14379)


def test_preallocated_and_empty_offset_indexes_have_no_entries():
    assert len(offset_index.read(bytes(10485760), 0, "p")) == 0
    assert len(offset_index.read(b"", 0, "p")) == 0


def test_torn_offset_index_is_refused_at_the_torn_entry():
    with pytest.raises(LogFormatError) as caught:
        offset_index.read(REAL_OFFSETS + b"\1\2\3", REAL_BASE, "p")
    assert (caught.value.kind, caught.value.position) == ("index", len(REAL_OFFSETS))


def test_entries_that_do_not_fit_an_offset_index_are_refused():
    for table, kind in (([[2**31, 5]], "relative_offset"), ([[-1, 5]], "relative_offset"), ([[5, 2**31]], "index")):
        with pytest.raises(LogFormatError) as caught:
            offset_index.write(make_index(offset_index.ENTRY, 7, np.array([[1, 1], *table])), 7, "p")
        assert (caught.value.kind, caught.value.position) == (kind, 8)
    largest = make_index(offset_index.ENTRY, 2**62, np.array([[2**31 - 1, 2**31 - 1]]))
    assert offset_index.write(largest, 2**62, "p").hex() == "7fffffff7fffffff"


@st.composite
def tables(draw):
    """Return rows (timestamp, offset from the base): both rise; the first offset may be the base itself."""
    steps = np.array(draw(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 1000)), max_size=20)), np.int64)
    table = np.cumsum(steps.reshape(-1, 2), axis=0)
    table -= [1, draw(st.integers(0, 1)) * (table[0, 1] if len(table) else 0)]
    return table


@given(st.integers(0, 2**60), tables(), st.integers(0, 5))
def test_time_index_with_zero_padding_is_read_as_written(base, table, zeros):
    entries = make_index(time_index.ENTRY, base, table)
    data = time_index.write(entries, base, "p")
    assert len(data) == 12 * len(entries)
    if zeros and table.tolist() == [[0, 0]]:
        entries = entries[:0]  # is not distinguishable from a preallocated file without entries
    elif zeros == 1 and len(table) == 0:
        zeros = 2  # one entry of zeros is an entry
    assert np.array_equal(time_index.read(data + bytes(12 * zeros), base, "p"), entries)
    assert lawful_time_index(entries, base)


def test_time_index_of_a_broker_is_read_and_written_unchanged():
    entries = time_index.read(REAL_TIMES, REAL_BASE, "p")
    assert entries.tolist() == [(1700000028890, 1460), (1700000029940, 1510)]
    assert time_index.write(entries, REAL_BASE, "p") == REAL_TIMES
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
        time_index.write(make_index(time_index.ENTRY, 7, np.array([[1, 1], [2, 2**31]])), 7, "p")
    assert (caught.value.kind, caught.value.position) == ("relative_offset", 12)


def make_entries(rows):
    """Return entries of rows (first, last, last stable)."""
    return np.array([(0, 7, *row) for row in rows], transaction_index.ENTRY)


ROWS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(0, 20)), max_size=12
).map(
    lambda steps: [
        (max(last - length, 0), last, max(last + 1 - back, 0))
        for last, (_, length, back) in zip(np.cumsum([s[0] for s in steps]).tolist(), steps, strict=True)
    ]
)  # fmt: skip


@given(ROWS)
def test_transaction_index_is_read_as_written(rows):
    entries = make_entries(rows)
    data = transaction_index.write(entries)
    assert len(data) == 34 * len(rows)
    assert np.array_equal(transaction_index.read(data, "p"), entries)
    assert lawful_txn_index(entries, 0)


def test_transaction_index_of_a_broker_is_read_and_written_unchanged():
    entries = transaction_index.read(REAL_TRANSACTIONS, "p")
    assert len(entries) == 8
    assert transaction_index.write(entries) == REAL_TRANSACTIONS
    assert entries.dtype.isnative
    assert lawful_txn_index(entries, 1055)


def test_a_torn_transaction_index_is_refused_unless_allowed():
    with pytest.raises(LogFormatError) as caught:
        transaction_index.read(REAL_TRANSACTIONS[:-1], "p")
    assert (caught.value.kind, caught.value.position) == ("index", 34 * 7)
    assert len(transaction_index.read(REAL_TRANSACTIONS[:-1], "p", allow_torn=True)) == 7


def test_an_unknown_version_is_refused_at_its_entry():
    with pytest.raises(LogFormatError) as caught:
        transaction_index.read(REAL_TRANSACTIONS[:34] + b"\0\1" + REAL_TRANSACTIONS[36:], "p")
    assert (caught.value.kind, caught.value.position) == ("index", 34)
