"""The position at which reading goes on behind bytes that are no batch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.batches.header_kernels import trail_v3
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH_HEADER, LOG_OVERHEAD, MAX_MAGIC, MIN_LEGACY_SIZE, V3_LARGEST_HEADER
from lastkey.logformat.side_files import offset_index
from lastkey.udfs.data_source.pieces import Piece
from lastkey.udfs.storage import Root, cached_root, opened, read_file

_ENDS: Final = frozenset({"unreadable", "changed", "defect", "memory"})  # no position behind one is known
# The walk believed the length before it found these
_BY_LENGTH: Final = frozenset({"crc", "codec", "bomb", "count", "offsets", "transaction"})
# A header of magic 2, with room for a longer one of magic 3
_HEADER: Final = np.dtype([*BATCH_HEADER.descr, ("more", f"V{V3_LARGEST_HEADER - BATCH_HEADER.itemsize}")])


def resume_position(root: Root, piece: Piece, error: LogFormatError, position: int) -> int | None:
    """Return the position of the next batch behind the bad one at `position`; None if this piece shows none.

    The bad batch's own length leads there, if it was believed and a batch may stand behind it; so does the first entry
    of the offset index that points at a batch which ends at the entry's offset. The nearer one counts, since a length
    may be wrong.
    """
    if error.kind in _ENDS:
        return None
    try:
        with opened(root, piece.path) as file:
            by_length = _behind(file, piece, position) if error.kind in _BY_LENGTH else None
            by_index = next_indexed(file, piece, position)
    except LogFormatError:
        return None
    found = [at for at in (by_length, by_index) if at is not None]
    return min(found, default=None)


def next_indexed(file: Any, piece: Piece, position: int) -> int | None:
    """Return the position of the first batch behind `position` that the offset index knows; None if there is none."""
    if piece.index is None:
        return None
    beside, path = piece.index
    try:
        entries = offset_index.read(read_file(cached_root(beside), path, piece.end), piece.base_offset, path)
    except LogFormatError:
        return None
    inside = entries[(entries["position"] > position) & (entries["position"] < piece.end)]
    for at, offset in zip(inside["position"].tolist(), inside["offset"].tolist(), strict=True):
        header = _header(file, piece, at)  # the first one fits, unless the index is wrong too
        if header is not None and _last_offset(header) == offset:
            return int(at)
    return None


def _behind(file: Any, piece: Piece, position: int) -> int | None:
    """Return the end of the batch at a position if it is the piece's end, or looks like the start of another batch."""
    header = _header(file, piece, position)
    if header is None or header["length"] < MIN_LEGACY_SIZE:
        return None
    end = position + LOG_OVERHEAD + int(header["length"])
    if end == piece.end:
        return end
    following = _header(file, piece, end)
    if following is None or not 0 <= following["magic"] <= MAX_MAGIC or following["length"] < MIN_LEGACY_SIZE:
        return None
    behind = end + LOG_OVERHEAD + int(following["length"])
    if following["magic"] == MAX_MAGIC and behind > piece.end:  # no broker appends to it, so it is never cut short
        return None
    return end


def _header(file: Any, piece: Piece, position: int) -> np.void | None:
    """Return the bytes at a position as a batch header of magic 2, and all of them; None: they are too few. For the
    other formats only the first fields count.
    """
    raw = np.zeros(V3_LARGEST_HEADER, np.uint8)
    n = min(len(raw), piece.end - position)
    if n < LOG_OVERHEAD + MIN_LEGACY_SIZE:
        return None
    read_exactly(file, piece.shown, position, raw[:n])
    header: np.void = raw.view(_HEADER)[0]
    return header


def _last_offset(header: np.void) -> int:
    base = int(header["base_offset"])
    if header["magic"] == 2:
        return base + int(header["last_offset_delta"])
    if header["magic"] == 3:
        last_delta, _, whole = trail_v3(np.frombuffer(header.tobytes(), np.uint8), 0, V3_LARGEST_HEADER)
        return base + int(last_delta) if whole else -1
    return base
