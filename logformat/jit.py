"""The one numba decorator with its flags, and the cache of compiled kernels.

Numba's cache on disk checks only a kernel's own file. After a change in a function that the kernel inlines, or in a
constant that it imports, numba would run the old machine code. So each state of the kernels' sources has a cache folder
of its own, inside a folder that `cache_folder` has found safe. Numba's own ways to find a folder are not used, because
they check no permissions. No key holds a path or a file's time, so kernels move with their sources, as in a pack;
numba itself keeps apart what it compiled for another processor.

NUMBA_BOUNDSCHECK=1 compiles a check of its bounds into every access, which then raises IndexError instead of reading
foreign memory. Checked kernels are several times slower. They have a cache folder of their own, because numba's cache
ignores this flag too.
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
from numba.core.runtime.nrt import rtsys

from lastkey.logformat import cache_folder
from lastkey.logformat.cache_folder import ROOT

F = TypeVar("F", bound=Callable[..., Any])

_config: Any = numba.config
_caching: Any = caching  # only half of it is typed

CHECKED: Final = bool(_config.BOUNDSCHECK)  # check loads by address too; decided at import

_SOURCES = (
    "logformat/**/*_kernels.py", "logformat/primitives/crc32*.py", "logformat/primitives/c_library.py",
    "logformat/layout.py", "logformat/jit.py",
    "udfs/**/*_kernels.py", "udfs/compact/verdicts.py",
)  # fmt: skip


@functools.cache
def state_of_sources() -> str:
    """Return a hash of the names and contents of the kernels' sources: any change of a kernel changes it."""
    state = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern)):
        source = path.read_bytes()
        state.update(f"{path.relative_to(ROOT)} {len(source)} ".encode() + source)
    return state.hexdigest()[:16] + ("-checked" if CHECKED else "")


class _Locator(_caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """A safe folder in which numba can keep the kernel, or in which it is kept already."""

    @classmethod
    @functools.cache
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder of a source's kernels. Ours has no path of the package; numba hashes the path."""
        path = Path(py_file).resolve().parent
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else super().get_suitable_cache_subpath(py_file)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        if not Path(py_file).is_file():  # false inside a zip
            return None
        named = str(_config.CACHE_DIR or "")
        if named:
            cache_folder.refuse_if_unsafe(named)
        why = []
        for folder in cache_folder.folders(named):
            path = folder / state_of_sources() / cls.get_suitable_cache_subpath(py_file)
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
        cache_folder.note_missing_cache(", ".join(why) or "there is no folder for them")
        return None


class _Implementation(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


_compiled_here: list[str] = []  # the first kernel, once it was named


def _note_compilation(kernel: str) -> None:
    """Log once in a process that kernels are compiled, because no other output follows for a while."""
    if not _compiled_here:
        said = "compiling kernels, %s first: once for this installation, up to two minutes"
        logging.getLogger("lastkey").info(said, kernel)
        _compiled_here.append(kernel)


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load as numba does, but without the imports of the compiler, which take 0.1 s of each process."""
        overload = None
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            overload = self._load_overload(sig, target_context)
        if overload is None:
            _note_compilation(self._py_func.__qualname__)
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk or a read-only folder costs only time
            super().save_overload(sig, data)


def _compiled(function: F, **flags: Any) -> F:
    return cast(F, numba.njit(nogil=True, error_model="numpy", **flags)(function))


def kernel(function: F) -> F:
    """Compile `function` for arrays: no Python objects, no GIL, compiled code kept on disk.

    Raises PlaceError where NUMBA_CACHE_DIR is a folder that others can write.
    """
    dispatcher: Any = _compiled(function)
    if not _config.DISABLE_JIT:
        with contextlib.suppress(RuntimeError):  # there is no folder to keep kernels in
            dispatcher._cache = _Cache(function)
    return cast(F, dispatcher)


def inline(function: F) -> F:
    """Compile a function of a few lines as `kernel` does, always inlined by LLVM, for calls in an inner loop.

    It is kept on disk only as part of the kernels that call it.
    """
    return _compiled(function, forceinline=True)
