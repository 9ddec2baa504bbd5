"""The CRC-32C of whole batches, computed from the checksums in their headers, which is faster than reading all bytes
again.

The rule is zlib's crc32_combine: the checksum of A followed by B is the checksum of A times x to the power of B's bits,
plus the checksum of B. These are polynomials over two elements modulo the polynomial of CRC-32C (RFC 3720, appendix
B.4; reflected, 0x82F63B78).
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from lastkey.logformat.batches.header_kernels import CRC_OFFSET
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CRC_START, MAGIC_OFFSET
from lastkey.logformat.primitives.crc32c import crc32c_extend_range
from lastkey.logformat.primitives.memory_kernels import load_i32

_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31  # reflected: the highest bit is x to the power of 0
_BYTE: Final = 1 << 23  # x to the power of 8
_COMBINED_FROM: Final = 1024  # bytes of a batch: below, reading them takes as long


def extend_by_batches(crc: int, raw: np.ndarray, sizes: np.ndarray) -> int:
    """Extend the CRC-32C `crc` (0: of no bytes) by `raw` (uint8), which batches of `sizes` (integer[n], bytes) fill.

    A batch of magic 2 counts with the checksum in its header. The caller has checked that checksum, or will check it
    where the bytes are read back: a batch that does not fit its own checksum makes this one wrong. Raises ValueError if
    the batches do not fill `raw`.
    """
    sizes = np.ascontiguousarray(sizes, np.int64)
    if sizes.sum() != len(raw):
        raise ValueError(f"batches of {sizes.sum()} bytes in {len(raw)}")
    return int(_extend(crc, raw, sizes, _powers()))


@functools.cache
def _powers() -> np.ndarray:
    powers = np.empty((4, 256), np.uint32)
    _fill(powers)
    return powers


@kernel
def _fill(powers: np.ndarray) -> None:
    """Fill in uint32[4, 256]: at [i, j] x to the power of 8 * j * 256**i."""
    step = np.uint32(_BYTE)
    for i in range(powers.shape[0]):
        powers[i, 0] = _ONE
        for j in range(1, powers.shape[1]):
            powers[i, j] = _times(powers[i, j - 1], step)
        step = _times(powers[i, powers.shape[1] - 1], step)


@inline
def _times(a: np.uint32, b: np.uint32) -> np.uint32:
    product = np.uint32(0)
    for bit in range(32):
        product ^= b & (np.uint32(0) - ((a >> np.uint32(31 - bit)) & np.uint32(1)))
        b = (b >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) & (np.uint32(0) - (b & np.uint32(1))))
    return product


@kernel
def _extend(crc: int, raw: np.ndarray, sizes: np.ndarray, powers: np.ndarray) -> int:
    start = 0
    for i in range(sizes.shape[0]):
        size: int = sizes[i]
        if size < _COMBINED_FROM or raw[start + MAGIC_OFFSET] != 2:
            crc = crc32c_extend_range(crc, raw, start, start + size)
        else:
            shifted = np.uint32(crc32c_extend_range(crc, raw, start, start + CRC_START))
            left, place = size - CRC_START, 0
            while left:
                if left & 0xFF:
                    shifted = _times(shifted, powers[place, left & 0xFF])
                left, place = left >> 8, place + 1
            crc = int(shifted) ^ (load_i32(raw, start + CRC_OFFSET) & 0xFFFFFFFF)
        start += size
    return crc
