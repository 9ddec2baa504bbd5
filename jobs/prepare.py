"""`python -m lastkey.jobs.prepare`: prepares a new environment once, so that each run starts sooner.

spark-submit.sh runs it; after `pip install` you can. It compiles the kernels of every job (`jobs.warm_up`).

Meanwhile it fetches Delta's jars through Spark's resolver, runs `lookup --at` with Python tasks, and writes and reads a
Delta table. Its JVM stores an archive of the loaded classes beside the environment's packages. A JVM that finds the
archive unfit (another Java, other jars) runs without it: only the time depends on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lastkey.jobs.spark import jvm
from lastkey.jobs.warm_up import write_segment


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
    if not jvm.cached_delta(jvm.downloads_folder({})):
        subprocess.run([sys.executable, "-c", "from lastkey.jobs.spark import session; session.start()"], check=False)
    archive = jvm.class_archive(java)
    if archive is None or archive.is_file():
        return
    archive.parent.mkdir(exist_ok=True)
    part = archive.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        write_segment(f"{folder}/archive/log-0", 0)
        options = ("--driver-java-options", f"-XX:ArchiveClassesAtExit={part} -Xlog:disable")
        job = ("lookup", f"{folder}/archive", "--at", "1970-01-01", "--refresh", "--store", f"{folder}/store")
        # The JVM writes the archive after its driver has ended. It has the same stdout: `run` waits for both ends
        trained = subprocess.run([sys.executable, "-m", "lastkey", *options, *job], stdout=subprocess.PIPE, check=False)
    if trained.returncode:
        part.unlink(missing_ok=True)
    elif part.is_file():
        part.replace(archive)


if __name__ == "__main__":
    sys.exit(main())
