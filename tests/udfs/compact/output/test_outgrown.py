"""Rebuilt batches outgrow a `.log` (KAFKA-20036): the group becomes several segments. For each limit, the batches equal
those of a run without a limit. All ways of compaction write the same bytes, and the files of each segment fit the log.
"""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastkey.logformat.side_files import producer_snapshot
from lastkey.udfs.compact.plan import PartitionPlan
from tests.builders.drawn import Drawn, logs, plan_of_drawn
from tests.builders.folders import Outcome, compact, lay_out, make_plan
from tests.builders.plans import changed
from tests.builders.splits import assert_same_all_ways, compact_in_blocks
from tests.reference.any_magic import decode_any
from tests.reference.cleaner import Segment, Settings, replay
from tests.reference.index_entries import index_entries
from tests.reference.log import ABORT, ZSTD, Batch, Record, data_batch, marker_batch
from tests.reference.producer_state import State

START_MS = 1_700_000_000_000
NOW_MS = START_MS + 1000

_OFFSET_ENTRY, _TIME_ENTRY, _TXN_ENTRY = struct.Struct(">ii"), struct.Struct(">qi"), struct.Struct(">hqqqq")


def messages(offset: int, keys: str) -> tuple[Batch, ...]:
    """Return one message of magic 0 for each key; magic 2 takes twice as many bytes."""
    made = [Record(offset + i, -1, key.encode(), b"") for i, key in enumerate(keys)]
    return tuple(Batch(r.offset, r.offset, (r,), magic=0, max_timestamp=-1).encoded() for r in made)


