"""`python -m jobs.prepare`: what a new environment does once, so that each run starts sooner.

spark-submit.sh runs it; after `pip install` you can. In a checkout it compiles the kernels of every job.

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
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.spark import session
from jobs.spark.submit import user_options
from jobs.store.minutes import minute_table, replace_segments
from jobs.store.tables import open_state
from udfs.lookup.minutes import TIME_INDEX_ROWS

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "archive"
_WITHOUT_SPARK = (
    ("reindex", "--check"), ("lookup", "--offset", "0", "--time", "0"), ("inspect", "--print-data-log", "--json"),
    ("lookup", "--sizing"), ("verify",), ("report", "--output", "{folder}/page.html"),
)  # fmt: skip


def main() -> int:
    """Fetch, train, write the archive. Returns an exit code; a missing archive is none worth failing for."""
    java = session.find_java()
    compile_kernels = "import udfs.compact.warm_up"  # of a compaction
    subprocess.run([sys.executable, "-c", compile_kernels], check=False)
    with tempfile.TemporaryDirectory() as folder:
        for job in _WITHOUT_SPARK if EXAMPLE.is_dir() else ():  # and those of these jobs
            command = [
                sys.executable,
                "-m",
                "jobs",
                job[0],
                str(EXAMPLE),
                *(word.format(folder=folder) for word in job[1:]),
            ]
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
    """What jobs do with Spark: tasks in Python, and a Delta table that is written and read."""
    frame = spark.createDataFrame(TIME_INDEX_ROWS.empty_table())
    frame = frame.mapInArrow(lambda batches: batches, frame.schema)
    state = open_state(folder)
    for _ in range(2):
        replace_segments(state, frame, [])
        minute_table(spark, state.root).toArrow()


if __name__ == "__main__":
    sys.exit(main())
