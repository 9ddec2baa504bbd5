"""`python -m lastkey.jobs.prepare`: prepares a new environment once, so that each run starts sooner.

spark-submit.sh runs it; after `pip install` you can. It compiles the kernels of every job (`jobs.warm_up`).

Meanwhile it fetches Delta's jars through Spark's resolver, then does what every job does (a session, a commit, a read)
in a JVM that leaves an archive of its loaded classes beside the environment's packages. A JVM that finds the archive
unfit (another Java, other jars) runs without it: nothing depends on it but time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from lastkey.jobs.spark import jars, jvm, session
from lastkey.jobs.spark.submit import user_options
from lastkey.jobs.store.minutes import minute_table, replace_segments
from lastkey.jobs.store.tables import open_state
from lastkey.udfs.lookup.minutes import TIME_INDEX_ROWS


def main() -> int:
    """Compile kernels, and prepare Spark beside: each of the two leaves a processor idle. Return 0, even if no archive
    could be made.
    """
    java = jvm.find_java()
    with subprocess.Popen([sys.executable, "-m", "lastkey.jobs.warm_up"]):
        _prepare_spark(java)
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
