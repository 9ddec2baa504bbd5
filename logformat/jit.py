"""The one numba decorator, so that its flags stand in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` for arrays: no Python objects, no GIL, compiled code kept beside the source."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """As `kernel`, for a few lines called in an inner loop: always inlined by LLVM."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
