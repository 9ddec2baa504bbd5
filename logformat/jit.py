"""The one numba decorator, so that its flags stand in one place, and the place where compiled kernels are kept.

Numba's cache on disk looks at the file of a kernel alone: a change in a function that the kernel inlines, or in a
constant it imports, would leave the old machine code in use. So the cache of each state of the kernels' sources has a
folder of its own, beside the sources, or below NUMBA_CACHE_DIR where that is set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_ROOT = Path(__file__).resolve().parent.parent


_SOURCES = ("*/*_kernels.py", "logformat/layout.py", "logformat/crc32*.py", "logformat/jit.py", "udfs/transactions.py")


def _state_of_sources() -> str:
    """Changes when a kernel, or what it is made of, does: a hash of names, sizes and times."""
    files = sorted(path for pattern in _SOURCES for path in _ROOT.glob(pattern) if path.parent.name != "tests")
    stamp = "".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns} " for path in files)
    return hashlib.sha256(stamp.encode()).hexdigest()[:16]


_config: Any = numba.config
_config.CACHE_DIR = str(Path(_config.CACHE_DIR or _ROOT / ".numba") / _state_of_sources())


def kernel(function: F) -> F:
    """Compile `function` for arrays: no Python objects, no GIL, compiled code kept on disk."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """As `kernel`, for a few lines called in an inner loop: always inlined by LLVM."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
