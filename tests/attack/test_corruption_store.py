"""Every damage of every file of a store: its tables, their log, the manifests, logs and side files of generations.

./spark-submit.sh test tests/attack/test_corruption_store.py --attack-cases 10000
"""

from __future__ import annotations

import json
import random

import pytest

from tests.attack import store_damages
from tests.attack.damages import Stream, shuffled
from tests.attack.store_readers import JOBS
from tests.attack.warm import Warm

FEW = 4  # damages: other ones for each job


def test_each_damage_changes_its_file() -> None:
    document = json.dumps({"generation": {"number": 1, "segments": [{"base": 0}]}, "crc32c": 3}).encode()
    files = {"segments/t-0/1-a/manifest.json": document, "segments/t-1/1-a/manifest.json": document + b"\n"}
    done = [
        store_damages.damaged(files, stream.case(i))
        for stream in store_damages.damage_streams(files)
        for i in range(stream.n)
    ]
    assert all(changes != {path: files[path] for path in changes} for changes in done[: 8 * len(document)])
    assert len(done) > 10 * len(document)


def test_seed_selects_each_case_once_in_any_order() -> None:
    of = [Stream("s", path, "flip", n, lambda i: (i,)) for path, n in (("a", 3), ("b", 1))]
    orders = {tuple(map(str, shuffled(of, random.Random(seed)))) for seed in range(1000)}
    assert len(orders) == 24
    assert {tuple(sorted(order)) for order in orders} == {("s/a/flip/0", "s/a/flip/1", "s/a/flip/2", "s/b/flip/0")}


@pytest.mark.attack
@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_job_reports_or_ignores_each_damage_of_a_store(
    request: pytest.FixtureRequest, attacker: Warm, job: str
) -> None:
    attacker.attack(request, f"corruption of a store, {job}", f"store/{job}", FEW, "damaged stores")
