"""Threads that do the work of Spark's tasks: results in order, turns, errors, and an end that nobody waits behind."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pytest

from jobs.spark.workers import Threads

PATIENCE = 60.0


def threads(cores: int) -> Threads:
    def no_spark() -> None:
        raise AssertionError

    return Threads(no_spark, cores)  # type: ignore[arg-type]


def test_results_are_in_the_order_of_the_items_whatever_ends_first() -> None:
    last_began = threading.Event()

    def work(item: int) -> int:
        if item == 9:
            last_began.set()
        if item == 0:
            assert last_began.wait(PATIENCE)
        return item * item

    told: list[int] = []
    with closing(threads(2)) as workers:
        assert workers.run(work, range(10), told.append) == [i * i for i in range(10)]
        assert sum(told) == 10
        assert workers.run(work, [], told.append) == []


def test_those_who_wait_take_turns() -> None:
    """A large partition's stage is not behind all the small partitions that came first."""
    order: list[str] = []
    begun, both_wait = threading.Event(), threading.Event()

    def work(name: str) -> None:
        begun.set()
        assert both_wait.wait(PATIENCE)
        order.append(name)

    with closing(threads(1)) as workers, ThreadPoolExecutor(2) as callers:
        small = callers.submit(workers.run, work, ["small"] * 4)
        assert begun.wait(PATIENCE)  # the first one is being worked on
        large = callers.submit(workers.run, work, ["large"] * 2)
        while len(workers._runs) < 2:
            assert not large.done()
        both_wait.set()
        small.result(PATIENCE)
        large.result(PATIENCE)
    assert order == ["small", "small", "large", "small", "large", "small"]


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise OSError(28, "No space left on device")
        return item

    with closing(threads(2)) as workers:
        with pytest.raises(OSError, match="No space"):
            workers.run(work, range(3))
        assert workers.run(work, [0, 2]) == [0, 2]


def test_nobody_waits_for_what_was_begun_when_the_run_ends() -> None:
    begun, never = threading.Event(), threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        begun.set()
        never.wait(PATIENCE)
        done.append(item)

    workers = threads(1)
    with ThreadPoolExecutor(1) as callers:
        waiting: Future[list[None]] = callers.submit(workers.run, work, range(3))
        assert begun.wait(PATIENCE)
        workers.end([waiting])
        with pytest.raises(InterruptedError):
            waiting.result(PATIENCE)
    with pytest.raises(InterruptedError):
        workers.run(work, [4])
    (thread,) = (t for t in threading.enumerate() if getattr(t, "_target", None) == workers._work)
    never.set()  # from here on it may be gone at any moment
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done == [0]  # what had begun, and nothing after it
