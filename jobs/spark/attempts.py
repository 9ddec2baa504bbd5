"""Attempts of tasks: where each writes, and the problems that their errors carry. No pyspark: threads use it."""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import asdict
from typing import Any

from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import exists, open_root

_CARRIED = "lastkey-problem "


class StoppedTask(Exception):
    """Carrier of a problem out of a task whose rows are no results: Spark passes on only the text of an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{_CARRIED}{base64.b64encode(json.dumps(asdict(problem)).encode()).decode()}.")


def is_sparks(error: Exception) -> bool:
    """Return whether Spark failed, or the way to it: a task's error, a JVM that is gone."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError) or bool(packages & {"pyspark", "py4j", "grpc"})


def carried_problem(error: BaseException) -> Problem | None:
    """Return the problem that a task's error carries; None if Spark itself failed, or the machine."""
    found = re.search(f"{_CARRIED}([A-Za-z0-9+/=]+)\\.", str(error))
    return None if found is None else Problem(**json.loads(base64.b64decode(found[1])))


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
