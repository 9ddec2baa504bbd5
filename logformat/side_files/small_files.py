"""Reader of small files beside a log, as a whole. An implausibly large file counts as damaged and is not read.

A sparse or swapped file would else take its whole size in memory, and a text of millions of lines ten times that.
"""

from __future__ import annotations

from typing import Any, Final

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.layout import TIME_INDEX_ENTRY
from lastkey.logformat.storage.io_counts import spend
from lastkey.logformat.storage.regular_files import open_regular

MOST_SIDE_BYTES: Final = 64 << 20  # 1.4 million producers in a snapshot, 1.9 million aborted transactions of a segment
MOST_TEXT_BYTES: Final = 16 << 20  # 60,000 partitions with the longest of names in a checkpoint
_SMALLEST_BATCH: Final = 26  # bytes; an index has at most as many entries as its log has batches
_INDEXES: Final = (names.INDEX, names.TIME_INDEX)
_BINARY: Final = (*_INDEXES, names.TXN_INDEX, names.SNAPSHOT)


def most_side_bytes(path: str, log_bytes: int = 0) -> int:
    """Return the largest plausible size of a side file, by its name; log_bytes: of an index's log, if known."""
    kind = path.rpartition("/")[2].partition(".")[2].partition(".")[0]
    if kind not in _BINARY:
        return MOST_TEXT_BYTES
    if kind not in _INDEXES:
        return MOST_SIDE_BYTES
    return max(MOST_SIDE_BYTES, (log_bytes // _SMALLEST_BATCH + 1) * TIME_INDEX_ENTRY.itemsize)


def read_small_file(filesystem: Any, path: str, shown: str = "", log_bytes: int = 0) -> bytes:
    """Open a file and read all of it. shown: see regular_files.open_regular; the rest as in read_side_file."""
    with open_regular(filesystem, path, shown) as file:
        return read_side_file(file, shown or path, log_bytes)


def read_side_file(file: Any, path: str, log_bytes: int = 0) -> bytes:
    """Read all bytes of an open pyarrow file; log_bytes: see most_side_bytes.

    Raises kind "side_file" for a file that is too large, "unreadable" for one that cannot be read.
    """
    with readable(path):
        size, most = int(file.size()), most_side_bytes(path, log_bytes)
        data = bytes(file.read(size)) if size <= most else b""
        spend(len(data))
    if size > most:
        raise LogFormatError("side_file", path, most, f"no more than {most} bytes in a file of this kind", f"{size}")
    return data
