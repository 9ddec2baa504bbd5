"""Threads that do the work of Spark's tasks: results in order, errors, and an end that delays no other."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pytest

from lastkey.jobs.spark.tasks import run_tasks
from lastkey.jobs.spark.workers import Threads
from lastkey.logformat.storage import io_counts

PATIENCE = 60.0


class ReadCounter:
    wants_results = True

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.ends: list[tuple[int, object]] = []

    def read(self, item: int, n: int) -> None:
        self.reads.append((item, n))

    def ended(self, item: int, result: object) -> None:
        self.ends.append((item, result))


def test_results_have_the_order_of_the_items() -> None:
    last_began = threading.Event()

    def work(item: int) -> int:
        if item == 9:
            last_began.set()
        if item == 0:
            assert last_began.wait(PATIENCE)
        return item * item

    heard = ReadCounter()
    with closing(Threads(2)) as workers:
        assert workers.run(work, range(10), "work", heard) == [i * i for i in range(10)]
        assert sorted(heard.ends) == [(i, i * i) for i in range(10)]
        assert workers.run(work, [], "work", heard) == []


def test_reads_of_tasks_are_counted_and_unneeded_tasks_are_cancelled() -> None:
    begun, go_on = threading.Event(), threading.Event()
    heard = ReadCounter()

    def work(item: int) -> None:
        io_counts.notify(7)
        if item:
            begun.set()
            assert go_on.wait(PATIENCE)
            io_counts.notify(8)
            raise AssertionError

    workers = Threads(1)
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(workers.run, work, range(3), "work", heard)
        assert begun.wait(PATIENCE)
        workers.cancel([waiting])
        go_on.set()
        assert workers.await_end()
        with pytest.raises(InterruptedError):
            waiting.result(PATIENCE)
    assert heard.reads == [(0, 7), (1, 7)]
    assert heard.ends == [(0, None)]


def test_error_of_an_item_is_raised_at_its_result() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise OSError(28, "No space left on device")
        return item

    with closing(Threads(2)) as workers:
        with pytest.raises(OSError, match="No space"):
            workers.run(work, range(3), "work")
        assert workers.run(work, [0, 2], "work") == [0, 2]


def test_an_error_is_raised_while_items_before_it_continue() -> None:
    """The other tasks may need minutes to fail for the same reason, such as a server that stopped answering."""
    raised = threading.Event()

    def work(item: int) -> None:
        if item:
            raise OSError("no answer")
        assert raised.wait(PATIENCE)

    with closing(Threads(2)) as workers:
        with pytest.raises(OSError, match="no answer"):
            workers.run(work, range(2), "work")
        raised.set()


def test_end_of_a_run_does_not_wait_for_unfinished_work() -> None:
    begun, never = threading.Event(), threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        begun.set()
        never.wait(PATIENCE)
        done.append(item)

    workers = Threads(1)
    with ThreadPoolExecutor(1) as callers:
        waiting: Future[list[None]] = callers.submit(workers.run, work, range(3), "work")
        assert begun.wait(PATIENCE)
        workers.cancel([waiting])
        with pytest.raises(InterruptedError):
            waiting.result(PATIENCE)
    with pytest.raises(InterruptedError):
        workers.run(work, [4], "work")
    (thread,) = (t for t in threading.enumerate() if getattr(t, "_target", None) == workers._work)
    never.set()  # from here on it may be gone at any moment
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done == [0]  # only the task that had begun


@pytest.mark.spark
def test_spark_tasks_report_the_same_progress(spark) -> None:  # type: ignore[no-untyped-def]
    heard = ReadCounter()

    def work(item: int) -> int:
        io_counts.notify(item)
        io_counts.notify(1)
        return -item

    assert run_tasks(spark, work, [10, 20, 30], "work", heard) == [-10, -20, -30]
    assert sorted(heard.ends) == [(0, -10), (1, -20), (2, -30)]
    read = {item: sum(n for i, n in heard.reads if i == item) for item in range(3)}
    assert read == {0: 11, 1: 21, 2: 31}


@pytest.mark.spark
def test_garbage_collection_of_a_worker_excludes_imported_modules(spark) -> None:  # type: ignore[no-untyped-def]
    def tracked(_: int) -> tuple[int, int, int]:
        return os.getpid(), gc.get_freeze_count(), len(gc.get_objects())

    first = {process for process, _, _ in run_tasks(spark, tracked, range(4), "the first tasks of the workers")}
    later = [tracked_result for _ in range(3) for tracked_result in run_tasks(spark, tracked, range(4), "later tasks")]
    again = [(frozen, left) for process, frozen, left in later if process in first]
    assert again
    assert all(frozen > 10 * left for frozen, left in again)
