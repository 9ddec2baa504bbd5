"""Comparison of a log with what was read of it: if the last batch is still there, the log has only grown.

The last batch of any kind: behind the last record may lie the marker that decided about it.
"""

from __future__ import annotations

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.data_source.pieces import Piece
from lastkey.udfs.storage import cached_root, log_file


def last_batch(piece: Piece, position: int) -> tuple[int, int, int] | None:
    """Return position, checksum and end of the last batch in a piece and its offsets, searched from a batch on; None if
    there is none, or it cannot be read.
    """
    last = None
    try:
        for chunk in LogReader(1 << 16).headers(log_file(cached_root(piece.root), piece.path, piece.end), position):
            inside = chunk.batches[chunk.batches["last_offset"] < piece.end_offset]
            if len(inside):
                last = inside[-1]
    except (LogFormatError, OSError):
        return None
    return None if last is None else (int(last["position"]), int(last["crc"]), int(last["position"] + last["size"]))


def batch_end(root: str, path: str, size: int, position: int, crc: int) -> int | None:
    """Return the offset behind the batch at a position of a `.log` of this size; None if it has another checksum, or
    cannot be read.
    """
    try:
        found = next(LogReader(1 << 10).headers(log_file(cached_root(root), path, size), position), None)
    except (LogFormatError, OSError):
        return None
    if found is None or int(found.batches["crc"][0]) != crc:
        return None
    return int(found.batches["last_offset"][0]) + 1
