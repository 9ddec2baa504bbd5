"""Exports of one partition, whole commands in turn: `python -m tests.bench.bench_export [FOLDER] [--against CHECKOUT]`.

The log of make_log.py: 8.6 million records of 1 million keys, 1 GB without a codec, kept in FOLDER if that is given.
Each case is a process as users start it; its memory is the sum over the process, its JVM and Spark's workers, shared
pages counted once, twice a second. --against: another checkout does the same in turn (on Spark), and the last column is
its median time as a multiple of this one's. If duckdb can be imported, a copy of the Parquet files by it comes last: no
export can be faster than a reader and writer of the result.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import make_log
from tests.bench.memory import watched

CASES = ("parquet", "ndjson", "delta", "latest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--codec", default="none", choices=("none", "zstd"))
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--records", type=int, default=make_log.RECORDS)
    parser.add_argument("--duckdb", default=sys.executable, help="a Python that has duckdb")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = arguments.folder or Path(name)
        archive = root / f"{arguments.codec}-{arguments.records}"
        if not archive.exists():
            make_log.make_partition(archive / "t-0", arguments.codec, records=arguments.records)
        size = sum(path.stat().st_size for path in archive.rglob("*.log"))
        print(f"{arguments.records:,} records, {size:,} bytes of {arguments.codec}; medians of {arguments.times}")
        print("| export | seconds | memory, bytes | other / this |\n|---|---|---|---|")
        here, out = Path.cwd(), Path(name) / "out"
        for case in arguments.cases:
            times: dict[tuple[Path, str], list[float]] = {}
            peaks: dict[tuple[Path, str], int] = {}
            for _ in range(arguments.times):
                runs = [(here, "spark"), *([] if case == "latest" else [(here, "threads")])]
                runs += [(arguments.against, "spark")] if arguments.against else []
                for run in runs:
                    seconds, peak = _export(*run, case, archive, out)
                    times.setdefault(run, []).append(seconds)
                    peaks[run] = max(peaks.get(run, 0), peak)
            medians = {run: statistics.median(run_seconds) for run, run_seconds in times.items()}
            for (checkout, engine), seconds in medians.items():
                other = medians.get((arguments.against, "spark")) if checkout == here else None
                ratio = "" if other is None else f"{other / seconds:.2f}"
                which = "" if checkout == here else f", {checkout.name}"
                peak = peaks[checkout, engine]
                print(f"| {case}, {engine}{which} | {seconds:.1f} | {peak:,} | {ratio} |", flush=True)
        if "parquet" in arguments.cases:
            _export(here, "threads", "parquet", archive, out)
            _copy_by_duckdb(arguments.duckdb, out / "t")


def _export(checkout: Path, engine: str, case: str, archive: Path, out: Path) -> tuple[float, int]:
    """Run one export; return its seconds and its memory in bytes."""
    shutil.rmtree(out, ignore_errors=True)
    words = ["--format", "delta", "--latest"] if case == "latest" else ["--format", case]
    words += [] if engine == "spark" else ["--engine", engine]
    command = [sys.executable, "-m", "lastkey", "export", str(archive), *words, "--output", str(out)]
    process, seconds, peak = watched(["env", "-C", str(checkout), f"PYTHONPATH={checkout}", *command])
    assert process.returncode == 0, process.stdout
    return seconds, peak


def _copy_by_duckdb(python: str, folder: Path) -> None:
    copy = f"COPY (SELECT * FROM read_parquet('{folder}/*.parquet')) TO '{folder}.copy' (FORMAT parquet, CODEC zstd)"
    began = time.perf_counter()
    code = f"import duckdb; duckdb.sql('SET threads = 2'); duckdb.sql({copy!r})"
    if subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0:
        print(f"| copy of the Parquet files by DuckDB | {time.perf_counter() - began:.1f} | | |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
