"""A run over many small partitions: `python -m tests.bench.bench_partitions [--partitions 10000] [--server versitygw]`.

Each partition has three segments of 100 records and an active one. Three runs follow one another: the first one, one
with nothing due, and one in which 1 % of the partitions have grown. Each is a process as users start it, by each
engine; its memory is the sum over the process, its JVM and Spark's workers. With `--server`, archive and store are in a
bucket of a server on this machine. The server's own processor time is a large part of such a run: moto looks at every
key of the bucket for each listing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.bench.memory import watched
from tests.builders.cloud_servers import SERVERS
from tests.builders.s3_server import put

ENGINES, RECORDS = ("threads", "spark"), 100
_NOW_MS = 1_800_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--server", choices=list(SERVERS), help="archive and store in its bucket")
    arguments = parser.parse_args()
    print("| partitions | engine | run | seconds | of 1,000 partitions | memory, bytes | phases |")
    print("|---|---|---|---|---|---|---|")
    for count in arguments.partitions:
        for engine in arguments.engines:
            with tempfile.TemporaryDirectory(prefix="lastkey-bench-") as name:
                _measure(Path(name), count, engine, arguments.server)


def _measure(work: Path, count: int, engine: str, server: str | None) -> None:
    _make(work / "archive" / "t-0", 0, 4)
    for number in range(1, count):
        shutil.copytree(work / "archive" / "t-0", work / "archive" / f"t-{number}")
    with _bucket(server, work / "archive") if server else contextlib.nullcontext(str(work)) as place:
        for run in ("first", "nothing due", "1 % due"):
            if run == "1 % due":
                for number in range(0, count, 100):
                    grown = work / "grown" / f"t-{number}"
                    _make(grown, 4, 9)
                    if server:
                        put(grown, f"{place}/archive/{grown.name}")
                    else:
                        shutil.copytree(grown, work / "archive" / grown.name, dirs_exist_ok=True)
            command = [
                sys.executable, "-m", "lastkey", "compact", f"{place}/archive", "--store", f"{place}/store", "--topics",
                "t", "--cleanup-policy", "compact", "--now", str(_NOW_MS), "--engine", engine, "--quiet", "--json",
            ]  # fmt: skip
            measured, seconds, peak = watched(command)
            assert measured.returncode == 0, measured
            report = json.loads(measured.stdout)
            cleaned = sum(partition["status"] == "cleaned" for partition in report["partitions"])
            expected = {"first": count, "nothing due": 0, "1 % due": len(range(0, count, 100))}[run]
            assert cleaned == expected, (cleaned, expected)
            each = seconds / count * 1_000
            print(
                f"| {count:,} | {engine} | {run} | {seconds:.1f} | {each:.2f} | {peak:,} | {report['seconds']} |",
                flush=True,
            )


def _make(folder: Path, first: int, last: int) -> None:
    """Write segments of RECORDS records, numbered first to last - 1; each key is in each of them."""
    folder.mkdir(parents=True)
    for number in range(first, last):
        offsets = range(number * RECORDS, (number + 1) * RECORDS)
        records = {
            "key": pa.array([b"key %d" % (offset % RECORDS) for offset in offsets], pa.binary()),
            "value": pa.array([b"value %d of some length" % offset for offset in offsets], pa.binary()),
            "offset": pa.array(offsets),
            "timestamp": pa.array([_NOW_MS // 2 + offset for offset in offsets], pa.timestamp("ms", "UTC")),
        }
        with SegmentWriter(folder, number * RECORDS) as writer:
            writer.append_records(pa.record_batch(records), codec="zstd")


@contextlib.contextmanager
def _bucket(server: str, archive: Path) -> Iterator[str]:
    scheme, start = SERVERS[server]
    with start():
        put(archive, f"{scheme}://logs/archive")
        yield f"{scheme}://logs"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
