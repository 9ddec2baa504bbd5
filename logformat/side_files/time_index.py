"""The sparse time index of a segment: `.timeindex`, 12 bytes an entry.

An entry says: up to and with the batch that ends at `offset`, no timestamp is larger than `timestamp`; the earliest
batch that carries it ends at `offset`. So a larger timestamp can only be found behind that offset. A segment whose
timestamps are all -1 has no entries. Which entries there are is decided in index_builder.

Source: Kafka's TimeIndex and TimestampOffset (4.3.0). Difference: `sanity_check` also asks that entries rise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logformat.errors import LogFormatError
from logformat.layout import NO_TIMESTAMP, TIME_INDEX_ENTRY
from logformat.side_files.offset_index import check_relative

ENTRY: Final = np.dtype(
    [
        ("timestamp", "i8"),  # ms, largest so far in the segment
        ("offset", "i8"),  # absolute: last offset of the earliest batch that carries it
    ]
)
_SIZE: Final = TIME_INDEX_ENTRY.itemsize


def read(data: bytes, base_offset: int, path: str) -> NDArray[np.void]:
    """Entries of a `.timeindex` as ENTRY[n], without the zeros that a preallocated file ends with.

    The zeros begin at the first entry, other than the very first, whose relative offset is 0; a first entry of zeros
    is kept only where it is the whole file, or another entry follows. A torn file (length no multiple of 12) raises
    kind "index". Nothing else is checked: see `sanity_check`.
    """
    if len(data) % _SIZE:
        whole = len(data) - len(data) % _SIZE
        raise LogFormatError("index", path, whole, f"entries of {_SIZE} bytes", f"{len(data) - whole} bytes at the end")
    stored = np.frombuffer(data, TIME_INDEX_ENTRY)
    stop = np.flatnonzero(stored["relative_offset"][1:] == 0)
    if len(stop):
        stored = stored[: stop[0] + 1]
        if len(stored) == 1 and stored[0]["timestamp"] == 0 and stored[0]["relative_offset"] == 0:
            stored = stored[:0]
    entries = np.empty(len(stored), ENTRY)
    entries["timestamp"] = stored["timestamp"]
    entries["offset"] = stored["relative_offset"]
    entries["offset"] += base_offset
    return entries


def write(entries: NDArray[np.void], base_offset: int, path: str) -> bytes:
    """Bytes of a `.timeindex` of ENTRY[n]; kind "relative_offset" if an offset does not fit."""
    relative = entries["offset"] - base_offset
    check_relative(relative, base_offset, path, _SIZE)
    stored = np.empty(len(entries), TIME_INDEX_ENTRY)
    stored["timestamp"] = entries["timestamp"]
    stored["relative_offset"] = relative
    return stored.tobytes()


def lookup(entries: NDArray[np.void], targets: ArrayLike, base_offset: int) -> NDArray[np.void]:
    """For each target timestamp (ms, any shape) the entry with the greatest timestamp <= target, or (-1, base_offset).

    The first record with a timestamp >= target lies in the batch that ends at the offset found, or behind it.
    """
    with_default: NDArray[Any] = np.empty(len(entries) + 1, ENTRY)
    with_default[0] = (NO_TIMESTAMP, base_offset)
    with_default[1:] = entries
    return with_default[np.searchsorted(entries["timestamp"], np.asarray(targets, np.int64), side="right")]


def sanity_check(entries: NDArray[np.void], base_offset: int, path: str) -> None:
    """Raise kind "index" at the first entry that no writer makes: before the base, or not rising.

    Timestamps rise and are above -1; offsets rise with them.
    """
    timestamp, offset = entries["timestamp"], entries["offset"]
    later = np.zeros((2, len(entries)), np.bool_)
    later[0, 1:] = timestamp[1:] <= timestamp[:-1]
    later[1, 1:] = offset[1:] <= offset[:-1]
    for wrong, expected, values in (
        (offset < base_offset, f"an offset from {base_offset} on", offset),
        (timestamp <= NO_TIMESTAMP, "a timestamp from 0 on", timestamp),
        (later[0], "timestamps that rise", timestamp),
        (later[1], "offsets that rise", offset),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            raise LogFormatError("index", path, first * _SIZE, expected, str(int(values[first])))
