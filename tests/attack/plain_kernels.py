"""Kernels of `logformat` as the plain Python that they are written in: slow, but a fuzzer sees which lines ran.

This needs a process of its own with NUMBA_DISABLE_JIT=1, and `install` before the import of any kernel. Numba's types
are kept where they matter: a number read from an array does not wrap around at 8 or 32 bits, because a kernel's numbers
have 64.
"""

from __future__ import annotations

import ctypes
import functools
import os
import zlib
from collections.abc import Callable
from typing import Any, Literal

import google_crc32c
import numpy as np


class _Numbers:
    """An array of numbers, as a kernel sees it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.ctypes = array, array.shape, array.ctypes

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        value = self.array[at]
        if isinstance(value, np.ndarray):
            return _seen(value)
        return value if self.array.dtype == np.uint64 else value.item()

    def __setitem__(self, at: Any, value: Any) -> None:
        self.array[at] = value.array if isinstance(value, _Numbers) else value


class _Rows:
    """An array of rows: a number selects a row, a name a column."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        return _seen(self.array[at]) if isinstance(at, str | slice) else _Row(self.array, range(len(self.array))[at])


class _Row:
    """A row that writes its fields through to the array."""

    def __init__(self, array: np.ndarray, at: int) -> None:
        object.__setattr__(self, "_place", (array, at))

    def __getitem__(self, name: str) -> Any:
        array, at = self._place
        return _Numbers(array[name])[at]

    def __setitem__(self, name: str, value: Any) -> None:
        array, at = self._place
        array[name][at] = value

    __getattr__, __setattr__ = __getitem__, __setitem__


def _seen(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = tuple(map(_seen, value))
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if not isinstance(value, np.ndarray):
        return value
    return _Numbers(value) if value.dtype.names is None else _Rows(value)


class _Wrapping:
    """A type of numbers that wraps around as a kernel's does; numpy treats it as the type that it replaces."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)
        self.bits, self.signed = 8 * self.dtype.itemsize, self.dtype.kind == "i"

    def __call__(self, value: Any) -> int:
        rest = int(value) & (1 << self.bits) - 1
        return rest - (1 << self.bits) if self.signed and rest >> self.bits - 1 else rest


class _Numpy:
    """numpy, with conversions that wrap around as a kernel's do."""

    int8, int16, int32, int64 = map(_Wrapping, ("int8", "int16", "int32", "int64"))
    uint8, uint16, uint32, uintp = map(_Wrapping, ("uint8", "uint16", "uint32", "uintp"))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _inline(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__globals__["np"] = _Numpy()
    return function


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    _inline(function)

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with np.errstate(over="ignore"):  # hashes wrap around
            return function(*map(_seen, args))

    return run


def _load(n_bytes: int, order: str, number: Callable[[int], Any], *, signed: bool) -> Callable[..., Any]:
    def load(buf: _Numbers, position: int) -> Any:
        if not 0 <= position <= len(buf) - n_bytes:
            raise IndexError("bytes outside of the array")
        return number(int.from_bytes(buf.array[position : position + n_bytes].tobytes(), order, signed=signed))  # type: ignore[arg-type]

    return load


def _store(n_bytes: int, order: Literal["little", "big"] = "big", *, signed: bool = True) -> Callable[..., None]:
    def store(buf: _Numbers, position: int, value: int) -> None:
        if not 0 <= position <= len(buf) - n_bytes:
            raise IndexError("bytes outside of the array")
        buf.array[position : position + n_bytes] = np.frombuffer(
            int(value).to_bytes(n_bytes, order, signed=signed), "u1"
        )

    return store


def _copy(target: _Numbers, to: int, source: _Numbers, at: int, count: int) -> None:
    if min(to, at, count) < 0 or to + count > len(target) or at + count > len(source):
        raise IndexError("bytes outside of the array")
    target.array[to : to + count] = source.array[at : at + count]


def _crc32c(address: int, count: int, inverted: int) -> int:
    crc = int(inverted) ^ 0xFFFFFFFF
    return int(google_crc32c.extend(crc, ctypes.string_at(int(address), int(count)))) ^ 0xFFFFFFFF


def _crc32(crc: int, address: int, count: int) -> int:
    return zlib.crc32(ctypes.string_at(int(address), int(count)), int(crc))


def _pread(descriptor: int, address: int, count: int, position: int) -> int:
    data = os.pread(int(descriptor), int(count), int(position))
    ctypes.memmove(int(address), data, len(data))
    return len(data)


def _load_function(function: Any, result: Any) -> Callable[..., int]:
    """Return a C function of sizes and addresses that yields a signed number, of the type `result`."""
    function.restype = result
    return lambda *given: int(function(*(ctypes.c_size_t(int(number)) for number in given)))


def install() -> None:
    """Make all later imports of kernels yield plain functions."""
    assert os.environ.get("NUMBA_DISABLE_JIT") == "1", "NUMBA_DISABLE_JIT=1"
    from lastkey.logformat import jit

    jit.kernel, jit.inline = _kernel, _inline  # type: ignore[assignment]
    from lastkey.logformat.primitives import memory_kernels as memory

    memory.load_u64_le = _load(8, "little", np.uint64, signed=False)
    memory.load_u32_le = _load(4, "little", int, signed=False)
    memory.load_i64, memory.load_i32, memory.load_i16 = (_load(n, "big", int, signed=True) for n in (8, 4, 2))
    memory.store_u32_le = _store(4, "little", signed=False)
    memory.store_i64, memory.store_i32, memory.store_i16 = map(_store, (8, 4, 2))
    memory.copy_bytes, memory.prefetch = _copy, lambda array, i: None
    from lastkey.logformat.batches import pread_kernels
    from lastkey.logformat.primitives import crc32, crc32c, lz4_kernels, zstd_kernels

    crc32c._extend, crc32._extend, pread_kernels._pread = _crc32c, _crc32, _pread
    named: tuple[tuple[Any, Any, tuple[str, ...]], ...] = (
        (zstd_kernels, ctypes.c_int64, ("_decompress", "_bound", "_compress", "_most")),
        (lz4_kernels, ctypes.c_int32, ("_decompress", "_compress")),
    )
    for kernels, result, names in named:
        for name, symbol in zip(names, kernels._SYMBOLS, strict=True):
            setattr(kernels, name, _load_function(kernels._LIBRARY[symbol], result))
    lz4_kernels._hash = _load_function(lz4_kernels._HASHES["XXH32"], ctypes.c_uint32)
