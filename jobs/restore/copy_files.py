"""Copies of files whose checksum is known: a reflink if the file system can make one, else a stream; never a hard link.

A broker that starts on a hard link appends to the original. A reflink shares the blocks until one side writes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path

import google_crc32c

from lastkey.jobs.errors import MISSING_FILE, MISSING_SIDE_FILE
from lastkey.logformat.storage.io_counts import paid, spend
from lastkey.udfs.storage import Root, flush, open_file, set_time

_CHUNK_BYTES = 8 << 20
_FICLONE = 0x40049409  # ioctl of Linux: share the blocks of another file (btrfs, XFS, overlayfs above them)


def _parts(root: Root, path: str, size: int | None = None) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, or all that it has."""
    with open_file(root, path) as read:
        while data := read.read(_CHUNK_BYTES if size is None else min(size, _CHUNK_BYTES)):
            spend(len(data))
            yield data
            size = None if size is None else size - len(data)


def _copy(parts: Iterable[bytes], target: Root, to: str) -> tuple[int, int]:
    """Write a file, and return its size and its CRC-32C."""
    size = checksum = 0
    with paid(target.filesystem.open_output_stream(target.full(to), compression=None)) as write:
        for data in parts:
            write.write(data)
            size, checksum = size + len(data), google_crc32c.extend(checksum, data)
    return size, checksum


def copy_log(source: Root, path: str, target: Root, to: str, size: int, checksum: int) -> bool:
    """Copy the first `size` bytes of a `.log`, check their CRC-32C, and return whether the copy is a reflink."""
    shown = f"{source.uri}/{path}"
    reflinked = source.is_local and target.is_local and _reflink(source, path, target.full(to), size)
    if reflinked:
        checksum_read = compute_checksum(target, to, size)
    else:
        n, checksum_read = _copy(_parts(source, path, size), target, to)
        if n < size:
            raise MISSING_FILE(path=shown, expected=f"{size} bytes", found=f"{n}")
    check_checksum(shown, size, checksum, checksum_read)
    return reflinked


def check_checksum(shown: str, size: int, expected: int, found: int) -> None:
    """Raise MISSING_FILE unless the first `size` bytes of a file had the CRC-32C that is known."""
    if found != expected:
        raise MISSING_FILE(
            path=shown, expected=f"CRC-32C {expected:#010x} of its first {size} bytes", found=f"{found:#010x}"
        )


def copy_small(source: Root, path: str, target: Root, to: str, checksum: int | None = None) -> int:
    """Copy a whole side file, check its CRC-32C if one is known, and return its size in bytes."""
    size, checksum_read = _copy(_parts(source, path), target, to)
    if checksum not in (None, checksum_read):
        raise MISSING_SIDE_FILE(
            path=f"{source.uri}/{path}",
            expected=f"CRC-32C {checksum:#010x}, as it was written",
            found=f"{checksum_read:#010x}",
        )
    return size


def finish(target: Root, path: str, mtime_ms: int | None) -> None:
    """Give a local copy its modification time, and flush it to the disk."""
    if mtime_ms is not None:
        set_time(target, path, mtime_ms * 1_000_000)
    flush(target, path)


def _reflink(source: Root, path: str, target: str, size: int) -> bool:
    with open_file(source, path) as read, Path(target).open("wb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:  # another file system, or one without reflinks
            return False
        if os.fstat(write.fileno()).st_size < size:
            return False  # the caller copies by a stream, which reports the missing bytes
        os.ftruncate(write.fileno(), size)  # an archived active segment may have grown since
    return True


def compute_checksum(root: Root, path: str, size: int) -> int:
    """Return the CRC-32C of the first `size` bytes of a file, or of all that it has."""
    return int(reduce(google_crc32c.extend, _parts(root, path, size), 0))
