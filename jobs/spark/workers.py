"""Workers of a stage's items: Spark's tasks, or threads of the driver, by the same functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from lastkey.jobs.command.progress import Watcher
from lastkey.jobs.command.reporting import Work
from lastkey.jobs.command.stopping import await_results
from lastkey.jobs.spark.running import get_spark_context, new_tag
from lastkey.logformat.storage.io_counts import limited, listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
StartSpark = Callable[[], "SparkSession"]  # starts Spark only once
_PATIENCE: Final = 3.0  # seconds to wait for threads to end


class Runner(Protocol):
    """Protocol of executors of work items."""

    @property
    def cores(self) -> int:
        """Items that are worked on at once."""

    def run(self, function: Callable[[T], R], items: Sequence[T], name: str, watcher: Watcher | None = None) -> list[R]:
        """Return `function` of every item, in the order of the items. name: of the stage, for people."""


class Workers(Runner, Protocol):
    """Protocol of the workers of one machine or cluster."""

    def start(self) -> object:
        """Start Spark, if these workers are its tasks."""

    def count(self, **amounts: int) -> None:
        """Add what is done to Spark's metrics. amounts: by name, those of `jobs.spark.own_jobs`."""

    def work(self) -> Work | None:
        """Return the engine and its number of workers; None: there was no work."""

    def cancel(self, working: Sequence[Future[Any]]) -> None:
        """Cancel: pending calls of `run` raise. The call may wait for a while until `working` has ended."""

    def await_end(self) -> bool:
        """Wait for a while, after `cancel`, until all work has ended. Return whether it has."""

    def close(self) -> None:
        """Release the workers."""


class SparkTasks:
    """Workers of Spark: each item is a task. The session starts with the first of them; its other jobs are not ours."""

    def __init__(self, start_spark: StartSpark, bytes_per_second: float = 0) -> None:
        """bytes_per_second: limit on the I/O of all tasks together; 0: none."""
        self._start_spark, self._bytes_per_second = start_spark, bytes_per_second
        self._started: SparkSession | None = None
        self._work, self._cores, self._tag = Work(), 0, new_tag()
        self._tasks: list[int] = []  # counts of them; a list, since several threads add to it

    def start(self) -> SparkSession:
        """Return the session; start it if there is none."""
        if self._started is None:
            started = self._start_spark()
            self._work = _describe_work(started)  # now: a JVM that ends after the last task should cost no time
            self._started = started
        return self._started

    @property
    def cores(self) -> int:
        """Tasks that run at once."""
        from lastkey.jobs.spark.tasks import count_cores  # noqa: PLC0415 - needs pyspark, which threads do without

        self._cores = self._cores or count_cores(self.start())
        return self._cores

    @contextmanager
    def spark(self, name: str) -> Iterator[SparkSession]:
        """Yield the session. The jobs that this thread starts in it get a name, count for the report, and end with
        `cancel`. No calls of `run` here: their tasks would count twice.
        """
        from lastkey.jobs.spark.own_jobs import count_tasks, tagged  # noqa: PLC0415 - as above

        spark, block = self.start(), new_tag()
        try:
            with tagged(spark, name, self._tag, block):
                yield spark
        finally:
            self._tasks.append(count_tasks(spark, block))

    def set_pool(self, name: str) -> None:
        """Assign all later jobs of this thread to the pool `name`; Spark alternates between pools. A client of Spark
        Connect cannot.
        """
        if (context := get_spark_context(self.start())) is not None:
            context.setLocalProperty("spark.scheduler.pool", name)

    def run(self, function: Callable[[T], R], items: Sequence[T], name: str, watcher: Watcher | None = None) -> list[R]:
        """Call `run_tasks`."""
        if not items:
            return []
        from lastkey.jobs.spark.tasks import run_tasks  # noqa: PLC0415 - as above

        self._tasks.append(len(items))
        if self._bytes_per_second:
            function = partial(_limited, self._bytes_per_second / self.cores, function)
        return run_tasks(self.start(), function, items, name, watcher, self._tag)

    @contextmanager
    def stages(
        self, name: str, n_tasks: int, watcher: Watcher
    ) -> Iterator[tuple[SparkSession, Callable[[int], AbstractContextManager[None]]]]:
        """Yield a session for one job of several stages, and a function for their tasks: within `around(number)` what a
        task reads is limited, and `watcher` hears of it.
        """
        from lastkey.jobs.spark.tasks import session_for_one_job, watched  # noqa: PLC0415 - as above

        limit = self._bytes_per_second / self.cores
        with self.spark(name) as spark, watched(spark, n_tasks, watcher) as reading:
            yield session_for_one_job(spark), partial(_around, limit, reading)

    def count(self, **amounts: int) -> None:
        """Add to the metrics of the application. Do nothing where Spark Connect hides it, or once the JVM has ended."""
        if self._started is not None and (context := get_spark_context(self._started)) is not None:
            from lastkey.jobs.spark.own_jobs import add_metrics  # noqa: PLC0415 - as above

            add_metrics(context, amounts)

    def work(self) -> Work | None:
        """Return the session's name, and how many tasks it got."""
        return None if self._started is None else replace(self._work, tasks=sum(self._tasks))

    def cancel(self, working: Sequence[Future[Any]]) -> None:
        """Cancel the run's jobs."""
        if self._started is not None:
            from lastkey.jobs.spark.own_jobs import end_jobs  # noqa: PLC0415 - as above

            end_jobs(self._started, self._tag, working)

    def await_end(self) -> bool:
        """Wait for the run's tasks."""
        if self._started is None:
            return True
        from lastkey.jobs.spark.own_jobs import await_tasks  # noqa: PLC0415 - as above

        return await_tasks(self._started, self._tag)

    def close(self) -> None:
        """Do nothing: Spark is not ours alone."""


