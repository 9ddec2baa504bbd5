"""Each operation of a run fails, tears, lies, waits or is the last one: drawn from all there are, and counted.

`preload.c` has the operations, below Python; `mishaps` what happens to them, and `histories` what must hold after it:
the archive as it was, a generation whole, the next run as if nothing had been, and nothing said that is not so.
"""

from __future__ import annotations

import pytest

from tests.attack.histories import KINDS
from tests.attack.mishaps import MISSED
from tests.attack.warm import Warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]


@pytest.mark.parametrize("job", KINDS)
def test_job(request: pytest.FixtureRequest, attacker: Warm, job: str) -> None:
    tried = attacker.attack(request, f"faults, {job}", job, "mishaps")
    assert tried.total > 20 * tried.counts[MISSED], "a run makes the same operations each time"
