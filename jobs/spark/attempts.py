"""Attempts of tasks: the folder that each writes to, and errors of Spark. No pyspark: threads use it."""

from __future__ import annotations

import sys
from typing import Any

from lastkey.udfs.storage import exists, open_root


def is_sparks(error: Exception) -> bool:
    """Return whether Spark failed, or the way to it: a task's error, a JVM that is gone."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError) or bool(packages & {"pyspark", "py4j", "grpc"})


def folder_of_this_attempt(root: str, folder: str) -> str:
    """Return the folder below `root` that a task writes to. A retry gets one of its own: the first attempt may still
    be writing.
    """
    if "pyspark" not in sys.modules:
        return folder  # a thread
    from pyspark import TaskContext  # noqa: PLC0415 - threads need no pyspark

    context: Any = TaskContext.get()
    if context is None or not (context.attemptNumber() or exists(open_root(root), folder)):
        return folder
    return f"{folder}.{context.taskAttemptId()}"
