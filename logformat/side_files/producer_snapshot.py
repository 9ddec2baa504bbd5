"""State of a partition's producers at an offset: `<offset>.snapshot`, valid for all data below that offset.

Entries are in no order (Kafka writes them in that of a hash map), so compare snapshots as maps. A broker remembers
several batches of each producer, but stores only the last one.

Source: Kafka's ProducerStateManager.writeSnapshot, readSnapshot and ProducerSnapshot.json (4.3.0).
"""

from __future__ import annotations

from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import SNAPSHOT_CRC_START, SNAPSHOT_ENTRY, SNAPSHOT_HEADER, field_offset

ENTRY: Final = SNAPSHOT_ENTRY.newbyteorder("=")
_VERSION: Final = 1


def read(data: bytes, path: str) -> NDArray[np.void]:
    """Read a snapshot as ENTRY[n] in native byte order, in the file's order.

    Raises kind "side_file" if the file is cut, has another version or a wrong CRC, or holds a producer twice.
    """
    if len(data) < SNAPSHOT_HEADER.itemsize:
        expected = f"at least {SNAPSHOT_HEADER.itemsize} bytes"
        raise LogFormatError("side_file", path, 0, expected, f"{len(data)}", hint=_HINT)
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != _VERSION:
        raise LogFormatError("side_file", path, 0, f"snapshot version {_VERSION}", str(header["version"]))
    crc = google_crc32c.value(data[SNAPSHOT_CRC_START:])
    if header["crc"] != crc:
        position, found = field_offset(SNAPSHOT_HEADER, "crc"), f"{header['crc']:08x}"
        raise LogFormatError("side_file", path, position, f"CRC {crc:08x}", found, hint=_HINT)
    size = SNAPSHOT_HEADER.itemsize + int(header["count"]) * SNAPSHOT_ENTRY.itemsize
    if header["count"] < 0 or len(data) != size:
        expected = f"entries that fill {len(data)} bytes"
        raise LogFormatError("side_file", path, SNAPSHOT_CRC_START, expected, str(header["count"]))
    entries = np.frombuffer(data, SNAPSHOT_ENTRY, int(header["count"]), SNAPSHOT_HEADER.itemsize).astype(ENTRY)
    if len(np.unique(entries["producer_id"])) != len(entries):
        raise LogFormatError("side_file", path, SNAPSHOT_HEADER.itemsize, "each producer once", "a producer twice")
    return entries


def write(entries: NDArray[np.void]) -> bytes:
    """Return ENTRY[n] as the bytes of a snapshot, in the given order."""
    header = np.zeros((), SNAPSHOT_HEADER)
    header["version"] = _VERSION
    header["count"] = len(entries)
    body = entries.astype(SNAPSHOT_ENTRY).tobytes()
    header["crc"] = google_crc32c.value(header.tobytes()[SNAPSHOT_CRC_START:] + body)
    return header.tobytes() + body


def same_entries(left: NDArray[np.void], right: NDArray[np.void]) -> bool:
    """Return whether two snapshots, ENTRY[n] in any order, hold the same producers in the same state."""
    left, right = left[np.argsort(left["producer_id"])], right[np.argsort(right["producer_id"])]
    return bool(np.array_equal(left, right))


_HINT: Final = "the producer state can be rebuilt from an older snapshot, or from the log"
