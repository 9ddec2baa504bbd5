"""The offset index: read, write, look up, sanity."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import LogFormatError
from logformat.side_files import offset_index

# From a segment that a 4.3.0 broker cleaned; base offset 1071.
REAL = bytes.fromhex("000001850000173c000001b700002bf2")
REAL_BASE = 1071

RISING = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=20).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


def entries_of(base, table):
    out = np.empty(len(table), offset_index.ENTRY)
    out["offset"], out["position"] = table[:, 0] + base, table[:, 1]
    return out


@given(st.integers(0, 2**60), RISING, st.integers(0, 5))
def test_write_then_read_with_any_zero_tail(base, table, zeros):
    entries = entries_of(base, table)
    data = offset_index.write(entries, base, "p")
    assert len(data) == 8 * len(entries)
    assert np.array_equal(offset_index.read(data + bytes(8 * zeros), base, "p"), entries)
    offset_index.sanity_check(entries, base, "p")


@given(st.integers(0, 2**60), RISING, st.lists(st.integers(-3, 25000), max_size=9))
def test_lookup_is_the_floor(base, table, targets):
    entries = entries_of(base, table)
    found = offset_index.lookup(entries, [base + target for target in targets], base)
    rows = [(base, 0), *((int(o), int(p)) for o, p in entries)]
    for target, row in zip(targets, found, strict=True):
        at = bisect.bisect_right([offset for offset, _ in rows[1:]], base + target)
        assert row.tolist() == rows[at]


def test_lookup_takes_any_shape():
    entries = entries_of(100, np.array([[5, 50], [9, 90]]))
    assert offset_index.lookup(entries, 107, 100).item() == (105, 50)
    assert offset_index.lookup(entries, [[104, 109], [99, 10**9]], 100)["position"].tolist() == [[0, 90], [0, 90]]
    assert offset_index.lookup(entries[:0], [7], 100).tolist() == [(100, 0)]


def test_a_real_file():
    entries = offset_index.read(REAL, REAL_BASE, "p")
    assert entries.tolist() == [(1460, 5948), (1510, 11250)]
    assert offset_index.write(entries, REAL_BASE, "p") == REAL
    offset_index.sanity_check(entries, REAL_BASE, "p", log_size=14379)


def test_preallocated_and_empty():
    assert len(offset_index.read(bytes(10485760), 0, "p")) == 0
    assert len(offset_index.read(b"", 0, "p")) == 0


def test_torn():
    with pytest.raises(LogFormatError) as caught:
        offset_index.read(REAL + b"\1\2\3", REAL_BASE, "p")
    assert (caught.value.kind, caught.value.position) == ("index", len(REAL))


def test_what_does_not_fit():
    for table, kind in (([[2**31, 5]], "relative_offset"), ([[-1, 5]], "relative_offset"), ([[5, 2**31]], "index")):
        with pytest.raises(LogFormatError) as caught:
            offset_index.write(entries_of(7, np.array([[1, 1], *table])), 7, "p")
        assert (caught.value.kind, caught.value.position) == (kind, 8)
    largest = entries_of(2**62, np.array([[2**31 - 1, 2**31 - 1]]))
    assert offset_index.write(largest, 2**62, "p").hex() == "7fffffff7fffffff"


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ([[0, 9]], 0),
        ([[5, 0]], 0),
        ([[5, 9], [5, 10]], 1),
        ([[5, 9], [6, 9]], 1),
        ([[5, 9], [6, 10], [-4, 11]], 2),
        ([[5, 9], [6, 1000]], 1),
    ],
)
def test_sanity(table, row):
    with pytest.raises(LogFormatError) as caught:
        offset_index.sanity_check(entries_of(50, np.array(table)), 50, "p", log_size=1000)
    assert (caught.value.kind, caught.value.position) == ("index", 8 * row)
