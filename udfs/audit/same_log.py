"""Comparison of a log with what was read of it: if the last batch is still there, the log has only grown.

The last batch of any kind: behind the last record may lie the marker that decided about it.
"""

from __future__ import annotations

from lastkey.logformat.batches.chunks import ChunkBuffer, Tail
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.data_source.pieces import Piece
from lastkey.udfs.storage import cached_root, opened


def last_batch(piece: Piece, position: int) -> tuple[int, int, int] | None:
    """Return position, checksum and end of the last batch in a piece and its offsets, searched from a batch on; None if
    there is none, or it cannot be read.
    """
    buffer, last = ChunkBuffer(1 << 16), None
    try:
        with opened(cached_root(piece.root), piece.path) as file:
            for headers in read_headers(file, piece.path, position, piece.end, buffer, Tail()):
                inside = headers.batches[headers.batches["last_offset"] < piece.end_offset]
                if len(inside):
                    last = inside[-1]
    except (LogFormatError, OSError):
        return None
    return None if last is None else (int(last["position"]), int(last["crc"]), int(last["position"] + last["size"]))


def batch_end(root: str, path: str, size: int, position: int, crc: int) -> int | None:
    """Return the offset behind the batch at a position of a `.log` of this size; None if it has another checksum, or
    cannot be read.
    """
    buffer = ChunkBuffer(1 << 10)
    try:
        with opened(cached_root(root), path) as file:
            found = next(read_headers(file, path, position, size, buffer, Tail()), None)
    except (LogFormatError, OSError):
        return None
    if found is None or int(found.batches["crc"][0]) != crc:
        return None
    return int(found.batches["last_offset"][0]) + 1
