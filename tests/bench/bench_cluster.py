"""Wall clock of one compaction on a standalone cluster with one worker of one core, and with two.

`python -m tests.bench.bench_cluster [--rounds 3] [--megabytes 512]` prints the median of the wall seconds for each,
start to end, unpacking the pack not counted: executors run by one that lies on a path that they see. Master, workers
and driver share this machine, so with two cores the second worker competes with the driver's JVM and with the master.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.builders.cluster import Node, cluster, make_node
from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[2]
CONFIG = '[topics.users]\n"cleanup.policy" = "compact"\n'


def main() -> None:
    """Measure, and print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=512)
    arguments = parser.parse_args()
    node = make_node()
    try:
        shared = node.own(node.folder / "shared")
        archive, n_bytes = shared / "archive", 0
        for number in range(10_000):
            made = archive / f"users-{number}"
            shutil.copytree(ROOT / "examples" / "archive" / f"users-{number % 2}", made)
            n_bytes += sum(path.stat().st_size for path in files_in(made))
            if n_bytes >= arguments.megabytes << 20:
                break
        (shared / "topics.toml").write_text(CONFIG)
        unpacked = node.own(shared / "lastkey")
        subprocess.run([ROOT / "spark-submit.sh", "pack", shared / "lastkey.tar.gz", "--quiet"], check=True,
                       env=os.environ | {"LASTKEY_VENV": sys.prefix})  # fmt: skip
        subprocess.run(["tar", "-xf", shared / "lastkey.tar.gz", "-C", unpacked], check=True)
        print(f"{n_bytes >> 20} MiB of log in {number + 1} partitions, {os.cpu_count()} cores")
        for workers in (1, 2):
            with cluster(node, workers) as master:
                seconds = [_measured(node, master, f"store-{workers}-{n}") for n in range(arguments.rounds)]
            print(f"{workers} worker{'s' if workers > 1 else ''}: {statistics.median(seconds):.1f} s")
            for number in range(workers):
                shutil.rmtree(node.folder / f"work-{number}")
    finally:
        shutil.rmtree(node.folder)


def _measured(node: Node, master: str, store: str) -> float:
    shared = node.folder / "shared"
    options = ["--master", master, "--conf", f"spark.pyspark.python={shared}/lastkey/bin/python"]
    words = ["compact", shared / "archive", "--store", shared / store, "--config", shared / "topics.toml", "--quiet"]
    command = node.as_user(
        sys.executable, "-m", "lastkey", *options, "--executor-memory", "512m", *words, reads_all=True
    )
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "SPARK_LOCAL_IP": "127.0.0.1"}
    at = time.perf_counter()
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - at
    if completed.returncode:
        sys.exit(completed.stderr)
    return seconds


if __name__ == "__main__":
    main()
