"""Slow twin of logformat.primitives.varint_kernels, on Python's unbounded integers."""

from __future__ import annotations


def read(data: bytes, pos: int, end: int, *, bits: int) -> tuple[int, int]:
    """Return value and next position, or (0, -1). bits: 32 (varint) or 64 (varlong)."""
    most = -(-bits // 7)
    groups: list[int] = []
    while True:
        if pos >= end or len(groups) == most:
            return 0, -1
        byte = data[pos]
        pos += 1
        groups.append(byte % 128)
        if byte < 128:
            break
    raw = sum(group * 128**i for i, group in enumerate(groups)) % 2**bits
    return (-(raw + 1) // 2 if raw % 2 else raw // 2), pos


def write(value: int) -> bytes:
    raw = 2 * value if value >= 0 else -2 * value - 1
    out = bytearray()
    while raw >= 128:
        out.append(128 + raw % 128)
        raw //= 128
    out.append(raw)
    return bytes(out)
