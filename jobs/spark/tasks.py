"""How plans become Spark tasks and results come back: values, pickled.

Spark's RDDs carry them: a DataFrame is planned and compiled, and comes through Arrow. Measured, warm: 10 ms a task
against 35 ms, and the first tasks of a session after 2.0 s against 3.5 to 4.5 s.
The functions that the tasks run are those of `udfs`; what is here only carries them.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import RDD, InheritableThread, TaskContext
from pyspark.sql import SparkSession

from udfs.compact.plan import PartitionPlan
from udfs.problem import Problem
from udfs.storage import exists, open_root

T = TypeVar("T")
R = TypeVar("R")

RESULT = "result binary"
_CARRIED = "lastkey-problem "
_PATIENCE = 10.0  # seconds that threads have to end
_RESULT_ARROW = pa.schema([pa.field("result", pa.binary())])


def run_tasks(
    spark: SparkSession, function: Callable[[T], R], items: Sequence[T], on_done: Callable[[int], None] | None = None
) -> list[R]:
    """`function` of every item, each in a Spark task of its own; results in the order of the items.

    `on_done`: told, from a thread of its own, how many more tasks have ended.
    """
    if not items:
        return []

    tasks = spark.sparkContext.parallelize(list(items), len(items)).map(function)  # to each task its own item alone
    with watched(spark, on_done) if on_done is not None else nullcontext():
        return _collected(tasks)


def _collected(tasks: RDD[R]) -> list[R]:
    """What tasks give. A thread of its own calls the JVM: so Ctrl-C and SIGTERM find this one waiting, and not in the
    middle of a call in which it cannot say that the tasks are to end.
    """
    results: Future[list[R]] = Future()

    def collect() -> None:
        try:
            results.set_result(tasks.collect())
        except BaseException as error:  # raised below
            results.set_exception(error)

    InheritableThread(collect, daemon=True, name="tasks").start()
    try:
        return results.result()
    except BaseException as error:
        if not isinstance(error, Exception):
            tasks.context.cancelAllJobs()  # this process works for nothing else
        raise


def end_jobs(spark: SparkSession, working: Sequence[Future[Any]]) -> None:
    """Cancel what Spark works at for these threads, until they have ended: between two of its jobs a thread has none
    that could be cancelled. One that is long at something else is not waited for: its next job fails with the session.
    """
    patience = time.monotonic() + _PATIENCE
    while time.monotonic() < patience:
        with suppress(Exception):  # of a JVM that is gone; why the run ends is known already
            spark.sparkContext.cancelAllJobs()  # this process works for nothing else
        if not wait([future for future in working if not future.cancelled()], timeout=0.2).not_done:
            break


@contextmanager
def watched(spark: SparkSession, on_done: Callable[[int], None]) -> Iterator[None]:
    """Ask Spark twice a second how many tasks of this thread's job have ended."""
    group, ended = uuid.uuid4().hex, threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        told = 0
        while not ended.wait(0.5):
            jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
            stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if done > told:
                on_done(done - told)
                told = done

    spark.sparkContext.setJobGroup(group, "lastkey")
    watcher = threading.Thread(target=watch, daemon=True, name="progress")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def result_batch(value: object) -> pa.RecordBatch:
    """A row that carries one value."""
    return pa.record_batch([pa.array([pickle.dumps(value)], pa.binary())], schema=_RESULT_ARROW)


class StoppedTask(Exception):
    """Carries a problem out of a task whose rows are no results: Spark hands on the text of an error, nothing else."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{_CARRIED}{base64.b64encode(json.dumps(asdict(problem)).encode()).decode()}.")


def is_sparks(error: Exception) -> bool:
    """Whether Spark failed, or the way to it: a task's error, a JVM that is gone."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError) or bool(packages & {"pyspark", "py4j"})


def carried_problem(error: BaseException) -> Problem | None:
    """The problem that a task's error carries; None: Spark itself failed, or the machine."""
    found = re.search(f"{_CARRIED}([A-Za-z0-9+/=]+)\\.", str(error))
    return None if found is None else Problem(**json.loads(base64.b64decode(found[1])))


def for_this_attempt(plan: PartitionPlan) -> PartitionPlan:
    """The plan of one task, with a folder of its own where it is tried again: the first try may still be writing. That
    folder is the generation's then.
    """
    context: Any = TaskContext.get()
    if context is None or not (context.attemptNumber() or exists(open_root(plan.store_uri), plan.folder)):
        return plan
    return replace(plan, folder=f"{plan.folder}.{context.taskAttemptId()}")
