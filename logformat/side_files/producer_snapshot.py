"""The state of a partition's producers at an offset: `<offset>.snapshot`, valid for all data below that offset.

Entries are in no order (Kafka writes them in that of a hash map): two snapshots are compared as maps. Of the batches
that a broker remembers for each producer only the last one is stored.

Source: Kafka's ProducerStateManager.writeSnapshot, readSnapshot and ProducerSnapshot.json (4.3.0).
"""

from __future__ import annotations

from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from logformat.errors import LogFormatError
from logformat.layout import SNAPSHOT_CRC_START, SNAPSHOT_ENTRY, SNAPSHOT_HEADER, field_offset

ENTRY: Final = SNAPSHOT_ENTRY.newbyteorder("=")
_VERSION: Final = 1


def read(data: bytes, path: str) -> NDArray[np.void]:
    """Entries of a snapshot as ENTRY[n] in native byte order, in the file's order.

    Raises kind "side_file" if it is cut, of another version, its CRC does not fit, or a producer stands in it twice.
    """
    if len(data) < SNAPSHOT_HEADER.itemsize:
        raise LogFormatError(
            "side_file", path, 0, f"at least {SNAPSHOT_HEADER.itemsize} bytes", f"{len(data)}", hint=_HINT
        )
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != _VERSION:
        raise LogFormatError("side_file", path, 0, f"snapshot version {_VERSION}", str(header["version"]))
    crc = google_crc32c.value(data[SNAPSHOT_CRC_START:])
    if header["crc"] != crc:
        raise LogFormatError(
            "side_file",
            path,
            field_offset(SNAPSHOT_HEADER, "crc"),
            f"CRC {crc:08x}",
            f"{header['crc']:08x}",
            hint=_HINT,
        )
    size = SNAPSHOT_HEADER.itemsize + int(header["count"]) * SNAPSHOT_ENTRY.itemsize
    if header["count"] < 0 or len(data) != size:
        raise LogFormatError(
            "side_file", path, SNAPSHOT_CRC_START, f"entries that fill {len(data)} bytes", str(header["count"])
        )
    entries = np.frombuffer(data, SNAPSHOT_ENTRY, int(header["count"]), SNAPSHOT_HEADER.itemsize).astype(ENTRY)
    if len(np.unique(entries["producer_id"])) != len(entries):
        raise LogFormatError("side_file", path, SNAPSHOT_HEADER.itemsize, "each producer once", "one twice")
    return entries


def write(entries: NDArray[np.void]) -> bytes:
    """Bytes of a snapshot of ENTRY[n], in the order given."""
    header = np.zeros((), SNAPSHOT_HEADER)
    header["version"] = _VERSION
    header["count"] = len(entries)
    body = entries.astype(SNAPSHOT_ENTRY).tobytes()
    header["crc"] = google_crc32c.value(header.tobytes()[SNAPSHOT_CRC_START:] + body)
    return header.tobytes() + body


def same_entries(left: NDArray[np.void], right: NDArray[np.void]) -> bool:
    """Whether two snapshots, ENTRY[n] in any order, hold the same producers in the same state."""
    left, right = left[np.argsort(left["producer_id"])], right[np.argsort(right["producer_id"])]
    return bool(np.array_equal(left, right))


_HINT: Final = "the producer state can be rebuilt from an older snapshot, or from the log"
