"""Cost of a short run, start to end: README's first example against a bare PySpark session, in turn.

`python -m tests.bench.bench_start [--rounds 5] [--kinds bare,spark,threads,nothing,idle]` prints for each kind the
median of the wall seconds and of the processor seconds (those of the JVM and of its workers too, up to their end), and
the ratio to the first kind. Processor seconds tell much the same on a busy machine, wall seconds do not.
- bare: a session as PySpark makes it, and one Python task
- spark: README's compaction, from spark-submit.sh to its report
- threads: the same with `--engine threads`
- nothing: the same again on a store where nothing is due, on Spark; `idle`: so in threads
- large, large-threads: eight partitions of 508 MB, on Spark and in threads; needs 5 GB in the temporary folder
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.make_log import make_partition

ROOT = Path(__file__).resolve().parent.parent.parent
_BARE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
assert spark.sparkContext.parallelize([1], 1).map(lambda x: x + 1).collect() == [2]
spark.stop()
"""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: a JVM that outlives its command becomes ours, and so do its seconds


def command(kind: str, store: Path) -> list[str]:
    """Return the command of a kind."""
    if kind == "bare":
        return [sys.executable, "-c", _BARE]
    engine = ["--engine", "threads"] if kind in ("threads", "idle", "large-threads") else []
    archive, settings = "examples/archive", ["--config", "examples/topics.toml"]
    if kind.startswith("large"):
        archive, settings = str(store.parent / "large"), ["--topics", "large", "--cleanup-policy", "compact"]
    return ["./spark-submit.sh", "compact", archive, "--store", str(store), *settings, *engine]


def measured(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall seconds, and the processor seconds of all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    at = time.perf_counter()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - at
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    while True:  # remaining processes: as the subreaper we are the parent
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="bare,spark,threads,nothing,idle")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    environment = os.environ | {"LASTKEY_VENV": sys.prefix, "PYSPARK_PYTHON": sys.executable}
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        kept = Path(name) / "kept"
        if any(kind.startswith("large") for kind in kinds):
            make_partition(Path(name) / "large" / "large-0", "none", records=4_000_000, keys=500_000)
            for number in range(1, 8):
                shutil.copytree(Path(name) / "large" / "large-0", Path(name) / "large" / f"large-{number}")
        measured(command("threads", kept), environment)  # page cache, compiled kernels; the store of "nothing"
        for number in range(given.rounds):
            for kind in kinds:
                store = kept if kind in ("nothing", "idle") else Path(name) / "store"
                seconds[kind].append(measured(command(kind, store), environment))
                if store != kept:
                    shutil.rmtree(store, ignore_errors=True)
            said = ", ".join(f"{kind} {seconds[kind][-1][0]:.2f} ({seconds[kind][-1][1]:.2f})" for kind in kinds)
            print(f"{number + 1}: {said}; load {os.getloadavg()[0]:.1f}", flush=True)
    first = [statistics.median(of) for of in zip(*seconds[kinds[0]], strict=True)]
    for kind in kinds:
        wall, cpu = (statistics.median(of) for of in zip(*seconds[kind], strict=True))
        ratios = f"{wall / first[0]:.2f} and {cpu / first[1]:.2f} times {kinds[0]}"
        print(f"{kind:13} median {wall:5.2f} s, processor {cpu:5.2f} s: {ratios}")


if __name__ == "__main__":
    main()