def in_transaction(offset: int, keys: str) -> Batch:
    rows = [(START_MS + offset, key.encode(), b"of an aborted transaction") for key in keys]
    return data_batch(offset, rows, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


SEGMENTS = (
    Segment(0, messages(0, "abcdef"), NOW_MS),
    Segment(6, (*messages(6, "ghi"), in_transaction(9, "xy"), *messages(11, "jkl")), NOW_MS),
    Segment(14, (marker_batch(14, 7, ABORT, timestamp=START_MS + 14), *messages(15, "mn")), NOW_MS),
    Segment(17, (data_batch(17, [(START_MS, b"a", b"2")], codec=ZSTD),), NOW_MS),
)


def plan_for(tmp: Path, segments: tuple[Segment, ...] = SEGMENTS, **more: object) -> PartitionPlan:
    plan = make_plan(
        lay_out(tmp / "archive", segments), tmp / "store", Settings(index_interval_bytes=0), now_ms=NOW_MS,
        log_start_offset=segments[0].base_offset,
    )  # fmt: skip
    return changed(plan, **more)  # type: ignore[arg-type]


def check_outgrown(done: Outcome, whole: Outcome, limit: int) -> None:
    """Check the generation of a run with a limit against one without, and its files against its log."""
    assert done.result.status == "cleaned", done.result.problem
    batches = [decode_any(done.path(i).read_bytes()[: s.size_bytes]) for i, s in enumerate(done.result.log.segments)]
    expected = [b for i, s in enumerate(whole.result.log.segments) for b in decode_any(whole.path(i).read_bytes())]
    assert [b for of_segment in batches for b in of_segment] == expected
    assert done.aborted() == whole.aborted()
    rows = done.result.log.segments
    assert [row.next_offset for row in rows] == [*(row.base_offset for row in rows[1:]), done.result.log.next_offset]
    unlimited = {row.base_offset for row in whole.result.log.segments}
    for (row, mine), (following, theirs) in pairwise(zip(rows, batches, strict=True)):
        if following.base_offset not in unlimited:  # it begins where the row has no room
            assert following.base_offset == row.last_offset + 1 == mine[-1].last_offset + 1
            assert row.size_bytes + len(theirs[0].data) > limit
    for row, mine in zip(rows, batches, strict=True):
        assert row.size_bytes == sum(len(b.data) for b in mine)
        assert not row.cleaned or row.size_bytes <= limit or len(mine) == 1
        if row.cleaned or all(b.magic == 2 or b.codec == 0 for b in mine):  # headers count a wrapper as one record
            assert row.records == sum(len(b.records) for b in mine)
    for name in ("size_bytes", "records", "batches", "tombstones", "source_bytes", "source_records", "dead_records"):
        assert sum(getattr(row, name) for row in rows) == sum(
            getattr(row, name) for row in whole.result.log.segments
        ), name
    check_side_files(done, batches)


def check_side_files(done: Outcome, batches: list[list[Batch]]) -> None:
    """Check index files, transaction indexes and producer snapshots against the batches, by slow readers."""
    originals = [
        batch
        for s in done.plan.input.segments
        for batch in decode_any((Path(s.root) / s.path).read_bytes()[: s.size_bytes])
    ]
    interval, files = done.plan.policy.settings.index_interval_bytes, done.files()
    for row, mine in zip(done.result.log.segments, batches, strict=True):
        prefix = f"{row.base_offset:020}."
        beside = {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}
        indexed, timed = index_entries(
            [(b.last_offset, len(b.data), b.max_timestamp) for b in mine], row.base_offset, interval
        )
        relative = [(offset - row.base_offset, position) for offset, position in indexed]
        assert list(_OFFSET_ENTRY.iter_unpack(beside["index"])) == relative
        assert list(_TIME_ENTRY.iter_unpack(beside["timeindex"])) == [(t, o - row.base_offset) for t, o in timed]
        ends = [entry[3] for entry in _TXN_ENTRY.iter_unpack(beside.get("txnindex", b""))]
        assert all(row.base_offset <= end < row.next_offset for end in ends)
        sizes = {kind: len(data) for kind, data in beside.items()}
        assert (row.offset_index_bytes, row.time_index_bytes) == (sizes["index"], sizes["timeindex"])
        assert row.txn_index_bytes == sizes.get("txnindex", 0)
        names = {f"{prefix}{kind}" for kind in beside if kind != "log"}
        assert names <= json.loads(row.side_files or "").keys()
        if row.base_offset > done.plan.input.log_start_offset:
            state = State()
            replay([b for b in originals if b.last_offset < row.base_offset], state)
            producers = {tuple(map(int, entry)) for entry in producer_snapshot.read(beside["snapshot"], "").tolist()}
            assert producers == {as_entry(pid, fields) for pid, fields in state.entries().items()}


def as_entry(producer_id: int, fields: tuple[int, ...]) -> tuple[int, ...]:
    """Return the fields of a snapshot's entry in the order of the file."""
    return (producer_id, *fields)


def test_every_segment_limit_gives_the_same_batches(tmp_path: Path) -> None:
    whole = compact(plan_for(tmp_path))
    (row, _) = whole.result.log.segments
    n_segments = set()
    for limit in range(1, row.size_bytes + 2, 13):
        done = compact(changed(whole.plan, max_log_bytes=limit, folder=f"out-{limit}"))
        check_outgrown(done, whole, limit)
        n_segments.add(len(done.result.log.segments))
    assert {2, 3, 4, row.batches + 1} <= n_segments


def test_every_mode_writes_the_same_segments(tmp_path: Path) -> None:
    """One segment, of the emptied batch of an aborted transaction, ends below the ABORT marker."""
    whole, spanned = compact(plan_for(tmp_path, folder="whole")), 0
    for limit in (1, 300, 700, 900, 1200):
        done = assert_same_all_ways(plan_for(tmp_path, max_log_bytes=limit, store_uri=str(tmp_path / f"{limit}")))
        check_outgrown(done, whole, limit)
        held = [row.base_offset for row in done.result.log.segments]
        spanned += any(9 < base <= 14 for base in held)
    assert spanned


def test_a_dry_run_names_the_same_segments(tmp_path: Path) -> None:
    for limit in (300, 900):
        plan = plan_for(tmp_path, max_log_bytes=limit, folder=f"out-{limit}")
        done, dry = compact(plan), compact(changed(plan, dry_run=True))
        several = compact_in_blocks(changed(plan, dry_run=True))
        expected = [(s.base_offset, s.next_offset, s.size_bytes, s.records) for s in done.result.log.segments]
        for run in (dry, several):
            segments = [(s.base_offset, s.next_offset, s.size_bytes, s.records) for s in run.result.log.segments]
            assert segments == expected
            assert run.result.work.bytes_after == done.result.work.bytes_after


def test_retained_aborted_records_and_their_marker_can_be_in_different_segments(tmp_path: Path) -> None:
    """Retention inside of segments drops no aborted record. Each entry is where its marker is."""
    old = replace(data_batch(17, [(START_MS - 5000, b"z", b"")]), leader_epoch=0).encoded()
    segments = (replace(SEGMENTS[1], base_offset=0, batches=(*messages(0, "ab"), *SEGMENTS[1].batches)), *SEGMENTS[2:])
    merged = Segment(0, (*segments[0].batches, *segments[1].batches, old), NOW_MS)
    plan = plan_for(tmp_path, (merged, Segment(18, (data_batch(18, [(NOW_MS, b"q", b"")]),), NOW_MS)))
    exact = replace(plan.policy.settings, compacts=False, retention_ms=2000, retention_exact=True)
    whole = compact(changed(plan, settings=exact, folder="whole", force=False))
    assert whole.aborted() and whole.result.work.counters["dropped_expired"] == 1
    spanned = 0
    for limit in range(60, whole.result.log.segments[0].size_bytes, 50):
        done = compact(changed(plan, settings=exact, folder=f"out-{limit}", max_log_bytes=limit, force=False))
        check_outgrown(done, whole, limit)
        spanned += any(10 < row.base_offset <= 14 for row in done.result.log.segments)
    assert spanned


def test_first_segment_has_the_base_offset_of_an_empty_group(tmp_path: Path) -> None:
    rows = [(START_MS, key.encode(), b"") for key in "abc"]
    segments = (Segment(0, (data_batch(0, rows),), NOW_MS), *(
        Segment(s.base_offset + 3, tuple(moved(b, 3) for b in s.batches), s.mtime_ms) for s in SEGMENTS[:1]
    ), Segment(9, (data_batch(9, rows),), NOW_MS))  # fmt: skip
    plan = plan_for(tmp_path, segments, max_log_bytes=300)
    plan = changed(plan, settings=replace(plan.policy.settings, segment_bytes=1))
    whole = compact(changed(plan, max_log_bytes=1 << 30, folder="whole"))
    done = assert_same_all_ways(plan)
    check_outgrown(done, whole, 300)
    assert done.result.log.segments[0].base_offset == 0
    assert all(row.size_bytes for row in done.result.log.segments)


def moved(batch: Batch, by: int) -> Batch:
    records = tuple(replace(r, offset=r.offset + by) for r in batch.records)
    return replace(
        batch, base_offset=batch.base_offset + by, last_offset=batch.last_offset + by, records=records
    ).encoded()


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(), st.integers(62, 900), st.booleans())
def test_output_of_random_logs_is_independent_of_segment_limits(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, limit: int, in_tasks: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as tmp:
        plan = plan_of_drawn(drawn, Path(tmp))
        whole = compact(changed(plan, folder="whole"))
        if whole.result.status != "cleaned":
            return
        limited = changed(plan, max_log_bytes=limit)
        done = assert_same_all_ways(limited) if in_tasks else compact(limited)
        check_outgrown(done, whole, limit)
