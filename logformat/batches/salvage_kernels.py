"""Kernels that read the batches of a damaged log: a bad batch ends neither the walk nor the file."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.walk_kernels import FRAMED, MORE, frame_batch, read_header
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import BATCH_OVERHEAD, MAGIC_OFFSET
from lastkey.logformat.primitives.memory_kernels import load_i64

_NO_LIMIT: Final = 2**63 - 1


@kernel
def walk_sound(
    buf: np.ndarray, start: int, length: int, file_position: int, out: np.ndarray
) -> tuple[int, int, int, int, int, int]:
    """Walk the whole batches in buf[start:length] up to the first bad one. The order of their offsets does not count.

    buf: uint8; file_position: of buf[0]; out: BATCH[capacity], written.
    Returns (n, consumed up to, status of `walk_batches`, expected, found, size of the bad batch by its length field;
    0: the field is bad too).
    """
    n, position = 0, start
    while n < out.shape[0]:
        status, expected, found, size = frame_batch(buf, position, length)
        if status == FRAMED and length - position < size:
            return n, position, MORE, size, length - position, size
        if status == FRAMED:
            row = out[n]
            row.position = file_position + position
            status, expected, found = read_header(buf, position, position + size, -1, _NO_LIMIT, walk.CHECK_ALL, row)
        if status != FRAMED:
            return n, position, status, expected, found, size
        position += size
        n += 1
    return n, position, MORE, 0, 0, 0


@kernel
def find_sound(
    buf: np.ndarray, start: int, length: int, lowest: int, end_offset: int, most: int, row: np.ndarray
) -> tuple[int, int]:
    """Find the first place in buf[start:length] at which a batch of magic 2 begins whose checksum fits.

    buf: uint8; lowest, end_offset: its base offset must be in [lowest, end_offset); most: largest batch in bytes; row:
    BATCH[1], scratch. Returns (place, its size); a batch that fits so far but ends after `length` has the size -1;
    no place: (the first one that was not looked at, 0).
    """
    position = start
    while position + BATCH_OVERHEAD <= length:
        if buf[position + MAGIC_OFFSET] == 2:
            base = load_i64(buf, position)
            if lowest <= base < end_offset:
                status, _, _, size = frame_batch(buf, position, length)
                if status == FRAMED and size <= most:
                    if length - position < size:
                        return position, -1
                    status, _, _ = read_header(buf, position, position + size, -1, _NO_LIMIT, walk.CHECK_ALL, row[0])
                    if status == FRAMED:
                        return position, size
        position += 1
    return position, 0
