"""`python -m jobs.prepare`: what a new environment does once, so that each run starts sooner.

Fetches Delta's jars through Spark's resolver, then runs what every job runs (a session, a commit, a read) in a JVM that
leaves an archive of its loaded classes beside the environment's packages. A JVM that finds the archive unfit (another
Java, other jars) goes without it: nothing depends on it but time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from jobs.spark import session
from jobs.spark.submit import user_options
from jobs.store.rows import (
    Checkpoint,
    Commit,
    PartitionState,
    Row,
    RunRow,
    Segment,
    arrow_schema,
)
from jobs.store.tables import open_state

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "archive"
_WITHOUT_SPARK = (
    ("reindex", "--check"), ("lookup", "--offset", "0", "--time", "0"), ("inspect", "--print-data-log", "--json"),
)  # fmt: skip


def main() -> int:
    """Fetch, train, write the archive. Returns an exit code; a missing archive is none worth failing for."""
    java = session.find_java()
    compile_kernels = "import udfs.compact.warm_up"  # of a compaction
    subprocess.run([sys.executable, "-c", compile_kernels], check=False)
    for job in _WITHOUT_SPARK if EXAMPLE.is_dir() else ():  # and those of these jobs
        command = [sys.executable, "-m", "jobs", job[0], str(EXAMPLE), *job[1:]]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if not session.cached_jars(Path("~/.ivy2.5.2").expanduser()):
        subprocess.run([sys.executable, "-c", "from jobs.spark import session; session.start()"], check=False)
    archive = session.class_archive(java)
    if archive is None or archive.is_file():
        return 0
    archive.parent.mkdir(exist_ok=True)
    part = archive.with_suffix(f".{os.getpid()}")
    code = f"from jobs.prepare import train; train({str(part)!r})"
    subprocess.run([sys.executable, "-c", code], check=False)
    if part.is_file():
        part.replace(archive)  # whole or not at all
    return 0


def train(part: str) -> None:
    """One session that does a little of everything; the JVM writes the archive when it ends."""
    user = user_options(())
    spark = session.start(
        options=user,
        conf={
            "spark.driver.defaultJavaOptions": session.settings_for(user, session.find_java())[
                "spark.driver.defaultJavaOptions"
            ]
            + f" -XX:ArchiveClassesAtExit={part} -Xlog:disable"
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        exercise(spark, folder)
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait(timeout=120)
    else:
        time.sleep(1)


def exercise(spark: SparkSession, folder: str) -> None:
    """A commit, a MERGE and reads on an empty store, for a new environment (`jobs.prepare`)."""
    state = open_state(spark, folder)
    for generation, wave in ((1, 0), (2, 1)):
        run_id = f"{generation}"
        values: dict[str, Any] = {"topic": "t", "run_id": run_id, "generation": generation, "base_offset": 0}
        values |= {"generation_after": generation, "generation_before": generation - 1}
        before = str(generation - 1) if generation > 1 else None
        commit = Commit(
            "t",
            0,
            generation - 1,
            before,
            _sample(Checkpoint, values),
            [_sample(Segment, values)],
            _sample(RunRow, values | {"parent_run_id": before}),
        )
        state.commit_wave([commit], wave)
        state.set_states([_sample(PartitionState, values)])
        state.current()
    state.histories()


def _sample(kind: type[Row], values: Mapping[str, Any]) -> Row:
    empty = {pa.string(): "", pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.bool_(): False}
    return kind(**{f.name: values.get(f.name, empty[f.type]) for f in arrow_schema(kind)})


if __name__ == "__main__":
    sys.exit(main())
