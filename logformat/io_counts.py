"""Counts for reports: the bytes that Lastkey reads and writes, and its requests to buckets.

A request is a call of our own: to open a file (which asks for its size too), read a part of it, write a file, list a
folder, ask for a file, delete, copy, commit. The libraries make more of some, such as the parts of a large file, and do
not tell what they send again. `io_limit` counts the bytes, of logs and of what is made of them, on disks too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyarrow import fs as pafs

READ: Final = "bytes_read"
WRITTEN: Final = "bytes_written"
_REQUESTS: Final = {  # methods of pyarrow's file systems and files
    "open_input_file": "open", "open_input_stream": "open", "read": "read", "read_at": "read", "readinto": "read",
    "open_output_stream": "write", "delete_file": "delete", "delete_dir": "delete", "copy_file": "copy",
    "get_file_info": "info",
}  # fmt: skip
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


class RequestCounter:
    """A bucket's file system, or a file that it opened: it does the same, and counts requests."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found, kind = getattr(self.__dict__.get("_inner"), name), _REQUESTS.get(name)
        if kind is None:
            return found

        def asked(*given: Any, **named: Any) -> Any:
            is_list = kind == "info" and isinstance(given[0], pafs.FileSelector)
            n = len(given[0]) if kind == "info" and isinstance(given[0], list) else 1
            count(**{"list" if is_list else kind: n})
            out = found(*given, **named)
            return RequestCounter(out) if kind == "open" else out

        return asked

    def equals(self, other: Any) -> bool:
        """Return whether the other file system leads to the same server."""
        return bool(self._inner.equals(other._inner))

    def __enter__(self) -> RequestCounter:
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()
