"""Aborted transactions of a segment: `.txnindex`, 34 bytes an entry.

The segment with a transaction's ABORT marker holds its entry; a segment without such a marker usually has no file.
Entries are in the order of the markers; producer_state decides them.

Source: Kafka's TransactionIndex and AbortedTxn (4.3.0). Differences: Kafka ignores a torn last entry; here it is an
error unless the caller allows it, because a lost entry would bring aborted records back to life. Kafka reads one byte
of the version; here both count.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import TXN_INDEX_ENTRY
from lastkey.logformat.side_files.offset_index import check_entries, stored_entries

ENTRY: Final = TXN_INDEX_ENTRY.newbyteorder("=")  # version, producer_id, first_, last_ and last_stable_offset
_SIZE: Final = TXN_INDEX_ENTRY.itemsize
_VERSION: Final = 0


def read(data: bytes, path: str, *, allow_torn: bool = False) -> NDArray[np.void]:
    """Read a `.txnindex` as ENTRY[n] in native byte order.

    Raises kind "index" for an unknown version, and for a torn last entry, unless `allow_torn` leaves it out as a broker
    does.
    """
    entries = stored_entries(data, TXN_INDEX_ENTRY, path, allow_torn=allow_torn).astype(ENTRY)
    check_entries(entries["version"] != _VERSION, f"version {_VERSION}", entries["version"], path, _SIZE)
    return entries


def write(entries: NDArray[np.void]) -> bytes:
    """Return ENTRY[n] as the bytes of a `.txnindex`. Without entries the caller should write no file."""
    return entries.astype(TXN_INDEX_ENTRY).tobytes()


def wrong_entry(path: str, row: int, expected: str, entry: np.void) -> LogFormatError:
    """Return the error, kind "index", for a wrong entry (a row of ENTRY[n])."""
    found = (
        f"producer {entry['producer_id']}, offsets {entry['first_offset']} to {entry['last_offset']}, "
        f"last stable {entry['last_stable_offset']}"
    )
    return LogFormatError("index", path, row * _SIZE, expected, found)
