"""Stores that runs by yield have made: some of their segments met the keys of all later records, others did not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lastkey.udfs.yields.schedule import Pace
from tests.builders.archives import Lab
from tests.builders.logs import START_MS, write_partition
from tests.builders.nights import DAY

COLD = " ".join(f"c{n}=1" for n in range(20))
NIGHTS = (COLD, "h1=1 h2=1 c1=2", "h1=2 h2=2 c2=2", "h1=3 h2=3 c1=-")
BY_YIELD: dict[str, Any] = {
    "cleanup.policy": "compact", "compaction.schedule": "yield", "compaction.min.yield": 0.3, "index.interval.bytes": 0,
    "compaction.dead.byte.price": 1e9,
}  # fmt: skip


def run_nights(root: Path, nights: Sequence[str] = NIGHTS, topic: str = "t", active: str = "", **settings: Any) -> Lab:
    """Compact an archive that grows by a segment a night; return both places. active: the last segment in the end."""
    lab = Lab(None, root, {"topics": {topic: BY_YIELD | settings}, "job": {"engine": "threads"}})
    for night in range(1, len(nights) + 1):
        shutil.rmtree(lab.archive / f"{topic}-0", ignore_errors=True)
        write_partition(lab.archive / f"{topic}-0", "||".join([*nights[:night], active * (night == len(nights))]))
        with (
            pytest.MonkeyPatch.context() as patch
        ):  # for logs as small as these a run that cleans everything is cheaper
            patch.setattr("lastkey.jobs.compact.schedule.pace_of", lambda *_: Pace(True, False, 1, 0.0))
            report = lab.run(START_MS + night * DAY)
        assert report.exit_code == 0, report.to_text()
    return lab
