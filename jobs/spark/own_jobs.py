"""Jobs of one run among all those of a session, which may be a user's own: their names, and how to end them alone.

All jobs of a run share a tag. Sessions with a SparkContext show a name in Spark's UI and event logs: as the description
of a job and as the name of its stages. Sessions of Spark Connect let a client set only tags, so the name is a tag too.

Metrics of the jobs (bytes read, bytes written, records kept) are named accumulators. Spark publishes these to the sinks
of `spark.metrics.conf` and in the UI's `/metrics/json` as `<application>.driver.AccumulatorSource.lastkey.<name>`.
Python tasks can feed no named accumulator, so the driver adds the figures of each result: a task that is tried twice
counts once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.traceback_utils import SCCallSiteSync

from lastkey.jobs.spark.running import classes, get_spark_context, is_sparks, java_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"
_STAGE: Final = "callSite.short"
_PATIENCE: Final = 30.0  # seconds to wait for threads or tasks to end, on a busy machine too
_TOLD_MS: Final = 2_000
NAMES: Final = ("bytes_read", "bytes_written", "records_kept")  # names of metrics
_REGISTERING: Final = threading.Lock()


@contextmanager
def tagged(spark: SparkSession, name: str, *tags: str) -> Iterator[None]:
    """Give the jobs that this thread starts in the `with` block a name for people, and tags, such as their run's."""
    context = get_spark_context(spark)
    if context is None:
        ours = (*tags, name.replace(",", ";"))  # no tag holds a comma
        for each in ours:
            spark.addTag(each)
        try:
            yield
        finally:
            for each in ours:
                spark.removeTag(each)
        return
    before = context.getLocalProperty(_DESCRIPTION)
    caller: Any = SCCallSiteSync(context)  # type: ignore[no-untyped-call]
    caller.__enter__()  # else each of PySpark's actions names its stages for the line that calls it
    try:
        for tag in tags:
            context.addJobTag(tag)
        for key in (_DESCRIPTION, _STAGE):
            context.setLocalProperty(key, name)
        yield
    finally:
        with suppress(Exception):  # the JVM may have terminated, or be busy with a call that a signal interrupted
            caller.__exit__(None, None, None)
            for tag in tags:
                context.removeJobTag(tag)
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None takes it away
            context.setLocalProperty(_STAGE, None)  # type: ignore[arg-type]


def end_jobs(spark: SparkSession, tag: str, working: Sequence[Future[Any]]) -> None:
    """Cancel a run's jobs until the threads that wait for them have ended: between two jobs a thread has none to
    cancel. Do not wait for a thread that is busy with other work: its next job fails with the session.
    """
    patience = time.monotonic() + _PATIENCE
    while time.monotonic() < patience:
        # A signal may have come in the middle of this thread's call to the JVM, which takes no other meanwhile
        asking = threading.Thread(target=_cancel, args=(spark, tag), daemon=True, name="cancel")
        asking.start()
        asking.join(max(patience - time.monotonic(), 0))
        if not wait([future for future in working if not future.cancelled()], timeout=0.2).not_done:
            break


def _cancel(spark: SparkSession, tag: str) -> None:
    with suppress(Exception):  # the JVM or the server may have terminated; the reason of the stop is already known
        if (context := get_spark_context(spark)) is not None:
            context.cancelJobsWithTag(tag)
        else:
            spark.interruptTag(tag)


def await_tasks(spark: SparkSession, tag: str) -> bool:
    """Wait for a run's cancelled tasks to end, and so for their workers, which Spark kills after some 4 seconds. Return
    whether all ended; False too if it is unknown, through Spark Connect.
    """
    context = get_spark_context(spark)
    if context is None:
        return False
    patience, rest = time.monotonic() + _PATIENCE, threading.Event()
    while time.monotonic() < patience:
        with suppress(Exception):  # as above
            if not any(stage.numActiveTasks for stage in _stages(context, tag)):
                return True
        rest.wait(0.1)
    return False


def count_tasks(spark: SparkSession, tag: str) -> int:
    """Return the number of successful tasks of a tag's jobs; 0 if it is unknown: Connect, an ended JVM."""
    context = get_spark_context(spark)
    if context is not None:
        with suppress(Exception):  # as above
            # The status store hears of tasks a little later
            java_context(context).sc().listenerBus().waitUntilEmpty(_TOLD_MS)
            return sum(stage.numCompletedTasks for stage in _stages(context, tag))
    return 0


def _stages(context: Any, tag: str) -> list[Any]:
    ids = java_context(context).sc().statusTracker().getJobIdsForTag(tag)  # the one call that Python's tracker lacks
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in ids]
    of_jobs = {stage for job in jobs if job is not None for stage in job.stageIds}  # two jobs may share one
    return [info for stage in of_jobs if (info := tracker.getStageInfo(stage)) is not None]


def add_metrics(context: SparkContext, amounts: Mapping[str, int]) -> None:
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
