"""Runs by yield, night after night: nothing live is missing at any step, nothing deleted comes back, and a full run in
the end leaves what one full run leaves.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.store.rows import Segment
from lastkey.udfs.segments import cleaned_until
from tests.builders.archives import Lab
from tests.builders.logs import START_MS, write_partition
from tests.reference.log import Batch, decode_log

KEY = ("t", 0)
DAY = 86_400_000
SETTINGS: dict[str, Any] = {
    "cleanup.policy": "compact", "compaction.schedule": "yield", "compaction.min.yield": 0.3, "index.interval.bytes": 0,
    "delete.retention.ms": 3 * DAY,
}  # fmt: skip


@dataclass
class Nights:
    """An archive that grows by a segment a night, and its store."""

    root: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    segments: list[str] = field(default_factory=list)

    def lab(self, root: Path | None = None) -> Lab:
        given = {"defaults": self.settings, "job": {"engine": "threads"}}
        return Lab(None, root or self.root, given, archive_at=self.root / "archive")

    def grow(self, text: str) -> None:
        """Add a segment; an empty active one follows it."""
        self.segments.append(text)
        shutil.rmtree(self.root / "archive", ignore_errors=True)
        write_partition(self.root / "archive" / "t-0", "||".join([*self.segments, "z=active"]))

    def run(self, **options: Any) -> CompactReport:
        report = self.lab().run(START_MS + len(self.segments) * DAY, **options)
        assert [r.problem for r in report.results] == [None], report.results
        return report

    def rows(self) -> list[Segment]:
        state = self.lab().state()
        at = state.checkpoints()[KEY]
        return state.manifests({KEY: (at.generation, at.run_id)})[KEY]

    def checked(self) -> list[Batch]:
        """Return the generation's batches, after a look at every key of the archive."""
        lab, rows = self.lab(), self.rows()
        lab.check_whole(rows)
        end = lab.state().checkpoints()[KEY].first_dirty_offset
        logs = sorted((self.root / "archive" / "t-0").glob("*.log"))
        wanted = _last([b for log in logs for b in decode_log(log.read_bytes())], end)
        batches = lab.batches(rows)
        found = _last(batches, end)
        for key, (offset, value) in wanted.items():
            if value is not None:
                assert found.get(key) == (offset, value), key
            else:
                assert found.get(key, (offset, None)) == (offset, None), f"{key!r}, deleted at {offset}, came back"
        assert found.keys() <= wanted.keys()
        clean = cleaned_until(rows, end)
        below = [r.key for b in batches if not b.control for r in b.records if r.offset < clean]
        assert len(below) == len(set(below)), "a key twice below the cleaner checkpoint"
        return batches


def _last(batches: list[Batch], end: int) -> dict[bytes, tuple[int, bytes | None]]:
    records = [r for b in batches if not b.control for r in b.records if r.offset < end]
    return {r.key: (r.offset, r.value) for r in sorted(records, key=lambda r: r.offset)}


def _drawn(rng: random.Random, cold: int, night: int) -> str:
    """Return a night's records: mostly of few keys, some tombstones, several batches."""
    batches = []
    for _ in range(rng.randint(1, 4)):
        keys = [f"h{rng.randrange(4)}" if rng.random() < 0.7 else f"c{rng.randrange(cold)}" for _ in range(6)]
        values = ["-" if rng.random() < 0.15 else f"{night}{'x' * rng.randrange(20)}" for _ in keys]
        batches.append(" ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True)))
    return "|".join(batches)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_nights_keep_every_live_record_and_bring_none_back(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    nights = Nights(tmp_path)
    nights.settings["compaction.min.yield"] = rng.choice([0.1, 0.3, 0.6, 1.0])
    nights.settings["segment.bytes"] = rng.choice([400, 1000, 1 << 20])
    nights.settings["delete.retention.ms"] = rng.choice([0, DAY, 3 * DAY])
    carried = 0
    for night in range(10):
        nights.grow(_drawn(rng, rng.choice([5, 40]), night))
        nights.run()
        nights.checked()
        carried += sum(row.root == "store" and not row.cleaned for row in nights.rows())
    assert carried or nights.settings["compaction.min.yield"] < 0.3
    nights.settings["compaction.schedule"] = "full"
    nights.run(force=True)
    fully = nights.checked()
    once = Nights(tmp_path)
    once.settings = nights.settings
    lab = once.lab(tmp_path / "at once")
    lab.run(START_MS + 10 * DAY)
    at = lab.state().checkpoints()[KEY]
    rows = lab.state().manifests({KEY: (at.generation, at.run_id)})[KEY]
    kept, expected = _last(fully, 2**63), _last(lab.batches(rows), 2**63)
    live = {key: one for key, one in expected.items() if one[1] is not None}
    assert {key: one for key, one in kept.items() if one[1] is not None} == live
    assert kept.keys() <= expected.keys()
