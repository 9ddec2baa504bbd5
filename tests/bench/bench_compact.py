"""Compaction against the broker's own cleaner, on the same files, in turn: `python -m tests.bench.bench_compact`.

Prints for each codec and repeat: seconds of Kafka's Cleaner driven in-process (map and recopy, as its own statistics
count), seconds of ours in one process by phase, their ratio; bytes read and written, records/s, MB/s, peak memory; then
whole runs of the command by each way of finding the last offset, in threads, and once on Spark.
`--partitions N` compares whole runs in threads over N such logs instead, with Kafka's cleaner on as many warm threads
as there are cores; `--matrix FILE` runs the cells of BENCHMARKS.md (`matrix`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.compact.plan_inputs import input_from_archive
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import CleanSettings, Limits, PartitionPlan, PartitionResult
from lastkey.udfs.storage import open_root
from tests.bench import matrix
from tests.bench.make_log import KEYS, RECORDS, SEGMENT_BYTES, make_partition
from tests.builders.plans import made_plan
from tests.kafka_lab import oracle

ROOT = Path(__file__).resolve().parent.parent.parent
NOW_MS = 1_800_000_000_000
_MB = 1e6


def _plan(archive: Path, store: Path) -> PartitionPlan:
    root = open_root(str(archive))
    (partition,) = list_archive(root, lambda _: True).partitions.values()
    return made_plan(
        input_from_archive(partition), store_uri=str(store), folder="segments/b-0/1-x", now_ms=NOW_MS,
        settings=CleanSettings(segment_bytes=SEGMENT_BYTES), limits=Limits(), secret=(1, 2), high_watermark=None,
    )  # fmt: skip


def ours(archive: Path, work: Path) -> tuple[PartitionResult, float, float]:
    """Compact one partition in this process; return (result, wall seconds, CPU seconds)."""
    store = work / "store"
    plan = _plan(archive, store)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    result = compact_partition(plan)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    shutil.rmtree(store)
    assert result.status == "cleaned", result
    return result, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def kafkas(archive: Path, work: Path) -> float:
    """Return the seconds of the broker's cleaner, in-process, on a copy."""
    copy = work / "kafka"
    shutil.copytree(archive, copy, copy_function=shutil.copy2)
    spec = oracle.CleanSpec(next(copy.iterdir()), NOW_MS, segment_bytes=SEGMENT_BYTES, dedupe_buffer_bytes=128 << 20)
    rounds = oracle.clean([spec])
    shutil.rmtree(copy)
    return sum(r.seconds for r in rounds)


def against_kafka(archive: Path, work: Path, codec: str, repeat: int) -> None:
    """Print the comparison, in turn, with medians."""
    ratios, seconds = [], []
    ours(archive, work)  # page cache, compiled kernels
    for i in range(repeat):
        theirs = kafkas(archive, work)
        result, wall, cpu = ours(archive, work)
        ratios.append(theirs / wall)
        seconds.append(wall)
        phases = ", ".join(f"{name} {value:.2f}" for name, value in result.work.seconds.items())
        line = f"kafka {theirs:.2f} s, ours {wall:.2f} s ({phases}; cpu {cpu:.2f}), ratio {theirs / wall:.2f}"
        print(f"{codec} {i + 1}: {line}", flush=True)
    read = result.work.counters["records_read"]
    print(
        f"{codec}: median ratio {statistics.median(ratios):.2f}, ours {statistics.median(seconds):.2f} s; "
        f"read {result.work.bytes_read / _MB:.0f} MB, written {result.work.bytes_written / _MB:.0f} MB "
        f"(log {result.work.bytes_before / _MB:.0f} -> {result.work.bytes_after / _MB:.0f} MB); "
        f"{read / statistics.median(seconds) / 1e6:.2f} M records/s, "
        f"{result.work.bytes_before / statistics.median(seconds) / _MB:.0f} MB/s of log; "
        f"peak memory {result.work.peak_memory_bytes / _MB:.0f} MB"
    )


