"""CRC-32C (Castagnoli) of byte ranges, callable inside kernels; the checksum of magic 2 batches and of snapshots.

The C library inside the google-crc32c wheel does the work, with the processor's own instruction. Importing this module
makes its `crc32c_extend(crc, data, count)` known to LLVM by name. Kernels refer to the name only, so they stay valid in
numba's disk cache; but this module must be imported before such a kernel runs, as every module does that calls
crc32c_range.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
from numba import types
from numpy.typing import NDArray

from lastkey.logformat.jit import CHECKED, inline, kernel
from lastkey.logformat.primitives import c_library

if TYPE_CHECKING:
    from collections.abc import Iterator

SYMBOL: Final = "crc32c_extend"

# The library's place in the wheels, from site-packages: Linux, macOS, Windows.
_PLACES: Final = (
    ("google_crc32c.libs", "libcrc32c*.so*"),
    ("google_crc32c/.dylibs", "libcrc32c*.dylib"),
    ("google_crc32c/extra-dll", "*crc32c*.dll"),
    ("google_crc32c.libs", "*crc32c*.dll"),
)


def _candidates() -> Iterator[str]:
    site_packages = Path(google_crc32c.__file__).parent.parent
    for folder, pattern in _PLACES:
        yield from (str(path) for path in sorted((site_packages / folder).glob(pattern)))
    system = ctypes.util.find_library("crc32c")  # google-crc32c built from source links to this one
    if system is not None:
        yield system


def _load() -> ctypes.CDLL:
    if google_crc32c.implementation != "c":
        raise ImportError(
            f"google-crc32c runs in plain Python here (implementation {google_crc32c.implementation!r}); "
            "a wheel with its C library is needed"
        )
    looked_for = ", ".join(f"{folder}/{pattern}" for folder, pattern in _PLACES)
    site_packages = Path(google_crc32c.__file__).parent.parent
    nowhere = f"looked for {looked_for} in {site_packages}, and for a system library crc32c"
    return c_library.first_with((SYMBOL,), _candidates(), "google-crc32c", nowhere)


_LIBRARY: Final = _load()  # keeps the address valid
_extend: Any = types.ExternalFunction(SYMBOL, types.uint32(types.uint32, types.uintp, types.uintp))


@inline
def crc32c_extend_range(crc: int, buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Extend the CRC-32C `crc` (0: of no bytes) by buf[start:end], as in `crc32c_range`."""
    if CHECKED and not 0 <= start <= end <= buf.shape[0]:
        raise IndexError("bytes outside of the array")
    extended: int = _extend(np.uint32(crc), np.uintp(buf.ctypes.data) + np.uintp(start), np.uintp(end - start))
    return extended


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
