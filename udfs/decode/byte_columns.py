"""Arrow columns of bytes as rows of numpy, and back: the parts of decoders."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.primitives.binary_arrays import spans_of

_MAX_TEXT_BYTES: Final = 2**31 - 1


def valid_of(values: Any) -> NDArray[np.bool_]:
    """Return bool[n]: which values are not null."""
    return np.asarray(values.is_valid())


def sizes_of(values: Any) -> NDArray[Any]:
    """Return int[n]: bytes of each value; -1: null."""
    return np.asarray(pc.fill_null(pc.binary_length(values), -1))


def rows_of(values: Any, wanted: NDArray[np.bool_], width: int) -> NDArray[np.uint8]:
    """Return the wanted values, all of `width` bytes, as uint8[m, width]. wanted: bool[n], none of them null."""
    chosen = values if wanted.all() else values.filter(pa.array(wanted))
    data, at = spans_of(chosen)
    return data[at[0] : at[-1]].reshape(len(chosen), width)


def text_column(text: NDArray[np.uint8], ends: NDArray[np.int64], valid: NDArray[np.bool_]) -> Any:
    """Return uint8[m] as pa.StringArray. ends: int64[n + 1] in it; valid: bool[n]. Raises ValueError from 2 GiB on."""
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError(f"text of {len(text)} bytes in one column: decode fewer rows at once")
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.StringArray.from_buffers(len(valid), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text), bits)


def no_reasons(values: Any) -> Any:
    """Return a null for each value: none is malformed."""
    return pa.nulls(len(values), pa.string())
