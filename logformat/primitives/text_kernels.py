"""Kernels that turn bytes into text: malformed UTF-8 replaced as Java's String does, and text escaped for JSON."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel


@kernel
def replace_malformed(
    data: NDArray[np.uint8], at: NDArray[np.int64], out: NDArray[np.uint8], out_at: NDArray[np.int32]
) -> int:
    """Copy each value data[at[i]:at[i + 1]] as well-formed UTF-8, with U+FFFD (EF BF BD) for malformed pieces.

    data: uint8; at: int64[n + 1]; out: uint8[>= 3 x the bytes of all values], written; out_at: int32[n + 1], written.
    Returns the bytes written. A replacement covers as many bytes as in Java's `new String(bytes, UTF_8)`: one byte
    that begins no character; a sequence as far as it is right; three bytes of a surrogate (Unicode has three
    replacements there); and all that is left of an unfinished sequence at the end.
    """
    n = 0
    out_at[0] = 0
    for i in range(at.shape[0] - 1):
        position, end = at[i], at[i + 1]
        while position < end:
            take, good = _next(data, position, end)
            if good:
                for k in range(take):
                    out[n + k] = data[position + k]
                n += take
            else:
                out[n], out[n + 1], out[n + 2] = 0xEF, 0xBF, 0xBD
                n += 3
            position += take
        out_at[i + 1] = n
    return n


@inline
def _next(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, bool]:
    """Return the bytes of the next character or malformed piece in data[at:end], and whether it is a character."""
    first = data[at]
    left = end - at
    if first < 0x80:
        return 1, True
    if first < 0xC2 or first > 0xF7:
        return 1, False
    if first < 0xE0:
        if left < 2:
            return left, False
        return (2, True) if _continues(data[at + 1]) else (1, False)
    if left < 2:
        return (1, False) if first > 0xF4 else (left, False)
    second = data[at + 1]
    if first < 0xF0:
        if not _continues(second) or (first == 0xE0 and second < 0xA0):
            return 1, False
        if left < 3:
            return left, False
        if not _continues(data[at + 2]):
            return 2, False
        return 3, not (first == 0xED and second >= 0xA0)
    wrong = (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90)
    if first > 0xF4 or wrong or not _continues(second):
        return 1, False
    if left < 3:
        return left, False
    if not _continues(data[at + 2]):
        return 2, False
    if left < 4:
        return left, False
    return (4, True) if _continues(data[at + 3]) else (3, False)


@inline
def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


@kernel
def escape_json(
    data: NDArray[np.uint8], at: NDArray[np.int64], out: NDArray[np.uint8], out_at: NDArray[np.int32]
) -> int:
    """Copy each text data[at[i]:at[i + 1]] as the inside of a JSON string (RFC 8259, section 7).

    data: uint8, UTF-8; at: int64[n + 1]; out: uint8[>= 6 x the bytes of all texts], written; out_at: int32[n + 1],
    written. Returns the bytes written. It escapes quote, backslash, the characters of `control_characters`, tab and
    newline.
    """
    n = 0
    out_at[0] = 0
    for i in range(at.shape[0] - 1):
        position, end = at[i], at[i + 1]
        while position < end:
            byte = data[position]
            if byte >= 0x20 and byte not in (0x22, 0x5C, 0x7F, 0xC2, 0xD8, 0xE2):  # nearly all bytes
                out[n] = byte
                n += 1
                position += 1
                continue
            size, active = _active(data, position, end)
            if active >= 0:
                out[n], out[n + 1] = 0x5C, 0x75  # \u
                for k in range(4):
                    out[n + 2 + k] = _hex((active >> (12 - 4 * k)) & 15)
                n += 6
            elif byte in (0x22, 0x5C):
                out[n], out[n + 1] = 0x5C, byte
                n += 2
            else:
                out[n] = byte
                n += 1
            position += size
        out_at[i + 1] = n
    return n


@inline
def _active(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return (bytes, character) of a control character in data[at:end]; (1, -1) for any other character."""
    byte = data[at]
    if byte < 0x20 or byte == 0x7F:
        return 1, np.int64(byte)
    if byte == 0xC2 and end - at > 1 and data[at + 1] < 0xA0:
        return 2, np.int64(data[at + 1])
    if byte == 0xD8 and end - at > 1 and data[at + 1] == 0x9C:
        return 2, np.int64(0x61C)
    if byte == 0xE2 and end - at > 2:
        second, third = data[at + 1], np.int64(data[at + 2])
        if second == 0x80 and (third in (0x8E, 0x8F) or 0xA8 <= third <= 0xAE):
            return 3, 0x2000 | (third & 0x3F)
        if second == 0x81 and 0xA6 <= third <= 0xA9:
            return 3, 0x2040 | (third & 0x3F)
    return 1, np.int64(-1)


@inline
def _hex(digit: int) -> int:
    return digit + 0x30 if digit < 10 else digit + 0x57
