"""Functions of C libraries inside wheels, for kernels.

LLVM knows them by name, and kernels refer to the names only, so they stay valid in numba's disk cache.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from importlib.machinery import PathFinder

from llvmlite import binding


def load(package: str, module: str, system: str, symbols: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library that has the functions `symbols`, and name them to LLVM. Keep it: it keeps them valid.

    A wheel of `package` has the library inside of its extension `module`; one built against the system's library
    `system` links to that. Raises ImportError if neither has all of them.
    """
    spec = importlib.util.find_spec(package)  # its other parts are not imported
    found = PathFinder.find_spec(module, spec.submodule_search_locations) if spec is not None else None
    candidates = [found.origin if found is not None else None, ctypes.util.find_library(system)]
    for candidate in filter(None, candidates):
        library = ctypes.CDLL(candidate)
        if all(hasattr(library, symbol) for symbol in symbols):
            for symbol in symbols:
                binding.add_symbol(symbol, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)
            return library
    raise ImportError(f"no library with {', '.join(symbols)}: neither {package}.{module} nor a system library {system}")
