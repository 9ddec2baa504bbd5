"""Rounds of real processes on one store: drivers, vacuum, restore, rollback and readers, started together.

`races` says who is in a round and what must hold after it. `tests/jobs/store/test_commit_model.py` walks through every
order of the commit's steps; here real drivers take those that the machine gives them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.races import PARTIES
from tests.attack.warm import Warm, warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with warm(tmp_path_factory.mktemp("races")) as started:
        yield started


@pytest.mark.parametrize("who", PARTIES)
def test_rounds(request: pytest.FixtureRequest, attacker: Warm, who: str) -> None:
    attacker.attack(request, f"concurrency, {who}", who, "rounds")
