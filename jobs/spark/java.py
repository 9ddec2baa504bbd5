"""The JVM behind a session, for the few calls that PySpark has no Python names for.

No other module uses private names of PySpark or py4j.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def classes(context: type[SparkContext] | SparkContext) -> Any:
    """Return the classes of the JVM, by package."""
    return context._jvm


def java_context(context: SparkContext) -> Any:
    """Return Java's SparkContext (`JavaSparkContext`)."""
    return context._jsc
