"""Producer snapshots: reading, writing, and errors for damaged ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import producer_snapshot

# Written by a 4.3.0 broker at its end: two producers behind their ABORT markers, one with an open transaction.
REAL = bytes.fromhex(
    "00019bcbe89400000003"
    "000000000000000b0028ffffffffffffffffffffffff00000000000001a1fb8d6ccc00000000ffffffffffffffff"
    "000000000000000c002cffffffffffffffffffffffff00000000000001a1fb8d6cd100000000ffffffffffffffff"
    "000000000000000d000000000002000000000000046b00000002000001a1fb56a192ffffffff0000000000000469"
)

INT64 = st.integers(-1, 2**63 - 1)
INT32 = st.integers(-1, 2**31 - 1)
ENTRIES = st.lists(
    st.tuples(INT64, st.integers(-1, 2**15 - 1), INT32, INT64, INT32, INT64, INT32, INT64),
    max_size=9, unique_by=lambda row: row[0],
).map(lambda rows: np.array(rows, producer_snapshot.ENTRY))  # fmt: skip


@given(ENTRIES)
def test_producer_snapshot_is_read_as_written(entries):
    data = producer_snapshot.write(entries)
    assert len(data) == 10 + 46 * len(entries)
    assert np.array_equal(producer_snapshot.read(data, "p"), entries)


def test_producer_snapshot_of_a_broker_is_read_and_written_unchanged():
    entries = producer_snapshot.read(REAL, "p")
    assert entries.dtype.isnative
    assert entries.tolist() == [
        (11, 40, -1, -1, 0, 1795221712076, 0, -1),
        (12, 44, -1, -1, 0, 1795221712081, 0, -1),
        (13, 0, 2, 1131, 2, 1795218121106, -1, 1129),
    ]
    assert producer_snapshot.write(entries) == REAL


def test_snapshot_entries_are_compared_in_any_order():
    entries = producer_snapshot.read(REAL, "p")
    assert producer_snapshot.same_entries(entries, entries[::-1])
    assert not producer_snapshot.same_entries(entries, entries[:2])
    other = entries.copy()
    other["timestamp"][1] += 1
    assert not producer_snapshot.same_entries(entries, other)


def damaged():
    yield "empty", b""
    yield "cut header", REAL[:9]
    yield "cut body", REAL[:-1]
    yield "longer", REAL + b"\0"
    yield "version", b"\0\2" + REAL[2:]
    for at in (3, 9, 20, 147):
        yield f"byte {at}", REAL[:at] + bytes([REAL[at] ^ 4]) + REAL[at + 1 :]
    twice = producer_snapshot.read(REAL, "p")[[0, 0]]
    yield "twice", producer_snapshot.write(twice)
    yield "count", with_count(5)
    yield "negative count", with_count(-1)


def with_count(count):
    """Return a snapshot whose CRC fits and whose count does not."""
    import google_crc32c

    body = count.to_bytes(4, "big", signed=True) + REAL[10:]
    return b"\0\1" + google_crc32c.value(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in damaged()])
def test_a_damaged_snapshot_is_refused(data):
    with pytest.raises(LogFormatError) as caught:
        producer_snapshot.read(data, "some.snapshot")
    assert (caught.value.kind, caught.value.path) == ("side_file", "some.snapshot")
