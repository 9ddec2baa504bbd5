"""Choice of the workers of a job, made only here and reported: tasks of Spark, or threads of this process.

Jobs that write generations, indexes and tables run on Spark unless the user chooses otherwise; other jobs may choose by
themselves (`auto`). A session starts with the first task: a job without tasks starts none. No pyspark here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from lastkey.jobs.command.config import Config
from lastkey.jobs.command.kinds import Engine
from lastkey.jobs.command.option_groups import WithEngine
from lastkey.jobs.command.progress import CountedBytes, Progress
from lastkey.jobs.command.reporting import JobReport, Work
from lastkey.jobs.errors import UsageError
from lastkey.jobs.spark.master import count_local_cores
from lastkey.jobs.spark.running import get_spark_context, running_spark
from lastkey.jobs.spark.submit import from_environment
from lastkey.jobs.spark.workers import SparkTasks, StartSpark, Threads, Workers
from lastkey.logformat.storage.io_counts import limited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
OF_WRITERS: Engine = "spark"  # the default of what writes generations, indexes and tables
OF_READERS: Engine = "auto"


class WorkLog(Protocol):
    """Report of a job, or what becomes one: who worked, and how long each phase took."""

    seconds: dict[str, float]
    work: Work | None


def chosen_engine(options: WithEngine, *, writes: bool) -> Engine:
    """Return the engine by option, setting, and the command's default. UsageError: threads with a master elsewhere."""
    asked = options.engine or options.config.job.engine
    engine = asked if asked != "default" else OF_WRITERS if writes else OF_READERS
    if engine == "threads" and local_cores() is None:
        found = from_environment().master or "a session that Spark's own spark-submit or Spark Connect made"
        raise UsageError(message=f"--engine threads: expected a local master or none, found {found}; leave one out")
    return engine


@contextmanager
def workers(engine: Engine, n_bytes: int, config: Config, report: WorkLog, progress: Progress) -> Iterator[Workers]:
    """Yield workers for `n_bytes` of input, and write into the report who worked. Spark starts with the first task."""
    start = _started_once(report, progress)
    cores = local_cores()
    if engine == "spark" or cores is None or (engine == "auto" and n_bytes > config.job.spark_from_bytes):
        engine_workers: Workers = SparkTasks(start, config.job.max_bytes_per_second)
    else:
        engine_workers = Threads(cores)
    with _at_work(engine_workers, config, report):
        yield engine_workers


@contextmanager
def _at_work(engine_workers: Workers, config: Config, report: WorkLog) -> Iterator[None]:
    """Limit what this process reads and writes, end the workers, and write into the report who worked."""
    try:
        with limited(config.job.max_bytes_per_second):
            yield
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C, SIGTERM: else running tasks would continue
            engine_workers.cancel([])
        raise
    finally:
        engine_workers.close()
        report.work = engine_workers.work()


def each(
    function: Callable[[T], R],
    plans: Sequence[T],
    name: str,
    options: WithEngine,
    report: JobReport,
    progress: Progress,
    *,
    sizes: Sequence[int],
    n_bytes: int | None = None,
    passes: int = 1,
) -> list[R]:
    """Return `function` of every plan, in the order of the plans: a job of one stage, which only reads.

    name: of the stage, for people. sizes: bytes of each plan, read `passes` times, in which `progress` counts.
    n_bytes: bytes to read; None: all. An error ends work that has not begun; Ctrl-C and SIGTERM do not even wait
    for the rest.
    """
    engine, n_bytes = chosen_engine(options, writes=False), sum(sizes) if n_bytes is None else n_bytes
    with workers(engine, n_bytes, options.config, report, progress) as made:
        results = made.run(function, plans, name, CountedBytes(progress, sizes, passes))
        made.count(bytes_read=n_bytes)
        return results


@contextmanager
def spark_workers(
    name: str,
    options: WithEngine,
    report: JobReport,
    progress: Progress,
    *,
    brief: bool = True,
    tables: Sequence[str] = (),
) -> Iterator[SparkTasks]:
    """Yield Spark's workers for a job that only Spark can do, and write that into the report. UsageError: threads.

    name: of the job, for messages. brief, tables: as of `jobs.spark.session.start`.
    """
    if (options.engine or options.config.job.engine) == "threads":
        raise UsageError(message=f"--engine threads: {name} needs Spark for its tables; leave it out")
    config = options.config
    made = SparkTasks(_started_once(report, progress, brief=brief, tables=tables), config.job.max_bytes_per_second)
    with _at_work(made, config, report):
        yield made


def local_cores() -> int | None:
    """Return the number of tasks that can run at once on this machine; None: they run elsewhere, or it is unknown. The
    driver may be small.
    """
    running = running_spark()
    context = None if running is None else get_spark_context(running)
    if context is not None:
        return int(context.defaultParallelism) if str(context.master).startswith("local") else None
    if running is not None or (user := from_environment()).remote is not None:
        return None
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit knows where
        return None
    return count_local_cores(user.master or "local[*]")  # None: local-cluster has processes of its own


def _started_once(report: WorkLog, progress: Progress, *, brief: bool = True, tables: Sequence[str] = ()) -> StartSpark:
    """Return a function that starts Spark at its first call, whichever thread calls it."""
    sessions: list[SparkSession] = []
    starting = threading.Lock()

    def start() -> SparkSession:
        with starting:
            if not sessions:
                from lastkey.jobs.spark import session  # noqa: PLC0415 - threads need no pyspark

                at = time.perf_counter()
                progress.doing("starting Spark")
                sessions.append(session.start(brief=brief, tables=tables))
                progress.doing("")
                report.seconds["session"] = time.perf_counter() - at
            return sessions[0]

    return start
