"""Every damage of every file of a store: its tables, their log, the manifests, logs and side files of generations.

./spark-submit.sh test tests/attack/test_corruption_store.py --attack-seconds 600
"""

from __future__ import annotations

import pytest

from tests.attack.store_readers import JOBS
from tests.attack.warm import Warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]


@pytest.mark.parametrize("job", JOBS)
def test_job(request: pytest.FixtureRequest, attacker: Warm, job: str) -> None:
    attacker.attack(request, f"corruption of a store, {job}", f"store/{job}", "damaged stores")
