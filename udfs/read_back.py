"""Comparison of a written `.log` with what should be in it, by reading it back."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.storage.regular_files import following, will_read
from lastkey.udfs.storage import Root, opened

_PART_BYTES: Final = 8 << 20


def check_written(store: Root, path: str, size: int, checksum: int) -> None:
    """Read a written `.log` back, and raise LogFormatError kind "readback" unless it has this size and CRC-32C."""
    found, buffer = 0, np.empty(min(_PART_BYTES, size), np.uint8)
    with opened(store, path) as file:
        if file.size() != size:
            raise LogFormatError("readback", path, 0, f"{size} bytes", f"{file.size()}")
        for start in range(0, size, _PART_BYTES):
            part = buffer[: size - start]
            read_exactly(file, path, start, part)
            will_read(file, following(start + len(part), size, _PART_BYTES))
            found = crc32c_extend(found, part)
    if found != checksum:
        raise LogFormatError("readback", path, 0, f"checksum {checksum:#010x}, as scanned", f"{found:#010x}")
