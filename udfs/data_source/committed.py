"""Batches of aborted transactions: the next marker of a batch's producer decides, wherever behind the batch it lies.

A broker tells consumers from the transaction index. This module looks for markers in the log itself, so an archive
without `.txnindex` files gives the same result: aborted data never lies in a log without its ABORT marker (the cleaner
drops the data first, and the marker later). Headers ahead of a chunk are read as far as its open transactions go,
usually a little, and never twice.

Nothing above the last stable offset is read at all: the plan ends there (find_pieces). Below it, every transaction has
its marker, because a cleaner keeps the marker while a batch is left. A transaction without one is open, although the
snapshot behind the last stable offset denies it. A broker believes the snapshot and serves the batch; here that is an
error. If the log has damage that is set aside, nobody can tell how the transaction of such a batch ended: the batch is
withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK
from lastkey.udfs.data_source.pieces import ListedLog, Piece
from lastkey.udfs.storage import cached_root, log_file

_BUFFER_BYTES: Final = 1 << 20
LogsBehind = Callable[[ListedLog], Iterable[ListedLog]]
_MARKER: Final = np.dtype([("producer_id", "i8"), ("offset", "i8"), ("aborted", "?")])


class Outcomes:
    """Markers of a piece and of the log behind it, read as far as needed. Chunks come in order."""

    def __init__(self, piece: Piece, logs_behind: LogsBehind | None = None) -> None:
        self._ahead, self._doubtful = _markers(piece, logs_behind), piece.doubtful
        self._shown, self._to_the_end = piece.shown, logs_behind is not None or not piece.more_later
        self._known = np.empty(0, _MARKER)  # by producer, then offset
        self._ended: LogFormatError | bool = False  # True: the log has ended; else why no header follows

    def aborted(self, chunk: Chunk, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], LogFormatError | None]:
        """Return (bool[n]: the chunk's batches that are data of aborted transactions, error or None), for the wanted
        ones only.

        The error says that the log ahead is unreadable, or that a transaction has no marker. The batches whose
        outcome it hides count as aborted then, and in a doubtful piece.
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
        error = None
        if not known.all() and isinstance(self._ended, LogFormatError):
            error = self._ended
        elif not known.all() and self._to_the_end and not self._doubtful:
            error = self._open(batches[rows[~known][0]])
        out[rows[~known]] = self._doubtful or error is not None
        return out, error

    def _open(self, batch: np.void) -> LogFormatError:
        return LogFormatError(
            "transaction",
            self._shown,
            int(batch["position"]),
            f"a marker that ends the transaction of producer {int(batch['producer_id'])}, because the newest .snapshot "
            "says that it is not open",
            "none up to the end of the log",
            base_offset=int(batch["base_offset"]),
            hint="delete the .snapshot files, so that the log decides; or read with isolationLevel read_uncommitted",
        )

    def _read_on(self) -> NDArray[np.void]:
        try:
            found = next(self._ahead, None)
        except LogFormatError as error:
            self._ended = error
            found = None
        self._ended = self._ended or found is None
        return np.empty(0, _MARKER) if found is None else found

    def _next(self, producers: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: row in `_known` of the first marker of each producer behind each offset; -1: not known."""
        if not len(self._known):
            return np.full(len(producers), -1)
        asked = np.zeros(len(producers), _MARKER)
        asked["producer_id"], asked["offset"] = producers, offsets
        both = np.concatenate([self._known, asked])
        order = np.lexsort((np.arange(len(both)) < len(self._known), both["offset"], both["producer_id"]))
        is_marker = order < len(self._known)
        behind = np.cumsum(is_marker)  # number of markers up to each place: the row of the next one
        at = np.empty(len(producers), np.int64)
        at[order[~is_marker] - len(self._known)] = behind[~is_marker]
        none = at == len(self._known)
        at[none] = -1
        at[~none & (self._known["producer_id"][at] != producers)] = -1
        return at


def _markers(piece: Piece, logs_behind: LogsBehind | None) -> Iterator[NDArray[np.void]]:
    """Yield _MARKER[m] of the piece's segment, from the piece's start on, then of the segments behind it, in parts."""
    reader, start = LogReader(_BUFFER_BYTES), piece.start
    for log in _logs(piece, logs_behind):
        file = log_file(cached_root(log.root), log.path, log.size_bytes, f"{log.root}/{log.path}")
        for chunk in reader.headers(file, start, check_markers=True):
            yield _of(chunk.batches)
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
