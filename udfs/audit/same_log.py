"""Comparison of a log with what was read of it: if the last batch is still there, the log has only grown."""

from __future__ import annotations

from lastkey.logformat.batches.chunks import ChunkBuffer, Tail
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.storage import cached_root, opened


def has_batch(root: str, path: str, size: int, position: int, crc: int) -> bool:
    """Return whether a `.log` of this size has a batch with this checksum at a position; False if it cannot be read."""
    buffer = ChunkBuffer(1 << 10)
    try:
        with opened(cached_root(root), path) as file:
            found = next(read_headers(file, path, position, size, buffer, Tail()), None)
    except (LogFormatError, OSError):
        return False
    return found is not None and int(found.batches["crc"][0]) == crc
