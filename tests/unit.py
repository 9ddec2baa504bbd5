"""The unit subset: quick tests of logformat and udfs that start no process, to be run after every change (-m unit).

A test belongs to it by its folder. One that starts a process fails, and needs the marker `process`; one that goes
through many drawn or golden logs has the marker `long`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDERS = tuple(Path(__file__).parent / name for name in ("logformat", "udfs"))
OUTSIDE = {"process", "long", "slow", "spark", "kafka", "attack", "bench"}
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}  # audit events

_started: list[str] | None = None  # None: processes may be started


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of the shared session as slow, for each process of a run then starts one; mark the unit subset."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("slow")
    within = any(item.path.is_relative_to(folder) for folder in FOLDERS)
    if within and not OUTSIDE & {mark.name for mark in item.iter_markers()}:
        item.add_marker("unit")


@contextmanager
def no_process() -> Iterator[None]:
    """Raise AssertionError where a process is started within, and at the end if that error was swallowed."""
    global _started  # noqa: PLW0603 - an audit hook stays for ever and has no other state
    _listen()
    started = _started = []
    try:
        yield
    finally:
        _started = None
    assert not started, f"a unit test started a process: {started}; mark it `process`"


@cache
def _listen() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _started is not None:
        _started.append(f"{event}{arguments[:2]}")
        raise AssertionError(f"a unit test starts a process: {_started[-1]}; mark it `process`")


@contextmanager
def _watched(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("unit") is None:
        yield
        return
    with no_process():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _watched(item):
        return (yield)
