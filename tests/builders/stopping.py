"""Real runs of the command line, in processes, that wait at a named step (`steps.Holds`), to be killed there."""

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

from tests.builders.steps import PATIENCE, Holds

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """A run of the command line in processes of its own."""

    process: subprocess.Popen[str]
    step: str
    holds: Holds

    def wait_until_reached(self) -> int:
        """Wait, and return the id of the process that waits at the step."""
        try:
            return self.holds.wait(self.step, self.process.pid)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}:\n{self.process.communicate()}") from None

    def wait_for_stderr(self, text: str) -> None:
        """Read stderr until it holds the text."""
        assert self.process.stderr is not None
        output = b""
        while text.encode() not in output:
            readable, _, _ = select.select([self.process.stderr], [], [], PATIENCE)
            more = os.read(self.process.stderr.fileno(), 1) if readable else b""
            assert more, f"it was never said: {output!r}"
            output += more

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

    def release(self) -> None:
        """Release the process that waits at the step."""
        self.holds.release(self.step)

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
        return self.process.returncode, out, err


def start(
    folder: Path, arguments: list[str], step: str = "", *, nth: int = 1, every: bool = False, cores: int = 2
) -> Run:
    """Start `python -m lastkey ARGUMENTS`.

    step: its nth call in a process waits; every: in each process, and each later one too; folder: for files of this
    module, absent or empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    environment["PYTHONFAULTHANDLER"] = "1"
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(name, None)
    holds = Holds(folder, {step: nth} if step else {}, every=every)
    process = subprocess.Popen(
        [sys.executable, "-m", "lastkey", "--master", f"local[{cores}]", *arguments], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    return Run(process, step, holds)


def tracebacks(err: str) -> list[str]:
    """Return the tracebacks in a run's stderr, without those of PySpark's workers, which lose their JVM at an end."""
    tracebacks = re.findall(r"Traceback \(most recent call last\):\n(?: +.*\n)+.*", err)
    return [trace for trace in tracebacks if "/pyspark/daemon." not in trace]


def wait_until_exited(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one, or has already ended."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([process], [], [], PATIENCE)
        finally:
            os.close(process)
        assert ended, f"process {pid} does not end"


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
