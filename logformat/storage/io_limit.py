"""Limit of bytes that this process reads and writes in a second, like a broker's log.cleaner.io.max.bytes.per.second.

Whoever reads or writes bytes of logs, or of what is made of them, spends them here afterwards, and waits for as long as
they should have taken. So no second holds more than the limit and one read: a chunk of 8 MiB, or a segment's indexes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lastkey.logformat.storage.io_counts import READ, WRITTEN, count

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


_now: list[Limit] = []  # the last one counts


@contextmanager
def limited(bytes_per_second: float) -> Iterator[None]:
    """Limit this process in the block; 0: do not."""
    if not bytes_per_second:
        yield
        return
    limit = Limit(bytes_per_second)
    _now.append(limit)
    try:
        yield
    finally:
        _now.remove(limit)


def is_limited() -> bool:
    """Return whether there is a limit on this process."""
    return bool(_now)


def spend(n: int, kind: str = READ) -> None:
    """Spend bytes that were read, or WRITTEN."""
    count(**{kind: n})
    if _now:
        _now[-1].spend(n)


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
        self._stream.__exit__(*error)  # which gives up an upload to a bucket after an error
