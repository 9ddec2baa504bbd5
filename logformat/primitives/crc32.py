"""CRC-32 (IEEE, as zlib's) of byte ranges inside kernels; the checksum of magic 0 and 1 messages.

An uncompressed log of those formats has one checksum a message, too many for a Python call each. The method is slicing
by eight: one table a byte of an 8-byte word (Kounavis and Berry, 2005), 8 KiB in all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline
from lastkey.logformat.primitives.memory_kernels import load_u64_le

_POLYNOMIAL: Final = 0xEDB88320  # bits reversed


def _make_tables() -> NDArray[np.uint32]:
    """Return uint32[8, 256]: [k, byte] is the part of `byte` in the checksum when k bytes follow it."""
    tables = np.zeros((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = (tables[0] >> 1) ^ np.where(tables[0] & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES: Final = _make_tables()


@inline
def crc32_kernel(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32 of buf[start:end], uint32. buf: uint8[::1], read only or not; 0 <= start <= end <= len(buf)."""
    crc = np.uint64(0xFFFFFFFF)
    byte = np.uint64(0xFF)
    pos = start
    while pos + 8 <= end:
        word = load_u64_le(buf, pos) ^ crc
        crc = np.uint64(
            _TABLES[7, word & byte]
            ^ _TABLES[6, (word >> np.uint64(8)) & byte]
            ^ _TABLES[5, (word >> np.uint64(16)) & byte]
            ^ _TABLES[4, (word >> np.uint64(24)) & byte]
            ^ _TABLES[3, (word >> np.uint64(32)) & byte]
            ^ _TABLES[2, (word >> np.uint64(40)) & byte]
            ^ _TABLES[1, (word >> np.uint64(48)) & byte]
            ^ _TABLES[0, word >> np.uint64(56)]
        )
        pos += 8
    while pos < end:
        crc = np.uint64(_TABLES[0, (crc ^ np.uint64(buf[pos])) & byte]) ^ (crc >> np.uint64(8))
        pos += 1
    return np.uint32(crc ^ np.uint64(0xFFFFFFFF))  # type: ignore[return-value]  # an int to every kernel
