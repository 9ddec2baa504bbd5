"""Batches of transactions that may go: the replay in `transactions`, against Kafka's state machine batch by batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.layout import BATCH, CONTROL_MASK, TRANSACTIONAL_MASK
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.scan.scan_segment import transactional_batches
from lastkey.udfs.compact.scan.transactions import data_before, discardable_batches, markers_behind
from lastkey.udfs.segments import TXN_BATCH
from tests.reference.cleaner import AbortedTxn, Transactions
from tests.reference.log import ABORT, COMMIT, Batch, Record, marker_batch


def batch_rows(batches: list[Batch]) -> np.ndarray:
    """Return the batches as BATCH rows."""
    rows = np.zeros(len(batches), BATCH)
    for row, b in zip(rows, batches, strict=True):
        row["base_offset"], row["last_offset"], row["producer_id"] = b.base_offset, b.last_offset, b.producer_id
        row["records_count"], row["magic"] = len(b.records), 2
        row["attributes"] = b.transactional * TRANSACTIONAL_MASK | b.control * CONTROL_MASK
        row["control_type"] = -1 if b.marker is None else b.marker
        if b.control and b.records and b.marker is None:
            row["control_type"] = 2
    return rows


def make_entries(aborted: list[AbortedTxn]) -> np.ndarray:
    entries = np.zeros(len(aborted), transaction_index.ENTRY)
    for entry, txn in zip(entries, aborted, strict=True):
        entry["producer_id"], entry["first_offset"] = txn.producer_id, txn.first_offset
        entry["last_offset"], entry["last_stable_offset"] = txn.last_offset, txn.last_stable_offset
    return entries


def check(batches: list[Batch], aborted: list[AbortedTxn]) -> tuple[list[bool], list[AbortedTxn]]:
    """Check the replay against the state machine; return its (discardable, kept index entries). Batches outside of
    transactions are never discardable.
    """
    transactions = Transactions()
    transactions.add(aborted)
    expected = [transactions.on_batch(b) for b in batches]
    rows = transactional_batches(batch_rows(batches))
    assert rows.dtype == TXN_BATCH
    discardable, kept = discardable_batches(rows, make_entries(aborted))
    mine = iter(discardable.tolist())
    assert [next(mine) if b.transactional or b.control else False for b in batches] == expected
    assert [aborted[i] for i in kept if i >= 0] == transactions.kept
    return expected, transactions.kept


def data(offset: int, pid: int, n: int = 1) -> Batch:
    records = tuple(Record(offset + i, 0, b"k", b"v") for i in range(n))
    return Batch(offset, offset + max(n, 1) - 1, records, transactional=True, producer_id=pid)


def marker(offset: int, pid: int, kind: int) -> Batch:
    return marker_batch(offset, pid, kind, timestamp=0)


def test_committed_data_and_its_marker_are_kept() -> None:
    assert check([data(0, 1), marker(1, 1, COMMIT)], []) == ([False, False], [])


def test_marker_without_data_is_removed() -> None:
    assert check([marker(1, 1, COMMIT), marker(2, 2, ABORT)], [AbortedTxn(2, 0, 2, 3)]) == ([True, True], [])


def test_abort_marker_is_kept_while_any_batch_of_its_transaction_remains() -> None:
    txn = AbortedTxn(1, 0, 1, 2)
    assert check([data(0, 1, n=0), marker(1, 1, ABORT)], [txn]) == ([True, False], [txn])


def test_abort_marker_without_an_index_entry_removes_no_data() -> None:
    assert check([data(0, 1), marker(1, 1, ABORT)], []) == ([False, True], [])


def test_empty_control_batch_is_removable_and_ends_no_transaction() -> None:
    empty = Batch(1, 1, transactional=True, control=True, producer_id=1)
    assert check([data(0, 1), empty, marker(2, 1, COMMIT)], []) == ([False, True, False], [])


def test_control_batches_of_other_types_are_kept() -> None:
    other = Batch(0, 0, (Record(0, 0, b"\0\0\0\2", b""),), control=True)
    assert check([other], []) == ([False], [])


def test_transaction_begins_with_the_batch_of_its_first_offset() -> None:
    txn = AbortedTxn(1, 5, 9, 10)
    assert check([data(0, 1, n=4), marker(4, 1, COMMIT), data(5, 1), marker(9, 1, ABORT)], [txn])[0] == [
        False, False, True, False,
    ]  # fmt: skip


def test_interleaved_transactions_of_two_producers_are_separated() -> None:
    first, second = AbortedTxn(1, 0, 2, 1), AbortedTxn(1, 5, 6, 7)
    batches = [data(0, 1), data(1, 2), marker(2, 1, ABORT), data(3, 1), marker(4, 1, COMMIT)]
    batches += [data(5, 1), marker(6, 1, ABORT), marker(7, 2, COMMIT)]
    discardable, kept = check(batches, [first, second])
    assert discardable == [True, False, False, False, False, True, False, False]
    assert kept == [first, second]


def test_log_without_transactions_has_no_decisions() -> None:
    discardable, kept = discardable_batches(np.empty(0, TXN_BATCH), make_entries([]))
    assert len(discardable) == len(kept) == 0
    assert len(transactional_batches(batch_rows([Batch(0, 0)]))) == 0


EVENTS = st.lists(
    st.tuples(st.sampled_from(["data", "empty", "abort", "commit", "gone"]), st.integers(1, 3)), max_size=25
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(EVENTS, st.data())
def test_result_is_independent_of_the_order_of_the_index(events: list[tuple[str, int]], draw: st.DataObject) -> None:
    """`gone`: a batch that began a transaction was cleaned away; its entry, if the transaction is aborted, begins too
    early.
    """
    batches: list[Batch] = []
    aborted: list[AbortedTxn] = []
    began: dict[int, int] = {}
    for offset, (kind, pid) in enumerate(events):
        if kind in ("abort", "commit"):
            batches.append(marker(offset, pid, ABORT if kind == "abort" else COMMIT))
            first = began.pop(pid, None)
            if kind == "abort" and first is not None:
                aborted.append(AbortedTxn(pid, first, offset, offset + 1))
            continue
        began.setdefault(pid, offset)
        if kind != "gone":
            batches.append(data(offset, pid, n=1 if kind == "data" else 0))
    check(batches, draw.draw(st.permutations(aborted)))


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([None, None, ABORT, COMMIT]), st.integers(1, 3)), max_size=20
    ),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=8),
)
def test_markers_after_and_data_before_a_batch_are_found(
    drawn: list[tuple[int, int | None, int]], asked: list[tuple[int, int]]
) -> None:
    batches, offset = [], 0
    for pid, kind, n in drawn:
        batches.append(data(offset, pid, n) if kind is None else marker(offset, pid, kind))
        offset += n
    rows = transactional_batches(batch_rows(batches))
    markers = [(b.producer_id, b.base_offset) for b in batches if b.marker is not None]
    assert markers_behind(rows).tolist() == [
        min((at for pid, at in markers if pid == b.producer_id and at >= b.base_offset), default=NO_END)
        for b in batches
    ]
    producers, offsets = np.array(asked, np.int64).reshape(-1, 2).T
    assert data_before(rows, producers, offsets).tolist() == [
        max((i for i, b in enumerate(batches) if b.producer_id == pid and b.last_offset < at), default=-1)
        for pid, at in asked
    ]
