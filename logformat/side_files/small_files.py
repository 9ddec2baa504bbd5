"""Small files beside a log, read whole; one that is larger than it can sensibly be is damaged, and not read.

A sparse or swapped file would else cost its whole size in memory, and a text of millions of lines ten times that.
"""

from __future__ import annotations

from typing import Any, Final

from logformat import names
from logformat.errors import LogFormatError, readable
from logformat.layout import TIME_INDEX_ENTRY
from logformat.regular_files import opened

MOST_SIDE_BYTES: Final = 64 << 20  # 1.4 million producers in a snapshot, 1.9 million aborted transactions of a segment
MOST_TEXT_BYTES: Final = 16 << 20  # 60,000 partitions with the longest of names in a checkpoint
_SMALLEST_BATCH: Final = 26  # bytes; no index has more entries than its log has batches
_INDEXES: Final = (names.INDEX, names.TIME_INDEX)
_BINARY: Final = (*_INDEXES, names.TXN_INDEX, names.SNAPSHOT)


def most_side_bytes(path: str, log_bytes: int = 0) -> int:
    """The largest that a side file can sensibly be, by its name; log_bytes: of the log beside an index, where known."""
    kind = path.rpartition("/")[2].partition(".")[2].partition(".")[0]
    if kind not in _BINARY:
        return MOST_TEXT_BYTES
    if kind not in _INDEXES:
        return MOST_SIDE_BYTES
    return max(MOST_SIDE_BYTES, (log_bytes // _SMALLEST_BATCH + 1) * TIME_INDEX_ENTRY.itemsize)


def read_small_file(filesystem: Any, path: str, shown: str = "", log_bytes: int = 0) -> bytes:
    """All bytes of a file that is to be opened; shown: see regular_files.opened; the rest as read_side_file."""
    with opened(filesystem, path, shown) as file:
        return read_side_file(file, shown or path, log_bytes)


def read_side_file(file: Any, path: str, log_bytes: int = 0) -> bytes:
    """All bytes of an open pyarrow file; log_bytes: see most_side_bytes.

    A larger one raises kind "side_file", one that cannot be read "unreadable".
    """
    with readable(path):
        size, most = int(file.size()), most_side_bytes(path, log_bytes)
        data = bytes(file.read(size)) if size <= most else b""
    if size > most:
        raise LogFormatError("side_file", path, most, f"no more than {most} bytes in a file of this kind", f"{size}")
    return data
