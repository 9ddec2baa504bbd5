"""Limits on tested code: its time, what it may read, and how large its files are."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from lastkey.jobs.compact import plan_inputs
from lastkey.udfs.compact.plan import RunContext

NOBODY = 65534


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail code that does not end instead of hanging; in a kernel, which no signal reaches, end the test run."""

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
    """Run the block as another user if the process runs as root, who may read every file."""
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
    """Make a folder that every user can read and write; folders of pytest are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def limit_logs(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """Let runs in this process write no `.log` larger than this, unless a single batch is."""
    monkeypatch.setattr(plan_inputs, "RunContext", partial(RunContext, max_log_bytes=max_bytes))
