"""CRC-32C (Castagnoli) of byte ranges, callable inside kernels; the checksum of magic 2 batches and of snapshots.

ISA-L, the C library inside the isal wheel, does the work: with AVX-512 in half of google-crc32c's time for 16 bytes to
256 KiB, else in no more. Importing this module makes its function known to LLVM by name. Kernels refer to the name
only, so they stay valid in numba's disk cache; but this module must be imported before such a kernel runs, as every
module does that calls crc32c_range.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from llvmlite import binding
from numba import types
from numpy.typing import NDArray

from lastkey.logformat.jit import CHECKED, inline, kernel
from lastkey.logformat.primitives import c_library

SYMBOL: Final = "crc32c_here"


def _function(library: ctypes.CDLL, features: dict[str, bool]) -> Any:
    """Return ISA-L's function for a processor. It is ISA-L's own choice, except for processors with AVX and without
    VPCLMULQDQ: there, its function for older processors is twice as fast for whole batches.
    """
    chosen = library.crc32_iscsi
    older = features.get("avx", False) and features.get("pclmul", False) and not features.get("vpclmulqdq", False)
    return getattr(library, "crc32_iscsi_01", chosen) if older else chosen


_LIBRARY: Final = c_library.load("isal", "isal_zlib", "isal", ("crc32_iscsi",))  # keeps the address valid
c_library.name(SYMBOL, _function(_LIBRARY, binding.get_host_cpu_features()))
# (bytes, their number, checksum) -> checksum, both with all bits inverted; the number is a C int
_extend: Any = types.ExternalFunction(SYMBOL, types.uint32(types.uintp, types.int32, types.uint32))
_MOST: Final = 1 << 30
_INVERTED: Final = 0xFFFFFFFF


@inline
def crc32c_extend_range(crc: int, buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Extend the CRC-32C `crc` (0: of no bytes) by buf[start:end], as in `crc32c_range`."""
    if CHECKED and not 0 <= start <= end <= buf.shape[0]:
        raise IndexError("bytes outside of the array")
    inverted = np.uint32(np.uint32(crc) ^ np.uint32(_INVERTED))
    while end - start > _MOST:
        inverted = _extend(np.uintp(buf.ctypes.data) + np.uintp(start), np.int32(_MOST), inverted)
        start += _MOST
    inverted = _extend(np.uintp(buf.ctypes.data) + np.uintp(start), np.int32(end - start), inverted)
    return np.uint32(inverted ^ np.uint32(_INVERTED))  # type: ignore[return-value]  # an int to every kernel


@inline
def crc32c_range(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buf[start:end], uint32. buf: uint8[::1], maybe read only; 0 <= start <= end <= len(buf)."""
    crc: int = crc32c_extend_range(0, buf, start, end)
    return crc


@kernel
def _extend_whole(crc: int, buf: NDArray[np.uint8]) -> int:
    return crc32c_extend_range(crc, buf, 0, buf.shape[0])


def crc32c_extend(crc: int, data: NDArray[np.uint8]) -> int:
    """Extend the CRC-32C `crc` (0: of no bytes) by `data` (uint8, C-contiguous)."""
    return int(_extend_whole(crc, data))
