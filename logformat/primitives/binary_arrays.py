"""Arrow columns of bytes: as numpy arrays without a copy, their keyed hashes, and the text that Java makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.primitives.siphash_kernels import hash_values
from lastkey.logformat.primitives.text_kernels import replace_malformed

_MAX_TEXT: Final = 2**31 - 2  # bytes of a pa.StringArray
_NOTHING = np.zeros(0, np.uint8)


def is_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are bytes, or text, which is bytes of UTF-8."""
    t = pa.types
    return bool(
        t.is_binary(kind)
        or t.is_string(kind)
        or t.is_large_binary(kind)
        or t.is_large_string(kind)
        or t.is_binary_view(kind)
        or t.is_string_view(kind)
        or t.is_fixed_size_binary(kind)
    )


def whole_array(values: Any) -> Any:
    """Return a column as one pa.Array: join the parts of a pa.ChunkedArray, and decode a dictionary."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def bytes_and_bounds(values: Any) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return (data, at): value i of a pa.Array of bytes or text is data[at[i]:at[i + 1]]; at is int32 or int64 [n + 1].

    Makes no copies, except of views and bytes of a fixed size. The bytes of a null value have no meaning: use the
    array's validity.
    """
    kind = values.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        wide, values = True, values.cast(pa.large_binary())
    _, ends, data = values.buffers()
    n, first = len(values), values.offset
    if n == 0 or ends is None:
        return _NOTHING, np.zeros(n + 1, np.int32)
    at = np.frombuffer(ends, np.int64 if wide else np.int32)[first : first + n + 1]
    return _NOTHING if data is None else np.frombuffer(data, np.uint8), at


def joined_bytes(values: Any) -> memoryview:
    """Return the bytes of a pa.Array of bytes or text, one value after the other."""
    data, at = bytes_and_bounds(values)
    return data.data[at[0] : at[-1]]


def keyed_hashes(values: Any, secret: tuple[int, int]) -> np.ndarray:
    """Return the SipHash of each value of a pa.Array of bytes, u8[n, 2]; undefined for a null."""
    out = np.empty((len(values), 2), np.uint64)
    data, at = bytes_and_bounds(values)
    hash_values(data, at, np.uint64(secret[0]), np.uint64(secret[1]), out)
    return out


def decode_text(values: Any) -> Any:
    """Return pa.BinaryArray as text; malformed UTF-8 becomes U+FFFD as in Java's String."""
    text = values.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return _mended(values)
    return text


def _mended(values: Any) -> Any:
    text = rewritten(pc.fill_null(values, b""), replace_malformed, 3)
    return pc.if_else(pc.is_valid(values), text, None) if values.null_count else text


def rewritten(values: Any, kernel: Callable[..., int], most: int) -> Any:
    """Return pa.StringArray of binary or text without nulls, rewritten by a kernel of text_kernels.

    most: bytes that one byte may become. Raises pa.ArrowCapacityError if the text is too large for one array.
    """
    text, ends = bytes_and_bounds(values)
    at, n = ends.astype(np.int64), len(values)
    out, out_at = np.empty(most * int(at[-1] - at[0]), np.uint8), np.empty(n + 1, np.int32)
    text = text.view()
    text.flags.writeable = False  # numba would compile the kernel once more for a read-only buffer
    size = kernel(text, at, out, out_at)
    if size > _MAX_TEXT:
        raise pa.ArrowCapacityError(f"a text of {size} bytes")
    return pa.StringArray.from_buffers(n, pa.py_buffer(out_at), pa.py_buffer(out[:size]))
