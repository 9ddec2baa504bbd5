"""Who works through the items of a stage: Spark's tasks, or threads of the driver, by the same functions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession

from jobs.spark.tasks import end_jobs, run_tasks

T = TypeVar("T")
R = TypeVar("R")
StartSpark = Callable[[], SparkSession]  # starts it once


class Workers(Protocol):
    """Workers of one machine or cluster."""

    @property
    def cores(self) -> int:
        """How many items are worked on at once."""

    @property
    def stages_bytes(self) -> int:
        """What it takes to go through the stages of a partition, beside the work: bytes of log that a core cleans."""

    def spark(self) -> SparkSession:
        """The session, started where there is none."""

    def named(self, name: str) -> None:
        """What this thread runs from here on is of `name`; items of several names take turns."""

    def run(
        self, function: Callable[[T], R], items: Sequence[T], on_done: Callable[[int], None] | None = None
    ) -> list[R]:
        """`function` of every item; results in the order of the items. `on_done`: told how many more have ended."""

    def end(self, working: Sequence[Future[Any]]) -> None:
        """Nothing more is wanted: who waits for `run` gets an error, until these have ended."""

    def close(self) -> None:
        """There is nothing more to do."""


class SparkTasks:
    """Each item is a Spark task."""

    stages_bytes = 512 << 20  # half a second

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.cores: int = spark.sparkContext.defaultParallelism

    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    def named(self, name: str) -> None:
        """Spark's pool."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)

    def run(
        self, function: Callable[[T], R], items: Sequence[T], on_done: Callable[[int], None] | None = None
    ) -> list[R]:
        """As `run_tasks`."""
        return run_tasks(self._spark, function, items, on_done)

    def end(self, working: Sequence[Future[Any]]) -> None:
        """As `end_jobs`."""
        end_jobs(self._spark, working)
        end_jobs(self._spark, working)

    def close(self) -> None:
        """The session stays: it is not ours alone."""


class Threads:
    """Daemon threads of the driver: the kernels hold no lock of Python's. Those who wait for `run` take turns, as in
    Spark's fair pools. What a thread has begun nobody can stop, but the process can end without it.
    """

    stages_bytes = 128 << 20

    def __init__(self, start_spark: StartSpark, cores: int) -> None:
        self._start_spark, self.cores = start_spark, cores
        self._starting = threading.Lock()
        self._runs: deque[deque[Callable[[], None]]] = deque()  # of each `run` what has not begun
        self._wanted: set[Future[Any]] = set()
        self._ended = False
        self._changed = threading.Condition()
        for number in range(cores):
            threading.Thread(target=self._work, daemon=True, name=f"worker-{number}").start()

    def spark(self) -> SparkSession:
        """The session, started once, whoever asks at the same time."""
        with self._starting:
            return self._start_spark()

    def named(self, name: str) -> None:
        """Threads know no names."""

    def run(
        self, function: Callable[[T], R], items: Sequence[T], on_done: Callable[[int], None] | None = None
    ) -> list[R]:
        """An error of one item is raised when it comes to it; who gets it calls `end`."""
        futures: list[Future[R]] = [Future() for _ in items]
        jobs: deque[Callable[[], None]] = deque(
            partial(_do, future, function, item) for future, item in zip(futures, items, strict=True)
        )
        with self._changed:
            if self._ended:
                raise _ended()
            if jobs:
                self._runs.append(jobs)
                self._wanted.update(futures)
                self._changed.notify_all()
        out = []
        for future in futures:
            out.append(future.result())
            self._wanted.discard(future)
            if on_done is not None:
                on_done(1)
        return out

    def end(self, working: Sequence[Future[Any]]) -> None:
        """Nothing more begins, and nobody waits any longer."""
        self.close()
        for future in list(self._wanted):
            with suppress(InvalidStateError):
                future.set_exception(_ended())

    def close(self) -> None:
        """The threads end."""
        with self._changed:
            self._ended = True
            self._runs.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._runs or self._ended)
            if self._ended:
                return None
            run = self._runs.popleft()
            job = run.popleft()
            if run:
                self._runs.append(run)
            return job


def _do(future: Future[R], function: Callable[[T], R], item: T) -> None:
    try:
        result = function(item)
    except BaseException as error:  # raised where it is waited for
        with suppress(InvalidStateError):
            future.set_exception(error)
        return
    with suppress(InvalidStateError):  # nobody waits any more
        future.set_result(result)


def _ended() -> InterruptedError:
    return InterruptedError("the run ended")
