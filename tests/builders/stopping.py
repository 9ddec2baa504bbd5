"""Real runs of the command line that stop at a step, to be killed there: in processes, unknown to the product.

A `sitecustomize` on the PYTHONPATH of the run, and so of its Python workers, wraps one function. At a certain call the
process writes its id into a pipe and waits, for a word in another pipe or for its end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds until a step counts as never reached

# Changes a module when it is imported, before others take names from it
FINDER = """
import importlib.util, sys

class _Finder:
    def __init__(self, module, change):
        self.module, self.change = module, change

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec
"""
_SITE = """
import functools, itertools, os, threading

MODULE, NAME, WHEN, NTH, EVERY, REACHED, GO = {module!r}, {name!r}, {when!r}, {nth!r}, {every!r}, {reached!r}, {go!r}
CONSTANT = {constant!r}

def _stop():
    with open(REACHED, "w") as pipe:
        pipe.write(f"{{os.getpid()}}\\n")
    if GO:
        open(GO).read()
    else:
        threading.Event().wait()

def _wrap(module):
    owner = module
    *path, last = NAME.split(".")
    for part in path:
        owner = getattr(owner, part)
    real, calls = getattr(owner, last), itertools.count(1)

    @functools.wraps(real)
    def stopping(*args, **kwargs):
        call = next(calls)
        here = call >= NTH if EVERY else call == NTH
        if here and WHEN == "before":
            _stop()
        out = real(*args, **kwargs)
        if here and WHEN == "after":
            _stop()
        return out

    setattr(owner, last, stopping)


sys.meta_path.insert(0, _Finder(MODULE, _wrap))
if len(CONSTANT) == 2:
    sys.meta_path.insert(0, _Finder(CONSTANT[0], lambda module: setattr(module, CONSTANT[1], 0)))
"""


@dataclass
class Run:
    """A run of the command line in processes of its own."""

    process: subprocess.Popen[str]
    reached: Path | None = None
    go: Path | None = None
    _descriptor: int = -1

    def wait_until_reached(self) -> int:
        """Wait, and return the id of the process that stands at the step."""
        readable, _, _ = select.select([self._descriptor], [], [], PATIENCE)
        if not readable:
            self.kill()
            raise AssertionError(f"the step was never reached:\n{self.process.communicate()}")
        return int(os.read(self._descriptor, 100).split()[0])

    def wait_until_said(self, text: str) -> None:
        """Read stderr until it holds the text."""
        assert self.process.stderr is not None
        said = b""
        while text.encode() not in said:
            readable, _, _ = select.select([self.process.stderr], [], [], PATIENCE)
            more = os.read(self.process.stderr.fileno(), 1) if readable else b""
            assert more, f"it was never said: {said!r}"
            said += more

    def jvm(self) -> int:
        """Return the id of the JVM: the first one, since its forks bear its name until they run another program."""
        for pid in descendants(self.process.pid):
            with suppress(OSError):  # the process has ended since
                if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") == "java\n":
                    return pid
        raise AssertionError("no JVM runs")

    def another_thread(self) -> int:
        """Return the system's id of a thread other than the main one: the system prefers it for a signal to this id."""
        for task in sorted(Path(f"/proc/{self.process.pid}/task").iterdir()):
            with suppress(OSError):  # the thread has ended since
                open_to_all = re.findall(r"^SigBlk:\s*0*$", (task / "status").read_text(encoding="utf-8"), re.MULTILINE)
                if open_to_all and int(task.name) != self.process.pid:
                    return int(task.name)
        raise AssertionError("no other thread takes signals")

    def let_go(self) -> None:
        assert self.go is not None
        self.go.write_text("go")

    def kill(self) -> None:
        """Send SIGKILL to every process of the run: driver, JVM, daemon, workers."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def finish(self, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr. Kill a run that does not end in time, and show its threads' stacks."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # Python's fault handler needs no lock
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.kill()
            raise AssertionError(f"the run does not end:\n{self.process.communicate()}") from None
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
        return self.process.returncode, out, err


def start(
    folder: Path,
    arguments: list[str],
    step: str = "",
    *,
    nth: int = 1,
    every: bool = False,
    held: bool = False,
    constant: str = "",
    cores: int = 2,
) -> Run:
    """Start `python -m lastkey ARGUMENTS`.

    step: "before module:function" or "after module:Class.method", at its nth call in a process; every: at each later
    one too; held: the run goes on after `let_go`; folder: for files of this module, absent or empty; constant:
    "module:NAME", which is 0 in the run: the size below which Spark is not used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    environment["PYTHONFAULTHANDLER"] = "1"
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(name, None)
    reached = go = None
    descriptor = -1
    if step:
        when, _, what = step.partition(" ")
        module, _, name = what.partition(":")
        reached = folder / "reached"
        os.mkfifo(reached)
        descriptor = os.open(reached, os.O_RDONLY | os.O_NONBLOCK)
        if held:
            go = folder / "go"
            os.mkfifo(go)
        site = FINDER + _SITE.format(
            module=module, name=name, when=when, nth=nth, every=every, reached=str(reached), go=str(go) if go else "",
            constant=tuple(constant.split(":")),
        )  # fmt: skip
        (folder / "sitecustomize.py").write_text(site)
    process = subprocess.Popen(
        [sys.executable, "-m", "lastkey", "--master", f"local[{cores}]", *arguments], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    return Run(process, reached, go, descriptor)


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is nobody's child here, or has ended already."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            gone, _, _ = select.select([process], [], [], PATIENCE)
        finally:
            os.close(process)
        assert gone, f"process {pid} does not end"


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    out, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        out += below
        todo += below
    return out
