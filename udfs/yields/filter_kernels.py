"""Bits of a split block Bloom filter, as Parquet sets them (BloomFilter.md): a block of 256 bits a key, one bit in each
of its eight words.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.jit import kernel

SALT: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)  # Parquet's


@kernel
def enter(hashes: np.ndarray, salt: np.ndarray, words: np.ndarray) -> None:
    """Set the bits of hashes: uint64[n] in words: uint32[8 * blocks]."""
    blocks = np.uint64(words.shape[0] // 8)
    for i in range(hashes.shape[0]):
        first = np.int64(((hashes[i] >> np.uint64(32)) * blocks) >> np.uint64(32)) * 8
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        for j in range(8):
            words[first + j] |= np.uint32(1) << (np.uint32(low * salt[j]) >> np.uint32(27))


@kernel
def look_up(hashes: np.ndarray, salt: np.ndarray, words: np.ndarray, out: np.ndarray) -> None:
    """Fill out: bool[n]: whether all bits of hashes: uint64[n] are set in words: uint32[8 * blocks]."""
    blocks = np.uint64(words.shape[0] // 8)
    for i in range(hashes.shape[0]):
        first = np.int64(((hashes[i] >> np.uint64(32)) * blocks) >> np.uint64(32)) * 8
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        holds_all = True
        for j in range(8):
            bit = np.uint32(1) << (np.uint32(low * salt[j]) >> np.uint32(27))
            holds_all = holds_all and words[first + j] & bit != np.uint32(0)
        out[i] = holds_all
