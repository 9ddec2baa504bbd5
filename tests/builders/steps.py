"""Runs that do something, wait, or are killed at a named step of the product (`udfs.steps`).

`at_step` calls a function in this process. `Holds` blocks any process at a step: a driver, or a worker of an
executor. A `sitecustomize` adds the audit hook there. The first process at a step writes its id into a
pipe, and waits for a word in another pipe or for its end. All others continue.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from lastkey.udfs.steps import EVENT, Step

STEPS = frozenset(get_args(Step))
PATIENCE = 240  # seconds until a step counts as never reached

_SITE = """
import os, sys

EVENT, FOLDER, STEPS, EVERY, ONE = {event!r}, {folder!r}, {steps!r}, {every!r}, {one!r}
OURS, CALLS = [], dict.fromkeys(STEPS, 0)

def _claimed(step):
    if ONE and not OURS and step != next(iter(STEPS)):
        return False
    try:
        os.close(os.open(f"{{FOLDER}}/{{step}}.held", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    OURS.append(step)
    return True

def _wait(step):
    go = os.open(f"{{FOLDER}}/{{step}}.go", os.O_RDWR)  # before anybody knows, so that a word finds a reader
    with open(f"{{FOLDER}}/{{step}}.reached", "w") as pipe:
        pipe.write(f"{{os.getpid()}}\\n")
    os.read(go, 1)
    os.close(go)

def _hook(event, arguments):
    if event == EVENT and arguments[0] in STEPS:
        step, = arguments
        CALLS[step] += 1
        if CALLS[step] == STEPS[step] and (EVERY or _claimed(step)) or EVERY and CALLS[step] > STEPS[step]:
            _wait(step)

sys.addaudithook(_hook)
"""


class Holds:
    """Steps that hold a process each."""

    def __init__(self, folder: Path, steps: Mapping[str, int], *, every: bool = False, one: bool = False) -> None:
        """Write the module into a folder, which may exist, to be put on PYTHONPATH. The processes may be of any user.

        steps: the call within a process that waits, by step; every: all processes wait, and at each later call too;
        one: all steps hold the process that the first one held.
        """
        assert STEPS.issuperset(steps), sorted(steps.keys() - STEPS)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        for name in steps:
            for path in (folder / f"{name}.reached", folder / f"{name}.go"):
                os.mkfifo(path)
                path.chmod(0o666)
        self._pipes = {name: os.open(folder / f"{name}.reached", os.O_RDONLY | os.O_NONBLOCK) for name in steps}
        text = _SITE.format(event=EVENT, folder=str(folder), steps=dict(steps), every=every, one=one)
        (folder / "sitecustomize.py").write_text(text, encoding="utf-8")

    def wait(self, step: str, run: int) -> int:
        """Wait until a process waits at a step, and return its id. AssertionError if the process `run` ends before."""
        pipe = self._pipes.pop(step)
        over = os.pidfd_open(run)
        try:
            ready, _, _ = select.select([pipe, over], [], [], PATIENCE)
            assert pipe in ready, f"{step} was never reached"
            return int(os.read(pipe, 100).split()[0])
        finally:
            os.close(pipe)
            os.close(over)

    def release(self, step: str) -> None:
        """Release the process that waits at a step. OSError: none waits there."""
        pipe = os.open(self.folder / f"{step}.go", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"!")
        os.close(pipe)


_listeners: list[Callable[[str], None]] = []
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == EVENT:
        for listener in tuple(_listeners):
            listener(*arguments)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener` with the name of each step that this process reaches while the block runs."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)  # for good: a hook cannot be removed
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def at_step(name: str, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
    """Call `act` when this process reaches a step for the nth time; it may raise. The block must reach it."""
    assert name in STEPS, name
    calls = 0

    def listener(step: str) -> None:
        nonlocal calls
        calls += step == name
        if step == name and calls == nth:
            act()

    with listening(listener):
        yield
    assert calls >= nth, f"{name} was reached {calls} times"


def interrupt() -> None:
    """Raise KeyboardInterrupt, so that nothing after the step runs, as after a kill at the step."""
    raise KeyboardInterrupt
