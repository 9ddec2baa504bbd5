"""Nightly runs of the real job, by yield and by the broker's rule, beside what the simulation says of the same updates:
`python -m tests.bench.bench_yields`.

The log holds `keys` live records in 40 segments at first; each night adds 5 % (`simulate_yields.NEW`) as one segment.
Every run is `lastkey.compact` on threads; the bytes are those that its report counts, and those that are read back.

With `--seconds` it times whole runs of the command line instead, in processes of their own, on threads and on Spark:
a first run that cleans everything, with and without filters; nights of 1 % new data, nine tenths of it to 2 % of the
keys; and one with --force. `--keys 10000000 --value-bytes 1000 --segment-bytes 1073741824` makes a log of 10 GB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact import job
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.bench.simulate_yields import DRAWS, RECORD, SEED, SEGMENTS, Rule, simulate

START_MS, DAY = 1_700_000_000_000, 86_400_000
BATCH_BYTES = 50_000
PART = 100_000  # records made at a time
DIGITS = 10 ** np.arange(11, -1, -1)  # number of digits in a key
ROOT = Path(__file__).resolve().parents[2]


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
        value = np.frombuffer(np.random.default_rng(self.end).bytes(self.value), np.uint8)
        with SegmentWriter(self.folder, self.end) as writer:
            for at in range(0, len(keys), PART):
                some = keys[at : at + PART]
                offsets = np.arange(self.end + at, self.end + at + len(some))
                columns: dict[str, Any] = {
                    "offset": pa.array(offsets, pa.int64()),
                    "timestamp_ms": pa.array(np.full(len(some), START_MS), pa.int64()),
                    "key": _binary((some[:, None] // DIGITS % 10 + ord("0")).astype(np.uint8)),
                    "value": _binary(np.tile(value, (len(some), 1))),
                }
                writer.append_records(pa.table(columns).to_batches()[0], max_batch_bytes=BATCH_BYTES)
            return writer.size


def _binary(rows: np.ndarray) -> pa.Array:
    ends = pa.py_buffer(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, ends, pa.py_buffer(np.ascontiguousarray(rows))])


def run_job(log: Log, store: Path, night: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Compact once. Returns bytes read and written, and the bytes of the generation and what waits after it."""
    config = {"defaults": {"cleanup.policy": "compact"} | settings, "job": {"engine": "threads", "split.by": "none"}}
    options = CompactOptions(str(log.archive), str(store), now_ms=START_MS + night * DAY, config=parse_config(config))
    [result] = job.run(options, Silent()).results
    assert result.problem is None, result.problem
    if result.status == "not_due":
        return 0, result.cleanable.clean_bytes + result.cleanable.cleanable_bytes
    written_back = sum(s.size_bytes for s in result.log.segments if s.cleaned)
    return result.work.bytes_read + result.work.bytes_written + written_back, result.work.bytes_after


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


def timed(
    log: Log, store: Path, night: int, engine: str, lines: Sequence[str], *options: str
) -> tuple[float, dict[str, Any]]:
    """Compact once by the command line. Returns seconds from its start to its end, and the partition's result."""
    settings = log.archive.parent / "cleaner.toml"
    settings.write_text("\n".join(["[defaults]", '"cleanup.policy" = "compact"', *lines]))
    at = ["--now", str(START_MS + night * DAY), "--config", str(settings), "--engine", engine]
    command = [sys.executable, "-m", "lastkey", "compact", str(log.archive), "--store", str(store), *at, "--json"]
    os.sync()  # exclude the writes of the previous step
    begin = time.perf_counter()
    completed = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    [result] = json.loads(completed.stdout)["partitions"]
    return seconds, result


