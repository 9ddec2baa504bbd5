"""xxHash32 with seed 0, as lz4 frames have it. Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md."""

from __future__ import annotations

import struct

M = 2**32
P1, P2, P3, P4, P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (32 - bits)) % M


def xxh32(data: bytes) -> int:
    n = len(data)
    if n >= 16:
        lanes = [(P1 + P2) % M, P2, 0, -P1 % M]
        for i in range(0, n // 16 * 16, 16):
            words = struct.unpack_from("<4I", data, i)
            lanes = [rotate((lane + word * P2) % M, 13) * P1 % M for lane, word in zip(lanes, words, strict=True)]
        h = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        h = P5
    h = (h + n) % M
    rest = data[n // 16 * 16 :]
    for i in range(0, len(rest) // 4 * 4, 4):
        h = rotate((h + struct.unpack_from("<I", rest, i)[0] * P3) % M, 17) * P4 % M
    for byte in rest[len(rest) // 4 * 4 :]:
        h = rotate((h + byte * P5) % M, 11) * P1 % M
    h = (h ^ h >> 15) * P2 % M
    h = (h ^ h >> 13) * P3 % M
    return h ^ h >> 16
