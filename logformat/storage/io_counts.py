"""Bytes that Lastkey reads and writes, and its requests to buckets: counts for reports, a limit, progress.

A request is a call of our own: open a file (which asks for its size too), read a part, write a file, list a folder, ask
for a file, delete, copy. The libraries may split one request into several, such as the parts of a large file, and do
not report retries. Bytes count logs and the files written from them, on local disks too.

The limit is like a broker's log.cleaner.io.max.bytes.per.second. Code that reads or writes bytes reports them here
afterwards, and waits for as long as they should have taken. No second exceeds the limit by more than one read: a chunk
of 8 MiB, or a segment's indexes.

Progress is the number of log bytes that a thread has read. A listener gets that number during the read, because a task
is a single call. A listener that raises ends the task at the next chunk.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

READ: Final = "bytes_read"
WRITTEN: Final = "bytes_written"
_counting: list[Counter[str]] = []
_LOCK: Final = threading.Lock()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what this process does in the block, in all its threads."""
    counts: Counter[str] = Counter()
    with _LOCK:
        _counting.append(counts)
    try:
        yield counts
    finally:
        with _LOCK:
            _counting[:] = [each for each in _counting if each is not counts]


def count(**amounts: int) -> None:
    """Count bytes, as READ and WRITTEN, and requests by kind."""
    with _LOCK:
        for counts in _counting:
            counts.update(amounts)


_PIECE: Final = 1 << 20  # bytes of a write: ext4 takes free memory of 2 MiB and more for larger ones, which a virtual
# machine has often given back to its host; then 240 MB take 0.6 s in place of 0.06


class Limit:
    """Bytes a second of all threads together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._lock, self._free_at = bytes_per_second, threading.Lock(), 0.0

    def spend(self, n: int) -> None:
        """Wait until `n` more bytes, and all before them, would be over at this rate."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + n / self._rate
            rest = self._free_at - now
        time.sleep(rest)


_limits: list[Limit] = []  # the last one counts


@contextmanager
def limited(bytes_per_second: float) -> Iterator[None]:
    """Limit this process in the block; 0: do not."""
    if not bytes_per_second:
        yield
        return
    limit = Limit(bytes_per_second)
    _limits.append(limit)
    try:
        yield
    finally:
        _limits.remove(limit)


def is_limited() -> bool:
    """Return whether there is a limit on this process."""
    return bool(_limits)


def spend(n: int, kind: str = READ) -> None:
    """Spend bytes that were read, or WRITTEN."""
    count(**{kind: n})
    if _limits:
        _limits[-1].spend(n)


def paid(stream: Any) -> Any:
    """Return an output stream that spends what is written to it."""
    return _Paid(stream)


class _Paid:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> None:
        """Write, and spend the bytes."""
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), _PIECE):
            piece = whole[start : start + _PIECE]
            self._stream.write(piece)
            spend(len(piece), WRITTEN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Paid:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)  # after an error this aborts an upload to a bucket


Listener = Callable[[int], None]  # called with the number of bytes since its last call

_OF_THREAD: Final = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Notify `listener` of all bytes that this thread reads in the block."""
    before = getattr(_OF_THREAD, "listener", None)
    _OF_THREAD.listener = listener
    try:
        yield
    finally:
        _OF_THREAD.listener = before


def listener_of_thread() -> Listener | None:
    """Return this thread's listener, for other threads that read for it."""
    listener: Listener | None = getattr(_OF_THREAD, "listener", None)
    return listener


def notify(n: int) -> None:
    """Notify this thread's listener, if there is one, that `n` more bytes have been read; and spend them."""
    spend(n)
    if (listener := listener_of_thread()) is not None:
        listener(n)
