"""Existing session of this process, of any origin. No pyspark here: a job without Spark imports none."""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

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
