"""Filter of a segment's keys: a split block Bloom filter, as Parquet specifies it (BloomFilter.md), over hashes that we
make. It takes 2 bytes a key, and takes one key in about 1,000 for one that it holds.

A filter says which segments pay for their rewrite, and never which record goes.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from lastkey.logformat.jit import kernel

WORDS: Final = 8  # 32-bit words of a block; a key sets one bit in each
_BITS_A_KEY: Final = 16
_SALT: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)  # Parquet's


def filter_of(hashes: np.ndarray) -> np.ndarray:
    """Return the filter of uint64[n] hashes, as uint32[8 * blocks]."""
    blocks = max(-(-len(hashes) * _BITS_A_KEY // (32 * WORDS)), 1)
    out = np.zeros(blocks * WORDS, np.uint32)
    _enter(hashes, _SALT, out)
    return out


def holds(key_filter: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return bool[n] for uint64[n] hashes: whether the filter may hold them; False is certain."""
    out = np.empty(len(hashes), np.bool_)
    _look_up(hashes, _SALT, key_filter, out)
    return out


def hash_key_id(secret: tuple[int, int]) -> bytes:
    """Return 8 bytes that tell the keys of hashes apart, and nothing else about them."""
    return hashlib.blake2b(b"%d %d" % secret, digest_size=8).digest()


@kernel
def _enter(hashes: np.ndarray, salt: np.ndarray, words: np.ndarray) -> None:
    """Set the bits of hashes: uint64[n] in words: uint32[8 * blocks]."""
    blocks = np.uint64(words.shape[0] // 8)
    for i in range(hashes.shape[0]):
        first = np.int64(((hashes[i] >> np.uint64(32)) * blocks) >> np.uint64(32)) * 8
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        for j in range(8):
            words[first + j] |= np.uint32(1) << (np.uint32(low * salt[j]) >> np.uint32(27))


@kernel
def _look_up(hashes: np.ndarray, salt: np.ndarray, words: np.ndarray, out: np.ndarray) -> None:
    """Fill out: bool[n]: whether all bits of hashes: uint64[n] are set in words: uint32[8 * blocks]."""
    blocks = np.uint64(words.shape[0] // 8)
    for i in range(hashes.shape[0]):
        first = np.int64(((hashes[i] >> np.uint64(32)) * blocks) >> np.uint64(32)) * 8
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        found = True
        for j in range(8):
            bit = np.uint32(1) << (np.uint32(low * salt[j]) >> np.uint32(27))
            found = found and words[first + j] & bit != np.uint32(0)
        out[i] = found
