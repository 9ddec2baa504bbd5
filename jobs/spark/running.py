"""Session that this process has already, whatever made it. No pyspark here: a job without Spark imports none."""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    Spark = (
        SparkContext | SparkSession
    )  # a context, which is enough for tasks; of Spark Connect there is only a session


def running_spark() -> Spark | None:
    """Return the Spark Connect session of this process, else its SparkContext; None: it has neither."""
    connect: Any = getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
    if connect is not None:
        # the active one is this thread's, and a run has several threads
        found: SparkSession | None = connect.getActiveSession() or connect._get_default_session()
        if found is not None:
            return found
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active: SparkContext | None = None if context is None else context._active_spark_context
    return active


def context_of(spark: Spark) -> SparkContext | None:
    """Return a session's SparkContext, or the one that is given; None: Spark Connect has only an address."""
    given: Any = spark
    context: SparkContext | None = given if hasattr(given, "parallelize") else getattr(given, "sparkContext", None)
    return context


def new_tag() -> str:
    """Return the tag of a new run's jobs."""
    return f"lastkey-{uuid.uuid4().hex}"
