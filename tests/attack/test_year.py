"""Some weeks of the year that `bench_year` plays: several topics, each night's commands, the model's judgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_year import Year

pytestmark = [pytest.mark.attack, pytest.mark.slow]


def test_runs_with_failures_over_several_topics_lose_no_record(tmp_path: Path) -> None:
    year = Year(tmp_path, n_topics=6, seed=3)
    year.begin()
    for _ in range(60):
        year.day()
        year.sleep()
    assert year.checked > 100
    assert min(year.events[what] for what in ("damaged segments", "segments deleted", "weeks without a disk")) > 0
    assert year.said["uncleanable"] > 0