def seconds_of_nights(
    root: Path, engine: str, keys: int, value_bytes: int, segment_bytes: int, n: int, min_yield: float
) -> None:
    """Print what whole runs cost on an engine: first ones, nights, and one with --force."""
    log, per, rng = Log(root, value_bytes), segment_bytes // (value_bytes + 32), np.random.default_rng(SEED)
    size = sum(log.append(np.arange(at, min(at + per, keys))) for at in range(0, keys, per))
    print(f"{engine}: {size / 1e9:.2f} GB", flush=True)
    by_yield = [
        '"compaction.schedule" = "yield"',
        f'"compaction.min.yield" = {min_yield}',
        '"min.cleanable.dirty.ratio" = 0.0',
    ]

    def run(what: str, lines: Sequence[str], store: Path, night: int, *options: str) -> tuple[float, float]:
        seconds, result = timed(log, store, night, engine, lines, *options)
        phases = ", ".join(f"{name} {value:.2f}" for name, value in result["seconds"].items())
        read = result["bytes_read"] / size
        print(
            f"{engine}: {what}: {result['status']}, {seconds:.2f} s ({phases}), read {read:.4f} of the log, "
            f"written {result['bytes_written'] / size:.4f}, peak memory {result['peak_memory_bytes'] / 1e6:.0f} MB",
            flush=True,
        )
        return seconds, read

    store, names = root / "store", rng.permutation(keys)
    without, _ = run("first run, full", ['"compaction.schedule" = "full"'], store, 0)
    shutil.rmtree(store)
    first, _ = run("first run, yield", by_yield, store, 0)
    nights = []
    for night in range(1, n + 1):
        new, hot = keys // 100, keys // 50
        drawn = np.where(rng.random(new) < 0.9, rng.integers(0, hot, new), rng.integers(hot, keys, new))
        log.append(names[drawn])
        nights.append(run(f"night {night}", by_yield, store, night))
    nights = [one for one in nights if one[1]]  # the others waited for more new records
    seconds, read = (statistics.median(column) for column in zip(*nights, strict=True))
    whole, _ = run("--force", by_yield, store, n, "--force")
    print(
        f"{engine}: {len(nights)} nights of {n} ran, median: {seconds / whole:.3f} of the time of --force, {read:.4f} "
        f"of the log read; worst {max(s for s, _ in nights) / whole:.3f}, {max(r for _, r in nights):.4f}; first run "
        f"with filters {first / without:.3f} of the time without"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--value-bytes", type=int, default=80)
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=["skewed", "uniform"])
    parser.add_argument("--min-yield", type=float, default=0.2)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.08, 0.16])
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--engines", nargs="+", default=["threads", "spark"])
    parser.add_argument("--segment-bytes", type=int, default=1 << 30)
    options = parser.parse_args(arguments)
    if options.seconds:
        for engine in options.engines:
            with tempfile.TemporaryDirectory() as root:
                size = options.segment_bytes
                seconds_of_nights(
                    Path(root), engine, options.keys, options.value_bytes, size, options.nights, options.min_yield
                )
        return
    print("| updates | rule | job: I/O | space | simulated: I/O | space | job / simulated |")
    print("|---|---|---|---|---|---|---|")
    for draw in options.draws:
        for ratio, min_yield in itertools.product(options.ratios, (options.min_yield, None)):
            schedule = {"compaction.schedule": "yield", "compaction.min.yield": min_yield} if min_yield else {}
            settings = {"min.cleanable.dirty.ratio": ratio} | schedule
            with tempfile.TemporaryDirectory() as root:
                io, space = nights(Path(root), draw, options.keys, options.value_bytes, options.nights, settings)
            rule = Rule(ratio, min_yield, options.keys * RECORD // SEGMENTS)
            result = simulate(
                DRAWS[draw](np.random.default_rng(SEED), options.keys), options.keys, rule, options.nights
            )
            name, share = f"{'yield' if min_yield else 'full'}, ratio {ratio:g}", io / result.io
            print(
                f"| {draw} | {name} | {io:.2f} | {space:.3f} | {result.io:.2f} | {result.space:.3f} | {share:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
