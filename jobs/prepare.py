"""`python -m lastkey.jobs.prepare`: prepares a new environment once, so that each run starts sooner.

spark-submit.sh runs it; after `pip install` you can. In a checkout it compiles the kernels of every job.

Meanwhile it fetches Delta's jars through Spark's resolver, then does what every job does (a session, a commit, a read)
in a JVM that leaves an archive of its loaded classes beside the environment's packages. A JVM that finds the archive
unfit (another Java, other jars) runs without it: nothing depends on it but time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.spark import jars, jvm, session
from lastkey.jobs.spark.submit import user_options
from lastkey.jobs.store.minutes import minute_table, replace_segments
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.cache_folder import folders, processor
from lastkey.logformat.jit import state_of_sources
from lastkey.udfs.lookup.minutes import TIME_INDEX_ROWS, TimedSegment, time_index_rows
from lastkey.udfs.storage import open_root

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "archive"
_THREADS = ("--engine", "threads")  # a second session would fetch Delta's jars too, and one of the two fail
_ERASE = ("erase", "--store", "{folder}/store", "--hmac-key", "{archive}/../topics.toml", *_THREADS)
_WITHOUT_SPARK = (
    ("reindex", "{archive}", "--check", *_THREADS), ("lookup", "{archive}", "--offset", "0", "--time", "0"),
    ("inspect", "{archive}", "--print-data-log", "--json"), ("lookup", "{archive}", "--sizing"),
    ("verify", "{archive}"), ("report", "{archive}", "--output", "{folder}/page.html"),
    ("compact", "{archive}", "--store", "{folder}/store", "--topics", "*", "--cleanup-policy", "compact", *_THREADS),
    ("verify", "--store", "{folder}/store"), (*_ERASE, "--key-hash", "0" * 64), (*_ERASE, "--key", "user-000058"),
)  # fmt: skip


def main() -> int:
    """Compile kernels, and prepare Spark beside: each of the two leaves a processor idle. Return 0, even if no archive
    could be made.
    """
    java = jvm.find_java()
    with ThreadPoolExecutor(1) as beside:
        kernels = beside.submit(compile_kernels)
        _prepare_spark(java)
    kernels.result()
    return 0


def _prepare_spark(java: Path) -> None:
    """Fetch jars, and train a JVM that writes the archive of its classes."""
    if not jars.cached_delta(jars.cache({})):
        subprocess.run([sys.executable, "-c", "from lastkey.jobs.spark import session; session.start()"], check=False)
    archive = jvm.class_archive(java)
    if archive is None or archive.is_file():
        return
    archive.parent.mkdir(exist_ok=True)
    part = archive.with_suffix(f".{os.getpid()}")
    code = f"from lastkey.jobs.prepare import train; train({str(part)!r})"
    # The JVM writes the archive after its driver has ended. It has the same stdout: `run` waits for the end of both
    trained = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    if trained.returncode:
        part.unlink(missing_ok=True)
    elif part.is_file():
        part.replace(archive)


def compile_kernels(environment: Mapping[str, str] = os.environ) -> None:
    """Compile the kernels of a compaction, and in a checkout those of the other jobs too, where they are not kept. A
    mark among the kernels of this processor says that they all are: finding that out takes a dozen processor seconds.
    """
    mark = f"{state_of_sources()}/prepared-{processor()}"
    kept = folders(environment.get("NUMBA_CACHE_DIR", ""))
    if any((cache / mark).is_file() for cache in kept):
        return
    python = partial(subprocess.run, check=False, env=environment)
    with ThreadPoolExecutor(1) as beside:  # a second processor: most kernels of the jobs are none of a task's
        beside.submit(python, [sys.executable, "-c", "import lastkey.udfs.compact.warm_up"])
        if EXAMPLE.is_dir():
            command = [sys.executable, "-c", "from lastkey.jobs.prepare import run_jobs; run_jobs()"]
            python(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for cache in kept:
        if EXAMPLE.is_dir() and (cache / mark).parent.is_dir():
            with suppress(OSError):
                (cache / mark).touch()


def run_jobs() -> None:
    """Run jobs on the example in this process, which imports once what they share."""
    with tempfile.TemporaryDirectory() as folder:
        for words in _WITHOUT_SPARK:
            cli.main([word.format(archive=EXAMPLE, folder=folder) for word in words])
    _note_minutes()


def _note_minutes() -> None:
    """Find the minutes of the example's records, as `lookup --at` does in Spark's tasks."""
    archive = list_archive(open_root(str(EXAMPLE)), lambda _: True)
    for one in archive.partitions.values():
        time_index_rows([TimedSegment(one.topic, one.partition, segment) for segment in one.segments])


def train(part: str) -> None:
    """Run one session that does a little of everything; its JVM writes the archive to `part` when it ends."""
    user, option = user_options(()), "spark.driver.defaultJavaOptions"
    java_options = jvm.settings_for(user, jvm.find_java())[option]
    spark = session.start(options=user, conf={option: f"{java_options} -XX:ArchiveClassesAtExit={part} -Xlog:disable"})
    with tempfile.TemporaryDirectory() as folder:
        exercise(spark, folder)
    spark.stop()


def exercise(spark: SparkSession, folder: str) -> None:
    """Do what jobs do with Spark: run tasks in Python, write and read a Delta table."""
    frame = spark.createDataFrame(TIME_INDEX_ROWS.empty_table())
    frame = frame.mapInArrow(lambda batches: batches, frame.schema)
    state = open_state(folder)
    for _ in range(2):
        replace_segments(state, frame, [])
        minute_table(spark, state.root).toArrow()


if __name__ == "__main__":
    sys.exit(main())
