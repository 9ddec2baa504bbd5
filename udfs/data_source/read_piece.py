"""The rows of a piece of a log, read stretch by stretch: across damage, up to a gap after it.

Damage is a row with the column `problem`. Reading continues at the next batch, to which the length of the damaged
one or the offset index leads. Gaps are found after the segments that a task reads to their ends (`udfs.holes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.chunks import Chunk, Tail, read_exactly
from lastkey.logformat.batches.header_kernels import trail_v3
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError, stopped
from lastkey.logformat.layout import BATCH_HEADER, LOG_OVERHEAD, MAX_MAGIC, MIN_LEGACY_SIZE, V3_LARGEST_HEADER
from lastkey.logformat.schemas import PATH, PROBLEM
from lastkey.logformat.side_files import offset_index
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, is_past
from lastkey.udfs.holes import GapFinder
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import Root, cached_root, log_file, opened, read_file


def aligned(batch: Any, schema: Any, piece: Piece) -> Any:
    """Return a record batch with `schema`, a pa.Schema: columns by name, cast if Spark has no such type.

    Fills in `path`; `problem` is null.
    """
    return pa.record_batch([_column(batch, field, piece) for field in schema], schema=schema)


def _column(batch: Any, field: Any, piece: Piece) -> Any:
    if field.name == PROBLEM.name:
        return pa.nulls(len(batch), field.type)
    if field.name == PATH.name:
        return pa.repeat(pa.scalar(piece.shown, field.type), len(batch))
    values = batch.column(field.name)
    return values if values.type == field.type else values.cast(field.type)


def problem_row(schema: Any, piece: Piece, problem: Problem) -> Any:
    """Return one row of `schema` with topic, partition, path and problem, as far as it has such columns; else nulls."""
    known = {field.name: getattr(problem, field.name) for field in fields(problem) if field.name != "state"}
    values = {"topic": piece.topic, "partition": piece.partition, PATH.name: problem.path, PROBLEM.name: known}
    return pa.record_batch([pa.array([values.get(field.name)], field.type) for field in schema], schema=schema)


GAP_HINT: Final = "bring the missing file back; or gaps=accept if it is known to be lost"


class Gaps:
    """Finder of gaps after the segments that a task reads to their ends."""

    def __init__(self, spec: ReadSpec) -> None:
        self._finder, self._logs_behind = GapFinder(GAP_HINT), spec.logs_behind

    def behind(self, piece: Piece, last_offset: int) -> Problem | None:
        """Return the gap after a piece within its offsets. last_offset: of the piece's last batch; -1: it has none."""
        if piece.behind is None:
            return None
        end = max(last_offset + 1, piece.base_offset)
        listed = piece.behind.segment
        log = ListedLog(listed.root, listed.path, listed.size_bytes)

        def above() -> Iterable[ListedLog]:
            return self._logs_behind(log) if self._logs_behind is not None else ()

        return self._finder.behind(piece.behind, end, piece.start_offset, piece.end_offset, above)


# Rows of whole batches, and the batches
Stretch = tuple[Iterator[Any], Chunk]
# The stretches of a log from a position on, after a last offset (-1: of no batch)
Stretches = Callable[[LogFile, int, int], Iterator[Stretch]]


def read_piece(piece: Piece, spec: ReadSpec, gaps: Gaps, reader: LogReader, stretches: Stretches) -> Iterator[Any]:
    """Yield the rows of a piece. reader: the one that `stretches` read with.

    Raises LogFormatError for unreadable data; with spec.quarantine it yields a row with the problem instead, and
    continues at the next batch.
    """
    if piece.problem is not None:
        yield _problem_row(piece, spec, piece.problem)
        return
    root, position, previous, ends = cached_root(piece.root), piece.start, -1, True
    log = log_file(root, piece.path, piece.end, piece.shown)
    while position < piece.end:
        try:
            for rows, chunk in stretches(log, position, previous):
                yield from rows
                past = is_past(piece, chunk.batches, previous)
                position, previous, ends = chunk.end, chunk.last_offset, True
                if past:
                    break
            else:
                _check_tail(log, piece, reader.tail)
            break
        except Exception as found_error:  # any error: the problem names the file
            error = stopped(found_error, piece.shown)
            if not spec.quarantine:
                raise error from error.__cause__
            yield problem_row(spec.schema, piece, Problem.of(error))
            resumed = resume_position(root, piece, error, position)
            if resumed is None:
                return
            position, ends = resumed, False  # the segment may end with the damage
    gap = gaps.behind(piece, previous) if ends else None
    if gap is not None:
        yield _problem_row(piece, spec, gap)


def _problem_row(piece: Piece, spec: ReadSpec, problem: Problem) -> Any:
    if not spec.quarantine:
        raise problem.as_error()
    return problem_row(spec.schema, piece, problem)


def _check_tail(log: LogFile, piece: Piece, tail: Tail) -> None:
    """Raise kind "torn_tail" unless the piece ends with a whole batch, or in the torn tail of a log still being
    written.

    A length that leads past the file's end looks like a torn tail, but the index may have an entry of a later batch.
    """
    if not tail.torn_bytes:
        return
    if piece.torn_tail:
        with log.open() as file:
            if next_indexed(file, piece, tail.position) is None:
                return
    raise LogFormatError(
        "torn_tail", piece.shown, tail.position, "whole batches up to the end", f"{tail.torn_bytes} more bytes"
    )


_ENDS: Final = frozenset({"unreadable", "changed", "defect", "memory"})  # no position after one is known
# The walk believed the length before it found these
_BY_LENGTH: Final = frozenset({"crc", "codec", "bomb", "count", "offsets", "transaction"})
# A header of magic 2, with room for a longer one of magic 3
_HEADER: Final = np.dtype([*BATCH_HEADER.descr, ("more", f"V{V3_LARGEST_HEADER - BATCH_HEADER.itemsize}")])


def resume_position(root: Root, piece: Piece, error: LogFormatError, position: int) -> int | None:
    """Return the position of the next batch after the bad one at `position`; None if this piece shows none.

    Candidates are the end of the damaged batch by its length, and the first valid entry of the offset index. The end is
    a candidate only if the walk used that length and a batch may follow. An entry is valid if its batch ends at the
    offset of the entry. The nearer position counts, because a length may be wrong.
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
    """Return the position of the first batch after `position` that the offset index has; None if missing."""
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
