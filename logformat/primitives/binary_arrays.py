"""Arrow columns of bytes as numpy arrays, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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

    Copies nothing, except views and bytes of a fixed size. The bytes of a null value mean nothing: use the array's
    validity.
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
