"""128-bit SipHash-2-4 of byte ranges: the hash of a record key, under a random secret of each run.

Without the secret no collision can be constructed. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF",
and its reference code for 128-bit output.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import load_u64_le

LANES: Final = 64  # keys that siphash128_lanes hashes at once; with 32 LLVM uses no wide instructions

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
def _begin(k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    return _V0 ^ k0, _V1 ^ k1 ^ _EE, _V2 ^ k0, _V3 ^ k1


@inline
def _take(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64, word: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@inline
def _last_word(buf: np.ndarray, start: int, end: int) -> np.uint64:
    """Return the last word of buf[start:end] for SipHash: up to 7 remaining bytes, and the length in the top byte."""
    word = np.uint64(end - start) << _56
    shift = np.uint64(0)
    for position in range(end - (end - start) % 8, end):
        word |= np.uint64(buf[position]) << shift
        shift += _8
    return word


@inline
def _finish(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> tuple[np.uint64, np.uint64]:
    v2 ^= _EE
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _DD
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@inline
def siphash128(buf: np.ndarray, start: int, end: int, k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the (low, high) 64-bit halves of the hash of `buf[start:end]` (uint8) under the 128-bit key (k0, k1)."""
    v0, v1, v2, v3 = _begin(k0, k1)
    for position in range(start, end - 7, 8):
        v0, v1, v2, v3 = _take(v0, v1, v2, v3, load_u64_le(buf, position))
    v0, v1, v2, v3 = _take(v0, v1, v2, v3, _last_word(buf, start, end))
    return _finish(v0, v1, v2, v3)


@kernel
def siphash128_lanes(
    buf: np.ndarray, starts: np.ndarray, ends: np.ndarray, k0: np.uint64, k1: np.uint64, lanes: np.ndarray
) -> None:
    """Hash buf[starts[i]:ends[i]] as siphash128 does, for LANES ranges with the same number of whole words.

    starts, ends: int64[LANES]; lanes: uint64[5 * LANES], written: the low halves, then the high ones, then anything.
    Its loops are such that LLVM works on several lanes with one instruction: a third of the time. All are in one array,
    because LLVM does not compare the places of so many arrays.
    """
    for i in range(LANES):
        lanes[i], lanes[LANES + i], lanes[2 * LANES + i], lanes[3 * LANES + i] = _begin(k0, k1)
    words = (ends[0] - starts[0]) // 8
    for w in range(words + 1):
        if w < words:
            for i in range(LANES):
                lanes[4 * LANES + i] = load_u64_le(buf, starts[i] + 8 * w)
        else:
            for i in range(LANES):
                lanes[4 * LANES + i] = _last_word(buf, starts[i], ends[i])
        for i in range(LANES):
            v0, v1, v2, v3 = lanes[i], lanes[LANES + i], lanes[2 * LANES + i], lanes[3 * LANES + i]
            v0, v1, v2, v3 = _take(v0, v1, v2, v3, lanes[4 * LANES + i])
            lanes[i], lanes[LANES + i], lanes[2 * LANES + i], lanes[3 * LANES + i] = v0, v1, v2, v3
    for i in range(LANES):
        v0, v1, v2, v3 = lanes[i], lanes[LANES + i], lanes[2 * LANES + i], lanes[3 * LANES + i]
        lanes[i], lanes[LANES + i] = _finish(v0, v1, v2, v3)


@kernel
def hash_values(data: np.ndarray, at: np.ndarray, k0: np.uint64, k1: np.uint64, out: np.ndarray) -> None:
    """Hash data[at[i]:at[i + 1]] into out[i] (uint64[n, 2], written: low and high half). at: int32 or int64 [n + 1]."""
    for i in range(out.shape[0]):
        out[i, 0], out[i, 1] = siphash128(data, at[i], at[i + 1], k0, k1)
