"""The transaction index: read, write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import transaction_index
from tests.reference.index_entries import lawful_txn_index

# From a segment that a 4.3.0 broker wrote; base offset 1055.
REAL = bytes.fromhex(
    "0000000000000000000b0000000000000431000000000000044300000000000003fd"
    "0000000000000000000b000000000000044400000000000004990000000000000469"
    "0000000000000000000b000000000000049a00000000000004bd0000000000000469"
    "0000000000000000000c000000000000049200000000000004ce0000000000000469"
    "0000000000000000000c000000000000053a00000000000005410000000000000469"
    "0000000000000000000c00000000000005cc00000000000005fd0000000000000469"
    "0000000000000000000c00000000000005fe00000000000005ff0000000000000469"
    "0000000000000000000c000000000000060d00000000000006110000000000000469"
)


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
    entries = transaction_index.read(REAL, "p")
    assert len(entries) == 8
    assert transaction_index.write(entries) == REAL
    assert entries.dtype.isnative
    assert lawful_txn_index(entries, 1055)


def test_a_torn_transaction_index_is_refused_unless_allowed():
    with pytest.raises(LogFormatError) as caught:
        transaction_index.read(REAL[:-1], "p")
    assert (caught.value.kind, caught.value.position) == ("index", 34 * 7)
    assert len(transaction_index.read(REAL[:-1], "p", allow_torn=True)) == 7


def test_an_unknown_version_is_refused_at_its_entry():
    with pytest.raises(LogFormatError) as caught:
        transaction_index.read(REAL[:34] + b"\0\1" + REAL[36:], "p")
    assert (caught.value.kind, caught.value.position) == ("index", 34)
