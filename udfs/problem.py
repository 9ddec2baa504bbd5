"""The problem of a partition, as a value that crosses between the driver and the workers; and attempts at a partition,
segment or file, which give a result, or the problem that stopped them. A bad one stops no other.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeVar

from lastkey.logformat.errors import NO_POSITION, LogFormatError, stopped

_ANOTHER_LOG: Final = "topic recreated, archive rolled back or converted, or another cluster: --reset starts over"


@dataclass(frozen=True)
class Problem:
    """Problem of a partition, in the words of LogFormatError."""

    kind: str
    path: str
    position: int
    expected: str
    found: str
    base_offset: int = -1
    hint: str = ""
    state: str = "uncleanable"  # state in cleaner_state: uncleanable, diverged or gap

    @classmethod
    def of(cls, error: LogFormatError) -> Problem:
        """Return an error as a problem."""
        return cls(*(getattr(error, field.name) for field in fields(cls)))

    def as_error(self) -> LogFormatError:
        """Return the problem as an error to raise."""
        return LogFormatError(**vars(self))

    def __str__(self) -> str:
        return LogFormatError.__str__(self)  # type: ignore[arg-type]  # of kinds too that no error has: reindex's


def gap(path: str, expected: str, found: str, hint: str, position: int = 0) -> Problem:
    """Return a gap as a Problem."""
    return Problem("gap", path, position, expected, found, hint=hint, state="gap")


def another_log(path: str, expected: str, found: str, position: int = NO_POSITION, base_offset: int = -1) -> Problem:
    """Return the problem of an archive that is not the log that the last generation was made of."""
    return Problem("changed", path, position, expected, found, base_offset, _ANOTHER_LOG, "diverged")


R = TypeVar("R")
_LOG = logging.getLogger("lastkey")
_STATUS = Path("/proc/self/status")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Log for --verbose when the work on a partition, segment or file begins, and how long it took."""
    _LOG.debug("%s: begins", name)
    began = time.perf_counter()
    try:
        yield
    finally:
        _LOG.debug("%s: %.2f s", name, time.perf_counter() - began)


def attempt(name: str, work: Callable[[], R], *, logged: bool = True) -> R | Problem:
    """Return the result of `work`, or the problem that stopped it.

    name: the partition, segment or file that `work` is about; logged: log for --verbose how long it took.

    Every job turns errors into problems here: LogFormatError, and unexpected ones (`logformat.errors.stopped` sorts
    them). Raises OSError for a full disk.
    """
    try:
        with timed(name) if logged else nullcontext():
            return work()
    except Exception as error:  # any error: the other partitions continue
        return Problem.of(stopped(error, name))


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held since its program began.

    Linux: VmHWM of proc_pid_status(5). Elsewhere getrusage(2), which counts in bytes on macOS. On Linux it does not
    serve: its ru_maxrss outlives exec, so it would begin with the memory of the parent process.
    """
    if _STATUS.exists() and (found := _PEAK.search(_STATUS.read_text())):
        return int(found[1]) << 10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
