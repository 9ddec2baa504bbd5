"""A process that runs the command line's jobs one after the other, and may be killed in the middle of one.

It imports everything once: a job on a small archive then takes a fraction of a second. The driver is a process of its
own: the libraries that talk to a bucket do not survive a fork, and a job may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.conftest import ROOT

HANG_SECONDS = 120.0

_SERVE = """
import contextlib, io, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from lastkey.jobs.command.cli import main
for line in sys.stdin:
    words, environment = json.loads(line)
    os.environ.update(environment)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except BaseException as error:  # main lets none through
            code, _ = -1, err.write(f"Traceback: {error!r}")
    answers.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\\n")
    answers.flush()
"""


@dataclass(frozen=True)
class Ended:
    """The end of a job. `code`: its exit code; None: the process was killed; `hung`: because it hung."""

    code: int | None
    out: str = ""
    err: str = ""
    hung: bool = False


class Driver:
    """A process that starts at its first job, and restarts at the next job after a kill."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
        """Run a job to its end; `environment`: variables that hold from here on."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # already killed
            process.stdin.write(json.dumps([list(words), dict(environment or {})]) + "\n")
            process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], HANG_SECONDS)
        line = process.stdout.readline() if readable else ""
        if line:
            return Ended(*json.loads(line))
        self.kill()
        self.close()
        return Ended(None, hung=not readable)

    def kill(self) -> None:
        """Kill the process, as the system does if memory is short; any thread may call this."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError), process:  # closes its stdin: it ends
                pass

    def _running(self) -> subprocess.Popen[str]:
        if self.process is not None and self.process.poll() is not None:
            self.close()
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        return self.process
