"""Counts for reports: the bytes that Lastkey reads and writes, and its requests to buckets.

A request is a call of our own: to open a file (which asks for its size too), read a part of it, write a file, list a
folder, ask for a file, delete, copy. The libraries make more of some, such as the parts of a large file, and do
not tell what they send again. `io_limit` counts the bytes, of logs and of what is made of them, on disks too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

READ: Final = "bytes_read"
WRITTEN: Final = "bytes_written"
_now: list[Counter[str]] = []
_LOCK: Final = threading.Lock()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what this process does in the block, in all its threads."""
    counts: Counter[str] = Counter()
    with _LOCK:
        _now.append(counts)
    try:
        yield counts
    finally:
        with _LOCK:
            _now[:] = [each for each in _now if each is not counts]


def count(**amounts: int) -> None:
    """Count bytes, as READ and WRITTEN, and requests by kind."""
    with _LOCK:
        for counts in _now:
            counts.update(amounts)
