"""The profile of a partition: against what a compaction says, against its slow twin, and by hand."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.udfs.compact.plan import Limits, PartitionPlan
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.report.partition_profile import (
    AGE_NAMES,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TimeBuckets,
    Times,
    join_times,
    shown_key,
)
from tests.builders.folders import archived_at, compact, golden_plan, make_plan
from tests.builders.logs import START_MS, write_partition
from tests.builders.plans import changed
from tests.builders.profiles import profile
from tests.golden import PASSES, case_names
from tests.reference.cleaner import Settings
from tests.reference.log import decode_log
from tests.reference.record_figures import profile as slow_profile

CASES = case_names()
OF_MAGIC_2 = [name for name in CASES if not name.startswith(("v0", "v1"))]  # cases that the slow reader can read


@pytest.mark.parametrize("name", CASES)
def test_live_and_dead_records_equal_those_of_a_dry_run(cases, name, tmp_path):
    case = cases[name]
    for partition in case.partitions:
        for number in PASSES:
            archived = archived_at(case.before(number, partition).parent, partition)
            plan = golden_plan(case, partition, number, archived, tmp_path / "store")
            plan = changed(plan, force=False, dry_run=True)
            result = compact(
                changed(plan, settings=replace(plan.policy.settings, min_cleanable_dirty_ratio=-1.0))
            ).result
            measured = profile(plan)
            assert (measured.dirty_ratio, measured.clean_bytes, measured.dirty_bytes) == (
                result.cleanable.ratio, result.cleanable.clean_bytes, result.cleanable.cleanable_bytes,
            )  # fmt: skip
            if result.status == "not_due":
                assert not any(s.cleaned for s in measured.segments)
                continue
            assert measured.counters == result.work.counters
            assert measured.total("bytes_after") == result.work.bytes_after
            assert measured.size_bytes == result.work.bytes_before
            assert measured.total("superseded") == result.work.counters["dropped_superseded"]
            assert measured.total("aborted") == result.work.counters["dropped_aborted"]


@pytest.mark.parametrize("name", OF_MAGIC_2)
def test_records_keys_and_times_equal_those_of_the_twin(cases, name, tmp_path):
    case = cases[name]
    for partition in case.partitions:
        archived = archived_at(case.input(partition).parent, partition)
        plan = golden_plan(case, partition, 1, archived, tmp_path / "store")
        measured = profile(changed(plan, limits=Limits(chunk_bytes=1 << 14)), compacted=False)
        logs = [decode_log((archived.root / s.path).read_bytes()[: s.size_bytes]) for s in plan.input.segments]
        figures, keys = slow_profile(logs)
        names = ("records", "null_keys", "control_records", "out_of_order", "max_lag_ms", "without_timestamp")
        for ours, theirs in zip(measured.segments, figures, strict=True):
            assert [getattr(ours, n) for n in names] == [getattr(theirs, n) for n in names]
            assert ours.dead_bytes == 0
            ends = (min(theirs.times, default=None), max(theirs.times, default=None))
            assert (ours.min_timestamp_ms, ours.max_timestamp_ms) == ends
            assert {n: c.stored_bytes for n, c in ours.codecs.items()} == theirs.stored
            assert {n: c.batches for n, c in ours.codecs.items()} == theirs.batches
        assert measured.distinct_keys == len(keys)
        most = sorted(keys.values(), reverse=True)[:20]
        assert [hot.records for hot in measured.hot_keys] == most
        for hot in measured.hot_keys:
            (key,) = [k for k in keys if hashlib.sha256(k).hexdigest()[:16] == hot.sha256]
            assert (keys[key], shown_key(key)) == (hot.records, hot.text)
        times = Counter(t for segment in figures for t in segment.times)
        if not times:
            assert measured.times is None
            continue
        by_bucket = Counter()
        for time, n in times.items():
            by_bucket[time // measured.times.width_ms - measured.times.first] += n
        assert {i: n for i, n in enumerate(measured.times.counts) if n} == by_bucket


def plan(tmp_path: Path, text: str, **given) -> PartitionPlan:
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", text)
    given = {"now_ms": START_MS + DAY_MS, "log_start_offset": 0, "force": False} | given
    return make_plan(archived_at(archive, "t-0"), tmp_path / "store", Settings(), **given)


def test_a_key_written_again_above_the_cleanable_range_supersedes_nothing_yet(tmp_path):
    text = "a=1 b=1 a=2 | c=- || a=3 d=4"
    open_ended = profile(plan(tmp_path, text))
    assert [(s.cleaned, s.superseded, s.live_records) for s in open_ended.segments] == [(True, 1, 3), (False, 0, 2)]
    assert open_ended.distinct_keys == 4
    assert [(k.text, k.records) for k in open_ended.hot_keys[:1]] == [("a", 3)]
    sealed = profile(changed(plan(tmp_path, text), sealed=True))
    assert [(s.cleaned, s.superseded) for s in sealed.segments] == [(True, 2), (True, 0)]
    plain = profile(plan(tmp_path, text), compacted=False)
    assert [(s.cleaned, s.dead_records, s.bytes_after) for s in plain.segments] == [
        (False, 0, s.size_bytes) for s in plain.segments
    ]


def test_keys_below_the_checkpoint_are_unique(tmp_path):
    text = "a=1 a=2 || b=1 a=3 || c=1"
    measured = profile(plan(tmp_path, text, checkpoint=2))
    assert [s.superseded for s in measured.segments] == [2, 0, 0]
    measured = profile(plan(tmp_path, "a=1 a=2 || b=1 b=2 || c=1", checkpoint=2))
    assert [s.superseded for s in measured.segments] == [0, 1, 0]
    assert measured.first_dirty_offset == 2 and 0 < measured.dirty_ratio < 1


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("limits", [{"retention_ms": DAY_MS - 1}, {"retention_bytes": 0}, {"retention_ms": 2 * DAY_MS}])
def test_retention_forecast_equals_the_run(tmp_path, compacted, limits):
    """The forecast is of the log as it is: nothing is cleaned here that is not due."""
    text = f"a=1~{START_MS - 5} b=1~{START_MS} || c=1~{START_MS} d=1~{START_MS} || e=1"
    run_plan = plan(tmp_path, text, min_dirty_ratio=1.0)
    run_plan = changed(run_plan, settings=replace(run_plan.policy.settings, **limits, compacts=compacted))
    measured, done = profile(run_plan, compacted=compacted), compact(run_plan)
    assert measured.expiring == done.result.log.expired
    assert bool(measured.expiring) == (limits.get("retention_ms") != 2 * DAY_MS)
    assert [s.dead_records for s in measured.segments] == [0, 0, 0]


def test_tombstones_by_age_and_horizon(tmp_path):
    hour = START_MS + DAY_MS - HOUR_MS
    horizon = START_MS + 2 * DAY_MS
    text = f"a=-~{hour - 1} b=-~{hour + 1} a0=-~-1 | {{horizon={horizon}}} c=-~{START_MS} c2=5 || d=- || e=1"
    measured = profile(plan(tmp_path, text))
    first = measured.segments[0]
    assert (first.tombstones, first.tombstones_with_horizon) == (4, 1)
    ages = dict(zip(AGE_NAMES, first.tombstone_ages, strict=True))
    assert ages == dict.fromkeys(AGE_NAMES, 0) | {"< 1 hour": 1, "< 1 day": 1, "< 7 days": 1, "no time": 1}
    late = profile(plan(tmp_path / "late", text, now_ms=horizon))
    assert (late.segments[0].tombstones, late.segments[0].expired_tombstones) == (4, 1)


def test_keyless_records_are_counted_as_live(tmp_path):
    text = "-=1 -=2 | -=3 || -=4"
    for options in ({"null_keys": "fail"}, {"null_keys": "keep"}):
        measured = profile(plan(tmp_path / options["null_keys"], text, **options))
        assert (measured.total("null_keys"), measured.total("dead_records"), measured.distinct_keys) == (4, 0, 0)
    assert profile(plan(tmp_path / "drop", text, null_keys="drop")).total("dead_records") == 3


def test_out_of_order_records_are_compared_with_all_earlier_ones(tmp_path):
    times = f"a=1~{START_MS + 50} b=1~{START_MS + 10} | c=1~{START_MS + 40} || d=1~{START_MS + 60} e=1~{START_MS}"
    measured = profile(changed(plan(tmp_path, times), limits=Limits(chunk_bytes=100)))
    assert [(s.out_of_order, s.max_lag_ms) for s in measured.segments] == [(2, 40), (1, 60)]


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_invalid_timestamp_makes_no_record_late(tmp_path, chunk_bytes):
    text = f"a=1~{START_MS} b=1~{2**62} | c=1~{START_MS + 9} || d=1~{START_MS + 5} | e=1~{START_MS + 5}"
    measured = profile(changed(plan(tmp_path, text), limits=Limits(chunk_bytes=chunk_bytes)))
    assert [(s.out_of_order, s.max_lag_ms, s.without_timestamp) for s in measured.segments] == [(0, 0, 1), (2, 4, 0)]


def test_damaged_partition_has_only_a_problem(tmp_path):
    made = plan(tmp_path, "a=1 a=2 || b=1")
    log = tmp_path / "archive" / made.input.segments[0].path
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    measured = profile_partition(ProfilePlan(made, True))
    assert measured.problem is not None and measured.problem.kind == "crc"
    assert measured.size_bytes == sum(s.size_bytes for s in made.input.segments) and not measured.segments


def test_more_keys_than_memory_is_a_problem_with_a_remedy(tmp_path):
    text = " | ".join(" ".join(f"k{i}-{j}=v" for j in range(1000)) for i in range(30))
    made = changed(plan(tmp_path, text), limits=Limits(task_memory_bytes=1 << 20))
    measured = profile_partition(ProfilePlan(made, True))
    assert measured.problem is not None and "task.memory.bytes" in str(measured.problem)
    assert profile(changed(made, limits=Limits())).distinct_keys == 30_000


def test_memory_depends_on_keys_and_not_on_records(tmp_path):
    text = " ".join(f"k{i % 50}=v" for i in range(30_000))
    made = plan(tmp_path, text + " || z=1")
    measured = profile(changed(made, limits=Limits(task_memory_bytes=1 << 20)))
    assert (measured.distinct_keys, measured.total("superseded")) == (51, 29_950)


def test_histogram_buckets_widen_to_cover_all_times():
    buckets = TimeBuckets()
    buckets.cover(10 * MINUTE_MS, 12 * MINUTE_MS)
    buckets.counts += [1, 2, 3]
    buckets.cover(0, 1000 * HOUR_MS)
    assert (buckets.width_ms, buckets.first, len(buckets.counts)) == (HOUR_MS, 0, 1001)
    assert buckets.counts[0] == 6
    buckets.cover(0, 253_402_300_799_999)
    assert buckets.counts.sum() == 6 and len(buckets.counts) <= 1024
    minutes, hours = Times(MINUTE_MS, 60, (1,) * 61), Times(HOUR_MS, 0, (5, 0, 7))
    assert join_times([minutes, None, hours]) == Times(HOUR_MS, 0, (5, 60, 8))
    assert join_times([None]) is None
    assert join_times([hours, minutes]) == join_times([minutes, hours])


def test_keys_are_shown_as_text_or_hex():
    assert shown_key(b"abc") == "abc"
    assert shown_key("Zürich".encode()) == "Zürich"
    assert shown_key(b"a\nb") == "0x610a62"
    assert shown_key(b"\xff") == "0xff"
    assert shown_key(b"0x61") == "0x30783631", "what looks like hex is no text"
    assert shown_key(bytes(65)) is None
