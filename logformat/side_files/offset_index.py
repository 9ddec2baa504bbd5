"""Sparse offset index of a segment: `.index`, 8 bytes an entry.

An entry says that the batch whose LAST offset is `offset` begins at byte `position` of the .log. The first batch is
never indexed, so neither offset - base nor position is 0 in an entry; index_builder decides which entries there are.

Source: Kafka's OffsetIndex and AbstractIndex (4.3.0).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_RELATIVE_OFFSET, OFFSET_INDEX_ENTRY

ENTRY: Final = np.dtype(
    [
        ("offset", "i8"),  # absolute: last offset of the batch
        ("position", "i8"),  # position of the batch's first byte in the .log
    ]
)
_SIZE: Final = OFFSET_INDEX_ENTRY.itemsize


def read(data: bytes, base_offset: int, path: str) -> NDArray[np.void]:
    """Read a `.index` as ENTRY[n], without the zeros at the end of a preallocated file.

    Raises kind "index" for a torn file (length no multiple of 8). Nothing else is checked.
    """
    if len(data) % _SIZE:
        whole = len(data) - len(data) % _SIZE
        raise LogFormatError("index", path, whole, f"entries of {_SIZE} bytes", f"{len(data) - whole} bytes at the end")
    stored = np.frombuffer(data, OFFSET_INDEX_ENTRY)
    stop = np.flatnonzero(stored["relative_offset"] == 0)
    stored = stored[: stop[0]] if len(stop) else stored
    entries = np.empty(len(stored), ENTRY)
    entries["offset"] = stored["relative_offset"]
    entries["offset"] += base_offset
    entries["position"] = stored["position"]
    return entries


def write(entries: NDArray[np.void], base_offset: int, path: str) -> bytes:
    """Return ENTRY[n] as the bytes of a `.index`.

    Raises kind "relative_offset" for an offset that does not fit, kind "index" for a position that does not.
    """
    relative = entries["offset"] - base_offset
    check_relative(relative, base_offset, path, _SIZE)
    _check(entries["position"] > MAX_RELATIVE_OFFSET, "a position below 2^31", entries["position"], path)
    stored = np.empty(len(entries), OFFSET_INDEX_ENTRY)
    stored["relative_offset"] = relative
    stored["position"] = entries["position"]
    return stored.tobytes()


def check_relative(relative: NDArray[np.int64], base_offset: int, path: str, entry_size: int) -> None:
    """Raise kind "relative_offset" at the first of int64[n] that does not fit an entry's field; also for time_index."""
    wrong = np.flatnonzero((relative < 0) | (relative > MAX_RELATIVE_OFFSET))
    if len(wrong):
        first = int(wrong[0])
        raise LogFormatError(
            "relative_offset",
            path,
            first * entry_size,
            f"an offset from {base_offset} to {base_offset} + 2^31 - 1",
            str(base_offset + int(relative[first])),
        )


def _check(wrong: NDArray[np.bool_], expected: str, values: NDArray[np.int64], path: str) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        raise LogFormatError("index", path, first * _SIZE, expected, str(int(values[first])))