def _describe_work(spark: SparkSession) -> Work:
    context = get_spark_context(spark)
    if context is None:  # the builder's endpoint has no token, as a connection string has
        where: Any = cast(Any, spark).client
        address = getattr(where._builder, "endpoint", where.host)
        return Work(0, str(spark.version), f"sc://{address}", str(where._session_id))
    return Work(0, str(context.version), str(context.master), str(context.applicationId))


class _UnwantedError(BaseException):
    """Signal that ends a thread's work at its next read; a BaseException, so that no code takes it for a problem."""


@contextmanager
def _around(
    bytes_per_second: float, reading: Callable[[int], AbstractContextManager[None]], task: int
) -> Iterator[None]:
    with reading(task), limited(bytes_per_second):
        yield


def _limited(bytes_per_second: float, function: Callable[[T], R], item: T) -> R:
    with limited(bytes_per_second):
        return function(item)


class Threads:
    """Daemon threads of the driver: the kernels release Python's lock. After `cancel`, the work of a thread ends at its
    next read, and the process can end without it.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._began = self._ended = False
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None ends a thread
        self._wanted: set[Future[Any]] = set()
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"worker-{number}") for number in range(cores)
        ]
        for thread in self._threads:
            thread.start()

    def start(self) -> None:
        """Do nothing: the threads wait already."""

    def count(self, **amounts: int) -> None:
        """Do nothing: the report has these figures."""

    def work(self) -> Work | None:
        """Return the number of threads."""
        return Work(self.cores) if self._began else None

    def run(self, function: Callable[[T], R], items: Sequence[T], name: str, watcher: Watcher | None = None) -> list[R]:
        """Return `function` of every item. Raise an error as soon as there is one; the caller then calls `cancel`."""
        futures: list[Future[R]] = [Future() for _ in items]

        def work(number: int) -> None:
            def read(n: int) -> None:
                if self._ended:
                    raise _UnwantedError
                if watcher is not None:
                    watcher.read(number, n)

            try:
                with listening(read):
                    result = function(items[number])
                if watcher is not None:
                    watcher.ended(number, result)
            except BaseException as error:  # raised in `run`, which waits for it
                with suppress(InvalidStateError):
                    futures[number].set_exception(error)
                return
            with suppress(InvalidStateError):  # `cancel` has set an error already
                futures[number].set_result(result)

        self._wanted.update(futures)
        if self._ended:  # looked at after the line above: `cancel` ends all tasks requested by then
            raise _ended()
        for number in range(len(items)):
            self._began = True
            self._jobs.put(partial(work, number))
        out = await_results(futures)
        self._wanted.difference_update(futures)
        return out

    def cancel(self, working: Sequence[Future[Any]]) -> None:
        """Begin no more items; pending calls of `run` raise."""
        self.close()
        for future in list(self._wanted):
            with suppress(InvalidStateError):
                future.set_exception(_ended())

    def await_end(self) -> bool:
        """Wait for a while until the threads have finished or given up their items. Return whether they have."""
        patience = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(patience - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Let the threads end."""
        self._ended = True
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._ended:
            job()


def _ended() -> InterruptedError:
    return InterruptedError("the run ended")
