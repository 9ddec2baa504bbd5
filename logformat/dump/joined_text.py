"""Columns joined to text, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def joined(*parts: Any) -> Any:
    """Join scalars, numpy and Arrow arrays element by element."""
    return pc.binary_join_element_wise(*(_text(part) for part in parts), "")


def _text(part: Any) -> Any:
    if isinstance(part, str):
        return part
    array = pa.array(np.ascontiguousarray(part)) if isinstance(part, np.ndarray) else part
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def names_of(names: tuple[str, ...], numbers: NDArray[Any]) -> Any:
    """Return pa.StringArray, the name of each number; every number must have one."""
    return pa.array(names).take(pa.array(np.ascontiguousarray(numbers, np.int64)))


def where(mask: Any, text: Any) -> Any:
    """Return the text where the mask is true, else an empty one."""
    return pc.if_else(mask, text, "")