def whole_run(archive: Path, work: Path, engine: str, split: str | None = None) -> dict[str, Any]:
    """Run the command as users do, by one way of finding the last offset (None: as the job chooses); return its report,
    with the seconds and processor seconds of the process.
    """
    store, config = work / "store", work / "config.toml"
    way = f'"split.by" = "{split}"\n' if split else ""
    config.write_text(f'[defaults]\n"cleanup.policy" = "compact"\n"segment.bytes" = {SEGMENT_BYTES}\n[job]\n{way}')
    command = [sys.executable, "-m", "lastkey", "compact", archive, "--store", store, "--config", config, "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run = subprocess.run([*command, "--engine", engine], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    total = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(store)
    report: dict[str, Any] = json.loads(run.stdout)
    assert all(partition["status"] == "cleaned" for partition in report["partitions"]), report["partitions"]
    return report | {"all": total, "cpu": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime}


def whole_runs(archive: Path, work: Path, codec: str, ways: Sequence[str], *, with_spark: bool) -> None:
    """Print whole runs of the job, in processes of their own, for each way of finding the last offset."""
    for split in ways:
        out = whole_run(archive, work, "spark" if with_spark else "threads", split)
        (one,) = out["partitions"]
        work_seconds = out["seconds"]["partitions"]
        print(
            f"{codec}, {split} ({one['splits']} splits, {'Spark' if with_spark else 'threads'}): "
            f"work {work_seconds:.2f} s {one['seconds']}, "
            f"whole run {out['all']:.1f} s, {out['cpu']:.1f} processor seconds, {out['seconds']}; "
            f"read {one['bytes_read'] / _MB:.0f} MB, written {one['bytes_written'] / _MB:.0f} MB, "
            f"{one['records_read'] / work_seconds / 1e6:.2f} M records/s, "
            f"peak memory of a task {one['peak_memory_bytes'] / _MB:.0f} MB"
        )


def end_to_end(archive: Path, work: Path, codec: str, repeat: int) -> None:
    """Print the comparison of whole runs in threads with Kafka's cleaner, warm, on as many threads; in turn."""
    size, ratios = sum(log.stat().st_size for log in archive.glob("*/*.log")), []
    with matrix.KafkaCleaners(matrix.CORES) as cleaners:
        for i in range(repeat + 1):
            theirs = cleaners.clean(archive, work / "kafka")
            matrix.settle(work, size)
            report = whole_run(archive, work, "threads")
            if not i:
                continue  # it compiled Java's code, and read the programs from the disk
            ratios.append(theirs / report["all"])
            print(
                f"{codec} {i}: kafka {theirs:.2f} s, whole run {report['all']:.2f} s "
                f"({report['cpu']:.2f} processor seconds, {report['seconds']}), ratio {ratios[-1]:.2f}",
                flush=True,
            )
    print(f"{codec}, {size / _MB:.0f} MB of log: median ratio {statistics.median(ratios):.2f}")


def _for_matrix(archive: Path, work: Path, engine: str) -> matrix.Row:
    report = whole_run(archive, work, engine)
    parts = report["partitions"]
    return {
        "seconds": report["all"],
        "bytes_after": sum(part["bytes_after"] for part in parts),
        "peak_memory_bytes": max(part["peak_memory_bytes"] for part in parts),
    }


def main() -> None:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--codec", nargs="+", default=["none", "zstd"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--split-by", nargs="*", default=["none", "always"], help="as whole runs, with Spark")
    parser.add_argument("--threads", nargs="*", default=["none"], help="ways of whole runs without Spark")
    parser.add_argument("--partitions", type=int, help="compare whole runs in threads over so many such logs")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="run the cells that this file of JSON lines lacks")
    parser.add_argument("--cells", default="", help="only cells of the matrix with this in their name, as zstd/1000B")
    parser.add_argument("--megabytes", type=int, default=1000, help="of records in most cells of the matrix")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write BENCHMARKS.md and its plots from such a file")
    options = parser.parse_args()
    if options.matrix:
        matrix.run(
            options.matrix, options.cells, options.megabytes, options.repeat,
            lambda archive, work: ours(archive, work)[1], _for_matrix,
        )  # fmt: skip
    if options.page:
        matrix.write_page(options.page)
    if options.matrix or options.page:
        return
    for codec in options.codec:
        with tempfile.TemporaryDirectory(prefix="lastkey-bench-") as name:
            work = Path(name)
            archive = work / "archive"
            for i in range(options.partitions or 1):
                make_partition(archive / f"bench-{i}", codec, records=options.records, keys=options.keys, seed=i + 1)
            if options.partitions:
                end_to_end(archive, work, codec, options.repeat)
                continue
            against_kafka(archive, work, codec, options.repeat)
            for _ in range(options.repeat):
                whole_runs(archive, work, codec, options.threads, with_spark=False)
            whole_runs(archive, work, codec, options.split_by, with_spark=True)


if __name__ == "__main__":
    main()
