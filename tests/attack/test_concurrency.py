"""Rounds of real processes on one store: drivers, vacuum, restore, rollback and readers, started together.

`races` has the parties of a round and the checks after it. `tests/jobs/store/test_commit_model.py` walks through every
order of the commit's steps; here real drivers take the orders that the machine gives them.
"""

from __future__ import annotations

import pytest

from tests.attack.races import PARTIES
from tests.attack.warm import Warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FEW = 2  # rounds


@pytest.mark.parametrize("who", PARTIES)
def test_concurrent_runs_leave_a_consistent_store(request: pytest.FixtureRequest, attacker: Warm, who: str) -> None:
    attacker.attack(request, f"concurrency, {who}", who, FEW, "rounds")
