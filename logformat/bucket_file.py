"""A file of a bucket, read like a file of a disk: while its reader works on a part, the next one is on its way.

A request takes its time before the first byte comes, and one connection is slower than a disk. So once two parts have
been read in a row, the next part of that size is fetched by a thread. A file holds one part more than its reader asked
for, and no more.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Final

from pyarrow import fs as pafs

_LEAST: Final = 1 << 20  # a part worth a thread
_FETCHES: Final = 16  # of a process at once
_SKIPPED: Final = 1 << 20  # fetched in vain rather than asked for anew


def open_in_bucket(filesystem: Any, path: str) -> BucketFile:
    """Open a file of a bucket. Raise OSError as pyarrow does."""
    is_google = filesystem.type_name == "gcs"
    return BucketFile(_GoogleFile(filesystem, path) if is_google else filesystem.open_input_file(path))


class BucketFile:
    """An open file of pyarrow. Nothing is read behind its end: Google's server refuses such ranges."""

    def __init__(self, file: Any) -> None:
        self._file, self._size, self.closed = file, int(file.size()), False
        self._position = self._read_up_to = 0
        self._ahead: tuple[int, int, Future[bytes]] | None = None  # position and size of what is on its way

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset on."""
        size = min(size, self._size - offset)
        return self._file.read_at(size, offset) if size > 0 else b""

    def read(self, size: int | None = None) -> bytes:
        """Read the next `size` bytes, by default all up to the end."""
        left = max(self._size - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        at, more = self._position, min(size, left - size)
        data = self._fetched(at, size)
        data = self.read_at(size, at) if data is None else data
        if at == self._read_up_to > 0 and len(data) == size and more >= _LEAST:
            self._ahead = at + size, more, _fetchers(os.getpid()).submit(self.read_at, more, at + size)
        self._position = self._read_up_to = at + len(data)
        return data

    def _fetched(self, at: int, size: int) -> bytes | None:
        """Return what was fetched ahead, if it is that part, or raise its error. Afterwards nothing is on its way."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[2].cancel():  # all threads are busy: the reader itself is sooner there
            return None
        if ahead[:2] == (at, size):
            return ahead[2].result()
        wait([ahead[2]])  # one part more is held, never two
        return None

    def readinto(self, out: Any) -> int:
        """Fill `out` from the position on, and return the number of bytes."""
        data = self.read(memoryview(out).nbytes)
        memoryview(out).cast("B")[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, and return it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def size(self) -> int:
        """Return the number of bytes that the file had when it was opened."""
        return self._size

    def close(self) -> None:
        """Close the file, without waiting: at once, or after what is on its way, which needs it open."""
        ahead, self._ahead, self.closed = self._ahead, None, True
        if ahead is None or ahead[2].cancel():
            self._file.close()
        else:
            ahead[2].add_done_callback(lambda fetched: self._file.close())

    def __enter__(self) -> BucketFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _GoogleFile:
    """A file of Google's store, read from a stream as long as its parts follow each other.

    pyarrow's files of any order cost more there: it fetches each from its first byte on as soon as it is asked whether
    the file is open, and holds the interpreter until the server answers, for two minutes if the server is silent.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path, self._lock = filesystem, path, threading.Lock()
        self._stream: Any = None
        self._at = 0  # of the stream
        self._any_order: Any = None
        info = filesystem.get_file_info(path)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, f"Path does not exist '{path}'")
        self._size = int(info.size)

    def size(self) -> int:
        return self._size

    def read_at(self, size: int, offset: int) -> bytes:
        with self._lock:
            if self._stream is None and offset <= _SKIPPED:
                self._stream = self._filesystem.open_input_stream(self._path, compression=None)
                self._at = 0
            if self._stream is not None and 0 <= offset - self._at <= _SKIPPED:
                return self._from_stream(size, offset)
            if self._any_order is None:
                self._any_order = self._filesystem.open_input_file(self._path)
            if self._any_order.closed:
                raise OSError("google::cloud::Status(UNAVAILABLE: Could not connect to read a file)")
            return bytes(self._any_order.read_at(size, offset))

    def _from_stream(self, size: int, offset: int) -> bytes:
        stream, self._stream = self._stream, None  # after an error nobody knows how far it is
        stream.read(offset - self._at)
        data = bytes(stream.read(size))
        self._stream, self._at = stream, offset + len(data)
        return data

    def close(self) -> None:
        for file in (self._stream, self._any_order):
            if file is not None:
                file.close()


@cache
def _fetchers(process: int) -> ThreadPoolExecutor:
    """Return this process's threads, which a fork does not inherit."""
    return ThreadPoolExecutor(_FETCHES, thread_name_prefix=f"fetch-{process}")
