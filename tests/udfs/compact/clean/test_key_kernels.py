"""The table of the last offsets, against a dict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches.span_kernels import BODY, SPAN, Run
from lastkey.logformat.layout import BATCH, CONTROL_MASK
from lastkey.udfs.compact.clean.deciders import KeyTable
from lastkey.udfs.compact.clean.key_kernels import SLOT


@dataclass
class Rows:
    """Batches of records as the kernels take them."""

    batches: np.ndarray
    bodies: np.ndarray
    wanted: np.ndarray
    spans: np.ndarray
    offsets: list[int]

    def mark(self, first_dirty_offset: int, table: KeyTable) -> list[bool]:
        out = np.zeros(len(self.spans), np.bool_)
        assert table.mark(self.run, first_dirty_offset, out, len(self.spans)) == 0
        return out.tolist()

    @property
    def run(self) -> Run:
        none = np.empty(0, np.uint8)
        return Run(0, self.batches, self.wanted, self.bodies, self.spans, none, none)


# one batch: (its records' keys, control, wanted); None: no key
Drawn = list[tuple[list[tuple[int, int] | None], bool, bool]]


def make_rows(drawn: Drawn) -> Rows:
    n = len(drawn)
    batches, bodies = np.zeros(n, BATCH), np.zeros(n, BODY)
    spans = np.zeros(sum(len(keys) for keys, _, wanted in drawn if wanted), SPAN)
    offset, row, offsets = 0, 0, []
    for i, (keys, control, wanted) in enumerate(drawn):
        batches["attributes"][i] = CONTROL_MASK if control else 0
        bodies["base_offset"][i], bodies["first_span"][i] = offset, row
        if wanted:
            bodies["n_records"][i] = len(keys)
            for delta, key in enumerate(keys):
                spans["offset_delta"][row] = delta
                spans["null_key"][row] = key is None
                spans["key_low"][row], spans["key_high"][row] = key or (0, 0)
                offsets.append(offset + delta)
                row += 1
        offset += len(keys) + 1
    return Rows(batches, bodies, np.array([w for *_, w in drawn], np.bool_), spans, offsets)


def expected_marks(drawn: Drawn, first_dirty: int) -> list[bool]:
    """Return the marks by Kafka's map, the last offset of each key from the first dirty offset on: a record stays
    unless it lies below its key's last offset.
    """
    rows = make_rows(drawn)
    records = [(key, control) for keys, control, wanted in drawn if wanted for key in keys]
    newest: dict[tuple[int, int], int] = {}
    for offset, (key, control) in zip(rows.offsets, records, strict=True):
        if key is not None and not control and offset >= first_dirty:
            newest[key] = offset
    return [
        control or key is None or offset >= newest.get(key, -1)
        for offset, (key, control) in zip(rows.offsets, records, strict=True)
    ]


# few keys, many with the same first slot; never both (0, 0) and (0, 1), which the table takes for one key
KEYS = st.tuples(st.sampled_from([0, 1, 1 << 16, 1 << 40, 2**64 - 1]), st.sampled_from([1, 2, 2**63]))
DRAWN = st.lists(
    st.tuples(st.lists(st.one_of(st.none(), KEYS), max_size=5), st.sampled_from([False] * 4 + [True]), st.booleans()),
    max_size=12,
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(DRAWN, st.integers(0, 60))
def test_key_table_marks_equal_those_of_a_dict(drawn: Drawn, first_dirty: int) -> None:
    assert make_rows(drawn).mark(first_dirty, KeyTable(1 << 30)) == expected_marks(drawn, first_dirty)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(DRAWN, st.integers(0, 12))
def test_key_table_continues_after_the_previous_call(drawn: Drawn, cut: int) -> None:
    table = KeyTable(1 << 30)
    head, tail = drawn[:cut], drawn[cut:]
    marks = make_rows(tail).mark(0, table)
    marks = make_rows(head).mark(0, table) + marks
    assert marks == expected_marks(drawn, 0)


def test_zero_hash_is_a_valid_table_key() -> None:
    table = KeyTable(1 << 30)
    drawn: Drawn = [([(0, 0), (5, 5), (0, 0)], False, True)]
    assert make_rows(drawn).mark(0, table) == [False, True, True]
    assert table.used == 2


def test_key_table_grows_and_keeps_its_keys() -> None:
    table = KeyTable(1 << 30)
    before = len(table.slots)
    keys = [(int(k), int(k) * 3 + 1) for k in range(1, 60_001)]
    drawn: Drawn = [([k], False, True) for k in keys]
    assert all(make_rows(drawn[:30_000]).mark(0, table))
    assert all(make_rows(drawn[30_000:]).mark(0, table))
    assert len(table.slots) > before
    assert table.used == 60_000
    assert not any(make_rows(drawn).mark(0, table))


@pytest.mark.parametrize(("max_bytes", "grows"), [(2 << 20, False), (3 << 20, True)])
def test_memory_of_a_growing_table_includes_the_old_table(max_bytes: int, grows: bool) -> None:
    table = KeyTable(max_bytes)
    assert len(table.slots) * SLOT.itemsize == 1 << 20
    rows = make_rows([([(k, 1) for k in range(43_690, -1, -1)], False, True)])
    marks = np.zeros(43_691, np.bool_)
    assert table.mark(rows.run, 0, marks, 43_691) == (0 if grows else 1)
    assert (marks.sum(), table.used) == ((43_691, 43_691) if grows else (43_690, 43_690))
    assert len(table.slots) == (1 << 17 if grows else 1 << 16)


def test_more_records_than_table_slots_are_read() -> None:
    """Distinct keys count, not records; and a table that is emptied in the middle continues there."""
    few = [([(k % 900, 1) for k in range(50_000)], False, True)] * 2
    assert sum(make_rows(few).mark(0, KeyTable(1 << 20))) == 900
    rows = make_rows([([(k, 1) for k in range(100_000)], False, True), ([(k, 1) for k in range(50_000)], False, True)])
    table, left, marks, times = KeyTable(1 << 20), 150_000, np.zeros(150_000, np.bool_), 0
    while left := table.mark(rows.run, 0, marks, left):
        assert len(table.slots) == 1 << 16
        table.clear()
        times += 1
    assert times == 3
    assert marks[50_000:].all() and marks.sum() >= 100_000, "the last of each key; some twice"


def test_cleared_key_table_has_no_keys() -> None:
    table = KeyTable(1 << 30)
    drawn: Drawn = [([(7, 7)], False, True)]
    assert make_rows(drawn).mark(0, table) == [True]
    assert make_rows(drawn).mark(0, table) == [False]
    table.clear()
    assert make_rows(drawn).mark(0, table) == [True]
