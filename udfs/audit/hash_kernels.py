"""Kernels that hash many values: keyed digests of records and keys (SipHash), and HMAC-SHA256, for which hashlib would
take a Python call each (RFC 2104, FIPS 180-4).

An HMAC is two SHA-256, of which the first block depends on the key alone: `inner` and `outer` are the states after it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.siphash_kernels import siphash128


@kernel
def digest_spans(
    raw: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    bodies: np.ndarray,
    spans: np.ndarray,
    k0: np.uint64,
    k1: np.uint64,
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
) -> None:
    """Hash every record's bytes from the key on: key, value and headers, each with its length.

    bodies: BODY[n]; spans: SPAN[m], those of the bodies in order; k0, k1: SipHash key; low, high: uint64[m], written.
    """
    for i in range(bodies.shape[0]):
        body = bodies[i]
        for row in range(body.first_span, body.first_span + body.n_records):
            if body.in_scratch:
                low[row], high[row] = siphash128(scratch, spans[row].rest, spans[row].end, k0, k1)
            else:
                low[row], high[row] = siphash128(raw, spans[row].rest, spans[row].end, k0, k1)


@kernel
def hash_values(
    data: NDArray[np.uint8], at: NDArray[np.int64], k0: np.uint64, k1: np.uint64, out: NDArray[np.uint64]
) -> None:
    """Hash data[at[i]:at[i + 1]] into out[i] (uint64[n, 2], written: low and high half). at: int32 or int64 [n + 1]."""
    for i in range(out.shape[0]):
        out[i, 0], out[i, 1] = siphash128(data, at[i], at[i + 1], k0, k1)


BLOCK: Final = 64


def _roots(power: int, count: int) -> np.ndarray:
    """Return the first 32 bits of the fractional parts of the square or cube roots of the first primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, n))][:count]
    return np.array([_fraction(prime, power) for prime in primes], np.uint32)


def _fraction(prime: int, power: int) -> int:
    """Return floor(prime^(1/power) * 2^32) mod 2^32, exactly."""
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**power <= prime << (32 * power) else (low, middle)
    return low & 0xFFFFFFFF


_START: Final = _roots(2, 8)
_ROUND: Final = _roots(3, 64)


def states_of(key: bytes) -> np.ndarray:
    """Return the inner and the outer state of a key: uint32[2, 8]."""
    short = key if len(key) <= BLOCK else hashlib.sha256(key).digest()
    padded = np.frombuffer(short.ljust(BLOCK, b"\0"), np.uint8)
    out = np.stack([_START, _START])
    words = np.empty(64, np.uint32)
    for row, pad in enumerate((0x36, 0x5C)):
        _compress(padded ^ np.uint8(pad), 0, words, out[row])
    return out


@inline
def _turn(value: np.uint32, bits: int) -> np.uint32:
    return np.uint32((value >> np.uint32(bits)) | (value << np.uint32(32 - bits)))


@kernel
def _compress(data: np.ndarray, at: int, words: np.ndarray, state: np.ndarray) -> None:
    """Take the block data[at:at + 64] (uint8) into state: uint32[8]. words: uint32[64], for this function alone."""
    for i in range(16):
        j = at + 4 * i
        words[i] = (
            (np.uint32(data[j]) << np.uint32(24))
            | (np.uint32(data[j + 1]) << np.uint32(16))
            | (np.uint32(data[j + 2]) << np.uint32(8))
            | np.uint32(data[j + 3])
        )
    for i in range(16, 64):
        x, y = words[i - 15], words[i - 2]
        s0 = _turn(x, 7) ^ _turn(x, 18) ^ (x >> np.uint32(3))
        s1 = _turn(y, 17) ^ _turn(y, 19) ^ (y >> np.uint32(10))
        words[i] = np.uint32(words[i - 16] + s0 + words[i - 7] + s1)
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        s1 = _turn(e, 6) ^ _turn(e, 11) ^ _turn(e, 25)
        one = np.uint32(h + s1 + ((e & f) ^ (~e & g)) + _ROUND[i] + words[i])
        s0 = _turn(a, 2) ^ _turn(a, 13) ^ _turn(a, 22)
        two = np.uint32(s0 + ((a & b) ^ (a & c) ^ (b & c)))
        h, g, f, e = g, f, e, np.uint32(d + one)
        d, c, b, a = c, b, a, np.uint32(one + two)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h


@inline
def _put(value: np.uint64, n: int, out: np.ndarray, at: int) -> None:
    """Write the last n bytes of a number, the highest first."""
    for i in range(n):
        out[at + i] = np.uint8((value >> np.uint64(8 * (n - 1 - i))) & np.uint64(0xFF))


@kernel
def hmac_values(data: np.ndarray, at: np.ndarray, states: np.ndarray, out: np.ndarray) -> None:
    """Write the HMAC-SHA256 of data[at[i]:at[i + 1]] to out[i] (uint8[n, 32]). data: uint8; at: int32 or int64[n + 1];
    states: uint32[2, 8].
    """
    words = np.empty(64, np.uint32)
    state = np.empty(8, np.uint32)
    tail = np.empty(128, np.uint8)
    for i in range(out.shape[0]):
        position, end = int(at[i]), int(at[i + 1])
        size = end - position
        state[:] = states[0]
        while position + 64 <= end:
            _compress(data, position, words, state)
            position += 64
        left = end - position
        n = 64 if left < 56 else 128
        tail[:n] = 0
        for j in range(left):
            tail[j] = data[position + j]
        tail[left] = 0x80
        _put(np.uint64((size + 64) * 8), 8, tail, n - 8)
        for start in range(0, n, 64):
            _compress(tail, start, words, state)
        tail[:64] = 0
        for j in range(8):
            _put(np.uint64(state[j]), 4, tail, 4 * j)
        tail[32] = 0x80
        _put(np.uint64((64 + 32) * 8), 8, tail, 56)
        state[:] = states[1]
        _compress(tail, 0, words, state)
        for j in range(8):
            _put(np.uint64(state[j]), 4, out[i], 4 * j)
