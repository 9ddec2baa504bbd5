"""Survivors in the message format of the store (`store.format`), just before they are written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, Chunk
from lastkey.logformat.layout import BATCH
from lastkey.logformat.writing.formats import Converter
from lastkey.udfs.compact.clean.clean_batches import CleanedRun
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.plan import LARGEST_V3_BYTES


def converter_for(size: int, rules: Rules, max_batch_bytes: int) -> Converter | None:
    """Return what converts the survivors of a segment of `size` bytes; None: they stay as they are."""
    if rules.magic == 3 and size > LARGEST_V3_BYTES:
        return None
    return Converter(rules.magic, max_batch_bytes=max_batch_bytes)


def in_format(piece: CleanedRun, chunk: Chunk, converter: Converter | None, path: str) -> CleanedRun:
    """Return a piece of a chunk with its batches in the converter's format, or as it is where none can change."""
    if converter is None:
        return piece
    if converter.magic == 2 and not (chunk.batches["magic"] == 3).any():
        return piece
    data = piece.data
    if data is None:
        if piece.position < 0:  # a dry run
            return piece
        data = chunk.raw[piece.position - chunk.position :][: piece.size]
    batches = np.empty(len(piece.rows), BATCH)
    walk.walk_batches(data, len(data), 0, -1, NO_END, False, batches)
    if not converter.candidates(data, 0, batches).any():
        return piece
    parts = list(converter.convert(data, 0, batches, path))
    rows = piece.rows.copy()
    rows["size"] = np.concatenate([part.sizes for part in parts])
    rows["magic"][np.concatenate([part.changed for part in parts])] = converter.magic
    data = np.concatenate([part.data for part in parts])
    return replace(piece, rows=rows, data=data, position=-1, size=len(data))
