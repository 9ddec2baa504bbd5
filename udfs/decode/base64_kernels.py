"""Kernel that writes bytes as base64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import kernel

_PAD = np.uint8(ord("="))


@kernel
def write_base64(
    data: NDArray[np.uint8], at: NDArray[np.int32], alphabet: NDArray[np.uint8], out: NDArray[np.uint8]
) -> None:
    """Write the values data[at[i]:at[i + 1]] as base64 with padding, one after the other.

    data: uint8; at: int32 or int64, [n + 1]; alphabet: uint8[64]; out: uint8, written: 4 bytes for each begun 3 of a
    value.
    """
    n = 0
    for i in range(at.shape[0] - 1):
        position, end = at[i], at[i + 1]
        while position < end:
            left = end - position
            word = np.uint32(data[position]) << np.uint32(16)
            if left > 1:
                word |= np.uint32(data[position + 1]) << np.uint32(8)
            if left > 2:
                word |= np.uint32(data[position + 2])
            out[n] = alphabet[word >> np.uint32(18)]
            out[n + 1] = alphabet[(word >> np.uint32(12)) & np.uint32(63)]
            out[n + 2] = alphabet[(word >> np.uint32(6)) & np.uint32(63)] if left > 1 else _PAD
            out[n + 3] = alphabet[word & np.uint32(63)] if left > 2 else _PAD
            n += 4
            position += 3
