"""A file of an object store that fetches its next parts while the caller works on the last one."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Final, NamedTuple

from lastkey.logformat.io_limit import is_limited

_LEAST: Final = 1 << 20  # bytes: less is there about as soon as it is asked for
_MOST_BYTES: Final = 64 << 20  # of a file, in parts that wait: one large batch makes all parts behind it as large
_THREADS: Final = 64  # of a process that fetch at the same time


class _PendingRead(NamedTuple):
    start: int
    end: int
    data: Future[bytes]


class ReadAhead:
    """An open file (pyarrow's, or a GoogleFile) that is told what its reader wants next, and reads that meanwhile.

    A failure of such a read is raised where its bytes are asked for, as if they were read then. While it reads, nobody
    else uses the file: some have one position, which each read moves.
    """

    def __init__(self, file: Any, most: int) -> None:
        """most: parts to read ahead. The first time it is one, then twice as many each time, in case nobody comes."""
        self._file, self._position = file, 0
        self._most, self._depth = most, 1
        self._parts: list[_PendingRead] = []

    def will_read(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Begin to read the first of the (position, bytes) given, in the order in which they will be asked for. What
        was read ahead before and is not among them is lost.
        """
        kept: list[_PendingRead] = []
        ahead = 0
        for (start, size), _ in zip(wanted if not is_limited() else (), range(self._depth), strict=False):
            at, end = start, start + size
            ahead += size
            if ahead > _MOST_BYTES:
                break
            while at < end:
                part = self._part_at(at, self._parts)
                if part is None:
                    part = self._begin(at, end) if size >= _LEAST else None
                if part is None:
                    break
                at = part.end
                if part not in kept:
                    kept.append(part)
        _drop([part for part in self._parts if part not in kept])
        self._parts = kept
        self._depth = min(2 * self._depth, self._most)

    def readinto(self, out: Any) -> int:
        """Fill `out` from the position on, as far as one part goes; return the number of bytes, 0 at the end."""
        room = memoryview(out).cast("B")
        data = self._read_ahead()[: len(room)]
        n = len(data)
        if n:
            room[:n] = data
        else:
            n = int(self._at().readinto(out))
        self._position += n
        return n

    def read(self, size: int | None = None) -> bytes:
        """Read the next `size` bytes, by default all up to the end."""
        data = bytes(self._at().read(size))
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, and return it."""
        if whence == io.SEEK_END:
            offset += self.size()
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset on."""
        return bytes(self._idle().read_at(size, offset))

    def size(self) -> int:
        """Return the number of bytes that the file has."""
        return int(self._idle().size())

    @property
    def closed(self) -> bool:
        """True if the file is closed."""
        return bool(self._file.closed)

    def close(self) -> None:
        """Close the file, after a read that has begun."""
        self._forget()
        self._file.close()

    def _idle(self) -> Any:
        """Return the file when nobody reads it."""
        wait([part.data for part in self._parts])
        return self._file

    def _at(self) -> Any:
        """Return the file at the position."""
        self._forget()
        self._file.seek(self._position)
        return self._file

    def _read_ahead(self) -> memoryview:
        """Return what was read ahead from the position on; nothing if a server gave less of it than the file has."""
        part = self._part_at(self._position, self._parts)
        try:
            return memoryview(b"") if part is None else memoryview(part.data.result())[self._position - part.start :]
        except MemoryError:  # a reader has memory of its own for these bytes
            return memoryview(b"")
        except BaseException:
            self._forget()  # asked for anew, if somebody does
            raise

    def _begin(self, start: int, end: int) -> _PendingRead | None:
        data: Future[bytes] = Future()
        try:
            _readers(os.getpid()).submit(_read, self._file, start, end, data)
        except RuntimeError:  # no more threads; one that there is may still find it in the queue
            if data.cancel():
                return None  # it is read when it is asked for
        return _PendingRead(start, end, data)

    @staticmethod
    def _part_at(position: int, parts: Iterable[_PendingRead]) -> _PendingRead | None:
        return next((part for part in parts if part.start <= position < part.end), None)

    def _forget(self) -> None:
        """Drop what was read ahead."""
        _drop(self._parts)
        self._parts = []

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def will_read(file: Any, wanted: Iterable[tuple[int, int]]) -> None:
    """Tell an open file of any kind which (position, bytes) will be read next; on a disk they are there soon enough."""
    if isinstance(file, ReadAhead):
        file.will_read(wanted)


def following(position: int, end: int, size: int) -> Iterable[tuple[int, int]]:
    """Return the (position, bytes) of the parts of bytes [position, end), `size` bytes each."""
    return ((start, min(size, end - start)) for start in range(position, end, size))


def _drop(parts: Iterable[_PendingRead]) -> None:
    """End reads: a file must not be closed, or used otherwise, while a thread reads it."""
    wait([part.data for part in parts if not part.data.cancel()])


def _read(file: Any, start: int, end: int, data: Future[bytes]) -> None:
    if data.set_running_or_notify_cancel():
        try:
            data.set_result(file.read_at(end - start, start))
        except BaseException as error:
            data.set_exception(error)


@cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Return this process's threads: a fork does not inherit them."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix=f"read-ahead-{process}")
