"""Kernel of xxHash32 with seed 0, for the checksums of an LZ4 frame.

Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md. Every frame holds one byte of its descriptor's hash.
Kafka writes no block checksums, but reads them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import load_u32_le

# All arithmetic is in int64 and cut to 32 bits: the low half of a product does not depend on the high halves.
_M32: Final = 0xFFFFFFFF
_P1: Final = 0x9E3779B1
_P2: Final = 0x85EBCA77
_P3: Final = 0xC2B2AE3D
_P4: Final = 0x27D4EB2F
_P5: Final = 0x165667B1


@inline
def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _M32


@inline
def _round(lane: int, word: int) -> int:
    return (_rotate((lane + word * _P2) & _M32, 13) * _P1) & _M32


@kernel
def xxh32(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Return xxHash32 (seed 0) of buf[start:end], as int64 in 0..2**32-1. buf: uint8[:], read only."""
    pos = start
    if end - start >= 16:
        lane1, lane2, lane3, lane4 = (_P1 + _P2) & _M32, _P2, 0, -_P1 & _M32
        while pos + 16 <= end:
            lane1 = _round(lane1, load_u32_le(buf, pos))
            lane2 = _round(lane2, load_u32_le(buf, pos + 4))
            lane3 = _round(lane3, load_u32_le(buf, pos + 8))
            lane4 = _round(lane4, load_u32_le(buf, pos + 12))
            pos += 16
        h = _rotate(lane1, 1) + _rotate(lane2, 7) + _rotate(lane3, 12) + _rotate(lane4, 18)
    else:
        h = _P5
    h = (h + end - start) & _M32
    while pos + 4 <= end:
        h = (_rotate((h + load_u32_le(buf, pos) * _P3) & _M32, 17) * _P4) & _M32
        pos += 4
    while pos < end:
        h = (_rotate((h + (buf[pos] & 0xFF) * _P5) & _M32, 11) * _P1) & _M32
        pos += 1
    h = ((h ^ (h >> 15)) * _P2) & _M32
    h = ((h ^ (h >> 13)) * _P3) & _M32
    return h ^ (h >> 16)
