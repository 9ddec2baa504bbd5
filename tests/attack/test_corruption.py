"""Corruption, drawn from all there is of small partitions: every bit, every prefix, every field at its extremes.

Each job that reads gets each damage. It may name the problem, or give what it gives of the undamaged archive, or what a
slow reader makes of the same bytes; nothing else, and never loses a record of a segment that was not damaged in
silence. `test_corruption_kafka` asks Kafka's own cleaner about a sample.
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


def test_report_page(request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path) -> None:
    """Half a second a case: a few specimens, as the seed draws them, whose undamaged pages come first."""
    seed = request.config.getoption("--attack-seed")
    case = request.config.getoption("--attack-case")
    names = [case.partition("/")[0]] if case else random.Random(seed).sample(sorted(specimens), _PAGES)
    drawn = {name: specimens[name] for name in names}
    judge = Judge("report, page", report_page, drawn, tmp_path)
    cases, of = all_cases(drawn, seed)
    attack(request, "report, page", cases, of, judge.verdict, tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_job(request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path, job: str) -> None:
    """Undamaged inputs first, in this process: kernels are compiled here, and their outputs are what others must be."""
    judge = Judge(job, JOBS[job], specimens, tmp_path)
    cases, of = all_cases(specimens, request.config.getoption("--attack-seed"))
    attack(request, job, cases, of, judge.verdict, tmp_path)
