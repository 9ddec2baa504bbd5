"""Batch headers of pieces of logs as Arrow record batches. Nothing is decompressed, no checksum is checked, and of
local files only the headers are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.columns import Place, header_batch
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.segment_bounds import check_offsets
from lastkey.logformat.regular_files import LogFile
from lastkey.logformat.schemas import BATCHES, select
from lastkey.udfs.data_source.pieces import Piece, ReadSpec
from lastkey.udfs.data_source.read_piece import Gaps, Stretch, aligned, read_piece

_MAX_ROWS: Final = 1 << 16


def read_batches(spec: ReadSpec, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the batches of all pieces that lie within the pieces' offsets, as pa.RecordBatch of spec.schema.

    Raises LogFormatError for what cannot be read; with spec.set_aside it yields a row with the problem instead.
    """
    schema = select(BATCHES, [name for name in spec.schema.names if name in BATCHES.names] or ["position"])
    reader, gaps = LogReader(), Gaps(spec)
    for piece in pieces:
        yield from read_piece(piece, spec, gaps, reader, partial(_stretches, piece, spec, schema, reader))


def _stretches(
    piece: Piece, spec: ReadSpec, schema: Any, reader: LogReader, log: LogFile, position: int, previous: int
) -> Iterator[Stretch]:
    for chunk in reader.headers(log, position, previous_last_offset=previous):
        if not spec.set_aside:  # with set_aside, batches are shown as they are
            check_offsets(piece.shown, piece.base_offset, piece.next_base_offset, chunk.batches)
        yield _rows(piece, spec, schema, chunk.batches, chunk.before), chunk


def _rows(piece: Piece, spec: ReadSpec, schema: Any, batches: np.ndarray, previous: int) -> Iterator[Any]:
    """Yield the batches within the piece's offsets as rows. previous: last offset of the batch before them. A
    compressed batch of magic 0 or 1 begins right behind the one before it: no header says where.
    """
    behind = np.concatenate([[previous], batches["last_offset"][:-1]]) + 1
    begins = np.where(batches["base_offset"] < 0, behind, batches["base_offset"])
    inside = (batches["last_offset"] >= piece.start_offset) & (begins < piece.end_offset)
    chosen = batches[inside]
    step = spec.max_rows or _MAX_ROWS
    for first in range(0, len(chosen), step):
        rows = header_batch(chosen[first : first + step], schema, Place(piece.topic, piece.partition))
        yield aligned(rows, spec.schema, piece)
