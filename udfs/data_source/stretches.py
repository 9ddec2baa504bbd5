"""The loop that reads a piece of a log, stretch by stretch, and goes on behind what cannot be read."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lastkey.logformat.batches.chunks import Tail
from lastkey.logformat.errors import LogFormatError, stopped
from lastkey.udfs.data_source.gaps import Gaps
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, is_past
from lastkey.udfs.data_source.resume import next_indexed, resume_position
from lastkey.udfs.data_source.rows import problem_row
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened

# Rows of whole batches, their headers, and the position behind them
Stretch = tuple[Iterator[Any], np.ndarray, int]
# The stretches of an open file from a position on, behind a last offset (-1: of no batch)
Stretches = Callable[[Any, int, int, Tail], Iterator[Stretch]]


def read_piece(piece: Piece, spec: ReadSpec, gaps: Gaps, stretches: Stretches) -> Iterator[Any]:
    """Yield the rows of a piece. Raise LogFormatError for what cannot be read; with spec.set_aside yield a row with the
    problem instead, and go on at the next batch.
    """
    if piece.problem is not None:
        yield _told(piece, spec, piece.problem)
        return
    root, position, previous, ends = cached_root(piece.root), piece.start, -1, True
    while position < piece.end:
        tail = Tail(position)
        try:
            with opened(root, piece.path) as file:
                _check_size(file, piece)
                for rows, batches, behind in stretches(file, position, previous, tail):
                    yield from rows
                    past = is_past(piece, batches, previous)
                    position, previous, ends = behind, int(batches["last_offset"][-1]), True
                    if past:
                        break
                else:
                    _check_tail(file, piece, tail)
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
        yield _told(piece, spec, gap)


def _told(piece: Piece, spec: ReadSpec, problem: Problem) -> Any:
    if not spec.set_aside:
        raise problem.as_error()
    return problem_row(spec.schema, piece, problem)


def _check_size(file: Any, piece: Piece) -> None:
    """Raise kind "changed" unless the file still holds the piece."""
    size = os.fstat(file.fileno()).st_size if isinstance(file, io.FileIO) else int(file.size())
    if size < piece.end:
        raise LogFormatError("changed", piece.shown, size, f"{piece.end} bytes, as listed", f"{size}")


def _check_tail(file: Any, piece: Piece, tail: Tail) -> None:
    """Raise kind "torn_tail" unless the piece ends with a whole batch, or in the torn tail of a log still being
    written.

    A length that leads behind the file's end looks like a torn tail, but the index may know a batch behind it.
    """
    if tail.torn_bytes and not (piece.torn_tail and next_indexed(file, piece, tail.position) is None):
        raise LogFormatError(
            "torn_tail", piece.shown, tail.position, "whole batches up to the end", f"{tail.torn_bytes} more bytes"
        )
