"""Batch headers of pieces of logs as Arrow record batches. Nothing is decompressed, no checksum is checked, and of
local files only the headers are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer, Tail
from lastkey.logformat.batches.columns import Place, header_batch
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.batches.segment_bounds import check_offsets
from lastkey.logformat.schemas import BATCHES, select
from lastkey.udfs.data_source.gaps import Gaps
from lastkey.udfs.data_source.pieces import Piece, ReadSpec
from lastkey.udfs.data_source.rows import aligned
from lastkey.udfs.data_source.stretches import Stretch, read_piece

_BUFFER_BYTES: Final = 8 << 20
_MAX_ROWS: Final = 1 << 16


def read_batches(spec: ReadSpec, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the batches of all pieces that lie within the pieces' offsets, as pa.RecordBatch of spec.schema.

    Raises LogFormatError for what cannot be read; with spec.set_aside it yields a row with the problem instead.
    """
    schema = select(BATCHES, [name for name in spec.schema.names if name in BATCHES.names] or ["position"])
    buffer, gaps = ChunkBuffer(_BUFFER_BYTES), Gaps(spec)
    for piece in pieces:
        yield from read_piece(piece, spec, gaps, partial(_stretches, piece, spec, schema, buffer))


def _stretches(
    piece: Piece, spec: ReadSpec, schema: Any, buffer: ChunkBuffer, file: Any, position: int, previous: int, tail: Tail
) -> Iterator[Stretch]:
    for headers in read_headers(file, piece.shown, position, piece.end, buffer, tail, previous_last_offset=previous):
        _check(piece, spec, headers.batches)
        rows = _rows(piece, spec, schema, headers.batches, previous)
        yield rows, headers.batches, headers.position + headers.size
        previous = int(headers.batches["last_offset"][-1])


def _check(piece: Piece, spec: ReadSpec, batches: np.ndarray) -> None:
    if not spec.set_aside:  # with set_aside, batches are shown as they are
        check_offsets(piece.shown, piece.base_offset, piece.next_base_offset, batches)


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
