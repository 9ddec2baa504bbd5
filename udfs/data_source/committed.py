"""Which batches belong to aborted transactions: by the next marker of their producer, wherever behind them it lies.

A consumer is told by the broker, from the transaction index. Here markers are looked for in the log itself, so an
archive without `.txnindex` files gives the same: aborted data never lies in a log without its ABORT marker (the cleaner
drops the data first, and the marker later). The headers ahead of a chunk are read as far as its open transactions go,
usually a little, and never twice.

What is above the last stable offset is not read at all: the plan ends there (find_pieces). Below it, a batch without a
marker is data of a transaction whose marker was cleaned away, which only happens to committed ones; or, where the log
has damage that is set aside, of one that nobody can tell: it is withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logformat.batches.chunks import Chunk, ChunkBuffer, Tail
from logformat.batches.headers import read_headers
from logformat.errors import LogFormatError
from logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK
from udfs.data_source.plan import ListedLog, Piece
from udfs.storage import cached_root, opened

_BUFFER_BYTES: Final = 1 << 20
LogsBehind = Callable[[ListedLog], Iterable[ListedLog]]
_MARKER: Final = np.dtype([("producer_id", "i8"), ("offset", "i8"), ("aborted", "?")])


class Outcomes:
    """Markers of a piece and what lies behind it, read as far as they are asked for. Chunks come in order."""

    def __init__(self, piece: Piece, logs_behind: LogsBehind | None = None) -> None:
        self._ahead, self._doubtful = _markers(piece, logs_behind), piece.doubtful
        self._known = np.empty(0, _MARKER)  # by producer, then offset
        self._ended: LogFormatError | bool = False  # the log has ended, or its headers cannot be read any further

    def aborted(self, chunk: Chunk, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], LogFormatError | None]:
        """bool[n]: which of the chunk's batches are data of aborted transactions; decided for the wanted ones only.

        With an error, what lies ahead cannot be read: those that it would have decided are among them.
        """
        batches = chunk.batches
        out = np.zeros(len(batches), np.bool_)
        kind = batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = np.flatnonzero(wanted & (kind == TRANSACTIONAL_MASK) & (batches["producer_id"] >= 0))
        if not len(rows):
            return out, None
        producers, offsets = batches["producer_id"][rows], batches["last_offset"][rows]
        self._known = self._known[self._known["offset"] >= int(batches["base_offset"][rows[0]])]
        at = self._next(producers, offsets)
        while (at < 0).any() and not self._ended:
            found = self._read_on()
            if len(found):
                self._known = np.sort(np.concatenate([self._known, found]), order=["producer_id", "offset"])
                at = self._next(producers, offsets)
        known = at >= 0
        out[rows[known]] = self._known["aborted"][at[known]]
        error = self._ended if isinstance(self._ended, LogFormatError) and not known.all() else None
        out[rows[~known]] = self._doubtful or error is not None
        return out, error

    def _read_on(self) -> NDArray[np.void]:
        try:
            found = next(self._ahead, None)
        except LogFormatError as error:
            self._ended = error
            found = None
        self._ended = self._ended or found is None
        return np.empty(0, _MARKER) if found is None else found

    def _next(self, producers: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: row in `_known` of the first marker of a producer behind an offset; -1: not known."""
        if not len(self._known):
            return np.full(len(producers), -1)
        asked = np.zeros(len(producers), _MARKER)
        asked["producer_id"], asked["offset"] = producers, offsets
        both = np.concatenate([self._known, asked])
        order = np.lexsort((np.arange(len(both)) < len(self._known), both["offset"], both["producer_id"]))
        is_marker = order < len(self._known)
        behind = np.cumsum(is_marker)  # markers up to and with each place; so the next one has this row
        at = np.empty(len(producers), np.int64)
        at[order[~is_marker] - len(self._known)] = behind[~is_marker]
        none = at == len(self._known)
        at[none] = -1
        at[~none & (self._known["producer_id"][at] != producers)] = -1
        return at


def _markers(piece: Piece, logs_behind: LogsBehind | None) -> Iterator[NDArray[np.void]]:
    """_MARKER[m] of the piece's segment from its start on, then of the segments behind it, stretch by stretch."""
    buffer = ChunkBuffer(_BUFFER_BYTES)
    start = piece.start
    for log in _logs(piece, logs_behind):
        with opened(cached_root(log.root), log.path) as file:
            shown = f"{log.root}/{log.path}"
            for headers in read_headers(file, shown, start, log.size, buffer, Tail(), check_markers=True):
                yield _of(headers.batches)
        start = 0


def _logs(piece: Piece, logs_behind: LogsBehind | None) -> Iterator[ListedLog]:
    yield from piece.later
    if piece.more_later and logs_behind is not None:
        yield from logs_behind(piece.later[-1])


def _of(batches: NDArray[np.void]) -> NDArray[np.void]:
    rows = batches[batches["attributes"] & CONTROL_MASK != 0]
    rows = rows[(rows["control_type"] == CONTROL_ABORT) | (rows["control_type"] == CONTROL_COMMIT)]
    out = np.empty(len(rows), _MARKER)
    out["producer_id"], out["offset"] = rows["producer_id"], rows["base_offset"]
    out["aborted"] = rows["control_type"] == CONTROL_ABORT
    return out
