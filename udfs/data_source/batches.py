"""Batch headers of pieces of logs as Arrow record batches. Nothing is decompressed, no checksum is checked, and of
local files only the headers are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer, Tail
from lastkey.logformat.batches.columns import Place, header_batch
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.batches.segment_bounds import check_offsets
from lastkey.logformat.errors import stopped
from lastkey.logformat.schemas import BATCHES, select
from lastkey.udfs.data_source.gaps import Gaps
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, is_past
from lastkey.udfs.data_source.records import check_size, check_tail
from lastkey.udfs.data_source.resume import resume_position
from lastkey.udfs.data_source.rows import aligned, problem_row
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened

_BUFFER_BYTES: Final = 8 << 20
_MAX_ROWS: Final = 1 << 16


def read_batches(spec: ReadSpec, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the batches of all pieces that lie within the pieces' offsets, as pa.RecordBatch of spec.schema.

    Raises LogFormatError for what cannot be read; with spec.set_aside it yields a row with the problem instead.
    """
    schema = select(BATCHES, [name for name in spec.schema.names if name in BATCHES.names] or ["position"])
    buffer, gaps = ChunkBuffer(_BUFFER_BYTES), Gaps(spec)
    for piece in pieces:
        yield from _read(piece, spec, schema, buffer, gaps)


def _read(piece: Piece, spec: ReadSpec, schema: Any, buffer: ChunkBuffer, gaps: Gaps) -> Iterator[Any]:
    if piece.problem is not None:
        if not spec.set_aside:
            raise piece.problem.as_error()
        yield problem_row(spec.schema, piece, piece.problem)
        return
    root, position, previous, ends = cached_root(piece.root), piece.start, -1, True
    while position < piece.end:
        tail = Tail(position)
        try:
            with opened(root, piece.path) as file:
                check_size(file, piece)
                for headers in read_headers(
                    file, piece.shown, position, piece.end, buffer, tail, previous_last_offset=previous
                ):
                    _check(piece, spec, headers.batches)
                    yield from _rows(piece, spec, schema, headers.batches, previous)
                    past = is_past(piece, headers.batches, previous)
                    position, previous = headers.position + headers.size, int(headers.batches["last_offset"][-1])
                    ends = True
                    if past:
                        break
                else:
                    check_tail(file, piece, tail)
            break
        except Exception as found_error:  # of whatever kind: the problem names the file
            error = stopped(found_error, piece.shown)
            if not spec.set_aside:
                raise error from error.__cause__
            yield problem_row(spec.schema, piece, Problem.of(error))
            found = resume_position(root, piece, error, position)
            if found is None:
                return
            position, ends = found, False  # the segment may end with the damage
    gap = gaps.behind(piece, previous) if ends else None
    if gap is not None:
        if not spec.set_aside:
            raise gap.as_error()
        yield problem_row(spec.schema, piece, gap)


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
