"""Limits of time that tests hold code to."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
