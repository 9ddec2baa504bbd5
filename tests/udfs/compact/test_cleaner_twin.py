"""Any log that we compact equals the result of the slow twin of Kafka's cleaner: by batches and by records.

Logs are drawn as lists of events (a batch, a marker, a new segment, a gap). A broker could have written each of them:
offsets rise, producers open and close their transactions. Each is compacted several times with the clock moved, from
files alone or with snapshots and transaction indexes beside them.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, event, example, given, note, settings

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.udfs.compact.plan import Limits
from tests.builders.drawn import NOW, Drawn, logs
from tests.builders.folders import Outcome, compact, lay_out, load, log_end, make_plan, survivors
from tests.builders.plans import changed
from tests.reference.cleaner import AbortedTxn, Cleaned, Segment, Settings, clean, group_segments_by_size
from tests.reference.log import ABORT, COMMIT, NONE, Batch, Record, data_batch, marker_batch
from tests.reference.producer_state import State


def check_equal(expected: Cleaned, ours: Outcome, originals: list[Batch]) -> None:
    """Assert that both have the same batches, each with the same bytes if it is copied or not compressed."""
    assert ours.result.problem is None
    assert ours.result.log.first_dirty_offset == expected.range.first_uncleanable_offset
    assert (ours.result.cleanable.clean_bytes, ours.result.cleanable.cleanable_bytes) == (
        expected.range.clean_bytes,
        expected.range.cleanable_bytes,
    )
    # do not read untouched segments again, which may have magic 0 and 1; an empty one is a file of ours
    kept = ours.result.log.segments[expected.n_cleaned :]
    untouched = expected.segments[expected.n_cleaned :]
    assert [(s.base_offset, s.size_bytes) for s in kept] == [(s.base_offset, s.size) for s in untouched]
    assert not any(s.cleaned and s.size_bytes for s in kept)
    assert [s.cleaned for s in ours.result.log.segments] == sorted(
        (s.cleaned for s in ours.result.log.segments), reverse=True
    )
    got = cleaned_segments(ours)[: expected.n_cleaned]
    for theirs, mine in zip(expected.segments[: expected.n_cleaned], got, strict=True):
        assert mine.base_offset == theirs.base_offset
        assert mine.mtime_ms == theirs.mtime_ms
        assert list(mine.batches) == list(theirs.batches)
    copied = {b.data for b in originals}
    for theirs, mine in zip(survivors(expected.segments[: expected.n_cleaned]), survivors(got), strict=True):
        if theirs.codec == NONE or theirs.data in copied:
            assert mine.data == theirs.data
    assert ours.aborted() == expected.aborted


def cleaned_segments(ours: Outcome) -> list[Segment]:
    n = sum(s.cleaned for s in ours.result.log.segments)
    return Outcome(
        replace(ours.result, log=replace(ours.result.log, segments=ours.result.log.segments[:n])), ours.plan
    ).segments()


def fate(batches: list[Batch]) -> list[str]:
    """Return for each batch, by the next marker of its producer: committed, aborted or open."""
    out = []
    for i, b in enumerate(batches):
        later = (o.marker for o in batches[i + 1 :] if o.producer_id == b.producer_id and o.marker is not None)
        marker = next(later, None) if b.transactional and not b.control else COMMIT
        out.append("open" if marker is None else "aborted" if marker == ABORT else "committed")
    return out


def check_invariants(before: tuple[Segment, ...], ours: Outcome, drawn: Drawn, now_ms: int) -> None:
    """Assert guarantees 1 to 3 of the compaction from the batches before and after alone."""
    end = ours.result.log.first_dirty_offset
    old = [(b, f, s) for s in before for b, f in zip(s.batches, ["?"] * len(s.batches), strict=True)]
    fates = fate([b for b, _, _ in old])
    cleaned = [b for s in cleaned_segments(ours) for b in s.batches]
    after = {r.offset: (b, r) for b in cleaned for r in b.records}
    last: dict[bytes, tuple[Batch, Record]] = {}
    originals = {}
    for (batch, _, _), what in zip(old, fates, strict=True):
        for record in batch.records:
            originals[record.offset] = (batch, record)
            if not batch.control and record.key is not None and what == "committed" and record.offset < end:
                last[record.key] = (batch, record)
    for batch, record in last.values():  # 1
        horizon = batch.delete_horizon
        may_go = record.value is None and (batch.magic < 2 or (horizon is not None and horizon <= now_ms))
        assert record.offset in after or may_go
    for offset, (batch, record) in after.items():  # 2
        was, original = originals[offset]
        assert record == original
        ids = (
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "leader_epoch",
            "append_time",
            "transactional",
            "control",
        )
        assert [getattr(batch, i) for i in ids] == [getattr(was, i) for i in ids]
        if was.magic == 2:
            assert (batch.base_offset, batch.last_offset) == (was.base_offset, was.last_offset)
    assert list(after) == sorted(after)
    # 3
    assert ours.result.log.log_start_offset == drawn.log_start_offset
    assert ours.result.log.next_offset == log_end(before)
    if any(b.last_offset + 1 == end for b, _, _ in old):
        assert cleaned and cleaned[-1].last_offset + 1 == end
    assert ours.result.log.segments[0].base_offset == before[0].base_offset


def run_passes(drawn: Drawn, tmp: Path) -> None:
    archived = lay_out(tmp / "archive0", drawn.segments)
    segments = drawn.segments
    log = load(segments, drawn.log_start_offset, sealed=drawn.sealed)
    checkpoints = [drawn.checkpoint, *drawn.later_checkpoints]
    for number, (now_ms, checkpoint) in enumerate(zip(drawn.times, checkpoints, strict=True)):
        plan = make_plan(
            archived, tmp / f"store{number}", drawn.settings, now_ms=now_ms, log_start_offset=drawn.log_start_offset,
            checkpoint=checkpoint, sealed=drawn.sealed, force=checkpoint is None, null_keys=drawn.null_keys,
        )  # fmt: skip
        expected = clean(log, drawn.settings, checkpoint, now_ms)
        ours = compact(plan)
        note(f"pass {number}: {ours.result.status} {ours.result.problem}")
        event(ours.result.status)
        if ours.result.status == "not_due":
            assert (
                expected.range.cleanable_bytes == 0
                or expected.range.first_uncleanable_offset == segments[0].base_offset
            )
            return
        if ours.result.status == "uncleanable":
            assert ours.result.problem is not None
            assert ours.result.problem.kind == "null_key"
            assert drawn.null_keys == "fail"
            assert any(r.key is None for b in survivors(segments) if not b.control for r in b.records)
            return
        if not survivors(segments):  # kept as it is: nothing in it could become due
            assert (expected.range.cleanable_bytes, ours.result.log.next_offset) == (0, log_end(segments))
            assert [(s.base_offset, s.size_bytes) for s in ours.result.log.segments] == [
                (s.base_offset, 0) for s in segments
            ]
            return
        check_equal(expected, ours, survivors(segments))
        check_invariants(segments, ours, drawn, now_ms)
        check_hostile(ours)
        if number == 0 and checkpoint is None:
            check_settled(drawn, ours, tmp)
        # equal, except for rebuilt batches that another gzip compressed
        segments = (*cleaned_segments(ours)[: expected.n_cleaned], *expected.segments[expected.n_cleaned :])
        archived = ours.as_archive(tmp / f"archive{number + 1}", snapshots=drawn.with_snapshots)
        producers = None
        if drawn.with_snapshots and number + 1 < len(drawn.times):
            producers = State()
            entries = [(pid, *entry) for pid, entry in log.producers.entries().items()]
            producers.load(entries, drawn.times[number + 1], 86_400_000)
        log = load(segments, drawn.log_start_offset, sealed=drawn.sealed, aborted=expected.aborted, producers=producers)


def check_hostile(ours: Outcome) -> None:
    """Assert that the same files result if every buffer is tiny and every piece goes to a temporary file."""
    for chunk_bytes, soft_bytes in ((64, 1), (300, 60)):
        limits = Limits(chunk_bytes=chunk_bytes, task_memory_bytes=0)
        plan = changed(ours.plan, limits=limits, folder=f"hostile{chunk_bytes}")
        with mock.patch("lastkey.udfs.compact.plan.BodyLoader", functools.partial(BodyLoader, soft_bytes=soft_bytes)):
            again = compact(plan)
        assert again.result.status == "cleaned", again.result.problem
        assert again.files() == ours.files()
        assert again.result.work.counters == ours.result.work.counters


def check_settled(drawn: Drawn, ours: Outcome, tmp: Path) -> None:
    """Assert guarantee 4: without transactions, cleaning again at the same time keeps the same batches.

    Use the log alone: producers from a snapshot expire when it is loaded, in a broker too, and their empty batches go.
    """
    if any(b.control or b.transactional for b in survivors(drawn.segments)):
        return
    archived = ours.as_archive(tmp / "settled-archive", snapshots=False)
    plan = changed(
        ours.plan, store_uri=str(tmp / "settled"), segments=tuple(archived.segments),
        snapshots=tuple(archived.snapshots), txn_indexes=tuple(archived.txn_indexes),
    )  # fmt: skip
    again = compact(plan)
    if again.result.status == "not_due":
        return
    assert again.result.status == "cleaned"
    n = sum(s.cleaned for s in again.result.log.segments)
    batches = [b.data for s in cleaned_segments(again) for b in s.batches]
    assert batches == [b.data for b in survivors(cleaned_segments(ours))][: len(batches)]
    assert n or not batches


# The last segment was just rolled, and the batch that holds its place has no record
EMPTY_BEHIND = Drawn(
    segments=(Segment(2, (Batch(2, 2, (), base_timestamp=-1, max_timestamp=NOW).encoded(),), NOW), Segment(4, (), NOW)),
    settings=Settings(delete_retention_ms=1000, segment_bytes=150, index_interval_bytes=0, keep_null_keys=True),
    log_start_offset=0, checkpoint=None, sealed=False, null_keys="keep", times=[NOW], later_checkpoints=[],
    with_snapshots=False,
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@example(EMPTY_BEHIND)
@given(logs())
def test_random_log_is_cleaned_as_by_the_twin(tmp_path_factory: pytest.TempPathFactory, drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as tmp:
        run_passes(drawn, Path(tmp))


def test_index_entry_is_kept_in_a_segment_that_is_not_cleaned(tmp_path: Path) -> None:
    """Only the marker of the transaction remains, in the active segment, where a broker keeps the entry."""
    segments = (
        Segment(0, (data_batch(0, [(5, b"a", b"1")], producer_id=1, producer_epoch=0, base_sequence=0,
                               transactional=True), data_batch(1, [(5, b"b", b"1")])), NOW),
        Segment(2, (marker_batch(2, 1, ABORT, timestamp=5),
                    data_batch(3, [(5, b"c", b"1")], producer_id=1, producer_epoch=0, base_sequence=1)), NOW),
    )  # fmt: skip
    archived = lay_out(tmp_path / "archive", segments)
    for number in range(3):
        plan = make_plan(archived, tmp_path / f"store{number}", Settings(), now_ms=NOW, log_start_offset=0)
        ours = compact(plan)
        assert [b.base_offset for b in survivors(ours.segments())] == [1, 2, 3]
        assert ours.aborted() == (AbortedTxn(1, 0, 2, 3),)
        archived = ours.as_archive(tmp_path / f"archive{number}", snapshots=False)


def test_twin_groups_segments_by_size() -> None:
    """Test the twin itself: a group ends before the segment that would make it too large."""
    one = Batch(0, 0, (Record(0, 5, b"k", b"v"),), base_timestamp=5, max_timestamp=5).encoded()
    segments = [Segment(i, (replace(one, base_offset=i, last_offset=i),), 0) for i in range(5)]
    groups = group_segments_by_size(segments, Settings(segment_bytes=2 * len(one.data)), 5)
    assert [[s.base_offset for s in g] for g in groups] == [[0, 1], [2, 3], [4]]
