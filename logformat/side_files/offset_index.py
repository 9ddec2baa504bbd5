"""Sparse offset index of a segment: `.index`, 8 bytes an entry.

An entry states that the batch whose LAST offset is `offset` begins at byte `position` of the .log. The first batch is
never indexed, so neither offset - base nor position is 0 in an entry; index_builder decides which entries there are.

Source: Kafka's OffsetIndex and AbstractIndex (4.3.0).
"""

from __future__ import annotations

from typing import Any, Final

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


def read(data: bytes, base_offset: int, path: str) -> NDArray[np.void]:
    """Read a `.index` as ENTRY[n], without the zeros at the end of a preallocated file.

    Raises kind "index" for a torn file (length no multiple of 8). It does no other checks.
    """
    stored = stored_entries(data, OFFSET_INDEX_ENTRY, path)
    stop = np.flatnonzero(stored["relative_offset"] == 0)
    return with_offsets(stored[: stop[0]] if len(stop) else stored, ENTRY, base_offset)


def write(entries: NDArray[np.void], base_offset: int, path: str) -> bytes:
    """Return ENTRY[n] as the bytes of a `.index`.

    Raises kind "relative_offset" for an offset that does not fit, kind "index" for a position that does not.
    """
    stored = without_base(entries, OFFSET_INDEX_ENTRY, base_offset, path)
    position = entries["position"]
    check_entries(position > MAX_RELATIVE_OFFSET, "a position below 2^31", position, path, OFFSET_INDEX_ENTRY.itemsize)
    return stored


# -- for all index files


def stored_entries(data: bytes, dtype: np.dtype[np.void], path: str, *, allow_torn: bool = False) -> NDArray[np.void]:
    """Return the entries of an index file as stored. Raise kind "index" for a torn last one, unless `allow_torn` leaves
    it out.
    """
    size = dtype.itemsize
    torn = len(data) % size
    if torn and not allow_torn:
        raise LogFormatError("index", path, len(data) - torn, f"entries of {size} bytes", f"{torn} bytes at the end")
    return np.frombuffer(data, dtype, len(data) // size)


def with_offsets(stored: NDArray[np.void], dtype: np.dtype[np.void], base_offset: int) -> NDArray[np.void]:
    """Return stored entries as entries of `dtype`, whose field `offset` is absolute."""
    entries = np.empty(len(stored), dtype)
    for name in dtype.names or ():
        entries[name] = stored["relative_offset" if name == "offset" else name]
    entries["offset"] += base_offset
    return entries


def without_base(entries: NDArray[np.void], dtype: np.dtype[np.void], base_offset: int, path: str) -> bytes:
    """Return entries with absolute offsets as stored ones of `dtype`. Raise kind "relative_offset" if one does not
    fit.
    """
    relative = entries["offset"] - base_offset
    wrong = np.flatnonzero((relative < 0) | (relative > MAX_RELATIVE_OFFSET))
    if len(wrong):
        first = int(wrong[0])
        expected = f"an offset from {base_offset} to {base_offset} + 2^31 - 1"
        found = str(base_offset + int(relative[first]))
        raise LogFormatError("relative_offset", path, first * dtype.itemsize, expected, found)
    stored = np.empty(len(entries), dtype)
    for name in dtype.names or ():
        stored[name] = relative if name == "relative_offset" else entries[name]
    return stored.tobytes()


def check_entries(wrong: NDArray[np.bool_], expected: str, values: NDArray[Any], path: str, size: int) -> None:
    """Raise kind "index" at the first wrong entry (bool[n] of n values); size: bytes of an entry."""
    if wrong.any():
        first = int(wrong.argmax())
        raise LogFormatError("index", path, first * size, expected, str(int(values[first])))
