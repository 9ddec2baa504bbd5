"""128-bit SipHash-2-4 of byte ranges: the hash of a record key, under a random secret of each run.

The secret keeps anybody from aiming collisions. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", and
its reference code for 128-bit output.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import inline
from lastkey.logformat.primitives.memory_kernels import load_u64_le

_V0 = np.uint64(0x736F6D6570736575)
_V1 = np.uint64(0x646F72616E646F6D)
_V2 = np.uint64(0x6C7967656E657261)
_V3 = np.uint64(0x7465646279746573)
_EE = np.uint64(0xEE)
_DD = np.uint64(0xDD)
_8 = np.uint64(8)
_56 = np.uint64(56)


@inline
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inline
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inline
def siphash128(buf: np.ndarray, start: int, end: int, k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the (low, high) 64-bit halves of the hash of `buf[start:end]` (uint8) under the 128-bit key (k0, k1)."""
    v0 = _V0 ^ k0
    v1 = _V1 ^ k1 ^ _EE
    v2 = _V2 ^ k0
    v3 = _V3 ^ k1
    position = start
    while position + 8 <= end:
        word = load_u64_le(buf, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = np.uint64(end - start) << _56
    shift = np.uint64(0)
    while position < end:
        word |= np.uint64(buf[position]) << shift
        shift += _8
        position += 1
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _EE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _DD
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3
