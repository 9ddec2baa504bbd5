"""Properties of a schedule by yield, and its table of deaths by age."""

from __future__ import annotations

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
    Policy,
    Segments,
    choose,
    pace,
)
from lastkey.udfs.yields.yield_table import AGES, OLDEST, Yields, hazards, no_yields, record_yields

GENERATIONAL = Yields(
    np.full(AGES, 1e5), 1e5 * np.r_[0.7, 0.25, 0.04, 0.008, np.full(AGES - 4, 0.005)], 1e6, 4e5
)  # most die in their first run
ALIKE = Yields(np.full(AGES, 1e5), np.full(AGES, 5e3), 1e6, 9.7e5)
NO_MERGING = 1  # byte: nothing fits


def segments(size, dead_share, age, must=False, unread=0.0) -> Segments:
    """Return segments of records of 100 bytes; what is given once holds for all."""
    size, dead_share, age, must, unread = np.broadcast_arrays(size, dead_share, age, must, unread)
    records = size // 100
    return Segments(
        records * 100, records.astype(np.int64), records * dead_share, age.astype(float), must, unread.astype(float)
    )


LOGS = st.integers(1, 30).flatmap(
    lambda n: st.builds(
        segments,
        *(
            st.lists(each, min_size=n, max_size=n).map(np.array)
            for each in (
                st.integers(100, 10**9), st.floats(0, 1), st.integers(0, 80), st.booleans(), st.floats(0, 1e7),
            )
        ),
    )
)  # fmt: skip
POLICIES = st.builds(
    Policy,
    price=st.floats(0.001, 100),
    min_yield=st.sampled_from([0.0, 0.2]),
    io_budget_bytes=st.none() | st.integers(0, 10**10),
    segment_bytes=st.sampled_from([NO_MERGING, 10**6, 2**30]),
    reads=st.integers(1, 2),
)
TABLES = st.sampled_from([GENERATIONAL, ALIKE, no_yields()])


@given(LOGS, TABLES, POLICIES)
def test_what_must_is_rewritten_and_the_budget_kept_for_the_rest(log, yields, policy):
    schedule = choose(log, yields, policy)
    assert ((schedule.reason == MUST) == log.must).all()
    live = log.size_bytes - log.dead_bytes()
    rest = (schedule.reason == YIELD) | (schedule.reason == MERGED)
    if policy.io_budget_bytes is not None:
        moved, all_moved = (
            policy.reads * log.size_bytes[of].sum() + policy.writes * live[of].sum()
            for of in (log.must, schedule.reason != KEPT)
        )
        assert all_moved * (1 - 1e-9) <= max(policy.io_budget_bytes, moved)
        assert moved <= policy.io_budget_bytes or not rest.any()
    paid = schedule.reason == YIELD
    assert (log.dead_bytes()[paid] >= policy.min_yield * log.size_bytes[paid]).all()


@given(LOGS, TABLES, POLICIES)
def test_nothing_is_gained_where_nothing_is_dead(log, yields, policy):
    clean = Segments(
        log.size_bytes,
        log.records,
        np.zeros(len(log.records)),
        log.age,
        np.zeros(len(log.must), bool),
        log.unread_bytes,
    )
    schedule = choose(clean, yields, policy)
    assert not (schedule.reason == YIELD).any()
    if len(log.records) < FAN_IN:
        assert not (schedule.reason != KEPT).any()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 80), TABLES, POLICIES)
def test_of_equal_segments_those_with_more_dead_go_first(shares, age, yields, policy):
    log = segments(10**6, np.array(shares), age)
    schedule = choose(log, yields, policy)
    taken = schedule.reason == YIELD
    if taken.any() and not taken.all():
        assert log.dead_records[taken].min() >= log.dead_records[~taken].max()
    order = np.argsort(log.dead_records)
    assert (np.diff(schedule.gain[order]) >= -1e-6 * 10**6).all()


@given(LOGS, TABLES, POLICIES)
def test_outputs_are_neighbours_that_fit_into_one_segment(log, yields, policy):
    schedule = choose(log, yields, policy)
    live = log.size_bytes - log.dead_bytes()
    assert ((schedule.output >= 0) == (schedule.reason != KEPT)).all()
    for number in range(schedule.output.max() + 1):
        members = np.flatnonzero(schedule.output == number)
        assert (np.diff(members) == 1).all()
        assert len(members) == 1 or live[members].sum() <= policy.segment_bytes


