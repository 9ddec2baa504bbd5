"""Filter of a segment's keys: a split block Bloom filter, as Parquet specifies it (BloomFilter.md), over hashes that we
make. It needs 2 bytes a key; about one key in 1,000 is a false match.

Filters select segments to rewrite; they never decide which record is removed.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from lastkey.udfs.yields.filter_kernels import SALT, enter, look_up

WORDS: Final = 8  # 32-bit words of a block; a key sets one bit in each
FILTER_BLOCK: Final = 4 * WORDS  # bytes
_BITS_A_KEY: Final = 16


def build_filter(hashes: np.ndarray) -> np.ndarray:
    """Return the filter of uint64[n] hashes, as uint32[8 * blocks]."""
    blocks = max(-(-len(hashes) * _BITS_A_KEY // (32 * WORDS)), 1)
    out = np.zeros(blocks * WORDS, np.uint32)
    enter(hashes, SALT, out)
    return out


def count_held(key_filter: np.ndarray, hashes: np.ndarray) -> tuple[np.ndarray, float]:
    """Return bool[n] as `holds` does, and the share of other keys that the filter holds too: that of the bits set in
    each word of a block, multiplied over its words, and the mean of all blocks.
    """
    set_bits = np.bitwise_count(key_filter.reshape(-1, WORDS)) / np.float32(32)
    return holds(key_filter, hashes), float(set_bits.prod(axis=1).mean())


def holds(key_filter: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return bool[n] for uint64[n] hashes: whether the filter may hold them; False is certain."""
    out = np.empty(len(hashes), np.bool_)
    look_up(hashes, SALT, key_filter, out)
    return out


def hash_key_id(secret: tuple[int, int]) -> bytes:
    """Return 8 bytes that distinguish the keys of hashes, and give no other information about them."""
    return hashlib.blake2b(b"%d %d" % secret, digest_size=8).digest()
