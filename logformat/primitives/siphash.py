"""Keyed hashes of Arrow columns of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds
from lastkey.logformat.primitives.siphash_kernels import hash_values


def keyed_hashes(values: Any, secret: tuple[int, int]) -> np.ndarray:
    """Return the SipHash of each value of a pa.Array of bytes, u8[n, 2]; undefined for a null."""
    out = np.empty((len(values), 2), np.uint64)
    data, at = bytes_and_bounds(values)
    hash_values(data, at, np.uint64(secret[0]), np.uint64(secret[1]), out)
    return out
