"""producer_state and its kernel against the twin: in one run, in chunks, and as summaries merged in any grouping."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_kernels import MARKER
from lastkey.logformat.side_files.producer_state import (
    ProducerState,
    aborted_transactions,
    merge,
    no_producers,
    summarize,
)
from tests.builders.producers import log, logs
from tests.reference import producer_state as twin


def replay(batches, start=None):
    """Return completed transactions and entries by the twin, or None if it raises."""
    state = twin.State()
    if start is not None:
        state.load(*start)
    completed = []
    for row in batches:
        try:
            done = state.append({name: int(row[name]) for name in BATCH.names})
        except twin.BadTransactionError:
            return None
        if done is not None:
            completed.append(done)
    return completed, state.entries()


def result(completed, state):
    fields = ["producer_id", "first_offset", "last_offset", "last_stable_offset", "aborted"]
    rows = np.concatenate([np.empty(0, MARKER), *completed])[fields].tolist()
    entries = state.entries()
    assert np.all(np.diff(entries["producer_id"]) > 0)
    return rows, {row[0]: row[1:] for row in entries.tolist()}


def chunks(batches, cuts):
    ends = sorted({cut % (len(batches) + 1) for cut in cuts} | {0, len(batches)})
    return [batches[begin:end] for begin, end in pairwise(ends)]


def singles(batches):
    return [batches[i : i + 1] for i in range(len(batches))]


def merged(parts, draw):
    """Merge summaries, two neighbours at a time, which ones chosen by `draw`, down to at most two."""
    while len(parts) > 2:
        at = draw(st.integers(0, len(parts) - 2))
        parts[at : at + 2] = [merge(parts[at], parts[at + 1])]
    return parts


KINDS = ["t", "t", "t", "a", "c", "e", "l"]
ALL_KINDS = [*KINDS, "d", "d", "x"]
CUTS = st.lists(st.integers(0, 1000), max_size=8)
SNAPSHOT = st.lists(
    st.tuples(
        st.integers(0, 6), st.integers(0, 1), st.integers(0, 50), st.sampled_from([-1, 7]), st.integers(0, 3),
        st.integers(0, 50), st.integers(-1, 3),
    ),
    max_size=6, unique_by=lambda row: row[0],
)  # fmt: skip


@settings(deadline=None)  # the first call compiles
@given(logs(KINDS), CUTS)
def test_state_is_independent_of_chunks(batches, cuts):
    state = ProducerState()
    completed = [state.append(part) for part in chunks(batches, cuts)]
    assert result(completed, state) == replay(batches)


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(logs(KINDS), CUTS, st.data())
def test_summaries_can_be_merged_in_any_grouping(batches, cuts, data):
    parts = merged([summarize(part) for part in chunks(batches, cuts)], data.draw)
    state = ProducerState()
    completed = [state.apply(part) for part in parts]
    assert result(completed, state) == replay(batches)


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(logs(["t", "a", "a", "e"], max_size=12, producers=2), st.data())
def test_summary_per_batch_gives_the_same_state(batches, data):
    state = ProducerState()
    completed = [state.apply(part) for part in merged([summarize(batch) for batch in singles(batches)], data.draw)]
    assert result(completed, state) == replay(batches)


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(logs(ALL_KINDS, max_size=8, producers=2), CUTS, st.data())
def test_invalid_state_is_an_error_when_read_and_appended(batches, cuts, data):
    expected = replay(batches)
    state = ProducerState()
    try:
        parts = merged([summarize(part) for part in chunks(batches, cuts)], data.draw)
        got = result([state.apply(part) for part in parts], state)
    except LogFormatError as error:
        assert error.kind == "transaction"
        got = None
    assert got == expected


@pytest.mark.long
@settings(deadline=None)
@given(SNAPSHOT, st.integers(0, 60), st.integers(1, 40), logs(KINDS), CUTS, st.data())
def test_state_continues_from_a_snapshot(rows, now, expiration, batches, cuts, data):
    # Open transactions of the snapshot began below the log, each at an offset of its own.
    shift = 1000
    for name in ("base_offset", "last_offset"):
        batches[name] += shift
    rows = [(*row, 10 * row[0] if row[6] > 0 else -1) for row in rows]
    rows = [row if row[3] >= 0 else (*row[:2], -1, -1, 0, *row[5:]) for row in rows]
    entries = np.array(rows, producer_snapshot.ENTRY)
    expected = replay(batches, (rows, now, expiration))
    state = ProducerState.from_snapshot(entries, now, expiration)
    parts = merged([summarize(part) for part in chunks(batches, cuts)], data.draw)
    assert result([state.apply(part) for part in parts], state) == expected


@settings(deadline=None)
@given(logs(KINDS))
def test_snapshot_and_state_continue_equally(batches):
    half = len(batches) // 2
    state = ProducerState()
    state.append(batches[:half])
    data = producer_snapshot.write(state.entries())
    two = ProducerState.from_snapshot(producer_snapshot.read(data, "p"), 0, 1000)
    kept = {row["producer_id"] for row in two.entries()}
    assume(len(kept) == len(state.entries()))
    assert np.array_equal(state.append(batches[half:]), two.append(batches[half:]))
    assert np.array_equal(state.entries(), two.entries())


def words(text):
    """Make a log from words: producer, kind, and number of offsets if more than one: "1t 2t5 1a"."""
    return log([(int(w[0]), w[1], 0, int(w[2:] or 1), 0, 0) for w in text.split()])


def test_aborted_transactions_are_index_entries():
    state = ProducerState()
    completed = state.append(words("1t3 2t 1a 3t 3c 2a 2a"))
    entries = aborted_transactions(completed)
    #  offsets: 1t 0-2, 2t 3, 1a 4, 3t 5, 3c 6, 2a 7, 2a 8 (closes nothing)
    assert entries.tolist() == [(0, 1, 0, 4, 3), (0, 2, 3, 7, 8)]
    assert completed[["first_offset", "last_offset", "aborted"]].tolist() == [(0, 4, True), (5, 6, False), (3, 7, True)]
    assert completed["last_stable_offset"].tolist() == [3, 3, 8]


def test_transaction_of_an_earlier_segment_is_completed():
    first, second = words("1t3 2t"), words("1t3 2t 1a 3t 3a 2a")[2:]
    parts = [summarize(first), summarize(second)]
    assert parts[1].markers["first_offset"].tolist() == [-1, 5, -1]  # 1a and 2a: not known; 3a
    state = ProducerState()
    assert len(state.apply(parts[0])) == 0
    assert aborted_transactions(state.apply(parts[1])).tolist() == [(0, 1, 0, 4, 3), (0, 3, 5, 6, 3), (0, 2, 3, 7, 8)]
    alone = ProducerState()  # as a broker that lost the earlier segment
    assert aborted_transactions(alone.apply(parts[1])).tolist() == [(0, 3, 5, 6, 7)]


def test_open_transactions_determine_the_last_stable_offset():
    state = ProducerState()
    assert state.open_transactions().tolist() == []
    assert state.last_stable_offset(42) == 42
    completed = state.append(words("1t3 2t 1a 3t"))
    assert state.open_transactions().tolist() == [3, 5]
    assert state.last_stable_offset(6) == 3
    assert state.last_stable_offset(6, completed) == 3
    assert state.last_stable_offset(5, completed) == 3  # marker 4 is below the high watermark 5
    assert state.last_stable_offset(4, completed) == 0
    assert state.last_stable_offset(2) == 2


def test_empty_marker_only_adds_a_producer():
    state = ProducerState()
    state.append(words("1e"))
    assert state.entries().tolist() == [(1, -1, -1, -1, 0, -1, -1, -1)]
    state.append(words("1t4"))
    before = state.entries()
    state.append(words("1e"))
    assert np.array_equal(before, state.entries())
    assert state.open_transactions().tolist() == [0]


def test_expired_producers_are_removed_when_loaded():
    rows = [
        (1, 0, 5, 9, 0, 100, 0, -1),
        (2, 0, 5, 9, 0, 101, 0, -1),
        (3, 0, 5, 9, 0, 0, 0, 7),
        (4, -1, -1, -1, 0, -1, -1, -1),
    ]
    state = ProducerState.from_snapshot(np.array(rows[::-1], producer_snapshot.ENTRY), 200, 100)
    assert state.entries().tolist() == rows[1:3]


@pytest.mark.parametrize("timestamp", [-(2**63), -(2**63) + 1, -1, 2**63 - 1])
def test_no_expiry_keeps_every_producer(timestamp):
    rows = np.array([(7, 0, 3, 5, 0, timestamp, -1, -1)], producer_snapshot.ENTRY)
    assert ProducerState.from_snapshot(rows).entries().tolist() == rows.tolist()


def test_a_failed_append_changes_nothing():
    state = ProducerState()
    state.append(words("1t 2d"))
    before = state.entries()
    for text in ("1d", "2d 1d", "3x", "3t 3d"):
        with pytest.raises(LogFormatError) as caught:
            state.append(words(text), "some.log")
        assert (caught.value.kind, caught.value.path) == ("transaction", "some.log")
        assert caught.value.position == caught.value.base_offset * 100
        assert np.array_equal(before, state.entries())


def test_no_batches_leave_no_producers():
    state = ProducerState()
    assert len(state.append(words(""))) == len(state.append(words("1l 1l"))) == len(state.entries()) == 0
    assert len(state.apply(no_producers())) == 0
    assert len(merge(no_producers(), merge(summarize(words("1t")), summarize(words("1a")))).markers) == 1


def test_negative_producer_ids_are_ignored():
    batches = words("1t 2d 3d")
    batches["producer_id"] = [-1, -2, 3]
    state = ProducerState()
    state.append(batches)
    assert state.entries()["producer_id"].tolist() == [3]


@pytest.mark.parametrize(
    ("base", "last"), [(0, 1), (-1, -1), (2**31 - 1, 0), (2**31 - 2, 2**31 - 1), (-2, -1), (-(2**31), -(2**31) + 1)]
)
def test_last_sequences_equal_those_of_kafka(base, last):
    batches = log([(1, "d", 0, 2, base, 0)])
    state = ProducerState()
    state.append(batches)
    assert state.entries()["last_sequence"].tolist() == [last]
