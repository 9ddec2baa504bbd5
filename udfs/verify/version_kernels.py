"""Versions of records if `compaction.strategy` is not offset: verify's own reading of timestamps and headers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lastkey.logformat.jit import inline, kernel

_NONE = -1


@inline
def _number(buf: np.ndarray, at: Any) -> tuple[Any, Any]:
    """Return a zigzag varint of 32 bits, and the position behind it."""
    word = np.uint64(0)
    shift = np.uint64(0)
    while at < len(buf) and shift < np.uint64(35):  # five bytes at most
        byte = np.uint64(buf[at])
        at += 1
        word |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            break
        shift += np.uint64(7)
    word &= np.uint64(0xFFFFFFFF)  # bits beyond its type are dropped, as in Kafka
    return np.int64(word >> np.uint64(1)) ^ -np.int64(word & np.uint64(1)), at


@kernel
def header_versions(
    raw: np.ndarray, scratch: np.ndarray, bodies: np.ndarray, spans: np.ndarray, name: np.ndarray, out: np.ndarray
) -> None:
    """Write the big-endian long in each record's last header called `name` (uint8[]) to out: int64[m]; -1 if it is
    negative, of another size, or missing. raw, scratch: uint8[]; bodies: BODY[n]; spans: SPAN[m], decoded before.
    """
    for i in range(bodies.shape[0]):
        for row in range(bodies[i].first_span, bodies[i].first_span + bodies[i].n_records):
            at = spans[row].rest
            buf = scratch if bodies[i].in_scratch else raw
            size, at = _number(buf, at)  # key
            at += max(size, 0)
            size, at = _number(buf, at)  # value
            at += max(size, 0)
            headers, at = _number(buf, at)
            out[row] = _NONE
            for _ in range(headers):
                size, at = _number(buf, at)
                matches = size == len(name) and (buf[at : at + size] == name).all()
                at += size
                size, at = _number(buf, at)
                if matches:
                    value = np.int64(_NONE)
                    if size == 8:
                        word = np.uint64(0)
                        for byte in buf[at : at + 8]:
                            word = (word << np.uint64(8)) | np.uint64(byte)
                        value = np.int64(word)
                    out[row] = value if value >= 0 else _NONE
                at += max(size, 0)
