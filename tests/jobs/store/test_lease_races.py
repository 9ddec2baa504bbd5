"""Runs that take leases of one partition at once: every interleaving of their operations on the store.

All file times are equal, as they may be in a bucket, so no clock decides.
"""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.errors import RunningError
from lastkey.jobs.store import leases
from lastkey.jobs.store.leases import hold_lease
from lastkey.udfs.storage import Root

PATIENCE = 60.0
FAIR = 6  # operations of one run before another gets a turn: a run that lists again waits for the other one's write
Choose = Callable[[list[int]], int]


class Store:
    """Store in memory, whose operations happen one at a time, in an order that is chosen."""

    def __init__(self, n_runs: int, choose: Choose) -> None:
        self.files: dict[str, bytes] = {}
        self.n_runs, self.choose = n_runs, choose
        self.changed = threading.Condition()
        self.waiting: set[int] = set()  # runs before an operation
        self.idle: set[int] = set()  # runs that work, or have ended
        self.n_ended = 0
        self.turn: int | None = None

    def operate(self, run: int) -> None:
        """Return when it is the run's turn."""
        with self.changed:
            self.idle.discard(run)
            self.waiting.add(run)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.turn == run, PATIENCE)
            self.turn = None
            self.waiting.discard(run)

    def drive(self) -> None:
        """Let the runs operate until all have ended."""
        last, times = -1, 0
        with self.changed:
            while True:
                assert self.changed.wait_for(self.is_quiet, PATIENCE)
                if not self.waiting:
                    return
                ready = sorted(self.waiting)
                self.turn = self.choose([run for run in ready if run != last or times < FAIR] or ready)
                last, times = self.turn, times + 1 if self.turn == last else 1
                self.changed.notify_all()

    def is_quiet(self) -> bool:
        all_known = self.turn is None and len(self.waiting | self.idle) == self.n_runs
        return all_known and (bool(self.waiting) or self.n_ended == self.n_runs)


class View:
    """File system of one run on the store. A look at one file and its reading are one operation: the look has only a
    time to tell, and no run writes a lease again that it has deleted.
    """

    def __init__(self, store: Store, run: int) -> None:
        self.store, self.run = store, run

    def get_file_info(self, asked: Any) -> Any:
        if not isinstance(asked, pafs.FileSelector):
            return SimpleNamespace(type=pafs.FileType.File, mtime_ns=1)
        self.store.operate(self.run)
        return [SimpleNamespace(base_name=path.rpartition("/")[2]) for path in self.store.files]

    def open_input_stream(self, path: str, compression: None) -> io.BytesIO:
        self.store.operate(self.run)
        if path not in self.store.files:
            raise FileNotFoundError(path)
        return io.BytesIO(self.store.files[path])

    def open_output_stream(self, path: str, compression: None) -> io.BytesIO:
        self.store.operate(self.run)
        files = self.store.files

        class Stream(io.BytesIO):
            def close(self) -> None:
                files[path] = self.getvalue()
                super().close()

        return Stream()

    def delete_file(self, path: str) -> None:
        self.store.operate(self.run)
        del self.store.files[path]


class Case:
    """Runs 0, 1, ..., whose ids rise, in one order of operations."""

    def __init__(self, n_runs: int, choose: Choose, *, stay: bool) -> None:
        self.store = Store(n_runs, choose)
        self.stay = stay  # a run works until every run has decided
        self.working: set[int] = set()
        self.went_on: set[int] = set()
        self.refused: set[int] = set()
        self.most_at_once = 0
        threads = [threading.Thread(target=self.work, args=(run,)) for run in range(n_runs)]
        for thread in threads:
            thread.start()
        self.store.drive()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert len(self.went_on | self.refused) == n_runs
        assert self.store.files == {}

    def work(self, run: int) -> None:
        store = self.store
        try:
            with hold_lease(Root("mem", View(store, run), "mem"), f"{run:032x}", {("t", 0)}, []), store.changed:
                self.went_on.add(run)
                self.working.add(run)
                self.most_at_once = max(self.most_at_once, len(self.working))
                if self.stay:
                    store.idle.add(run)
                    store.changed.notify_all()
                    assert store.changed.wait_for(lambda: len(self.went_on | self.refused) == store.n_runs, PATIENCE)
                    store.idle.discard(run)
                self.working.discard(run)
        except RunningError:
            self.refused.add(run)
        finally:
            with store.changed:
                store.idle.add(run)
                store.n_ended += 1
                store.changed.notify_all()


def every_case(n_runs: int, *, stay: bool) -> Iterator[Case]:
    """Yield the cases of all orders of operations, depth first."""
    path: list[tuple[int, int]] = []  # choice, number of choices
    while True:
        position = 0

        def choose(ready: list[int]) -> int:
            nonlocal position
            if position == len(path):
                path.append((0, len(ready)))
            choice = path[position][0]
            position += 1
            return ready[choice]

        yield Case(n_runs, choose, stay=stay)
        while path and path[-1][0] == path[-1][1] - 1:
            path.pop()
        if not path:
            return
        path[-1] = path[-1][0] + 1, path[-1][1]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_CLAIM_POLL_SECONDS", 0.0)


@pytest.mark.slow
def test_exactly_one_of_two_overlapping_runs_continues() -> None:
    winners = [case.went_on for case in every_case(2, stay=True)]
    assert len(winners) > 1000
    assert all(went_on in ({0}, {1}) for went_on in winners)
    assert {0} in winners and {1} in winners


@pytest.mark.slow
def test_two_runs_never_hold_a_lease_concurrently() -> None:
    for case in every_case(2, stay=False):
        assert case.most_at_once == 1
        assert case.went_on


def test_three_runs_never_hold_a_lease_concurrently() -> None:
    for seed in range(500):
        case = Case(3, random.Random(seed).choice, stay=bool(seed % 2))
        assert case.most_at_once == 1, seed
        assert len(case.went_on) == 1 or not case.stay, seed
