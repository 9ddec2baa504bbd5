"""Look-ups by offset and by time a second: `python -m tests.bench.bench_lookup [FOLDER]`.

The log is one of tests/bench/make_log.py, in one segment of about 1 GiB (kept in FOLDER if that is given). One read
before puts its pages into memory. One process, one thread. Each figure is the median of five runs. Bytes touched are
the cache lines, of 64 bytes each, of the index and of headers that the algorithm has to look at.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lastkey.logformat.search.partition_log import MAX_TIMESTAMP, PartitionLog
from tests.bench import make_log
from tests.builders.opened import open_partition

SINGLE, BATCHED, TIMES = 200_000, 4_000_000, 1_000_000
REPEATS = 5
_LINE = 64
_HEADERS = 2  # a walk looks at the batch of its entry, and at the one behind it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        for codec, records in (("none", 8_000_000), ("zstd", 2_000_000)):
            folder = (given or Path(name)) / f"{codec}-0"
            if not folder.exists():
                make_log.SEGMENT_BYTES = 1 << 40
                make_log.make_partition(folder, codec, records=records)
            measure(codec, folder)


def measure(codec: str, folder: Path) -> None:
    for path in folder.iterdir():
        path.read_bytes()
    with open_partition(folder) as log:
        entries = sum(Path(files.index).stat().st_size // 8 for files in log.segments if files.index)
        size = max(files.size_bytes for files in log.segments)
        print(f"{codec}: segment of {size:,} bytes, {entries:,} index entries, offsets up to {log.latest:,}")
        by_offset(log, entries)
        by_time(log)
        assert log.notes == (), log.notes


def by_offset(log: PartitionLog, entries: int) -> None:
    rng = np.random.default_rng(7)
    anywhere = rng.integers(0, log.latest, BATCHED)
    single = anywhere[:SINGLE].tolist()
    probes = int(np.ceil(np.log2(max(entries, 2))))
    report("offsets, one at a time, random", SINGLE, lambda: [log.lookup_offset(offset) for offset in single])
    single.sort()
    report("offsets, one at a time, rising", SINGLE, lambda: [log.lookup_offset(offset) for offset in single])
    print(f"  each touches about {(probes + 2 * _HEADERS) * _LINE:,} bytes: {probes} entries, {_HEADERS} headers")
    for n in (1_000, 100_000, BATCHED):
        part = anywhere[:n].copy()
        report(f"offsets, {n:,} at once, random", n, lambda part=part: log.lookup_offsets(part))
        part.sort()
        report(f"offsets, {n:,} at once, rising", n, lambda part=part: log.lookup_offsets(part))


def by_time(log: PartitionLog) -> None:
    rng = np.random.default_rng(8)
    first, last = log.offsets_for_times([0, MAX_TIMESTAMP])["timestamp"].tolist()
    anywhere = rng.integers(first, last, TIMES)
    single = anywhere[:500].tolist()
    report("timestamps, one at a time", len(single), lambda: [log.offsets_for_times([time]) for time in single])
    for n in (1_000, TIMES):
        report(f"timestamps, {n:,} at once, random", n, lambda n=n: log.offsets_for_times(anywhere[:n]))


def report(what: str, n: int, work: Callable[[], object]) -> None:
    work()  # compiled, and in the caches
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    print(f"  {what:<42}{n / middle:>14,.0f}/s{middle / n * 1e6:>10.3f} us each", flush=True)


if __name__ == "__main__":
    main()
