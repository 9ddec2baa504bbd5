"""Slow twin of logformat.primitives.murmur2_kernels."""

from __future__ import annotations

M = 0x5BD1E995
WORD = 2**32


def murmur2(data: bytes) -> int:
    """Return the hash as Java's int."""
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * M % WORD
        k = (k ^ k >> 24) * M % WORD
        h = h * M % WORD ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * M % WORD
    h = (h ^ h >> 13) * M % WORD
    h ^= h >> 15
    return h - WORD if h >= WORD // 2 else h


def default_partition(data: bytes, n_partitions: int) -> int:
    return (murmur2(data) & 0x7FFFFFFF) % n_partitions
