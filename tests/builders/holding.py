"""Steps of a run at which the first process to get there waits, whichever it is: a driver, or a worker of an executor.

A `sitecustomize` wraps functions. The first process that returns from one of them writes its id into a pipe, and waits
for a word in another pipe or for its end. All others pass.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from pathlib import Path

from tests.builders.stopping import FINDER, PATIENCE

_SITE = """
import functools, os

FOLDER, STEPS, ONE = {folder!r}, {steps!r}, {one!r}
OURS = []

def _claimed(step):
    if ONE and not OURS and step != next(iter(STEPS)):
        return False
    try:
        os.close(os.open(f"{{FOLDER}}/{{step}}.held", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    OURS.append(step)
    return True

def _wrapped(step, real):
    @functools.wraps(real)
    def held(*args, **kwargs):
        out = real(*args, **kwargs)
        if _claimed(step):
            go = os.open(f"{{FOLDER}}/{{step}}.go", os.O_RDWR)  # before anybody knows, so that a word finds a reader
            with open(f"{{FOLDER}}/{{step}}.reached", "w") as pipe:
                pipe.write(str(os.getpid()))
            os.read(go, 1)
            os.close(go)
        return out
    return held

def _change(module):
    for step, place in STEPS.items():
        of, name = place.split(":")
        if of == module.__name__:
            setattr(module, name, _wrapped(step, getattr(module, name)))

for _module in {{place.split(":")[0] for place in STEPS.values()}}:
    sys.meta_path.insert(0, _Finder(_module, _change))
"""


class Holds:
    """Steps that hold a process each."""

    def __init__(self, folder: Path, steps: Mapping[str, str], *, one: bool = False) -> None:
        """Write the module into a new folder, to be put on PYTHONPATH. The processes may be of any user.

        steps: "module:function" by name; one: all of them hold the process that the first one held.
        """
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)
        for name in steps:
            for path in (folder / f"{name}.reached", folder / f"{name}.go"):
                os.mkfifo(path)
                path.chmod(0o666)
        self._pipes = {name: os.open(folder / f"{name}.reached", os.O_RDONLY | os.O_NONBLOCK) for name in steps}
        (folder / "sitecustomize.py").write_text(
            FINDER + _SITE.format(folder=str(folder), steps=dict(steps), one=one), encoding="utf-8"
        )

    def wait(self, step: str, run: int) -> int:
        """Wait until a process stands at a step, and return its id. AssertionError if the process `run` ends before."""
        pipe = self._pipes.pop(step)
        over = os.pidfd_open(run)
        try:
            ready, _, _ = select.select([pipe, over], [], [], PATIENCE)
            assert pipe in ready, f"{step} was never reached"
            return int(os.read(pipe, 100))
        finally:
            os.close(pipe)
            os.close(over)

    def let_go(self, step: str) -> None:
        """Let the process that stands at a step go on. OSError: none stands there."""
        pipe = os.open(self.folder / f"{step}.go", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"!")
        os.close(pipe)
