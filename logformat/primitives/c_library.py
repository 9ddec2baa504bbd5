"""Functions of C libraries inside wheels, for kernels.

LLVM knows them by name, and kernels refer to the names only, so they stay valid in numba's disk cache.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any

from llvmlite import binding


def load(package: str, module: str, system: str, symbols: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library that has the functions `symbols`, and name them to LLVM. Keep it: it keeps them valid.

    A wheel of `package` has the library inside of its extension `module`; one built against the system's library
    `system` links to that. Raises ImportError if neither has all of them.
    """
    why = []
    for candidate in _candidates(package, module, system):
        try:
            library = ctypes.CDLL(candidate)
        except OSError as error:  # the library of another machine, for example: try the system's
            why.append(str(error))
            continue
        if all(hasattr(library, symbol) for symbol in symbols):
            for symbol in symbols:
                name(symbol, getattr(library, symbol))
            return library
    found = "; ".join(why) or f"neither {package}.{module} nor a system library {system} has them"
    raise ImportError(f"no C library with {', '.join(symbols)}: {found}; install the package {package} again")


def name(symbol: str, function: Any) -> None:
    """Name a function of a loaded library to LLVM."""
    binding.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)


def _candidates(package: str, module: str, system: str) -> Iterator[str]:
    spec = None
    with suppress(ModuleNotFoundError):  # the package that would hold this one is missing
        spec = importlib.util.find_spec(package)  # its other parts are not imported
    found = PathFinder.find_spec(module, spec.submodule_search_locations) if spec is not None else None
    if found is not None and found.origin is not None:
        yield found.origin
    named = ctypes.util.find_library(system)  # only if it is needed: this runs programs, for up to 40 ms
    if named is not None:
        yield named
