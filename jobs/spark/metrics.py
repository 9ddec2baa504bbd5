"""Metrics of a session's jobs, in Spark's own metrics system: bytes read, bytes written, records kept.

They are named accumulators, which Spark publishes to the sinks of `spark.metrics.conf` and in the UI's `/metrics/json`
as `<application>.driver.AccumulatorSource.lastkey.<name>`. Python tasks can feed no named accumulator, so the driver
adds what each result tells: a task that is tried twice counts once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pyspark import SparkContext

from lastkey.jobs.spark.attempts import is_sparks
from lastkey.jobs.spark.java import classes, java_context

NAMES: Final = ("bytes_read", "bytes_written", "records_kept")
_REGISTERING: Final = threading.Lock()


def add(context: SparkContext, amounts: Mapping[str, int]) -> None:
    """Add to the metrics of an application. amounts: by name, one of `NAMES` each. Do nothing if its JVM has ended."""
    try:
        with _REGISTERING:
            accumulators = _registered(context)
        for name, n in amounts.items():
            accumulators[name].add(n)
    except Exception as error:
        if not is_sparks(error):  # else the next call of the JVM reports that it has ended
            raise


@lru_cache(maxsize=1)
def _registered(context: SparkContext) -> dict[str, Any]:
    spark, java = java_context(context).sc(), classes(context)
    accumulators = {name: spark.longAccumulator(f"lastkey.{name}") for name in NAMES}
    named = java.PythonUtils.toScalaMap({f"lastkey.{name}": each for name, each in accumulators.items()})
    source = getattr(java.org.apache.spark.metrics.source, "LongAccumulatorSource$")
    getattr(source, "MODULE$").register(spark, named)
    return accumulators
