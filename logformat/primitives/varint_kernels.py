"""Kernels that read, write and measure zig-zag varints of Kafka's magic 2 records, for calls from other kernels.

A varint has seven bits a byte, low bits first, with the top bit set on all bytes but the last; at most 5 bytes for a
varint (int32) and 10 for a varlong (int64). Source: Kafka's ByteUtils.readVarint, readVarlong, sizeOfVarlong (4.3.0).
As there, a number is wrong only if its 5th (10th) byte still has the top bit set; bits of that byte beyond the type's
width are dropped, and forms longer than needed ("80 00" for 0) are read. The writers use the shortest form.

A varint and a varlong of the same value have the same bytes, so one writer serves both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline

# For int64, where >> copies the sign: masks for the bits that a shift filling with zeros would leave.
_AFTER_SHIFT_1: Final = (1 << 63) - 1
_AFTER_SHIFT_7: Final = (1 << 57) - 1


@inline
def read_varint(buf: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Read an int32 at `pos`; return its value and the position after it, or (0, -1).

    buf: uint8[:], read only; pos: int64 >= 0; end: int64, first byte not to be read, <= len(buf).
    Position -1: the number runs past `end`, or its 5th byte has the top bit set. Check before reading on.
    """
    if pos < end and buf[pos] < 0x80:  # most lengths and deltas are one byte
        raw = buf[pos] & 0x7F
        return (raw >> 1) ^ -(raw & 1), pos + 1
    raw = 0
    shift = 0
    while pos < end and shift <= 28:
        byte = buf[pos] & 0xFF  # int64
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
    return 0, -1


@inline
def read_varlong(buf: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Read an int64 at `pos`; return its value and the position after it, or (0, -1).

    buf: uint8[:], read only; pos: int64 >= 0; end: int64, first byte not to be read, <= len(buf).
    Position -1: the number runs past `end`, or its 10th byte has the top bit set. Check before reading on.
    """
    if pos < end and buf[pos] < 0x80:
        raw = buf[pos] & 0x7F
        return (raw >> 1) ^ -(raw & 1), pos + 1
    raw = 0
    shift = 0
    while pos < end and shift <= 63:
        byte = buf[pos] & 0xFF  # int64
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & _AFTER_SHIFT_1) ^ -(raw & 1), pos
        shift += 7
    return 0, -1


@inline
def write_varlong(buf: NDArray[np.uint8], pos: int, value: int) -> int:
    """Write `value` (int64, or an int32 as varint) at `pos`, in the shortest form; return the position after it.

    buf: uint8[:], written; the caller must leave size_of_varlong(value) bytes free.
    """
    raw = (value << 1) ^ (value >> 63)
    while raw & ~0x7F != 0:
        buf[pos] = (raw & 0x7F) | 0x80
        pos += 1
        raw = (raw >> 7) & _AFTER_SHIFT_7
    buf[pos] = raw
    return pos + 1


@inline
def size_of_varlong(value: int) -> int:
    """Return the number of bytes that write_varlong writes for `value` (int64): 1..10; for an int32 1..5."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw & ~0x7F != 0:
        size += 1
        raw = (raw >> 7) & _AFTER_SHIFT_7
    return size


@inline
def is_shortest(buf: NDArray[np.uint8], pos: int, value: int) -> int:
    """Compare the number at `pos`, which a reader above has taken for `value`, with the form that write_varlong gives
    it; return the position after it, or -1 if they differ.
    """
    raw = (value << 1) ^ (value >> 63)
    while raw & ~0x7F != 0:
        if buf[pos] != (raw & 0x7F) | 0x80:
            return -1
        pos += 1
        raw = (raw >> 7) & _AFTER_SHIFT_7
    return pos + 1 if buf[pos] == raw else -1
