"""Where to go on behind bytes that are no batch."""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat import offset_index
from logformat.batch_headers import read_exactly
from logformat.errors import LogFormatError
from logformat.layout import BATCH_HEADER, LOG_OVERHEAD, MAGIC_OFFSET, MIN_LEGACY_SIZE, PREFIX
from udfs.read_plan import Piece
from udfs.read_rows import cached_root
from udfs.storage import Root, opened, read_file

# Nothing behind such a problem can be told from it
_ENDS: Final = frozenset({"unreadable", "changed", "torn_tail"})
_BY_LENGTH: Final = frozenset({"crc", "codec", "count", "offsets", "transaction"})  # the length before it was believed


def resume_position(root: Root, piece: Piece, error: LogFormatError, position: int) -> int | None:
    """Position of the next batch behind the bad one at `position`; None: none in this piece can be told.

    By the bad batch's length where the walk found nothing wrong with that; else by the first entry of the offset index
    behind it that points at a batch which ends at the entry's offset. Raises nothing but programming errors.
    """
    if error.kind in _ENDS:
        return None
    try:
        with opened(root, piece.path) as file:
            if error.kind in _BY_LENGTH:
                prefix = np.empty(LOG_OVERHEAD, np.uint8)
                read_exactly(file, piece.shown, position, prefix)
                length = int(prefix.view(PREFIX)["length"][0])
                behind = position + LOG_OVERHEAD + length
                if length >= MIN_LEGACY_SIZE and behind <= piece.end:
                    return behind
            if piece.index is None:
                return None
            beside, path = piece.index
            entries = offset_index.read(read_file(cached_root(beside), path), piece.base_offset, path)
            inside = (entries["position"] > position) & (entries["position"] < piece.end)
            for entry in entries[inside]:  # the first one, unless the index is wrong too
                if _is_batch(file, piece, int(entry["position"]), int(entry["offset"])):
                    return int(entry["position"])
    except LogFormatError:
        return None
    return None


def _is_batch(file: object, piece: Piece, position: int, last_offset: int) -> bool:
    """Whether a batch at this position ends at this offset; of magic 0 and 1 a message that has it."""
    if position + BATCH_HEADER.itemsize > piece.end:
        return False
    raw = np.empty(BATCH_HEADER.itemsize, np.uint8)
    read_exactly(file, piece.shown, position, raw)
    header = raw.view(BATCH_HEADER)[0]
    delta = int(header["last_offset_delta"]) if raw[MAGIC_OFFSET] == 2 else 0
    return bool(raw[MAGIC_OFFSET] <= 2 and int(header["base_offset"]) + delta == last_offset)
