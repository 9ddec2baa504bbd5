"""Faults in each operation of a run: an error, a torn write, a false success, a delay, or the end of the process. Cases
are drawn from all faults, and counted.

`preload.c` has the operations, below Python; `mishaps` has the mishaps, and `histories` the checks after them: the
archive is unchanged, a generation is whole, the next run works as if there had been no fault, and all reports are true.
"""

from __future__ import annotations

import pytest

from tests.attack.histories import KINDS
from tests.attack.mishaps import MISSED
from tests.attack.warm import Warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FEW = 4  # mishaps: other ones for each job


@pytest.mark.parametrize("job", KINDS)
def test_job_survives_each_fault_of_an_operation(request: pytest.FixtureRequest, attacker: Warm, job: str) -> None:
    tried = attacker.attack(request, f"faults, {job}", job, FEW, "mishaps")
    assert tried.total > 20 * tried.counts[MISSED], "a run makes the same operations each time"
