"""The bytes of a segment's files for the kernels of a search: mapped into memory where the file is local.

A mapped file must not be cut while it is in use: the process that reads beyond its end is killed by the system. An
archive's are not; of a live broker's folder only the segments below the active one are safe.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs as pafs

from logformat.batches.chunks import read_exactly
from logformat.errors import LogFormatError, readable
from logformat.layout import BATCH_OVERHEAD, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from logformat.regular_files import open_input, open_local
from logformat.search.offset_kernels import OFFSET_ENTRY, TIME_ENTRY
from logformat.search.time_kernels import copy_batches

WINDOW_BYTES: Final = 128 << 10  # read at once where a file cannot be mapped: a request costs more than its bytes
MOST_WINDOW_BYTES: Final = 8 << 20
Bytes = NDArray[np.uint8]
Place = Callable[[str], tuple[Any, str]]  # root of a ListedSegment -> file system, and the root's path on it
_ENTRY: Final = {OFFSET_ENTRY: OFFSET_INDEX_ENTRY, TIME_ENTRY: TIME_INDEX_ENTRY}


class LogWindow(Protocol):
    """Bytes of a `.log`."""

    whole: Bytes  # all of it, read only, where it is mapped; else none

    def at(self, position: int) -> tuple[Bytes, int]:
        """Read-only bytes that hold `position` and, as far as the log goes, the header there; where they begin."""

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """n batches one after the other: from positions (int64[n], in the file) to starts (int64[n + 1])."""


class MappedLog:
    """A local file, mapped."""

    def __init__(self, mapped: Bytes) -> None:
        self.whole = mapped

    def at(self, position: int) -> tuple[Bytes, int]:
        """The whole file."""
        return self.whole, 0

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """See LogWindow."""
        out = np.empty(int(starts[-1]), np.uint8)
        copy_batches(self.whole, positions, starts, out)
        return out


class WindowedLog:
    """Any other file: a window of it is read when it is needed, a larger one while the search goes forward."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        self._path, self._size = path, size
        with readable(path):
            self._file = open_input(filesystem, path)
            _check_size(path, size, int(self._file.size()))
        self.whole = _fixed(np.empty(0, np.uint8))
        self._window, self._origin, self._next_bytes = self.whole, 0, WINDOW_BYTES

    def at(self, position: int) -> tuple[Bytes, int]:
        """A window that begins at `position`, unless the last one will do."""
        end = self._origin + len(self._window)
        inside = self._origin <= position < end
        if not inside or (position + BATCH_OVERHEAD > end and end < self._size):
            onward = inside or end <= position <= end + self._next_bytes
            self._next_bytes = min(2 * self._next_bytes, MOST_WINDOW_BYTES) if onward else WINDOW_BYTES
            self._window = self._read(position, min(self._next_bytes, self._size - position))
            self._origin = position
        return self._window, self._origin

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """See LogWindow; batches that lie near each other are read at once."""
        out = np.empty(int(starts[-1]), np.uint8)
        ends = positions + np.diff(starts)
        apart = (positions[1:] - ends[:-1] > WINDOW_BYTES) | (np.diff(positions // MOST_WINDOW_BYTES) > 0)
        borders = [0, *(np.flatnonzero(apart) + 1).tolist(), len(positions)]
        for first, last in itertools.pairwise(borders):
            begin = int(positions[first])
            region = self._read(begin, int(ends[last - 1]) - begin)
            copy_batches(region, positions[first:last] - begin, starts[first : last + 1], out)
        return out

    def _read(self, position: int, size: int) -> Bytes:
        out = np.empty(size, np.uint8)
        with readable(self._path):
            read_exactly(self._file, self._path, position, out)
        return _fixed(out)


def open_window(filesystem: Any, path: str, size: int) -> LogWindow:
    """The log of a segment, `size` bytes of it. Kind "changed" where it is shorter, "unreadable" where it cannot be
    opened.
    """
    mapped = _map(path, size) if _is_local(filesystem) else None
    return WindowedLog(filesystem, path, size) if mapped is None else MappedLog(mapped)


def read_index(filesystem: Any, path: str, most: int) -> tuple[Bytes, int]:
    """Up to `most` bytes of an index file, and its size; mapped if it is local. Kind "unreadable"."""
    with readable(path):
        if _is_local(filesystem):
            size = Path(path).stat().st_size
            mapped = _map(path, min(size, most))
            if mapped is not None:
                return mapped, size
        with open_input(filesystem, path) as file:
            size = int(file.size())
            out = np.empty(min(size, most), np.uint8)
            read_exactly(file, path, 0, out)
    return _fixed(out), size


def _is_local(filesystem: Any) -> bool:
    """Whether its files can be mapped."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def _map(path: str, size: int) -> Bytes | None:
    """The first `size` bytes of a local file; None where the file system cannot map files, or memory has a limit."""
    with readable(path), open_local(path) as file:
        _check_size(path, size, os.fstat(file.fileno()).st_size)
        if size == 0:
            return _fixed(np.empty(0, np.uint8))
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError:
            return None
        return np.frombuffer(mapped, np.uint8)


def _check_size(path: str, listed: int, size: int) -> None:
    if size < listed:
        raise LogFormatError("changed", path, size, f"{listed} bytes, as listed", f"{size} bytes")


def _fixed(window: Bytes) -> Bytes:
    """Read only as a mapped file is: kernels are compiled for one kind of array."""
    window.flags.writeable = False
    return window


def located(place: Place, root: str, path: str) -> tuple[Any, str]:
    """The file system of a file of a ListedSegment, and the path as that wants it."""
    filesystem, base = place(root)
    return filesystem, f"{base.rstrip('/')}/{path}"


def before_zeros(entries: Bytes, entry_size: int) -> int:
    """How many entries there are before the zeros that a preallocated index ends with, as offset_index and time_index
    say. Looked for by halves: in a file with zeros in the middle it is one border of several.
    """
    relative = entries.view(_ENTRY[entry_size])["relative_offset"]
    n = len(relative)
    if n == 0 or relative[-1] != 0:
        return n
    low = 0 if entry_size == OFFSET_ENTRY else 1  # the time index's first entry may have the base offset
    high = n - 1 if n > low else low
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if relative[middle] == 0 else (middle + 1, high)
    if low == 1 < n and not entries[:TIME_ENTRY].any() and entry_size == TIME_ENTRY:
        return 0
    return low
