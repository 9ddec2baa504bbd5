"""The one numba decorator, so that its flags stand in one place, and the cache of compiled kernels.

Numba's cache on disk looks at the file of a kernel alone: a change in a function that the kernel inlines, or in a
constant it imports, would leave the old machine code in use. So the cache of each state of the kernels' sources has a
folder of its own, in one of those that `cache_folder` knows to be safe. Numba's own ways to find a folder look at
nobody's rights, and are not taken.

NUMBA_BOUNDSCHECK=1 compiles every access with a check of its bounds: an IndexError instead of whatever lies there. Such
kernels are several times slower, and have a folder of their own in the cache, at which numba would not look either.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import caching

from logformat import cache_folder
from logformat.cache_folder import ROOT

F = TypeVar("F", bound=Callable[..., Any])

_config: Any = numba.config
_caching: Any = caching  # half of it has types

CHECKED: Final = bool(_config.BOUNDSCHECK)  # whether loads by address are checked too; decided at import

_SOURCES = (
    "logformat/**/*_kernels.py", "logformat/primitives/crc32*.py", "logformat/layout.py", "logformat/jit.py",
    "udfs/**/*_kernels.py",
)  # fmt: skip


@functools.cache
def _state_of_sources() -> str:
    """Changes when a kernel, or what it is made of, does: a hash of names, sizes and times."""
    files = sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern))
    stamp = "".join(f"{path.relative_to(ROOT)} {path.stat().st_size} {path.stat().st_mtime_ns} " for path in files)
    return hashlib.sha256(stamp.encode()).hexdigest()[:16] + ("-checked" if CHECKED else "")


class _Locator(_caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """A safe folder, in which the kernel can be kept, or is."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        if not Path(py_file).is_file():  # in a zip
            return None
        named = str(_config.CACHE_DIR or "")
        if named:
            cache_folder.refuse_if_unsafe(named)
        why = []
        for folder in cache_folder.folders(named):
            path = folder / _state_of_sources() / cls.get_suitable_cache_subpath(py_file)
            try:
                kept = cache_folder.usable(path) or any(path.glob(f"{Path(py_file).stem}.{py_func.__qualname__}-*.nbi"))
            except OSError as error:
                why.append(f"{folder}: {error.strerror}")
                continue
            if kept:
                locator = cls(py_func, py_file)
                locator._cache_path = str(path)
                return locator
            why.append(f"{folder}: cannot be written")
        cache_folder.say_nowhere(", ".join(why) or "there is no folder for them")
        return None


class _Implementation(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


@functools.cache
def _say_that_it_compiles() -> None:
    """Once in a process, to who listens: nothing else moves for a while."""
    logging.getLogger("lastkey").info("compiling kernels: once for this installation, up to two minutes")


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _say_that_it_compiles()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk, a folder that is only read: it costs time, nothing else
            super().save_overload(sig, data)


def _compiled(function: F, **flags: Any) -> F:
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy", **flags)(function)
    if not _config.DISABLE_JIT:
        with contextlib.suppress(RuntimeError):  # no folder
            dispatcher._cache = _Cache(function)
    return cast(F, dispatcher)


def kernel(function: F) -> F:
    """Compile `function` for arrays: no Python objects, no GIL, compiled code kept on disk.

    Raises UnsafeFolderError where NUMBA_CACHE_DIR is a folder that others can write.
    """
    return _compiled(function)


def inline(function: F) -> F:
    """As `kernel`, for a few lines called in an inner loop: always inlined by LLVM."""
    return _compiled(function, forceinline=True)
