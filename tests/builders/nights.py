"""Archives that grow by a segment a night, and the stores of runs by yield."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lastkey.jobs.command.cli import main
from lastkey.jobs.compact.report import CompactReport
from lastkey.logformat.listing import Segment
from lastkey.udfs.segments import cleaner_checkpoint
from tests.builders.archives import Lab
from tests.builders.logs import START_MS, write_partition
from tests.reference.log import Batch, decode_log

KEY = ("t", 0)
DAY = 86_400_000
BY_YIELD: dict[str, Any] = {
    "cleanup.policy": "compact", "compaction.schedule": "yield", "compaction.min.yield": 0.3, "index.interval.bytes": 0,
    "min.cleanable.dirty.ratio": 0.0,
}  # fmt: skip
SETTINGS = BY_YIELD | {"delete.retention.ms": 3 * DAY}
COLD = " ".join(f"c{n}=1" for n in range(20))
NIGHTS = (COLD, "h1=1 h2=1 c1=2", "h1=2 h2=2 c2=2", "h1=3 h2=3 c1=-")


@dataclass
class NightlyArchive:
    """An archive that grows by a segment a night, and its store."""

    root: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    segments: list[str] = field(default_factory=list)
    job_settings: dict[str, Any] = field(default_factory=dict)

    def lab(self, root: Path | None = None) -> Lab:
        config = {"defaults": self.settings, "job": {"engine": "threads"} | self.job_settings}
        return Lab(None, root or self.root, config, archive_at=self.root / "archive")

    def grow(self, text: str) -> None:
        """Add a segment; an empty active one follows it."""
        self.segments.append(text)
        shutil.rmtree(self.root / "archive", ignore_errors=True)
        write_partition(self.root / "archive" / "t-0", "||".join([*self.segments, ""]))

    def run(self, **options: Any) -> CompactReport:
        report = self.lab().run(START_MS + len(self.segments) * DAY, **options)
        assert [r.problem for r in report.results] == [None], report.results
        return report

    def job(self, name: str, *options: str, code: int = 0) -> None:
        """Run another job on the store."""
        assert main([name, "--store", str(self.lab().store), *options, "--json"]) == code

    def beside(self, pattern: str) -> list[Path]:
        """Return files of the store below segments/t-0, by path."""
        return sorted((self.lab().store / "segments" / "t-0").glob(f"*/{pattern}"))

    def rows(self) -> list[Segment]:
        state = self.lab().state()
        at = state.checkpoints()[KEY]
        return state.manifests([at])[KEY]

    def checked(self) -> list[Batch]:
        """Return the generation's batches, after a look at every key of the archive."""
        lab, rows = self.lab(), self.rows()
        current = lab.state().checkpoints()[KEY]
        if not current.back_to:
            lab.check_whole(rows)
        end = current.first_dirty_offset
        logs = sorted((self.root / "archive" / "t-0").glob("*.log"))
        wanted = last_records([b for log in logs for b in decode_log(log.read_bytes())], end)
        batches = lab.batches(rows)
        records = last_records(batches, end)
        for key, (offset, value) in wanted.items():
            if value is not None:
                assert records.get(key) == (offset, value), key
            else:
                assert records.get(key, (offset, None)) == (offset, None), f"{key!r}, deleted at {offset}, came back"
        assert records.keys() <= wanted.keys()
        clean = cleaner_checkpoint(rows, end)
        below = [r.key for b in batches if not b.control for r in b.records if r.offset < clean]
        assert len(below) == len(set(below)), "a key twice below the cleaner checkpoint"
        return batches


def last_records(batches: list[Batch], end: int) -> dict[bytes, tuple[int, bytes | None]]:
    records = [r for b in batches if not b.control for r in b.records if r.offset < end]
    return {r.key: (r.offset, r.value) for r in sorted(records, key=lambda r: r.offset)}


class Kept:
    """Copy of both places of some nights, from which several tests continue. A store stays with its archive's path, so
    each of them continues in the same folder.
    """

    def __init__(self, nights: NightlyArchive, copy: Path) -> None:
        self.nights, self.copy = nights, copy
        shutil.copytree(nights.root, copy)

    def again(self) -> NightlyArchive:
        """Return the nights as they were kept."""
        shutil.rmtree(self.nights.root)
        shutil.copytree(self.copy, self.nights.root)
        return replace(self.nights, settings=dict(self.nights.settings), segments=list(self.nights.segments))


def run_every_night(
    root: Path, nights: Sequence[str] = NIGHTS, topic: str = "t", active: str = "", **settings: Any
) -> Lab:
    """Compact an archive that grows by a segment a night, by yield; return both places.

    active: the last segment in the end. The settings are of the topic by its name.
    """
    lab = Lab(None, root, {"topics": {topic: BY_YIELD | settings}, "job": {"engine": "threads"}})
    for night in range(1, len(nights) + 1):
        shutil.rmtree(lab.archive / f"{topic}-0", ignore_errors=True)
        write_partition(lab.archive / f"{topic}-0", "||".join([*nights[:night], active * (night == len(nights))]))
        report = lab.run(START_MS + night * DAY)
        assert report.exit_code == 0, report.to_text()
    return lab
