"""A function over many plans: in threads of the driver where there is little to do, else in Spark tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from jobs.command.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

WITHOUT_SPARK_BYTES = 1 << 30  # tuned: a session costs 4 to 11 s, its first tasks 5 to 10 s


def each(function: Callable[[T], R], plans: Sequence[T], progress: Progress, *, with_spark: bool) -> Generator[R]:
    """`function` of every plan, in the order of the plans; `progress` counts them. An error ends what has not begun;
    Ctrl-C and SIGTERM do not even wait for what has.
    """
    if with_spark:
        from jobs.spark import session  # noqa: PLC0415 - what is small runs without Spark
        from jobs.spark.tasks import run_tasks  # noqa: PLC0415 - as above

        progress.doing("starting Spark")
        spark = session.start()
        progress.doing("")
        yield from run_tasks(spark, function, plans, progress.advance)
        return
    pool = ThreadPool(min(len(plans), os.cpu_count() or 1) or 1)  # of daemons: this process can end without them
    try:
        for result in pool.imap(function, plans):
            progress.advance()
            yield result
    except (Exception, GeneratorExit):
        pool.terminate()
        pool.join()
        raise
    finally:
        pool.terminate()
