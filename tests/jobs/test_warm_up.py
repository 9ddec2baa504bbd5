"""The small log of `jobs.warm_up`: if a compaction of it failed, a user's run would compile the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastkey.jobs import warm_up


def test_warm_up_runs_of_every_job_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(name):
        function = getattr(warm_up, name)

        def work(*arguments, **options):
            seen.append(function(*arguments, **options))
            return seen[-1]

        monkeypatch.setattr(warm_up, name, work)

    noting("compact")
    noting("compact_large")
    warm_up.compact_small_log(str(tmp_path))
    *in_one_task, by_yield, by_timestamp = seen
    assert [len(report.generations) for report in in_one_task] == [2, 2, 2]
    assert [one.status for one in (by_yield, by_timestamp)] == ["cleaned", "cleaned"]
    schedules = {one.topic: {part.reason for part in one.schedule} for one in in_one_task[-1].results}
    assert "yield" in schedules["by-yield"]  # so it reads the key file of the run before
    assert warm_up.run_other_jobs(str(tmp_path)) == [3, 0, 0, 0, 0, 0, 0, 0]
