"""The bytes of a segment's files for the kernels of a search: mapped into memory where the file is local.

A mapped file must not be cut while it is in use: the process that reads beyond its end is killed by the system. An
archive's are not; of a live broker's folder only the segments below the active one are safe.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs as pafs

from logformat.batch_headers import read_exactly
from logformat.errors import LogFormatError
from logformat.log_files import SegmentFiles, unreadable
from logformat.time_lookup_kernels import copy_batches

WINDOW_BYTES: Final = 128 << 10  # read at once where a file cannot be mapped: a request costs more than its bytes
Bytes = NDArray[np.uint8]


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
    """Any other file: a window of it is read when it is needed."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        with opened(files) as file:
            size = os.fstat(file.fileno()).st_size if isinstance(file, io.FileIO) else int(file.size())
        _check_size(files.log, files.size, size)
        self.whole = _fixed(np.empty(0, np.uint8))
        self._window, self._origin = self.whole, 0

    def at(self, position: int) -> tuple[Bytes, int]:
        """A window that begins at `position`, unless the last one will do."""
        end = self._origin + len(self._window)
        if not self._origin <= position < end or (position + 64 > end and end < self._files.size):
            window = np.empty(min(WINDOW_BYTES, self._files.size - position), np.uint8)
            with opened(self._files) as file:
                read_exactly(file, self._files.log, position, window)
            self._window, self._origin = _fixed(window), position
        return self._window, self._origin

    def copy(self, positions: NDArray[np.int64], starts: NDArray[np.int64]) -> Bytes:
        """See LogWindow; a read for each batch."""
        out = np.empty(int(starts[-1]), np.uint8)
        with opened(self._files) as file:
            for position, start, end in zip(positions.tolist(), starts[:-1], starts[1:], strict=True):
                read_exactly(file, self._files.log, position, out[start:end])
        return out


def open_window(files: SegmentFiles) -> LogWindow:
    """The log of a segment. Kind "changed" where it is shorter than listed, "unreadable" where it cannot be opened."""
    mapped = _map(files.log, files.size) if is_local(files) else None
    return WindowedLog(files) if mapped is None else MappedLog(mapped)


def read_index(files: SegmentFiles, path: str, most: int) -> tuple[Bytes, int]:
    """Up to `most` bytes of an index file, and its size; mapped if it is local. Kind "unreadable"."""
    try:
        if is_local(files):
            size = Path(path).stat().st_size
            mapped = _map(path, min(size, most))
            if mapped is not None:
                return mapped, size
        with files.filesystem.open_input_file(path) as file:
            size = int(file.size())
            out = np.empty(min(size, most), np.uint8)
            read_exactly(file, path, 0, out)
    except OSError as error:
        raise unreadable(path, error) from error
    return _fixed(out), size


def is_local(files: SegmentFiles) -> bool:
    """Whether the files can be mapped."""
    return isinstance(files.filesystem, pafs.LocalFileSystem)


@contextmanager
def opened(files: SegmentFiles) -> Iterator[Any]:
    """The log as a file: an io.FileIO if it is local (of which headers alone can be read), else one of pyarrow's."""
    try:
        if is_local(files):
            file: Any = io.FileIO(files.log)
        else:
            file = files.filesystem.open_input_file(files.log)
    except OSError as error:
        raise unreadable(files.log, error) from error
    with file:
        yield file


def _map(path: str, size: int) -> Bytes | None:
    """The first `size` bytes of a local file; None where the file system cannot map files, or memory has a limit."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            _check_size(path, size, os.fstat(file.fileno()).st_size)
            if size == 0:
                return _fixed(np.empty(0, np.uint8))
            try:
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except OSError:
                return None
            return np.frombuffer(mapped, np.uint8)
    except OSError as error:
        raise unreadable(path, error) from error


def _check_size(path: str, listed: int, size: int) -> None:
    if size < listed:
        raise LogFormatError("changed", path, size, f"{listed} bytes, as listed", f"{size} bytes")


def _fixed(window: Bytes) -> Bytes:
    """Read only as a mapped file is: kernels are compiled for one kind of array."""
    window.flags.writeable = False
    return window
