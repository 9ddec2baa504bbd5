"""A function applied to many plans: in threads of the driver if there is little to do, else in Spark tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from lastkey.jobs.command.progress import Counted, CountedBytes, Progress, Watcher
from lastkey.logformat.bytes_read import listening

T = TypeVar("T")
R = TypeVar("R")

WITHOUT_SPARK_BYTES = 1 << 30  # tuned: a session costs 4 to 11 s, its first tasks 5 to 10 s


def each(
    function: Callable[[T], R],
    plans: Sequence[T],
    progress: Progress,
    *,
    with_spark: bool,
    sizes: Sequence[int] | None = None,
    passes: int = 1,
) -> Generator[R]:
    """Yield `function` of every plan, in the order of the plans; `progress` counts plans, or bytes if there are
    `sizes`, each of which is read `passes` times. An error ends work that has not begun; Ctrl-C and SIGTERM do not even
    wait for the rest.
    """
    watcher: Watcher = Counted(progress) if sizes is None else CountedBytes(progress, sizes, passes)
    if with_spark:
        from lastkey.jobs.spark import session  # noqa: PLC0415 - small work runs without Spark
        from lastkey.jobs.spark.tasks import run_tasks  # noqa: PLC0415 - as above

        progress.doing("starting Spark")
        spark = session.start()
        progress.doing("")
        yield from run_tasks(spark, function, plans, watcher)
        return

    def one(item: int) -> R:
        with listening(partial(watcher.read, item)):
            result = function(plans[item])
        watcher.ended(item, None)
        return result

    pool = ThreadPool(min(len(plans), os.cpu_count() or 1) or 1)  # daemon threads: this process can end without them
    try:
        yield from pool.imap(one, range(len(plans)))
    except (Exception, GeneratorExit):
        pool.terminate()
        pool.join()
        raise
    finally:
        pool.terminate()
