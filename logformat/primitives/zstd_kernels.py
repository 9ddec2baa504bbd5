"""zstd by the C library inside a wheel, called from kernels: many bodies a call, each straight into place.

The wheel's own functions take one body a call and return new bytes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from lastkey.logformat.jit import CHECKED, kernel
from lastkey.logformat.layout import DEFAULT_LEVELS
from lastkey.logformat.primitives import c_library

LEVEL: Final = DEFAULT_LEVELS.zstd
_COMPRESSION_LEVEL: Final = 100  # ZSTD_cParameter
_CONTENT_SIZE_FLAG: Final = 200
# Results of the library, as signed numbers: errors are negative
_TOO_SMALL: Final = -70  # ZSTD_error_dstSize_tooSmall
_WRONG_SIZE: Final = -72  # ZSTD_error_srcSize_wrong
_SYMBOLS: Final = ("ZSTD_decompressDCtx", "ZSTD_decompressBound", "ZSTD_compress2", "ZSTD_compressBound")

# status of decompress_bodies
DONE: Final = 0
MORE_ROOM: Final = 1
TOO_LARGE: Final = 2
BROKEN: Final = 3


PACKAGE: Final = "backports.zstd" if sys.version_info < (3, 14) else "zstandard"  # as in pyproject.toml
_LIBRARY: Final = c_library.load(PACKAGE, "_zstd" if PACKAGE == "backports.zstd" else "_cffi", "zstd", _SYMBOLS)
_decompress: Any = types.ExternalFunction(
    _SYMBOLS[0], types.intp(types.uintp, types.uintp, types.intp, types.uintp, types.intp)
)
_bound: Any = types.ExternalFunction(_SYMBOLS[1], types.int64(types.uintp, types.intp))
_compress: Any = types.ExternalFunction(
    _SYMBOLS[2], types.intp(types.uintp, types.uintp, types.intp, types.uintp, types.intp)
)
_most: Any = types.ExternalFunction(_SYMBOLS[3], types.intp(types.intp))


class Context:
    """Memory of the library for one direction, kept from body to body; for one thread."""

    def __init__(self, kind: str) -> None:
        """kind: "D" to decompress, "C" to compress at Kafka's default level, without content size and checksum."""
        create, self._free = getattr(_LIBRARY, f"ZSTD_create{kind}Ctx"), getattr(_LIBRARY, f"ZSTD_free{kind}Ctx")
        create.restype, self._free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        self.address: int = create() or 0
        if not self.address:
            raise MemoryError("no memory for a context of zstd")
        if kind == "C":
            self._configure(_COMPRESSION_LEVEL, LEVEL)
            self._configure(_CONTENT_SIZE_FLAG, 0)

    def set_level(self, level: int) -> None:
        """Compress at another level from the next body on."""
        self._configure(_COMPRESSION_LEVEL, level)

    def _configure(self, parameter: int, value: int) -> None:
        configure = _LIBRARY.ZSTD_CCtx_setParameter
        configure.argtypes, configure.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int], ctypes.c_size_t
        configure(self.address, parameter, value)

    def __del__(self) -> None:
        """Give the memory back."""
        if getattr(self, "address", 0):
            self._free(self.address)


def error_text(code: int) -> str:
    """Return the library's name of an error."""
    name = _LIBRARY.ZSTD_getErrorName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_size_t]
    return str(name(code).decode())


@kernel
def decompress_bodies(
    context: int,
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    stop: int,
    limit: int,
    out_ends: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Decompress the bodies source[starts[i]:ends[i]] one after the other into `out` from byte `at` on, until `stop`
    is reached.

    context: of a Context "D"; limit: most bytes of one body; out_ends: int64[n], written: where each ends in `out`.
    A body is one or more whole frames (RFC 8878), and no other bytes. Returns (bodies done, bytes of `out` in use,
    status, detail). The status is that of the first body that is not done: MORE_ROOM (`out` must have `detail` bytes),
    TOO_LARGE, or BROKEN (`detail` is the library's error).
    """
    n = starts.shape[0]
    for i in range(n):
        if at >= stop:
            return i, at, DONE, 0
        start = starts[i]
        size = ends[i] - start
        if CHECKED and not (0 <= start <= ends[i] <= source.shape[0] and 0 <= at <= out.shape[0]):
            raise IndexError("bytes outside of the array")
        address = np.uintp(source.ctypes.data) + np.uintp(start)
        bound = _bound(address, size)
        if size == 0 or bound < 0:
            return i, at, BROKEN, _WRONG_SIZE
        room = min(bound, limit)
        if room > out.shape[0] - at:
            return i, at, MORE_ROOM, at + room
        written = _decompress(np.uintp(context), np.uintp(out.ctypes.data) + np.uintp(at), room, address, size)
        if written == _TOO_SMALL and room < bound:
            return i, at, TOO_LARGE, 0
        if written < 0:
            return i, at, BROKEN, written
        at += written
        out_ends[i] = at
    return n, at, DONE, 0


@kernel
def compress_bodies(
    context: int,
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    out_ends: NDArray[np.int64],
) -> int:
    """Compress each source[starts[i]:ends[i]] as a frame, one after the other, into `out` from byte `at` on.

    context: of a Context "C"; out: has room for most_compressed(ends - starts); out_ends: int64[n], written: where each
    frame ends. Returns the number of bodies done: all, unless the library has failed.
    """
    n: int = starts.shape[0]
    for i in range(n):
        if CHECKED and not (0 <= starts[i] <= ends[i] <= source.shape[0] and 0 <= at <= out.shape[0]):
            raise IndexError("bytes outside of the array")
        written = _compress(
            np.uintp(context),
            np.uintp(out.ctypes.data) + np.uintp(at),
            out.shape[0] - at,
            np.uintp(source.ctypes.data) + np.uintp(starts[i]),
            ends[i] - starts[i],
        )
        if written < 0:
            return i
        at += written
        out_ends[i] = at
    return n


@kernel
def most_compressed(sizes: NDArray[np.int64]) -> int:
    """Return the bytes that bodies of these sizes (int64[n]) take at the most when they are compressed."""
    total = 0
    for i in range(sizes.shape[0]):
        most: int = _most(sizes[i])
        total += most
    return total
