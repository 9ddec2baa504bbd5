"""Rebuilding indexes against Kafka's own LogSegment.recover, in turn: `python -m tests.bench.bench_reindex`.

Prints MB/s on one core: of recover in-process, cold (first call of a JVM) and warm; of ours in one process and one
thread (scan, compare, write, read back), with checksums and with headers alone; medians and ratios, bytes read and
written. Look-ups: bench_lookup.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lastkey.logformat.listing import Segment
from lastkey.udfs.reindex.segment import ReindexTask, reindex_segments
from lastkey.udfs.reindex.write import Target
from lastkey.udfs.segments import LogSettings
from tests.bench import make_log
from tests.kafka_lab import recover_segments
from tests.kafka_lab.jvm import lab

_MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where the logs are, or are made and kept")
    parser.add_argument("--records", type=int, default=8_600_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = arguments.folder or Path(name)
        # batch.size 16 KiB; small batches, of about 1 KiB; compressed ones
        for label, codec, batch in (
            ("none, 16 KiB", "none", 16 << 10),
            ("none, 1 KiB", "none", 1 << 10),
            ("zstd", "zstd", 0),
        ):
            folder = root / label.replace(", ", "-").replace(" ", "") / "b-0"
            if not folder.exists():
                make_log.make_partition(folder, codec, records=arguments.records, batch_bytes=batch or None)
            measure(label, folder, arguments.repeats)


def measure(label: str, folder: Path, repeats: int) -> None:
    logs = sorted(folder.glob("*.log"))
    size = sum(log.stat().st_size for log in logs)
    for log in logs:
        log.read_bytes()  # into the page cache
    with tempfile.TemporaryDirectory() as name:
        bare = Path(name) / "archive" / "b-0"
        bare.mkdir(parents=True)
        for log in logs:
            (bare / log.name).symlink_to(log)
        kafka = Path(name) / "kafka" / "b-0"
        kafka.mkdir(parents=True)
        for log in logs:
            shutil.copy2(log, kafka)
        task = _task(bare, logs, Path(name) / "ours")
        trusted = replace(task, check_crc=False)
        lab().close()  # a JVM that has not recovered anything yet
        cold = recover_segments(kafka, 1)[1][0]
        ours(task)
        rows: list[tuple[float, float, float]] = []
        for _ in range(repeats):
            rows.append((recover_segments(kafka, 1)[1][0], timed(lambda: ours(task)), timed(lambda: ours(trusted))))
        read, written = ours(task)
        read_trusted, _ = ours(trusted)
    warm, checked, headers = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{label}: {len(logs)} segments, {size / _MB:,.0f} MB")
    print(f"  Kafka's recover, cold     {size / _MB / cold:10,.0f} MB/s")
    print(f"  Kafka's recover, warm     {size / _MB / warm:10,.0f} MB/s")
    ratio = [k / o for k, o, _ in rows]
    print(
        f"  ours, checksums checked   {size / _MB / checked:10,.0f} MB/s   {_ratio(ratio)}; read {read / _MB:,.1f} MB"
    )
    ratio = [k / h for k, _, h in rows]
    line = f"read {read_trusted / _MB:,.1f} MB, written {written / _MB:,.2f} MB"
    print(f"  ours, headers alone       {size / _MB / headers:10,.0f} MB/s   {_ratio(ratio)}; {line}", flush=True)


def _ratio(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} x warm recover ({min(ratios):.2f} to {max(ratios):.2f})"


def _task(folder: Path, logs: list[Path], output: Path) -> ReindexTask:
    root = str(folder.parent)
    segments = tuple(Segment(root, f"{folder.name}/{log.name}", int(log.stem), log.stat().st_size, 0) for log in logs)
    target = Target("output", str(folder.parent), str(output))
    return ReindexTask(target, folder.name, segments, LogSettings())


def ours(task: ReindexTask) -> tuple[int, int]:
    """Rebuild all indexes; return bytes read and written."""
    shutil.rmtree(task.target.output_uri, ignore_errors=True)
    outcomes = reindex_segments(task)
    assert all(outcome.problem is None for outcome in outcomes)
    return sum(o.bytes_read for o in outcomes), sum(o.bytes_written for o in outcomes)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
