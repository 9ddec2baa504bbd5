"""CRC-32 (IEEE, as zlib's) of byte ranges inside kernels; the checksum of magic 0 and 1 messages.

An uncompressed log of those formats has one checksum a message, too many for a Python call each. ISA-L does the work,
as in `crc32c`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from lastkey.logformat.jit import CHECKED, inline
from lastkey.logformat.primitives import c_library

SYMBOL: Final = "crc32_gzip_refl"

_LIBRARY: Final = c_library.load("isal", "isal_zlib", "isal", (SYMBOL,))  # keeps the address valid
_extend: Any = types.ExternalFunction(SYMBOL, types.uint32(types.uint32, types.uintp, types.uint64))


@inline
def crc32_kernel(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32 of buf[start:end], uint32. buf: uint8[::1], read only or not; 0 <= start <= end <= len(buf)."""
    if CHECKED and not 0 <= start <= end <= buf.shape[0]:
        raise IndexError("bytes outside of the array")
    crc: int = _extend(np.uint32(0), np.uintp(buf.ctypes.data) + np.uintp(start), np.uint64(end - start))
    return crc