def test_a_young_segment_waits_until_its_deaths_slow_down():
    """A third is dead, and most of the rest will be tomorrow; of an old one no more will die soon."""
    young, old = segments(10**6, 0.3, [0]), segments(10**6, 0.3, [OLDEST])
    policy = Policy(price=1.0, segment_bytes=NO_MERGING)
    assert choose(young, GENERATIONAL, policy).reason.tolist() == [KEPT]
    assert choose(old, GENERATIONAL, policy).reason.tolist() == [YIELD]
    # where all die alike age says nothing
    gains = [choose(log, ALIKE, policy).gain[0] for log in (young, old)]
    assert gains[0] == pytest.approx(gains[1])


def test_a_higher_price_leaves_less_dead():
    log = segments(10**6, np.linspace(0, 1, 50), OLDEST)
    policies = [Policy(price=p, segment_bytes=NO_MERGING) for p in (0.01, 0.1, 1, 10)]
    freed = [log.dead_bytes()[choose(log, GENERATIONAL, policy).reason != KEPT].sum() for policy in policies]
    assert freed == sorted(freed)
    assert freed[0] < freed[-1]


def test_rewrites_with_a_constant_hazard_are_as_far_apart_as_theory_says():
    """With few deaths the best cycle has sqrt(2 * (reads + 1) / (price * hazard)) runs: half is waste, half is I/O."""
    hazard, policy = 0.0005, Policy(price=0.5, segment_bytes=NO_MERGING)
    yields = Yields(np.full(AGES, 1e6), np.full(AGES, 1e6 * hazard), 1.0, 1.0)
    runs = np.arange(1, 400)
    log = segments(10**8, 1 - (1 - hazard) ** runs, OLDEST)
    first = runs[choose(log, yields, policy).reason == YIELD][0]
    assert first == pytest.approx(np.sqrt(2 * 3 / (0.5 * hazard)), rel=0.1)


def test_segments_wait_for_others_that_need_the_same_key_files():
    policy = Policy(price=1.0, segment_bytes=NO_MERGING)
    shares = np.full(20, 0.3)
    gain = choose(segments(10**6, shares, OLDEST), GENERATIONAL, policy).gain[0]
    lost = gain**2 / (2 * 0.7e6 * 0.005)
    unread = 10 * lost
    assert not choose(segments(10**6, shares[:9], OLDEST, unread=unread), GENERATIONAL, policy).reason.any()
    assert choose(segments(10**6, shares[:11], OLDEST, unread=unread), GENERATIONAL, policy).reason.all()
    # one that must be rewritten brings the files for all
    must = np.arange(9) == 4
    assert choose(segments(10**6, shares[:9], OLDEST, must, unread), GENERATIONAL, policy).reason.all()


def test_small_neighbours_become_one_and_large_ones_stay():
    policy = Policy(price=1.0, segment_bytes=10**6)
    large, small = [10**6] * 3, [10**4] * FAN_IN
    assert not choose(segments(np.array(large + small[1:]), 0.0, OLDEST), GENERATIONAL, policy).reason.any()
    schedule = choose(segments(np.array(large + small + large), 0.0, OLDEST), GENERATIONAL, policy)
    assert schedule.reason.tolist() == [KEPT] * 3 + [MERGED] * FAN_IN + [KEPT] * 3
    assert schedule.output.tolist() == [-1] * 3 + [0] * FAN_IN + [-1] * 3


def test_each_byte_is_merged_a_logarithmic_number_of_times():
    """500 segments of 1 KB come one by one, and none of their records dies."""
    policy, sizes, moved, most = Policy(price=1.0, segment_bytes=10**6, writes=1), [], 0, 0
    for _ in range(500):
        sizes.append(1000)
        schedule = choose(segments(np.array(sizes), 0.0, OLDEST), GENERATIONAL, policy)
        kept = [size for size, number in zip(sizes, schedule.output, strict=True) if number < 0]
        moved += sum(sizes) - sum(kept)
        if len(kept) < len(sizes):
            first = int(np.flatnonzero(schedule.output >= 0)[0])
            sizes = [*sizes[:first], sum(sizes) - sum(kept), *kept[first:]]
        most = max(most, len(sizes))
    assert moved <= 500_000 * np.log(500) / np.log(FAN_IN)
    assert most <= FAN_IN * 4


