"""Records a second through the data source: `python -m tests.bench.bench_data_source [FOLDER]`.

The log is one of tests/bench/make_log.py (16-byte keys, 100-byte values), 2,000,000 records a codec; left in FOLDER
where one is given. On one core: Spark as local[1], our reader alone in one thread, kafka-dump-log in one
process. Pages are in memory: what is measured ran once before. Each figure is the best of three, since other work on
the machine only ever makes one slower.

  reader            plan and read in this process, no Spark: all of Spark's columns, or without value
  kafka_log         through Spark into its noop sink: every row reaches the JVM
  count             the same, rows counted by Spark: one column
  spark kafka       Spark's own Kafka source, the same topic from a local broker (which works on another core)
  kafka-dump-log    --print-data-log of the same files: in a JVM that is warm, and as a process of its own

Then what a query of one minute of a day reads, in bytes by the kernel's own counter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import make_log
from tests.builders.sources import read_only
from tests.kafka_lab import dump_log_segments, served_by_broker
from tests.kafka_lab.jvm import java_command
from tests.kafka_lab.spark_source import spark_kafka_jars

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 2_000_000
REPEATS = 3
NO_VALUE = {"includeValue": "false"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--codecs", default="none,zstd")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        for codec in arguments.codecs.split(","):
            partition = folder / codec / f"{codec}-0"
            if not partition.exists():
                make_log.make_partition(partition, codec, records=RECORDS)
            logs = sorted(partition.glob("*.log"))
            print(f"{codec}: {sum(path.stat().st_size for path in logs):,} bytes, {len(logs)} segments", flush=True)
            alone(partition)
            through_spark(partition)
            dump_tool(logs)
        minute_of_a_day(folder / "day")


def alone(partition: Path) -> None:
    for what, options in (("reader", {}), ("reader, no value", NO_VALUE), ("reader, key alone", {"columns": "key"})):
        report(what, lambda options=options: read_only("kafka_log", partition, **options))


def through_spark(partition: Path) -> None:
    parts = {partition.name: partition}
    with served_by_broker(parts) as broker:
        options = {
            "bootstrap": broker.bootstrap, "topic": partition.name.rpartition("-")[0], "archive": str(partition),
            "jars": ",".join(map(str, spark_kafka_jars())), "repeats": REPEATS,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.time_spark_sources", json.dumps(options)]
        completed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    times = json.loads(completed.stdout.splitlines()[-1])
    fixed = times.pop("kafka_log, no record")
    for what, seconds in times.items():
        show(what, seconds)
    print(f"  {'kafka_log, fixed cost':<28}{fixed:>33.2f} s, part of each of these")


def dump_tool(logs: list[Path]) -> None:
    flags = ["--print-data-log", "--files", ",".join(map(str, logs))]
    report("kafka-dump-log, warm JVM", lambda: dump_log_segments(*flags))
    command = java_command("org.apache.kafka.tools.DumpLogSegments", *flags)
    report("kafka-dump-log, process", lambda: _quietly(command))


def _quietly(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def minute_of_a_day(partition: Path) -> None:
    """Print what is read for one minute of a day with a record each 10 ms, timestamps by the producers."""
    folder = partition / "day-0"
    if not folder.exists():
        make_log.make_partition(folder, "none", records=8_640_000)
    first = 1_700_000_000_000
    start = first + 13 * 3_600_000
    window = {"startingTimestamp": str(start), "endingTimestamp": str(start + 60_000)}
    sizes = {}
    for what, options in (("a day", {}), ("one minute of it", window)):
        before = read_bytes()
        rows = read_only("kafka_log", folder, **options)
        sizes[what] = read_bytes() - before
        print(f"  {what:<28}{rows:>12,} records{sizes[what]:>16,} bytes read")
    print(f"  {sizes['one minute of it'] / sizes['a day']:.3%} of the bytes")


def read_bytes() -> int:
    """Return the bytes that this process asked the kernel for, from files and all else; mapped files do not count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def report(what: str, work: Callable[[], object]) -> None:
    work()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    show(what, min(seconds))


def show(what: str, seconds: float) -> None:
    print(f"  {what:<28}{RECORDS / seconds:>14,.0f} records/s{seconds:>9.2f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    main()
