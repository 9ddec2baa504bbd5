"""Corruption, drawn from all damages of small partitions: every bit, every prefix, every field at its extremes.

Each job that reads gets each damage. It may name the problem, or give the output of the undamaged archive, or that of a
slow reader for the same bytes; nothing else, and it never silently loses a record of an undamaged segment.
`test_corruption_kafka` asks Kafka's own cleaner about a sample.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.attack.corrupting import all_cases, attack
from tests.attack.judge import Judge
from tests.attack.readers import JOBS, report_page
from tests.attack.specimens import Specimen

pytestmark = [pytest.mark.attack, pytest.mark.slow]
_PAGES: Final = 3
FEW, FEW_PAGES = 13, 3  # damages: one of each kind for each job


def test_report_page_reports_or_ignores_each_damage(
    request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path
) -> None:
    """A case takes half a second: use a few specimens, as the seed draws them, and make their undamaged pages first."""
    seed = request.config.getoption("--attack-seed")
    case = request.config.getoption("--attack-case")
    names = [case.partition("/")[0]] if case else random.Random(seed).sample(sorted(specimens), _PAGES)
    drawn = {name: specimens[name] for name in names}
    judge = Judge("report, page", report_page, drawn, tmp_path)
    cases, of = all_cases(drawn, seed)
    attack(request, "report, page", cases, of, FEW_PAGES, judge.verdict, tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_job_reports_or_ignores_each_damage(
    request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path, job: str
) -> None:
    """Undamaged inputs come first, in this process: this compiles kernels, and makes the outputs to compare with."""
    judge = Judge(job, JOBS[job], specimens, tmp_path)
    cases, of = all_cases(specimens, f"{request.config.getoption('--attack-seed')}, {job}")
    attack(request, job, cases, of, FEW, judge.verdict, tmp_path)
