"""Copies of files whose checksum is known: as a reflink where the file system can, else as a stream; never a hard link.

A broker that starts on a hard link appends to the original. A reflink shares the blocks until one side writes.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import google_crc32c

from jobs.errors import MissingFileError
from udfs.storage import Root

_CHUNK_BYTES = 8 << 20
_FICLONE = 0x40049409  # ioctl of Linux: share the blocks of another file (btrfs, XFS, overlayfs above them)


def copy_log(source: Root, path: str, target: Root, to: str, size: int, checksum: int) -> bool:
    """Copy the first `size` bytes of a `.log` and check their CRC-32C; whether it became a reflink."""
    shown = f"{source.uri}/{path}"
    reflinked = source.is_local and target.is_local and _reflink(source.full(path), target.full(to), size)
    if reflinked:
        found = _checksum(target, to, size)
    else:
        with (
            source.filesystem.open_input_stream(source.full(path), compression=None) as read,
            target.filesystem.open_output_stream(target.full(to), compression=None) as write,
        ):
            found = left = 0
            left = size
            while left:
                data = read.read(min(left, _CHUNK_BYTES))
                if not data:
                    raise MissingFileError(path=shown, expected=f"{size} bytes", found=f"{size - left}")
                found = google_crc32c.extend(found, data)
                write.write(data)
                left -= len(data)
    if found != checksum:
        raise MissingFileError(
            path=shown, expected=f"CRC-32C {checksum:#010x} of its first {size} bytes", found=f"{found:#010x}"
        )
    return reflinked


def copy_small(source: Root, path: str, target: Root, to: str) -> int:
    """Copy a side file, whole; its size."""
    with source.filesystem.open_input_stream(source.full(path), compression=None) as read:
        data = read.read()
    with target.filesystem.open_output_stream(target.full(to), compression=None) as write:
        write.write(data)
    return len(data)


def finish(target: Root, path: str, mtime_ms: int | None) -> None:
    """Give a local copy its time, and flush it to the disk."""
    if not target.is_local:
        return
    if mtime_ms is not None:
        os.utime(target.full(path), ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
    descriptor = os.open(target.full(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reflink(source: str, target: str, size: int) -> bool:
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:  # another file system, or one without reflinks
            return False
        if os.fstat(write.fileno()).st_size < size:
            return False  # the stream says what is missing
        os.ftruncate(write.fileno(), size)  # an archived active segment may have grown since
    return True


def _checksum(root: Root, path: str, size: int) -> int:
    found = 0
    with root.filesystem.open_input_stream(root.full(path), compression=None) as read:
        while size:
            data = read.read(min(size, _CHUNK_BYTES))
            if not data:
                break
            found = google_crc32c.extend(found, data)
            size -= len(data)
    return int(found)
