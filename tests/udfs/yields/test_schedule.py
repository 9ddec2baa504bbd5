"""Properties of a schedule by yield."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.udfs.yields.schedule import (
    FAN_IN,
    KEPT,
    MERGED,
    MUST,
    YIELD,
    ScheduleLimits,
    Segments,
    choose,
    estimate_cost,
)

NO_MERGING = 1  # byte: nothing fits


def segments(size: Any, dead_share: Any, must: Any = False) -> Segments:
    """Return segments of records of 100 bytes; what is given once holds for all."""
    size, dead_share, must = np.broadcast_arrays(size, dead_share, must)
    records = (size // 100).astype(np.int64)
    return Segments(records * 100, records, np.rint(records * dead_share).astype(np.int64), must)


LOGS = st.integers(1, 30).flatmap(
    lambda n: st.builds(
        segments,
        *(
            st.lists(each, min_size=n, max_size=n).map(np.array)
            for each in (st.integers(100, 10**9), st.floats(0, 1), st.booleans())
        ),
    )
)
POLICIES = st.builds(
    ScheduleLimits,
    min_yield=st.sampled_from([0.0, 0.2, 1.0]),
    io_budget_bytes=st.none() | st.integers(0, 10**10),
    segment_bytes=st.sampled_from([NO_MERGING, 10**6, 2**30]),
)


@given(LOGS, POLICIES)
def test_mandatory_rewrites_do_not_consume_the_budget(log: Segments, policy: ScheduleLimits) -> None:
    schedule = choose(log, policy)
    assert ((schedule.reason == MUST) == log.must).all()
    cost = estimate_cost(log.size_bytes)
    if policy.io_budget_bytes is not None:
        moved, all_moved = (int(cost[of].sum()) for of in (log.must, schedule.reason != KEPT))
        assert all_moved <= max(policy.io_budget_bytes, moved)
    else:
        worth = (log.dead_share() >= policy.min_yield) & (log.dead_records > 0) & ~log.must
        assert ((schedule.reason == YIELD) == worth).all()
    paid = schedule.reason == YIELD
    assert (log.dead_share()[paid] >= policy.min_yield).all()


@given(LOGS, POLICIES)
def test_segments_without_dead_records_have_no_yield(log: Segments, policy: ScheduleLimits) -> None:
    none = np.zeros(len(log.records), np.int64)
    schedule = choose(Segments(log.size_bytes, log.records, none, none > 0), policy)
    assert not (schedule.reason == YIELD).any()
    if len(log.records) < FAN_IN:
        assert not (schedule.reason != KEPT).any()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), POLICIES)
def test_segments_with_more_dead_records_are_first(shares: list[float], policy: ScheduleLimits) -> None:
    log = segments(10**6, np.array(shares))
    selected = choose(log, policy).reason == YIELD
    if selected.any() and not selected.all():
        assert log.dead_records[selected].min() >= log.dead_records[~selected].max()


@given(LOGS, POLICIES)
def test_outputs_are_adjacent_segments_that_fit_into_one(log: Segments, policy: ScheduleLimits) -> None:
    schedule = choose(log, policy)
    live = log.size_bytes * (1 - log.dead_share())
    assert ((schedule.output >= 0) == (schedule.reason != KEPT)).all()
    for number in range(schedule.output.max() + 1):
        members = np.flatnonzero(schedule.output == number)
        assert (np.diff(members) == 1).all()
        assert len(members) == 1 or live[members].sum() <= policy.segment_bytes


def test_small_adjacent_segments_are_merged_and_large_ones_are_kept() -> None:
    policy = ScheduleLimits(segment_bytes=10**6)
    large, small = [10**6] * 3, [10**4] * FAN_IN
    assert not choose(segments(np.array(large + small[1:]), 0.0), policy).reason.any()
    schedule = choose(segments(np.array(large + small + large), 0.0), policy)
    assert schedule.reason.tolist() == [KEPT] * 3 + [MERGED] * FAN_IN + [KEPT] * 3
    assert schedule.output.tolist() == [-1] * 3 + [0] * FAN_IN + [-1] * 3


def test_each_byte_is_merged_a_logarithmic_number_of_times() -> None:
    """500 segments of 1 KB come one by one, and none of their records dies."""
    policy, sizes, moved, most = ScheduleLimits(segment_bytes=10**6), [], 0, 0
    for _ in range(500):
        sizes.append(1000)
        schedule = choose(segments(np.array(sizes), 0.0), policy)
        kept = [size for size, number in zip(sizes, schedule.output, strict=True) if number < 0]
        moved += sum(sizes) - sum(kept)
        if len(kept) < len(sizes):
            first = int(np.flatnonzero(schedule.output >= 0)[0])
            sizes = [*sizes[:first], sum(sizes) - sum(kept), *kept[first:]]
        most = max(most, len(sizes))
    assert moved <= 500_000 * np.log(500) / np.log(FAN_IN)
    assert most <= FAN_IN * 4


@pytest.mark.parametrize(("budget", "reason"), [(None, [YIELD, YIELD]), (10**7, [KEPT, YIELD]), (10**6, [KEPT, KEPT])])
def test_segment_above_the_budget_does_not_delay_others(budget: int | None, reason: list[int]) -> None:
    log = segments(np.array([10**9, 10**6]), np.array([0.9, 0.6]))
    assert choose(log, ScheduleLimits(io_budget_bytes=budget, segment_bytes=NO_MERGING)).reason.tolist() == reason
