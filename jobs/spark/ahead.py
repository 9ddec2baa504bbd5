"""Early start of a command's processes, while it imports: the JVM, if it will have work, and a fork for workers.

Both need seconds, in which the command imports, lists and plans. Where nobody knows yet whether anything is due, the
JVM starts with the first task, and the fork, which has cost nothing so far, loads its kernels then. Only a process that
works for one command does this: a fork copies no threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lastkey.jobs.command.job_modules import imported
from lastkey.jobs.errors import JobError
from lastkey.jobs.spark import daemon, forked, jvm
from lastkey.jobs.spark.engine import asked_engine, local_cores
from lastkey.jobs.spark.submit import UserOptions, from_environment

# What runs on Spark by default, and whether it will certainly have work for the JVM that all jobs start; the window's
# has other options
_HAS_WORK: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "compact": lambda given: (
        given["config"].job.split_by != "window"
        and (given["force"] or ("://" not in given["store"] and not Path(given["store"]).exists()))
    ),
    "reindex": lambda _: True,
    "audit keys": lambda _: True,
    "audit compaction": lambda _: True,
    "audit erasure": lambda _: True,
    "audit mirror": lambda _: True,
    "audit failover": lambda _: True,
}


def start(job: str, given: dict[str, Any]) -> None:
    """Import a job that runs on Spark on this machine, and fork. given: its options, with the settings as a Config."""
    user = from_environment()
    if job not in _HAS_WORK or local_cores() is None:
        return
    if asked_engine(given["engine"], given["config"], writes=True) != "spark":
        return
    python = jvm.environment_for(user)["PYSPARK_PYTHON"]
    forks = python == sys.executable and not any(key.startswith("spark.executorEnv.") for key in user.conf)
    if forks:
        forked.listen()
    launched = _launched(user) if _HAS_WORK[job](given) else None
    imported(job)
    if forks:
        forked.fork([] if launched is None else launched.pipes(), daemon.import_shared, daemon.fork_workers)
    if launched is not None:
        forked.begin()
        launched.output.hear()


def _launched(user: UserOptions) -> jvm.Jvm | None:
    try:
        made = jvm.Jvm(jvm.arguments_for(user), jvm.environment_for(user), verbose=jvm.is_verbose(user))
    except JobError:
        return None  # the session says so, if one is needed
    jvm.launch_ahead(made)
    return made
