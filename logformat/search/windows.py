"""Bytes of a segment's files for the kernels of a search: mapped into memory if the file is local.

A mapped file must not be truncated while it is in use: the system kills a process that reads beyond its end. Files of
an archive are not cut; in a live broker's folder only the segments below the active one are safe.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs as pafs

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.layout import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, V3_LARGEST_HEADER
from lastkey.logformat.search.offset_kernels import OFFSET_ENTRY, TIME_ENTRY
from lastkey.logformat.search.time_kernels import copy_batches
from lastkey.logformat.storage.regular_files import open_input, open_local

WINDOW_BYTES: Final = 128 << 10  # read at once if a file cannot be mapped: a request costs more than its bytes
MOST_WINDOW_BYTES: Final = 8 << 20
Bytes = NDArray[np.uint8]
Place = Callable[[str], tuple[Any, str]]  # root of a Segment -> file system, and the root's path on it
_ENTRY: Final = {OFFSET_ENTRY: OFFSET_INDEX_ENTRY, TIME_ENTRY: TIME_INDEX_ENTRY}


class MappedLog:
    """The bytes of a local `.log`, mapped."""

    def __init__(self, mapped: Bytes) -> None:
        self.whole = mapped

    def at(self, position: int) -> tuple[Bytes, int]:
        """Return read-only bytes that hold `position` and, within the log, the header there; and where they begin."""
        return self.whole, 0

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """Copy n batches one after the other: from positions (int64[n], in the file) to starts (int64[n + 1])."""
        out = np.empty(int(starts[-1]), np.uint8)
        copy_batches(self.whole, positions, starts, out)
        return out


class WindowedLog:
    """A `.log` that cannot be mapped: windows of it are read on demand, larger ones while the search goes forward."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        self._path, self._size = path, size
        with readable(path):
            self._file = open_input(filesystem, path)
            _check_size(path, size, int(self._file.size()))
        self.whole = _fixed(np.empty(0, np.uint8))  # no file is mapped
        self._window, self._origin, self._next_bytes = self.whole, 0, WINDOW_BYTES

    def at(self, position: int) -> tuple[Bytes, int]:
        """Return a window as MappedLog does. It begins at `position`, unless the last window will do."""
        end = self._origin + len(self._window)
        inside = self._origin <= position < end
        if not inside or (position + V3_LARGEST_HEADER > end and end < self._size):
            onward = inside or end <= position <= end + self._next_bytes
            self._next_bytes = min(2 * self._next_bytes, MOST_WINDOW_BYTES) if onward else WINDOW_BYTES
            self._window = self._read(position, min(self._next_bytes, self._size - position))
            self._origin = position
        return self._window, self._origin

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """Copy batches as MappedLog does; batches that are near each other are read at once."""
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


def open_window(filesystem: Any, path: str, size: int) -> MappedLog | WindowedLog:
    """Open `size` bytes of a log. Raise kind "changed" if it is shorter, "unreadable" if it cannot be opened."""
    mapped = _map(path, size) if _is_local(filesystem) else None
    return WindowedLog(filesystem, path, size) if mapped is None else MappedLog(mapped)


def read_index(filesystem: Any, path: str, most: int) -> tuple[Bytes, int]:
    """Return up to `most` bytes of an index file, mapped if it is local, and its size. Raise kind "unreadable"."""
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
    """Return whether the file system's files can be mapped."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def _map(path: str, size: int) -> Bytes | None:
    """Map the first `size` bytes of a local file. Return None if the file system, or a limit of memory, forbids it."""
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
    """Make an array read only, as a mapped file is: kernels are compiled for one kind of array."""
    window.flags.writeable = False
    return window


def located(place: Place, root: str, path: str) -> tuple[Any, str]:
    """Return the file system of a Segment's file, and the path there."""
    filesystem, base = place(root)
    return filesystem, f"{base.rstrip('/')}/{path}"


def before_zeros(entries: Bytes, entry_size: int) -> int:
    """Return the number of entries before the zeros that a preallocated index ends with; see offset_index and
    time_index.

    The search is binary: in a file with zeros in the middle it finds one border of several.
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
