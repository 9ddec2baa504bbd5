"""Kernel that walks the batch headers of a file by the C library's `pread`, without reading the bodies between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from lastkey.logformat.batches.header_kernels import ATTRIBUTES_OFFSET
from lastkey.logformat.batches.walk_kernels import CHECK_MARKERS, FRAMED, MORE, frame_batch, read_header
from lastkey.logformat.jit import CHECKED, kernel
from lastkey.logformat.layout import CONTROL_MASK, MAGIC_OFFSET

SHORT_READ = 9  # status of a walk: fewer bytes came than the file should have, or none because of an error
_HEADER_BYTES = 128  # enough for a header, or a whole end-transaction marker (78 bytes)
_ONE_HEADER = 512  # tuned: bytes to read for one header where bodies are skipped
_SMALL_BATCH = 4096  # tuned: headers nearer than this are read together with all between them

_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@kernel
def walk_headers(
    descriptor: int,
    start: int,
    end: int,
    previous_last_offset: int,
    end_offset: int,
    check_markers: bool,
    window: np.ndarray,
    out: np.ndarray,
) -> tuple[int, int, int, int, int, int]:
    """Walk the headers of the whole batches in bytes [start, end) of a file.

    descriptor: of the file; check_markers: check CRCs as CHECK_MARKERS does, of batches that the window holds whole;
    window: uint8[>= 4096], scratch; the others as in `walk_batches`. After a return window[0:] holds the bytes from the
    last batch looked at.
    Returns (n, position, status, expected, found, bytes read), with a status of `walk_batches` or SHORT_READ; for a bad
    batch `position` is its start.
    """
    position = start
    previous = previous_last_offset
    n = 0
    filled = 0  # bytes in the window, which begins at `origin`
    origin = start
    take = window.shape[0]
    bytes_read = 0
    while n < out.shape[0]:
        at = position - origin
        missing = filled - at < min(_HEADER_BYTES, end - position)
        control = False
        size = 0
        if not missing:
            status, expected, found, size = frame_batch(window, at, filled)
            if status != FRAMED:
                return n, position, status, expected, found, bytes_read
            if end - position < size:
                return n, position, MORE, size, end - position, bytes_read
            control = window[at + MAGIC_OFFSET] == 2 and window[at + ATTRIBUTES_OFFSET + 1] & CONTROL_MASK != 0
            if control and filled - at < size and size <= window.shape[0]:
                missing = True
                take = size
        if missing:
            count = min(max(take, _HEADER_BYTES), window.shape[0], end - position)
            if CHECKED and not 0 <= count <= window.shape[0]:
                raise IndexError("bytes outside of the array")
            got = _pread(np.int32(descriptor), np.uintp(window.ctypes.data), np.uintp(count), np.int64(position))
            if got != count:
                return n, position, SHORT_READ, count, got, bytes_read
            bytes_read += count
            origin = position
            filled = count
            continue
        row = out[n]
        row.position = position
        batch_end = at + size if not control else min(at + size, filled)
        check = CHECK_MARKERS if check_markers and at + size <= filled else 0
        status, expected, found = read_header(window, at, batch_end, previous, end_offset, check, row)
        if status != FRAMED:
            return n, position, status, expected, found, bytes_read
        row.size = size
        previous = row.last_offset
        position += size
        take = window.shape[0] if size < _SMALL_BATCH else _ONE_HEADER
        n += 1
    return n, position, MORE, 0, 0, bytes_read
