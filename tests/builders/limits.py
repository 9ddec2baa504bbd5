"""Limits that tests hold code to: of time, and of what it may read."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """What does not end fails instead of hanging; in a kernel, which no signal reaches, it ends the test run."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still going after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(seconds + 10, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything: the whole process is somebody else for a while, if it is root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A folder where anybody may read and write; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)
