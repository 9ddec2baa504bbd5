"""Schedules by yield against the exact optimum of small instances, and against the broker's rule in a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from lastkey.udfs.yields.schedule import Policy
from tests.bench.simulate_yields import (
    RECORD,
    SEGMENTS,
    against_optimum,
    broker,
    draw_instance,
    simulate,
    skewed,
    uniform,
)
from tests.reference.yield_optimum import cost_of, optimum, optimum_by_trial

KEYS = 20_000


def test_the_optimum_is_the_best_of_all_plans():
    for seed in range(3):
        instance = draw_instance(np.random.default_rng(seed), nights=8)
        given = instance.alive, instance.born
        price, reads = instance.policy.price, instance.policy.reads
        found = cost_of(*given, optimum(*given, price, reads), price, reads)
        assert found == pytest.approx(optimum_by_trial(*given, price, reads))


def test_ten_nights_cost_at_most_1_3_times_the_optimum():
    rng = np.random.default_rng(7)
    shares = [against_optimum(rng, beyond=60)[0] for _ in range(25)]
    assert min(shares) >= 1 - 1e-9
    assert max(shares) <= 1.3
    assert np.median(shares) < 1.01


@pytest.fixture(scope="module")
def brokers() -> np.ndarray:
    """Return the broker's curve; skewed or not, it moves the same bytes."""
    return broker(uniform, KEYS)


@pytest.mark.parametrize("price", [10.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_skewed_updates_cost_a_third_of_the_broker_s_bytes_where_space_is_dear(brokers, price):
    policy = Policy(price=price, segment_bytes=KEYS * RECORD // SEGMENTS)
    ours = simulate(skewed(np.random.default_rng(1), KEYS), KEYS, policy)
    assert 1.01 < ours.space < 1.2
    assert ours.io < np.interp(ours.space, *brokers.T) / 3
    assert ours.segments < 3 * SEGMENTS


@pytest.mark.parametrize("skip", [0, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("price", [5.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_uniform_updates_cost_no_more_than_the_broker_s(brokers, price, skip):
    policy = Policy(price=price, segment_bytes=KEYS * RECORD // SEGMENTS)
    ours = simulate(uniform(np.random.default_rng(1), KEYS), KEYS, policy, skip=skip)
    assert ours.io <= 1.01 * np.interp(ours.space, *brokers.T)
