"""Kernels that look for many keys at once anywhere in bytes, by Rabin and Karp's rolling hash."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import inline, kernel


@inline
def _bit(value: np.uint64, shift: np.uint64) -> np.uint64:
    return (value * np.uint64(0x9E3779B97F4A7C15)) >> shift


@kernel
def roll_all(
    data: np.ndarray, at: np.ndarray, size: int, base: np.uint64, shift: int, out: np.ndarray, bits: np.ndarray
) -> None:
    """Write the rolling hash of data[at[i]:at[i] + size] to out[i] (u8[n]), and set its bit in `bits`.

    data: uint8; at: int64[n]; base: odd; bits: u1[2^(61 - shift)], eight in each.
    """
    for i in range(at.shape[0]):
        value = np.uint64(0)
        for j in range(at[i], at[i] + size):
            value = value * base + np.uint64(data[j])
        out[i] = value
        bit = _bit(value, np.uint64(shift))
        bits[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@kernel
def search(
    text: np.ndarray,
    n: int,
    size: int,
    base: np.uint64,
    shift: int,
    bits: np.ndarray,
    hashes: np.ndarray,
    rows: np.ndarray,
    data: np.ndarray,
    at: np.ndarray,
    first: np.ndarray,
    start: int,
) -> int:
    """Find the first place of each key of one size in text[:n] (uint8), by Rabin and Karp's rolling hash.

    size, base, shift, bits: as of `roll_all`; hashes: u8[k], rising, of the k keys of this size; rows: int64[k], the
    row of each of them in at and first; data: uint8, at: int64[], first byte of each key; first: int64[], -1 where a
    key was not found yet; there start + its position in the text is written. Returns the number of keys found now.
    """
    found = 0
    if n < size:
        return found
    top = np.uint64(1)
    for _ in range(size - 1):
        top *= base
    value = np.uint64(0)
    for i in range(size):
        value = value * base + np.uint64(text[i])
    position = 0
    while True:
        bit = _bit(value, np.uint64(shift))
        if bits[bit >> np.uint64(3)] & (np.uint8(1) << np.uint8(bit & np.uint64(7))):
            i = int(np.searchsorted(hashes, value))
            while i < hashes.shape[0] and hashes[i] == value:
                row = rows[i]
                if first[row] < 0:
                    j = 0
                    while j < size and text[position + j] == data[at[row] + j]:
                        j += 1
                    if j == size:
                        first[row] = start + position
                        found += 1
                i += 1
        if position + size >= n:
            return found
        value = (value - np.uint64(text[position]) * top) * base + np.uint64(text[position + size])
        position += 1
