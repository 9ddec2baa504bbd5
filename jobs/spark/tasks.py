"""Transport of plans into Spark tasks and of results back: pickled values.

Spark's RDDs carry them: a DataFrame would be planned and compiled, and go through Arrow. Measured, warm: 10 ms a task
against 35 ms, and the first tasks of a session after 2.0 s against 3.5 to 4.5 s. A session of Spark Connect has no
RDDs: there rows of a DataFrame do. The functions that the tasks run are those of `udfs`; this module only carries them.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, InheritableThread, SparkContext, TaskContext

from lastkey.jobs.command.progress import Watcher
from lastkey.jobs.command.stopping import in_a_thread
from lastkey.jobs.spark.own_jobs import tagged
from lastkey.jobs.spark.running import get_spark_context, new_tag
from lastkey.logformat.storage.io_counts import count, counted, listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
_CountedResult = tuple[R, Mapping[str, int]]

_LOG = logging.getLogger("lastkey")
RESULT = "result binary"
_RESULT_ARROW = pa.schema([pa.field("result", pa.binary())])


def run_tasks(
    spark: SparkSession,
    function: Callable[[T], R],
    items: Sequence[T],
    name: str,
    watcher: Watcher | None = None,
    tag: str | None = None,
) -> list[R]:
    """Return `function` of every item, each run in a Spark task of its own, in the order of the items.

    name: of the job and its stage, in Spark's UI and event logs. tag: of the run (default: a new one).
    watcher: hears of the tasks from a thread of its own, and for the last time when this function returns or fails.
    """
    if not items:
        return []
    tag, context = tag or new_tag(), get_spark_context(spark)
    is_local = context is not None and str(context.master).startswith("local")
    # Executors have logs of their own; on this machine those of workers are on our stderr
    level = _LOG.getEffectiveLevel() if is_local else logging.INFO
    counting: Callable[[T], _CountedResult[R]] = partial(_counted, level, function)
    if context is None:
        return _add_counts(_in_a_thread(lambda: _through_connect(spark, counting, items, watcher), spark, tag, name))
    if not is_local:
        counting = partial(_run_logged, name, counting)
    numbered = context.parallelize(list(enumerate(items)), len(items))  # each task gets only its own item
    if watcher is None:
        return _add_counts(_in_a_thread(numbered.map(lambda one: counting(one[1])).collect, spark, tag, name))
    wants_results = watcher.wants_results
    with _watched(context, len(items), watcher) as (ends, board):

        def work(numbered: tuple[int, T]) -> _CountedResult[R]:
            with _reading(board, numbered[0]):
                result = counting(numbered[1])
            ends.add([(numbered[0], result[0] if wants_results else None)])
            return result

        return _add_counts(_in_a_thread(numbered.map(work).collect, spark, tag, name))


def _counted(level: int, function: Callable[[T], R], item: T) -> _CountedResult[R]:
    """Return `function(item)`, and what it read, wrote and asked buckets for. level: of the worker's log."""
    logging.basicConfig(format="%(message)s")
    _LOG.setLevel(level)
    with counted() as counts:
        result = function(item)
    _freeze_imports()
    return result, counts


@cache
def _freeze_imports() -> None:
    """Take what this worker has imported out of Python's garbage collection, once: PySpark collects after each task,
    and looks through all imports then. Measured, 1,000 small partitions: half of the whole run.
    """
    gc.collect()
    gc.freeze()


def _add_counts(results: list[_CountedResult[R]]) -> list[R]:
    """Return results of tasks, and add what these counted to what this process counts."""
    for _, counts in results:
        count(**counts)
    return [result for result, _ in results]


def _run_logged(stage: str, function: Callable[[T], R], item: T) -> R:
    """Return `function(item)`; note in the executor's log what a task works on, and which try of it this is."""
    context: Any = TaskContext.get()
    of = getattr(item, "input", item)  # input of a PartitionPlan
    name = f"{of.topic}-{of.partition}" if hasattr(of, "topic") and hasattr(of, "partition") else ""
    name = name or (str(item) if isinstance(item, str | int) else type(item).__name__)  # a plan may hold a secret
    _LOG.info("stage %d, %s: %s, try %d", context.stageId(), stage, name, context.attemptNumber())
    return function(item)


def _in_a_thread(collect: Callable[[], list[R]], spark: SparkSession, tag: str, name: str) -> list[R]:
    """Return the results of tasks, for which a thread of its own waits."""

    def work() -> list[R]:
        with tagged(spark, name, tag):
            return collect()

    has_pools = get_spark_context(spark) is not None
    # InheritableThread takes the caller's pool along
    return in_a_thread(work, "tasks", InheritableThread if has_pools else threading.Thread)


