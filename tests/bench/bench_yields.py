"""Nightly runs of the real job, by yield and by the broker's rule, beside what the simulation says of the same updates:
`python -m tests.bench.bench_yields`.

The log holds `keys` live records in 40 segments at first; each night adds 5 % (`simulate_yields.NEW`) as one segment.
Every run is `lastkey.compact` on threads; the bytes are those that its report counts, and those that are read back.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact import job
from lastkey.logformat.schemas import HEADERS
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.yields.schedule import Policy
from tests.bench.simulate_yields import DRAWS, RECORD, SEED, SEGMENTS, simulate

START_MS, DAY = 1_700_000_000_000, 86_400_000
BATCH = 500


class Log:
    """An archive that grows by a segment a night."""

    def __init__(self, root: Path, value_bytes: int) -> None:
        self.archive, self.end, self.value = root / "archive", 0, value_bytes
        self.folder = self.archive / "t-0"
        self.folder.mkdir(parents=True)

    def append(self, keys: np.ndarray) -> int:
        """Write a segment of these keys, and an empty one behind it. Returns its bytes."""
        for file in self.folder.glob(f"{self.end:020}.*"):
            file.unlink()
        written = self._write(keys)
        self.end += len(keys)
        self._write(keys[:0])
        return written

    def _write(self, keys: np.ndarray) -> int:
        rng = np.random.default_rng(self.end)
        with SegmentWriter(self.folder, self.end) as writer:
            for at in range(0, len(keys), BATCH):
                some = keys[at : at + BATCH]
                offsets = np.arange(self.end + at, self.end + at + len(some))
                columns: dict[str, Any] = {
                    "offset": pa.array(offsets, pa.int64()),
                    "timestamp_ms": pa.array(np.full(len(some), START_MS), pa.int64()),
                    "key": pa.array([b"%012d" % key for key in some.tolist()], pa.binary()),
                    "value": pa.array([rng.bytes(self.value)] * len(some), pa.binary()),
                    "headers": pa.array([None] * len(some), HEADERS),
                }
                writer.append_records(pa.table(columns).to_batches()[0])
            return writer.size


def run_job(log: Log, store: Path, night: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Compact once. Returns bytes read and written, and the bytes of the generation and what waits after it."""
    given = {"defaults": {"cleanup.policy": "compact"} | settings, "job": {"engine": "threads", "split.by": "none"}}
    options = CompactOptions(str(log.archive), str(store), START_MS + night * DAY, config=parse_config(given))
    [result] = job.run(options, Silent()).results
    assert result.problem is None, result.problem
    if result.status == "not_due":
        return 0, result.clean_bytes + result.dirty_bytes
    written_back = sum(s.size_bytes for s in result.segments if s.cleaned)
    return result.bytes_read + result.bytes_written + written_back, result.bytes_after


def begun(root: Path, keys: int, value_bytes: int, settings: dict[str, Any]) -> tuple[Log, int, dict[str, Any]]:
    """Write a log of so many live keys, and clean it once into `store`. Returns it, its bytes, and all settings."""
    log, per = Log(root, value_bytes), -(-keys // SEGMENTS)
    size = sum(log.append(np.arange(at, min(at + per, keys))) for at in range(0, keys, per))
    settings = settings | {"segment.bytes": size // SEGMENTS + 1, "compaction.full.ms": 10**15}
    run_job(log, root / "store", 0, settings)
    return log, size, settings


def nights(root: Path, draw: str, keys: int, value_bytes: int, n: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Return I/O for each new byte and mean space for each live byte, of so many nights after the first full run."""
    log, size, settings = begun(root, keys, value_bytes, settings)
    night = DRAWS[draw](np.random.default_rng(SEED), keys)
    moved, new, space = 0, 0, list[float]()
    last = (0, 0)
    for number in range(1, n + 1):
        new += log.append(night())
        io, held = run_job(log, root / "store", number, settings)
        moved += io
        space.append(held / size)
        if io:
            last = (new, number)
    return moved / last[0], float(np.mean(space[: last[1]]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--value-bytes", type=int, default=80)
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=["skewed", "uniform"])
    parser.add_argument("--prices", nargs="+", type=float, default=[10.0, 1.0, 0.5])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.2])
    given = parser.parse_args(arguments)
    print("| updates | rule | job: I/O | space | simulated: I/O | space | job / simulated |")
    print("|---|---|---|---|---|---|---|")
    for draw in given.draws:
        rules: list[tuple[str, dict[str, Any], Policy]] = [
            (f"price {price:g}", {"compaction.schedule": "yield", "compaction.dead.byte.price": price}, Policy(price))
            for price in given.prices
        ]
        rules += [
            (f"ratio {ratio:g}", {"min.cleanable.dirty.ratio": ratio}, Policy(min_dirty_ratio=ratio))
            for ratio in given.ratios
        ]
        for name, settings, policy in rules:
            with tempfile.TemporaryDirectory() as root:
                io, space = nights(Path(root), draw, given.keys, given.value_bytes, given.nights, settings)
            small = replace(policy, segment_bytes=given.keys * RECORD // SEGMENTS)
            said = simulate(DRAWS[draw](np.random.default_rng(SEED), given.keys), given.keys, small, given.nights)
            share = io / said.io
            print(
                f"| {draw} | {name} | {io:.2f} | {space:.3f} | {said.io:.2f} | {said.space:.3f} | {share:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
