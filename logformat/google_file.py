"""Files of Google's store, read from a stream as long as their parts follow each other, and written.

pyarrow's files of any order cost more there: it fetches each from its first byte on as soon as it is asked whether the
file is open, and holds the interpreter until the server answers, for two minutes if the server is silent. What comes of
that first byte's answer nobody reads; it is counted, and keeps to a limit, as if it had been read.

Google's library gives a refusal the number of an error of this machine's files, and does not say of which file it is.
Here its words come without a number and with the address, as other stores' do. So it is never taken for a missing file
when the server has forgotten an upload (404 or 410), nor for a file's own fault when the whole bucket is denied.
"""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from pyarrow import fs as pafs

from lastkey.logformat.gcs_access import url_of
from lastkey.logformat.io_limit import spend

_SKIPPED: Final = 1 << 20  # read in vain rather than asked for anew
_IN_VAIN: Final = 8_000_000  # bytes of an answer that pyarrow drops: 4.4 to 11 MB had left the server by then


class GoogleFile:
    """An open file. Nothing is read behind its end: the server refuses such ranges."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path, self._lock = filesystem, path, threading.Lock()
        self._stream: Any = None
        self._at, self._last = 0, b""  # of the stream, and what it gave last: a part may begin inside of the one before
        self._any_order: Any = None
        self._position, self.closed = 0, False
        with _addressed(path, PermissionError):
            info = filesystem.get_file_info(path)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, f"Path does not exist '{path}'")
        self._size = int(info.size)

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset on."""
        size = min(size, self._size - offset)
        if size <= 0:
            return b""
        with self._lock, _addressed(self._path, PermissionError):
            if self._stream is None and self._any_order is None and offset <= _SKIPPED:
                self._stream = self._filesystem.open_input_stream(self._path, compression=None)
                self._at, self._last = 0, b""
            if self._stream is not None and -len(self._last) <= offset - self._at <= _SKIPPED:
                return self._from_stream(size, offset)
            if self._any_order is None:
                self._any_order = self._filesystem.open_input_file(self._path)
                spend(min(self._size, _IN_VAIN))
            if self._any_order.closed:
                raise OSError("google::cloud::Status(UNAVAILABLE: Could not connect to read a file)")
            return bytes(self._any_order.read_at(size, offset))

    def _from_stream(self, size: int, offset: int) -> bytes:
        start = len(self._last) + offset - self._at
        again = self._last[start : start + size]
        if len(again) == size:
            return again
        stream, self._stream = self._stream, None  # after an error nobody knows how far it is
        stream.read(max(offset - self._at, 0))
        data = again + bytes(stream.read(size - len(again)))
        self._stream, self._at, self._last = stream, offset + len(data), data
        return data

    def read(self, size: int | None = None) -> bytes:
        """Read the next `size` bytes, by default all up to the end."""
        left = self._size - self._position
        data = self.read_at(left if size is None or size < 0 else size, self._position)
        self._position += len(data)
        return data

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
        """Close the file."""
        self.closed = True
        for file in (self._stream, self._any_order):
            if file is not None:
                file.close()

    def __enter__(self) -> GoogleFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class GoogleUpload:
    """A file that is being written."""

    def __init__(self, opened: Callable[..., Any], path: str, **given: Any) -> None:
        self._path = path
        with _addressed(path):
            self._stream = opened(path, **given)

    def write(self, data: Any) -> None:
        """Write bytes."""
        with _addressed(self._path):
            self._stream.write(data)

    def close(self) -> None:
        """Finish the file."""
        with _addressed(self._path):
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_stream"), name)

    def __enter__(self) -> GoogleUpload:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def _addressed(path: str, kind: type[OSError] = OSError) -> Iterator[None]:
    """Raise an error of this kind with the library's words and the file's address alone."""
    try:
        yield
    except kind as error:
        raise OSError(f"{error.args[-1]} '{url_of(f'gs://{path}')}/{quote(path)}'") from error
