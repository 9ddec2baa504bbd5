"""`compaction.strategy`: records that stay by timestamp or header, against a plain twin of KIP-280's rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.udfs.compact.plan import Limits, PartitionPlan, Strategy
from tests.builders.folders import Archived, Outcome, compact, lay_out, make_plan
from tests.builders.plans import changed
from tests.builders.splits import assert_same, compact_in_blocks
from tests.builders.versions import NAME, NOW_MS, batch, drawn, long, record_version, twin
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import Record
from tests.reference.read_committed import committed_offsets


def by(plan: PartitionPlan, strategy: Strategy, **fields: object) -> PartitionPlan:
    header = NAME if strategy == "header" else ""
    settings = replace(plan.policy.settings, compaction_strategy=strategy, compaction_strategy_header=header)
    return changed(plan, settings=settings, **fields)


def plan_for(archived: Archived, store: Path) -> PartitionPlan:
    return make_plan(archived, store, Settings(), now_ms=NOW_MS, log_start_offset=0)


def kept(done: Outcome) -> list[Record]:
    """Return the data records of all segments except the active one."""
    assert done.result.status == "cleaned", done.result.problem
    return [r for s in done.segments()[:-1] for b in s.batches if not b.control for r in b.records]


WAYS: list[Callable[[PartitionPlan], Outcome]] = [compact, compact_in_blocks]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["timestamp", "header"])
@pytest.mark.parametrize("seed", range(25))
def test_strategy_keeps_the_highest_version_in_random_logs(seed: int, strategy: Strategy, tmp_path: Path) -> None:
    archived, batches = drawn(random.Random(seed), tmp_path / "archive")
    visible = set(committed_offsets(batches))
    records = [r for b in batches for r in b.records if r.offset in visible and r.key is not None]
    expected = twin(records, strategy)
    if strategy == "header" and all(record_version(r, strategy) < 0 for r in records):
        assert_without_versions(by(plan_for(archived, tmp_path), strategy))
        return
    plan = by(plan_for(archived, tmp_path), strategy)
    outcomes = [way(changed(plan, folder=way.__name__)) for way in WAYS]
    held = {r.offset: r for r in records}
    for done in outcomes:
        assert kept(done) == [held[offset] for offset in expected]  # unchanged, in the order of offsets
        assert outcomes[0].files() == done.files()
        assert outcomes[0].result.work.counters == done.result.work.counters
    again = done.as_archive(tmp_path / "again", snapshots=True)
    assert kept(compact(by(plan_for(again, tmp_path / "b"), strategy))) == kept(done)


def assert_without_versions(plan: PartitionPlan) -> None:
    for way in WAYS:
        problem = way(changed(plan, folder=way.__name__)).result.problem
        assert problem is not None and problem.kind == "version"
        assert "eight bytes" in str(problem)


def log(root: Path, *segments: list[tuple[int, bytes | None, bytes | None, tuple]]) -> Archived:
    out, offset = [], 0
    for records in (*segments, [(1, b"active", b"v", ())]):
        out.append(Segment(offset, (batch(offset, records),), NOW_MS))
        offset += len(records)
    return lay_out(root, out)


def test_header_without_any_record_is_noted(tmp_path: Path) -> None:
    archived = log(tmp_path / "archive", [(1, b"k", b"v", ((b"other", long(1)),)), (2, b"k", b"w", ())])
    done = compact(by(plan_for(archived, tmp_path), "header"))
    assert done.result.status == "uncleanable"
    assert done.result.problem is not None
    assert done.result.problem.expected == "a header 'version' of eight bytes, not negative, in some record"
    assert done.files() == {}


@pytest.mark.long
def test_more_keys_than_a_task_holds(tmp_path: Path) -> None:
    n = 700_000  # 32 bytes a key, and as much again while the table grows: half of 64 MiB holds 349,525
    records = [(1000 + i % 7, b"%d" % i, b"v", ()) for i in range(n // 20)]
    archived = log(tmp_path / "archive", *([records] * 2))
    plan = by(plan_for(archived, tmp_path), "timestamp")
    whole, tight = compact(plan), changed(plan, folder="tight", limits=Limits(task_memory_bytes=1 << 21))
    assert_same(whole, compact(tight))
    assert_same(whole, compact_in_blocks(changed(tight, folder="several")))


@pytest.mark.parametrize("way", WAYS)
def test_record_below_the_log_start_supersedes_no_record(way: Callable[..., Outcome], tmp_path: Path) -> None:
    """The record is below the log start, which DeleteRecords moved into the middle of a segment."""
    archived = log(tmp_path / "archive", [(9, b"k", b"deleted", ()), (3, b"k", b"low", ()), (3, b"l", b"v", ())])
    done = way(changed(by(plan_for(archived, tmp_path), "timestamp"), log_start_offset=1))
    assert done.result.log.log_start_offset == 1
    assert [r.value for r in kept(done) if r.offset >= 1] == [b"low", b"v"]


def test_version_header_of_a_record_without_a_key_is_ignored(tmp_path: Path) -> None:
    """COMPACTION.md says so, and several tasks do the same."""
    archived = log(
        tmp_path / "archive", [(1, None, b"n", ((NAME.encode(), long(1)),)), (1, b"k", b"v", ()), (1, b"k", b"w", ())]
    )
    assert_without_versions(by(plan_for(archived, tmp_path), "header"))