def _through_connect(
    spark: SparkSession, function: Callable[[T], _CountedResult[R]], items: Sequence[T], watcher: Watcher | None
) -> list[_CountedResult[R]]:
    """Return the results of tasks that get their items as rows. Spark Connect has no accumulators and returns results
    in the order of the items. So the watcher is notified of an item's end only after all earlier items have ended.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, item in zip(*batch.to_pydict().values(), strict=True):
                yield _row(number, function(pickle.loads(item)))

    rows = pa.table({"item": pa.array(range(len(items)), pa.int32()), "plan": [pickle.dumps(item) for item in items]})
    of_items = spark.createDataFrame(rows).repartitionById(len(items), "item")
    results: dict[int, _CountedResult[R]] = {}
    for row in of_items.mapInArrow(work, f"item int, {RESULT}").toLocalIterator():
        results[row.item] = pickle.loads(row.result)
        if watcher is not None:
            watcher.ended(row.item, results[row.item][0])
    return [results[item] for item in range(len(items))]


def _row(item: int, result: object) -> pa.RecordBatch:
    columns = {"item": pa.array([item], pa.int32()), "result": pa.array([pickle.dumps(result)], pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def count_cores(spark: SparkSession) -> int:
    """Return the number of concurrent tasks of a session, as far as Spark reports it."""
    context = get_spark_context(spark)
    if context is not None:
        return int(context.defaultParallelism)
    # Spark Connect reports no figure; a range has as many partitions unless asked for another number
    numbers = spark.range(1 << 16).selectExpr("spark_partition_id() AS number")
    [row] = numbers.selectExpr("max(number) AS last").collect()
    return int(row["last"]) + 1


class _Ends(AccumulatorParam[list[Any]]):
    """Accumulator of what tasks report at their end: Spark delivers it then, and once for a task that succeeds."""

    def zero(self, value: list[Any]) -> list[Any]:
        """Return an empty list."""
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Add more results."""
        value1.extend(value2)
        return value1


@contextmanager
def _watched(
    context: SparkContext, n_items: int, watcher: Watcher
) -> Iterator[tuple[Accumulator[list[Any]], str | None]]:
    """Report the progress of tasks to `watcher` twice a second; yield (where they put their ends, path of their board
    or None).

    The board is a file on this machine with an int64 for each task, made only if the tasks run here: writing 8 bytes a
    chunk costs no measurable time, and Spark reports no progress of a task before its end. On a cluster a task counts
    when it has ended.
    """
    over = threading.Event()
    ends: Accumulator[list[Any]] = context.accumulator([], _Ends())
    board = _new_board(n_items) if str(context.master).startswith("local") else None
    heard, read = 0, np.zeros(n_items, np.int64)

    def tell() -> None:
        nonlocal heard
        now = read if board is None else np.frombuffer(os.pread(board.fileno(), 8 * n_items, 0), np.int64)
        for item in np.flatnonzero(now > read).tolist():
            watcher.read(item, int(now[item] - read[item]))
            read[item] = now[item]
        new = ends.value[heard:]
        heard += len(new)
        for item, result in new:
            watcher.ended(item, result)

    def watch() -> None:
        while not over.wait(0.5):
            tell()

    thread = threading.Thread(target=watch, daemon=True, name="progress")
    thread.start()
    try:
        yield ends, None if board is None else board.name
    finally:
        over.set()
        thread.join()
        tell()
        ends.value.clear()  # Spark keeps it as long as the session
        if board is not None:
            board.close()


@contextmanager
def watched(
    spark: SparkSession, n_tasks: int, watcher: Watcher
) -> Iterator[Callable[[int], AbstractContextManager[None]]]:
    """Report to `watcher` what tasks read while they work, if they run on this machine; yield the function by which
    they report it.
    """
    context = get_spark_context(spark)
    if context is None:
        yield partial(_reading, None)
        return
    with _watched(context, n_tasks, watcher) as (_, board):
        yield partial(_reading, board)


def session_for_one_job(spark: SparkSession) -> SparkSession:
    """Return a session of the same Spark in which a query is one job, by the Python workers of all other tasks. The
    settings of a session of Spark Connect are the user's.
    """
    if get_spark_context(spark) is None:
        return spark
    alone = spark.newSession()
    alone.conf.set("spark.sql.adaptive.enabled", "false")  # it makes a job of each stage
    # With another environment than that of other tasks Spark starts more Python workers: 1.3 s (measured)
    alone.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
    return alone


def _new_board(n_items: int) -> IO[bytes] | None:
    """Make a board, which closing removes; None if that fails, because a progress bar is no reason to fail."""
    with suppress(OSError):
        board = tempfile.NamedTemporaryFile(prefix="lastkey-progress-")  # noqa: SIM115 - the caller closes it
        board.truncate(8 * n_items)
        return board
    return None


@contextmanager
def _reading(board: str | None, item: int) -> Iterator[None]:
    """Write to the board how much this task has read."""
    with ExitStack() as stack:
        if board is not None:
            with suppress(OSError):
                descriptor, so_far = os.open(board, os.O_WRONLY | os.O_CLOEXEC), 0
                stack.callback(os.close, descriptor)

                def say(n: int) -> None:
                    nonlocal so_far
                    so_far += n
                    with suppress(OSError):
                        os.pwrite(descriptor, so_far.to_bytes(8, sys.byteorder), 8 * item)

                stack.enter_context(listening(say))
        yield


def result_batch(value: object) -> pa.RecordBatch:
    """Return a row that carries one value."""
    return pa.record_batch([pa.array([pickle.dumps(value)], pa.binary())], schema=_RESULT_ARROW)
