"""Text as Java makes it of bytes that are not UTF-8, and the bytes of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.logformat.primitives.text_kernels import replace_malformed

_MAX_TEXT: Final = 2**31 - 2  # bytes of a pa.StringArray


def joined_bytes(texts: Any) -> memoryview:
    """Return the bytes of a pa.StringArray, one text after the other."""
    _, ends, data = texts.buffers()
    first, last = (memoryview(ends).cast("i")[texts.offset + i] for i in (0, len(texts)))
    return memoryview(data)[first:last]


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
    _, ends, data = values.buffers()
    first, n = values.offset, len(values)
    at = np.frombuffer(ends, np.int32)[first : first + n + 1].astype(np.int64)
    out, out_at = np.empty(most * int(at[-1] - at[0]), np.uint8), np.empty(n + 1, np.int32)
    text = np.frombuffer(data or b"", np.uint8)
    text.flags.writeable = False  # numba would compile the kernel once more for a read-only buffer
    size = kernel(text, at, out, out_at)
    if size > _MAX_TEXT:
        raise pa.ArrowCapacityError(f"a text of {size} bytes")
    return pa.StringArray.from_buffers(n, pa.py_buffer(out_at), pa.py_buffer(out[:size]))
