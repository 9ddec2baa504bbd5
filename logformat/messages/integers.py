"""Numbers and lengths in a message as Kafka's ByteUtils reads them, and its errors for invalid ones."""

from __future__ import annotations

import struct


class MessageError(ValueError):
    """Bytes that are no such message; the text is that of Kafka's exception ("null" if it has none)."""


def int16_at(data: bytes, at: int) -> tuple[int, int]:
    """Read an int16; return it and the position of the next field."""
    return struct.unpack_from(">h", data, at)[0], at + 2


def int32_at(data: bytes, at: int) -> tuple[int, int]:
    """Read an int32; return it and the position of the next field."""
    return struct.unpack_from(">i", data, at)[0], at + 4


def compact_length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of the flexible versions, which is stored as one more; return -1 for null."""
    n, at = varint(data, at)
    return _signed(n - 1), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint as ByteUtils.readUnsignedVarint does; its result is a Java int."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    result = byte & 0x7F
    for shift in (7, 14, 21):
        byte = data[at]
        at += 1
        if byte < 0x80:
            return result | byte << shift, at
        result |= (byte & 0x7F) << shift
    byte = data[at]
    result = _signed(result | (byte - 256 if byte >= 0x80 else byte) << 28)
    if byte >= 0x80:
        converted = f"converted value: {result & 2**32 - 1:x}"
        raise MessageError(f"Varint is too long, the most significant bit in the 5th byte is set, {converted}")
    return result, at + 1


def _signed(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def checked_end(data: bytes, at: int, size: int) -> int:
    """Return the end of `size` bytes from `at` on. Raise MessageError if they are not all there."""
    left = len(data) - at
    if size > left:
        raise MessageError(f"Error reading byte array of {size} byte(s): only {left} byte(s) available")
    if size < 0:  # NegativeArraySizeException
        raise MessageError(str(size))
    return at + size
