"""Existing session of this process, of any origin, and attempts of tasks. No pyspark here: a job without Spark imports
none. No other module uses private names of PySpark or py4j.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

from lastkey.udfs.storage import exists, open_root

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def running_spark() -> SparkSession | None:
    """Return the Spark Connect session of this process, else the session of its SparkContext; None: it has neither."""
    connect: Any = getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
    if connect is not None:
        # the active session is this thread's, and a run has several threads
        found: SparkSession | None = connect.getActiveSession() or connect._get_default_session()
        if found is not None:
            return found
    if running_context() is None:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is imported already

    return SparkSession.builder.getOrCreate()


def running_context() -> SparkContext | None:
    """Return the SparkContext of this process; None if missing."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active: SparkContext | None = None if context is None else context._active_spark_context
    return active


def get_spark_context(spark: SparkSession) -> SparkContext | None:
    """Return a session's SparkContext; None: Spark Connect has only an address."""
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    return context


def new_tag() -> str:
    """Return the tag of a new run's jobs."""
    return f"lastkey-{uuid.uuid4().hex}"


def classes(context: type[SparkContext] | SparkContext) -> Any:
    """Return the classes of the JVM, by package."""
    return context._jvm


def java_context(context: SparkContext) -> Any:
    """Return Java's SparkContext (`JavaSparkContext`)."""
    return context._jsc


def is_sparks(error: Exception) -> bool:
    """Return whether Spark or its connection failed: a task's error, a terminated JVM."""
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
