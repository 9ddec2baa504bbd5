"""Kernel that reads the record of a control batch."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import kernel
from lastkey.logformat.primitives.memory_kernels import load_i16, load_i32
from lastkey.logformat.primitives.varint_kernels import read_varint


@kernel
def control_record(buf: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Read (type, coordinator epoch) of the one record of a control batch; (-1, -1) if it is not valid.

    The key is i16 version and i16 type; the value of ABORT and COMMIT is i16 version and i32 coordinator epoch
    (FORMAT.md, "Records").
    """
    length, position = read_varint(buf, start, end)
    if position < 0 or length < 0 or position + length > end:
        return -1, -1
    end = position + length
    position += 1  # attributes
    while position < end and buf[position] & 0x80:  # timestamp delta
        position += 1
    position += 1
    _, position = read_varint(buf, position, end)  # offset delta
    if position < 0:
        return -1, -1
    key_length, position = read_varint(buf, position, end)
    if position < 0 or key_length < 4 or position + key_length > end or load_i16(buf, position) < 0:
        return -1, -1
    kind: int = load_i16(buf, position + 2)
    if kind < 0:
        kind = 127  # unknown to Kafka too, so ignored
    position += key_length
    value_length, position = read_varint(buf, position, end)
    if kind > 1:
        return kind, -1
    if position < 0 or value_length < 6 or position + value_length > end:
        return -1, -1
    return kind, load_i32(buf, position + 2)
