"""Runs by yield against the broker's rule at the same space, in a simulation of nights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.simulate_yields import SEGMENTS, broker, ours, skewed, uniform

KEYS = 20_000


@pytest.fixture(scope="module")
def brokers() -> np.ndarray:
    """Return the broker's curve; skewed or not, it moves the same bytes."""
    return broker(uniform, KEYS)


@pytest.mark.parametrize("ratio", [0.08, pytest.param(0.16, marks=pytest.mark.slow)])
def test_skewed_updates_cost_two_fifths_of_the_broker_s_bytes(brokers: np.ndarray, ratio: float) -> None:
    measured = ours(skewed, KEYS, ratio, 0.2)
    assert 1.1 < measured.space < 1.2
    assert measured.io < 0.4 * np.interp(measured.space, *brokers.T)
    assert measured.segments < 3 * SEGMENTS


@pytest.mark.parametrize("skip", [0, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ratio", [0.08, pytest.param(0.16, marks=pytest.mark.slow)])
def test_uniform_updates_cost_no_more_than_the_broker_s(brokers: np.ndarray, ratio: float, skip: int) -> None:
    measured = ours(uniform, KEYS, ratio, 0.2, skip)
    assert measured.io <= np.interp(measured.space, *brokers.T)
