"""The aborted transactions of a segment: `.txnindex`, 34 bytes an entry.

An entry stands in the segment that holds its ABORT marker; a segment without one usually has no file. Entries are in
the order of the markers. They are decided in producer_state.

Source: Kafka's TransactionIndex and AbortedTxn (4.3.0). Differences: Kafka ignores a torn last entry, here that is an
error unless asked for, since a lost entry would bring aborted records back to life; Kafka looks at one byte of the
version, here at both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logformat.errors import LogFormatError
from logformat.layout import TXN_INDEX_ENTRY

ENTRY: Final = TXN_INDEX_ENTRY.newbyteorder("=")  # version, producer_id, first_, last_ and last_stable_offset
_SIZE: Final = TXN_INDEX_ENTRY.itemsize
_VERSION: Final = 0


def read(data: bytes, path: str, *, allow_torn: bool = False) -> NDArray[np.void]:
    """Entries of a `.txnindex` as ENTRY[n] in native byte order.

    A torn last entry raises kind "index", or is left out as the broker does (`allow_torn`); an unknown version raises
    kind "index".
    """
    torn = len(data) % _SIZE
    if torn and not allow_torn:
        raise LogFormatError("index", path, len(data) - torn, f"entries of {_SIZE} bytes", f"{torn} bytes at the end")
    entries = np.frombuffer(data, TXN_INDEX_ENTRY, len(data) // _SIZE).astype(ENTRY)
    _check(entries["version"] != _VERSION, f"version {_VERSION}", entries["version"], path)
    return entries


def write(entries: NDArray[np.void]) -> bytes:
    """Bytes of a `.txnindex` of ENTRY[n]. Of no entries there is no file: the caller writes none."""
    return entries.astype(TXN_INDEX_ENTRY).tobytes()


def wrong_entry(path: str, row: int, expected: str, entry: np.void) -> LogFormatError:
    """What is wrong with an entry (a row of ENTRY[n]), kind "index"."""
    found = (
        f"producer {entry['producer_id']}, offsets {entry['first_offset']} to {entry['last_offset']}, "
        f"last stable {entry['last_stable_offset']}"
    )
    return LogFormatError("index", path, row * _SIZE, expected, found)


def _check(wrong: NDArray[np.bool_], expected: str, values: NDArray[np.int64], path: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise LogFormatError("index", path, row * _SIZE, expected, str(int(values[row])))
