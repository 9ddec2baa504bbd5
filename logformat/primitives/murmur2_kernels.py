"""Kernels of Kafka's key hash, murmur2 with the seed 0x9747b28c (Utils.murmur2 of kafka-clients 4.3.0)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import load_u64_le

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_24 = np.uint32(24)
_13 = np.uint32(13)
_15 = np.uint32(15)
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_POSITIVE = np.uint32(0x7FFFFFFF)


@inline
def _mixed(h: np.uint32, word: np.uint32) -> np.uint32:
    k = np.uint32(word * _M)
    k = np.uint32((k ^ (k >> _24)) * _M)
    return np.uint32(np.uint32(h * _M) ^ k)


@inline
def murmur2(data: NDArray[np.uint8], start: int, end: int) -> np.uint32:
    """Hash data[start:end] (uint8); the result has the bits of Java's int, unsigned."""
    h = np.uint32(_SEED ^ np.uint32(end - start))
    position = start
    while position + 8 <= end:  # two words of four bytes a load
        words = load_u64_le(data, position)
        h = _mixed(_mixed(h, np.uint32(words & _LOW)), np.uint32(words >> _32))
        position += 8
    left = end - position
    word, shift = np.uint32(0), np.uint32(0)
    if left >= 4:
        for i in range(4):
            word |= np.uint32(np.uint32(data[position + i]) << np.uint32(8 * i))
        h = _mixed(h, word)
        position += 4
        left -= 4
        word = np.uint32(0)
    if left > 0:
        while position < end:
            word |= np.uint32(np.uint32(data[position]) << shift)
            shift = np.uint32(shift + np.uint32(8))
            position += 1
        h = np.uint32((h ^ word) * _M)
    h = np.uint32((h ^ (h >> _13)) * _M)
    return np.uint32(h ^ (h >> _15))


@kernel
def murmur2_of_all(data: NDArray[np.uint8], at: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """Hash data[at[i]:at[i + 1]] into out[i] (int32[n], written). data: uint8; at: int32 or int64, [n + 1]."""
    for i in range(out.shape[0]):
        out[i] = np.int32(murmur2(data, at[i], at[i + 1]))


@kernel
def partitions_of_all(
    data: NDArray[np.uint8], at: NDArray[np.int32], n_partitions: NDArray[np.int32], out: NDArray[np.int32]
) -> None:
    """Write the partition of the key data[at[i]:at[i + 1]] to out[i] (int32[n]).

    data: uint8; at: int32 or int64, [n + 1]; n_partitions: int32[n], or int32[1] for all; a value below 1 gives -1.
    """
    each = n_partitions.shape[0] > 1
    for i in range(out.shape[0]):
        n = n_partitions[i if each else 0]
        out[i] = -1 if n < 1 else np.int32((murmur2(data, at[i], at[i + 1]) & _POSITIVE) % np.uint32(n))
