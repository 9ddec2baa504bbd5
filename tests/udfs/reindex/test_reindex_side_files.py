"""The fold over segments against the twin: snapshots and aborted transactions, with a log start, behind a bad log."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.side_files import producer_snapshot, transaction_index
from lastkey.logformat.side_files.producer_state import summarize
from lastkey.udfs.problem import Problem
from lastkey.udfs.reindex.segment import SegmentOutcome, only_aborts
from lastkey.udfs.reindex.side_files import SideFilesPlan, reindex_side_files
from lastkey.udfs.reindex.write import Target
from tests.builders.producers import logs
from tests.reference import producer_state as twin

BAD = Problem("crc", "bad.log", 5, "a", "b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fold")


def outcome(base, batches, bad):
    if bad:
        return SegmentOutcome(base, f"{base}.log", problem=BAD)
    last = int(batches["last_offset"][-1]) if len(batches) else -1
    first = int(batches["base_offset"][0]) if len(batches) else -1
    return SegmentOutcome(
        base, f"{base}.log", n_batches=len(batches), first_offset=first, last_offset=last,
        producers=only_aborts(summarize(batches)),
    )  # fmt: skip


def by_the_twin(segments, log_start, bad):
    """Return (snapshots, transaction indexes, what is impossible), by the file's name."""
    state, snapshots, indexes, impossible, end = twin.State(), {}, {}, set(), 0
    for number, (base, batches) in enumerate(segments):
        if base <= log_start or (state is not None and end <= log_start):  # nothing of it was above the log start
            state = twin.State()
        if base <= log_start:
            pass
        elif state is None:
            impossible.add(f"{base:020d}.snapshot")
        else:
            snapshots[base] = state.entries()
        aborted, known = [], state is not None
        if number == bad:
            state = None
        elif state is not None:
            for row in batches:
                try:
                    done = state.append({name: int(row[name]) for name in BATCH.names})
                except twin.BadTransactionError:
                    state = None
                    break
                if done is not None and done[4]:
                    aborted.append((0, *done[:4]))
        if state is not None and aborted:
            indexes[base] = aborted
        end = base if number == bad or not len(batches) else int(batches["last_offset"][-1]) + 1
        if number == bad or (state is None and known):
            impossible.add(f"{base:020d}.txnindex")
    if end > log_start and end not in snapshots and f"{end:020d}.snapshot" not in impossible:
        if state is None:
            impossible.add(f"{end:020d}.snapshot")
        else:
            snapshots[end] = state.entries()
    return snapshots, indexes, impossible


@pytest.mark.long
@settings(max_examples=60)
@given(logs("ttacde"), st.sets(st.integers(1, 40), max_size=4), st.integers(0, 150), st.integers(-4, 4))
def test_producer_state_equals_the_twin(folder, batches, cuts, log_start, bad):
    shutil.rmtree(folder, ignore_errors=True)
    parts = np.split(batches, sorted(cut for cut in cuts if cut < len(batches)))
    bases = [0, *(int(part["base_offset"][0]) for part in parts[1:])]
    segments = list(zip(bases, parts, strict=True))
    try:
        outcomes = [outcome(base, part, number == bad) for number, (base, part) in enumerate(segments)]
    except LogFormatError:
        return  # a contradiction within a segment: of reindex/segment.py
    plan = SideFilesPlan(Target("output", str(folder), str(folder)), "t-0", log_start, {}, {}, None, None)
    done = reindex_side_files(plan, outcomes)
    if outcomes[-1].problem is None and log_start > max(outcomes[-1].base_offset, outcomes[-1].next_offset):
        assert any("not used" in note for note in done.notes)  # the checkpoint is another log's
        log_start = 0
    snapshots, indexes, impossible = by_the_twin(segments, log_start, bad)
    unwritable = {file.path.rpartition("/")[2] for file in done.files if file.status == "impossible"}
    made = {path.name: path.read_bytes() for path in (folder / "t-0").iterdir()}
    read = {int(n[:20]): producer_snapshot.read(d, n).tolist() for n, d in made.items() if n.endswith(".snapshot")}
    assert {offset: {row[0]: tuple(row[1:]) for row in rows} for offset, rows in read.items()} == snapshots
    indexes_read = {
        int(n[:20]): transaction_index.read(d, n).tolist() for n, d in made.items() if n.endswith("txnindex")
    }
    assert indexes_read == indexes
    assert {n for n in unwritable if n.endswith("snapshot")} == {n for n in impossible if n.endswith("snapshot")}
    unknown = {n for n in unwritable if n.endswith("txnindex")}
    assert unknown >= {n for n in impossible if n.endswith("txnindex")}
    for base, part in segments:  # behind a bad one: only where a marker may abort
        if f"{base:020d}.txnindex" in unknown - impossible:
            assert (part["control_type"] == 0).any()
    assert len(made) + len(unwritable) == len(done.files)
