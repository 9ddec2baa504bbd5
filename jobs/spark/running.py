"""Session that this process has already, whatever made it. No pyspark here: a job without Spark imports none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def running_session() -> SparkSession | None:
    """Return the session of this process: one of Spark Connect, else the one that a SparkContext belongs to."""
    connect: Any = getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
    if connect is not None:
        # the active one is this thread's, and a run has several threads
        found: SparkSession | None = connect.getActiveSession() or connect._get_default_session()
        if found is not None:
            return found
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context is None or context._active_spark_context is None:
        return None
    of_context: SparkSession = sys.modules["pyspark.sql"].SparkSession(context._active_spark_context)
    return of_context


def has_context(spark: SparkSession) -> bool:
    """Return whether a session has a SparkContext beside it; one of Spark Connect has only an address."""
    return hasattr(spark, "sparkContext")
