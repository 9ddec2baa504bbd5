"""Base of files that are read by positions: objects of buckets, and parts of other files."""

from __future__ import annotations

import io
from typing import Any


class SeekableFile(io.RawIOBase):
    """A file to read, of a known size; a subclass defines `fill`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._position = size, 0

    def fill(self, position: int, out: memoryview) -> int:
        """Fill `out` with bytes from `position` on; return their number, 0 at the end."""
        raise NotImplementedError

    def size(self) -> int:
        """Return the number of bytes that the file had when it was opened."""
        return self._size

    def readinto(self, out: Any, /) -> int:
        """Fill `out` from the position on; return the number of bytes, 0 at the end."""
        n = self.fill(self._position, memoryview(out).cast("B"))
        self._position += n
        return n

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position, and return it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True
