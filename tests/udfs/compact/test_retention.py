"""The segments that retention removes: the rules against a plain twin of Kafka's walk, and whole partitions in one
task.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.udfs.compact.cleaner import SegmentTimes, expired_segments
from lastkey.udfs.compact.plan import PartitionPlan
from tests.builders.damage import build
from tests.builders.folders import Archived, archived_at, compact, golden_plan
from tests.builders.plans import changed
from tests.golden import Case
from tests.reference.log import decode_log

NOW_MS = 1_000_000


@st.composite
def logs(draw):
    """Draw a log: ([(base, size, largest timestamp, mtime)], log start)."""
    n = draw(st.integers(1, 6))
    bases = sorted(draw(st.lists(st.integers(0, 50), min_size=n, max_size=n, unique=True)))
    ages = st.integers(-5, 20)
    rows = [
        (b, draw(st.integers(0, 10)), draw(st.sampled_from([-1, NOW_MS - draw(ages)])), NOW_MS - draw(ages))
        for b in bases
    ]
    return rows, draw(st.integers(bases[0], 60))


def twin(rows, log_start, retention_ms, retention_bytes, last_may_go, above):
    """Count the removed segments as UnifiedLog.deleteOldSegments does, segment by segment; Kafka's own last segment
    goes only if nothing appends to it.
    """
    if retention_ms < 0 and retention_bytes < 0:
        return {"log_start": 0, "size": 0, "time": 0}  # ours: a compaction alone leaves segments below the log start
    left, out = list(rows), {}

    def walk(reason, rule):
        out[reason] = 0
        while left:
            following = left[1] if len(left) > 1 else None
            last_and_empty = following is None and left[0][1] == 0
            if (following is None and not last_may_go) or last_and_empty or not rule(left[0], following):
                return
            left.pop(0)
            out[reason] += 1

    walk("log_start", lambda _, following: following is not None and following[0] <= log_start)
    too_much = sum(row[1] for row in left) + above - retention_bytes  # no segment above the high watermark goes

    def by_size(row, _):
        nonlocal too_much
        if retention_bytes < 0 or too_much - row[1] < 0:
            return False
        too_much -= row[1]
        return True

    if too_much < 0:
        out["size"] = 0
    else:
        walk("size", by_size)
    walk("time", lambda row, _: retention_ms >= 0 and NOW_MS - (row[2] if row[2] >= 0 else row[3]) > retention_ms)
    return out


def segment_times(rows, above) -> SegmentTimes:
    base, size, largest, mtime = np.array(rows, np.int64).T
    return SegmentTimes(base, size, largest, largest, mtime, above)


@given(logs(), st.integers(-1, 20), st.integers(-1, 40), st.booleans(), st.sampled_from([0, 3, 17]))
def test_expired_segments_equal_those_of_kafka(log, retention_ms, retention_bytes, last_may_go, above):
    last_may_go = last_may_go and not above
    rows, log_start = log
    limits = {"retention_ms": retention_ms, "retention_bytes": retention_bytes, "last_may_go": last_may_go}
    arguments = {"log_start_offset": log_start, "now_ms": NOW_MS, **limits}
    expected = twin(rows, log_start, retention_ms, retention_bytes, last_may_go, above)
    assert expired_segments(segment_times(rows, above), **arguments) == expected
    rows = [*rows, (100, above, NOW_MS, NOW_MS)] if above else rows  # as in the listing
    by_first = expired_segments(segment_times(rows, 0).with_young_rest(), **arguments)
    may = any(by_first.values())
    assert may == any(expected.values()) or (above and may)  # the function does not know the high watermark
    larger = [rows[0], *((r[0], r[1] + 5, *r[2:]) for r in rows[1:])]  # listed sizes of segments that are read in part
    by_first = expired_segments(segment_times(larger, 0).with_young_rest(), **arguments)
    assert any(by_first.values()) or not any(expected.values())


# -- whole partitions


@pytest.mark.parametrize("zeros", [0, 1000])
@pytest.mark.parametrize("watermark", [24, 30, 36, 40])
def test_bytes_above_the_high_watermark_count_for_retention(tmp_path, watermark, zeros):
    """Each of four segments holds twelve offsets. The last may be preallocated: bytes outside of batches do not
    count.
    """
    part = build(tmp_path / "archive")
    sizes = [part.log(base).stat().st_size for base in (0, 12, 24, 36)]
    with part.log(36).open("ab") as log:
        log.write(bytes(zeros))
    plan = part.plan()
    for limit, removed in ((sum(sizes[1:]), 1), (sum(sizes[1:]) + 1, 0), (sizes[3], 2 if watermark < 36 else 3)):
        settings = replace(plan.policy.settings, compacts=False, retention_bytes=limit)
        done = compact(changed(plan, high_watermark=watermark, settings=settings, folder=f"{limit}")).result
        assert sum(entry.segments for entry in done.log.expired) == removed
        assert [entry.bytes_above for entry in done.log.expired] == [
            sum(sizes) - sum(sizes[:removed]) - sum(s.size_bytes for s in done.log.segments)
        ][: len(done.log.expired)]


@pytest.fixture(scope="module")
def case(cases) -> Case:
    return cases["none-tomb"]


def plan_for(case: Case, store: Path, archived: Archived | None = None, **settings) -> PartitionPlan:
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived or archived_at(case.folder / "input", partition), store)
    return changed(plan, settings=replace(plan.policy.settings, compacts=False, **settings))


def largest_timestamps(plan: PartitionPlan) -> list[int]:
    return [max(b.max_timestamp for b in decode_log((Path(s.root) / s.path).read_bytes())) for s in plan.input.segments]


def test_retention_by_time_references_whole_archive_segments(case, tmp_path):
    plan = plan_for(case, tmp_path)
    n, largest = len(plan.input.segments), largest_timestamps(plan)
    assert n > 3
    plan = plan_for(
        case, tmp_path, retention_ms=plan.run.now_ms - largest[1] - 1
    )  # the second is past by a millisecond
    done = compact(plan)
    bases = [s.base_offset for s in plan.input.segments]
    assert [s.base_offset for s in done.result.log.segments] == bases[2:]
    assert {s.root for s in done.result.log.segments} == {"archive"}
    [removed] = done.result.log.expired
    assert (removed.reason, removed.until, removed.segments) == ("time", bases[2], 2)
    assert removed.bytes == sum(s.size_bytes for s in plan.input.segments[:2])
    assert (done.result.log.log_start_offset, done.result.log.first_dirty_offset) == (bases[2], bases[2])
    assert not any(name.endswith(".log") for name in done.files())
    assert f"{bases[2]:020d}.snapshot" not in done.files() and f"{bases[3]:020d}.snapshot" in done.files()
    assert not done.result.log.compacted


def test_segment_exactly_as_old_as_the_limit_is_kept(case, tmp_path):
    plan = plan_for(case, tmp_path)
    plan = plan_for(case, tmp_path, retention_ms=plan.run.now_ms - largest_timestamps(plan)[0])
    assert compact(plan).result.status == "not_due"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sealed", [False, True])
def test_last_segment_expires_only_without_further_appends(case, tmp_path, sealed):
    plan = changed(plan_for(case, tmp_path, retention_ms=0), sealed=sealed, now_ms=2**45)
    done = compact(plan)
    [segment] = done.result.log.segments
    if sealed:
        assert (segment.base_offset, segment.size_bytes, segment.root) == (done.result.log.next_offset, 0, "store")
        assert done.result.log.log_start_offset == done.result.log.next_offset
        assert done.path(0).read_bytes() == b""
    else:
        assert segment.base_offset == plan.input.segments[-1].base_offset
        assert segment.root == "archive"


def test_retention_by_size_precedes_retention_by_time(case, tmp_path):
    plan = plan_for(case, tmp_path)
    sizes, largest = [s.size_bytes for s in plan.input.segments], largest_timestamps(plan)
    limits = {"retention_bytes": sum(sizes[1:]), "retention_ms": plan.run.now_ms - largest[2] - 1}
    done = compact(plan_for(case, tmp_path, **limits))
    assert [(entry.reason, entry.segments) for entry in done.result.log.expired] == [("size", 1), ("time", 2)]
    assert [s.base_offset for s in done.result.log.segments] == [s.base_offset for s in plan.input.segments[3:]]
    again = compact(plan_for(case, tmp_path / "b", retention_bytes=sum(sizes[1:]) + 1))
    assert again.result.status == "not_due"  # less would be left than the setting says


def test_segments_below_the_log_start_are_removed(case, tmp_path):
    plan = plan_for(case, tmp_path, retention_bytes=2**62)
    start = plan.input.segments[2].base_offset + 1
    done = compact(changed(plan, log_start_offset=start, log_start_checkpoint=start))
    assert [(entry.reason, entry.segments) for entry in done.result.log.expired] == [("log_start", 2)]
    assert done.result.log.segments[0].base_offset == plan.input.segments[2].base_offset
    assert done.result.log.log_start_offset == start


def test_retention_applies_after_cleaning(case, tmp_path):
    """Clean first, then apply retention to the cleaned segments, as a broker does."""
    plan = plan_for(case, tmp_path)
    both = changed(plan, force=True, settings=replace(plan.policy.settings, compacts=True))
    cleaned = compact(changed(both, folder="cleaned")).result.log.segments
    assert len([s for s in cleaned if s.cleaned]) > 1
    limit = plan.run.now_ms - cleaned[0].max_timestamp_ms - 1
    done = compact(changed(both, settings=replace(both.policy.settings, retention_ms=limit)))
    assert [s.base_offset for s in done.result.log.segments] == [s.base_offset for s in cleaned[1:]]
    assert [s.checksum for s in done.result.log.segments] == [s.checksum for s in cleaned[1:]]
    [removed] = done.result.log.expired
    assert (removed.segments, removed.records, removed.bytes) == (1, cleaned[0].records, cleaned[0].size_bytes)
    assert f"{cleaned[0].base_offset:020d}.log" not in done.files()
    dry = compact(changed(both, dry_run=True, folder="dry", settings=replace(both.policy.settings, retention_ms=limit)))
    assert dry.result.log.expired == done.result.log.expired and not (tmp_path / "dry").exists()


def test_damaged_segment_is_a_problem_even_if_expired(case, tmp_path):
    """Read a segment before removing it: times in a damaged file cannot be trusted."""
    root = tmp_path / "archive"
    partition = case.partitions[0]
    shutil.copytree(case.input(partition), root / partition)
    first = min((root / partition).glob("*.log"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    plan = plan_for(case, tmp_path, archived_at(root, partition), retention_ms=0)
    assert compact(plan).result.status == "uncleanable"
