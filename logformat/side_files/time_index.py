"""Sparse time index of a segment: `.timeindex`, 12 bytes an entry.

An entry states that no timestamp is larger than `timestamp`, up to and including the batch that ends at `offset`. This
batch is the earliest one that carries `timestamp`. So a larger timestamp can only follow that offset. A segment whose
timestamps are all -1 has no entries. index_builder decides which entries there are.

Source: Kafka's TimeIndex and TimestampOffset (4.3.0).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.layout import TIME_INDEX_ENTRY
from lastkey.logformat.side_files.offset_index import stored_entries, with_offsets, without_base

ENTRY: Final = np.dtype(
    [
        ("timestamp", "i8"),  # ms, largest so far in the segment
        ("offset", "i8"),  # absolute: last offset of the earliest batch that carries it
    ]
)


def read(data: bytes, base_offset: int, path: str) -> NDArray[np.void]:
    """Read a `.timeindex` as ENTRY[n], without the zeros at the end of a preallocated file.

    The zeros begin at the first entry, other than entry 0, whose relative offset is 0. Entry 0 may be zeros only if it
    is the whole file, or another entry follows. Raises kind "index" for a torn file (length no multiple of 12). It does
    no other checks.
    """
    stored = stored_entries(data, TIME_INDEX_ENTRY, path)
    stop = np.flatnonzero(stored["relative_offset"][1:] == 0)
    if len(stop):
        stored = stored[: stop[0] + 1]
        if len(stored) == 1 and stored[0]["timestamp"] == 0 and stored[0]["relative_offset"] == 0:
            stored = stored[:0]
    return with_offsets(stored, ENTRY, base_offset)


def write(entries: NDArray[np.void], base_offset: int, path: str) -> bytes:
    """Return ENTRY[n] as the bytes of a `.timeindex`. Raise kind "relative_offset" if an offset does not fit."""
    return without_base(entries, TIME_INDEX_ENTRY, base_offset, path)
