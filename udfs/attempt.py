"""Attempts at a partition, segment or file: a result, or the problem that stopped it. A bad one stops no other."""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from lastkey.logformat.errors import stopped
from lastkey.udfs.problem import Problem

R = TypeVar("R")
_LOG = logging.getLogger("lastkey")
_STATUS = Path("/proc/self/status")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Tell --verbose when the work on a partition, segment or file begins, and how long it took."""
    _LOG.debug("%s: begins", name)
    began = time.perf_counter()
    try:
        yield
    finally:
        _LOG.debug("%s: %.2f s", name, time.perf_counter() - began)


def attempt(name: str, work: Callable[[], R], *, told: bool = True) -> R | Problem:
    """Return the result of `work`, or the problem that stopped it.

    name: the partition, segment or file that `work` is about; told: log for --verbose how long it took.

    Every job turns errors into problems here: LogFormatError, and unexpected ones (`logformat.errors.stopped` sorts
    them). Raises OSError for a full disk.
    """
    try:
        with timed(name) if told else nullcontext():
            return work()
    except Exception as error:  # of whatever kind: the other partitions go on
        return Problem.of(stopped(error, name))


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held since its program began.

    Linux: VmHWM of proc_pid_status(5). Elsewhere getrusage(2), which counts in bytes on macOS. On Linux it does not
    serve: its ru_maxrss outlives exec, so it would begin with the memory of whatever started the command.
    """
    if _STATUS.exists() and (found := _PEAK.search(_STATUS.read_text())):
        return int(found[1]) << 10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