def test_a_store_without_history_runs_by_yield_to_learn():
    plan = pace(segments(np.full(4, 10**6), 0.0, OLDEST), no_yields(), Policy(), new_bytes=10**5)
    assert (plan.due, plan.rewrite_all) == (True, False)


@pytest.mark.parametrize("price", [0.1, 0.5, 2.0])
def test_the_whole_log_is_rewritten_where_all_records_die_alike(price):
    log = segments(np.full(40, 10**7), 0.0, OLDEST)
    assert pace(log, ALIKE, Policy(price=price), new_bytes=2 * 10**7, waiting=1000).rewrite_all
    assert not pace(log, GENERATIONAL, Policy(price=price), new_bytes=2 * 10**7, waiting=1000).rewrite_all


def test_new_records_wait_for_company_where_space_is_cheap():
    log = segments(np.full(40, 10**7), 0.0, OLDEST)
    every = [pace(log, GENERATIONAL, Policy(price=p), new_bytes=2 * 10**7).every for p in (10.0, 0.3, 0.05)]
    assert every == sorted(every)
    assert every[0] == 1 < every[-1]
    assert not pace(log, GENERATIONAL, Policy(price=0.05), new_bytes=2 * 10**7, waiting=every[-1] - 1).due
    assert pace(log, GENERATIONAL, Policy(price=0.05), new_bytes=2 * 10**7, waiting=every[-1]).due


def test_a_budget_too_small_for_the_whole_log_is_spent_by_yield():
    log = segments(np.full(40, 10**7), 0.0, OLDEST)
    policy = Policy(price=0.5, io_budget_bytes=10**8)
    assert not pace(log, ALIKE, policy, new_bytes=2 * 10**7, waiting=1000).rewrite_all


def test_a_segment_that_never_fits_keeps_no_other_one_waiting():
    log = segments(np.array([10**9, 10**6]), np.array([0.9, 0.6]), np.array([20, 20]))
    both = choose(log, GENERATIONAL, Policy(price=10.0, segment_bytes=NO_MERGING))
    assert (both.reason == YIELD).all()
    assert both.gain[0] > both.gain[1]
    small = choose(log, GENERATIONAL, Policy(price=10.0, segment_bytes=NO_MERGING, io_budget_bytes=10**7))
    assert small.reason.tolist() == [KEPT, YIELD]


def test_hazards_follow_what_was_counted_and_fall_between():
    yields = no_yields()
    for _ in range(50):
        yields = record_yields(
            yields, np.array([0.0, 9.0, 500.0]), np.array([1e4, 1e4, 1e4]), np.array([5e3, 1e3, 50.0]),
            new_records=2e4, new_survivors=1e4,
        )  # fmt: skip
    hazard = hazards(yields)
    assert hazard[[0, 9, OLDEST]] == pytest.approx([0.5, 0.1, 0.005], rel=0.01)
    assert (np.diff(hazard) < 0).all()
    assert yields.new_survivors / yields.new_records == pytest.approx(0.5)


def test_a_run_of_several_runs_worth_counts_as_so_many():
    """900 of 1,000 are left after one run, 810 after two, 729 after three; of the new ones too."""
    survivors = 600 * (1 + 0.9 + 0.81)  # of three nights with 600 each, thinned by the later ones
    yields = record_yields(
        no_yields(), np.array([4.0]), np.array([1000.0]), np.array([271.0]),
        new_records=3000, new_survivors=survivors, elapsed=3,
    )  # fmt: skip
    assert yields.records[3:8] == pytest.approx([0, 1000, 900, 810, 0])
    assert yields.deaths[3:8] == pytest.approx([0, 100, 90, 81, 0])
    assert yields.new_survivors / yields.new_records == pytest.approx(0.6, rel=0.01)


def test_old_counts_fade():
    yields = no_yields()
    for died in (900.0,) * 100 + (10.0,) * 150:
        yields = record_yields(
            yields, np.array([0.0]), np.array([1000.0]), np.array([died]), new_records=1, new_survivors=1
        )
    assert hazards(yields)[0] == pytest.approx(0.01, rel=1)
