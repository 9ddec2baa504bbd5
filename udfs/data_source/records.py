"""Records of pieces of logs, or the headers of their batches, as Arrow record batches: a task of the data source.

Batches pass the checks of a consumer and more: structure, order of offsets, checksums, the segment's name. A bad batch
raises LogFormatError, or becomes a row with the column `problem`, and reading continues at the next batch. The length
of the bad batch gives that position; if the length is not credible, the next entry of the offset index whose batch is
there gives it.

In memory at a time: a chunk, 32 MiB of decompressed batches or one batch, and one Arrow batch.

For committed data, the next marker of a batch's producer decides, at any distance after the batch. A broker informs
consumers from the transaction index. `Outcomes` looks for markers in the log itself, so an archive without `.txnindex`
files gives the same result: aborted data is never in a log without its ABORT marker (the cleaner drops the data first,
and the marker later). Headers after a chunk are read until its open transactions end, usually a few, and never twice.

Batches above the last stable offset are not read at all: the plan ends there (find_pieces). Below it, every transaction
has its marker, because a cleaner keeps the marker while a batch is left. A transaction without one is open, although
the snapshot after the last stable offset denies it. A broker believes the snapshot and serves the batch; here that is
an error. If the log has damage that was skipped, the outcome of such a batch's transaction is unknown: the batch is
withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.batches.bodies import BadBatch
from lastkey.logformat.batches.chunks import CHUNK_BYTES, Chunk, check_offsets
from lastkey.logformat.batches.columns import MAX_ROWS, TopicPartition, header_batch, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK
from lastkey.logformat.schemas import BATCHES, RECORDS, select
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, limited
from lastkey.udfs.data_source.read_piece import Gaps, Stretch, aligned, problem_row, read_piece
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import cached_root, log_file

_BUFFER_BYTES: Final = 1 << 20
LogsBehind = Callable[[ListedLog], Iterable[ListedLog]]
_MARKER: Final = np.dtype([("producer_id", "i8"), ("offset", "i8"), ("aborted", "?")])


class Outcomes:
    """Markers of a piece and of the log after it, read as far as needed. Chunks come in order."""

    def __init__(self, piece: Piece, logs_behind: LogsBehind | None = None) -> None:
        self._ahead, self._doubtful = _markers(piece, logs_behind), piece.doubtful
        self._shown, self._to_the_end = piece.shown, logs_behind is not None or not piece.more_later
        self._markers = np.empty(0, _MARKER)  # by producer, then offset
        self._ended: LogFormatError | bool = False  # True: the log has ended; else why no header follows

    def aborted(self, chunk: Chunk, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], LogFormatError | None]:
        """Return (bool[n]: the chunk's batches that are data of aborted transactions, error or None), for the wanted
        ones only.

        The error states that the log ahead is unreadable, or that a transaction has no marker. The batches whose
        outcome it hides count as aborted then, and in a doubtful piece.
        """
        batches = chunk.batches
        out = np.zeros(len(batches), np.bool_)
        kind = batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = np.flatnonzero(wanted & (kind == TRANSACTIONAL_MASK) & (batches["producer_id"] >= 0))
        if not len(rows):
            return out, None
        producers, offsets = batches["producer_id"][rows], batches["last_offset"][rows]
        self._markers = self._markers[self._markers["offset"] >= int(batches["base_offset"][rows[0]])]
        at = self._next(producers, offsets)
        while (at < 0).any() and not self._ended:
            found = self._read_on()
            if len(found):
                self._markers = np.sort(np.concatenate([self._markers, found]), order=["producer_id", "offset"])
                at = self._next(producers, offsets)
        has_marker = at >= 0
        out[rows[has_marker]] = self._markers["aborted"][at[has_marker]]
        error = None
        if not has_marker.all() and isinstance(self._ended, LogFormatError):
            error = self._ended
        elif not has_marker.all() and self._to_the_end and not self._doubtful:
            error = self._open(batches[rows[~has_marker][0]])
        out[rows[~has_marker]] = self._doubtful or error is not None
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
            markers = next(self._ahead, None)
        except LogFormatError as error:
            self._ended = error
            markers = None
        self._ended = self._ended or markers is None
        return np.empty(0, _MARKER) if markers is None else markers

    def _next(self, producers: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: row in `_markers` of the first marker of each producer after each offset; -1: not known."""
        if not len(self._markers):
            return np.full(len(producers), -1)
        asked = np.zeros(len(producers), _MARKER)
        asked["producer_id"], asked["offset"] = producers, offsets
        both = np.concatenate([self._markers, asked])
        order = np.lexsort((np.arange(len(both)) < len(self._markers), both["offset"], both["producer_id"]))
        is_marker = order < len(self._markers)
        behind = np.cumsum(is_marker)  # number of markers up to each place: the row of the next one
        at = np.empty(len(producers), np.int64)
        at[order[~is_marker] - len(self._markers)] = behind[~is_marker]
        none = at == len(self._markers)
        at[none] = -1
        at[~none & (self._markers["producer_id"][at] != producers)] = -1
        return at


def _markers(piece: Piece, logs_behind: LogsBehind | None) -> Iterator[NDArray[np.void]]:
    """Yield _MARKER[m] of the piece's segment, from the piece's start on, then of the next segments, in parts."""
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


_SEARCH_BYTES: Final = 1 << 30  # size of an Arrow batch of the columns that a search compares


Take = Callable[[Run, Piece], None]


def read_records(spec: ReadSpec, pieces: Iterable[Piece], take: Take | None = None) -> Iterator[Any]:
    """Yield the wanted records of all pieces as pa.RecordBatch of spec.schema.

    take: gets the records of each run, with some before and after the piece's offsets; the caller then gets a batch
    without rows. Its errors are problems of the log. Raises LogFormatError for what cannot be read; with
    spec.quarantine it yields a row with the problem instead.
    """
    reader = _Reader(spec, take)
    for piece in pieces:
        yield from reader.read(piece)


class _Reader:
    """Reader of pieces that uses its buffers again from piece to piece."""

    def __init__(self, spec: ReadSpec, take: Take | None) -> None:
        self.spec = spec
        self.take = take
        self.schema = select(RECORDS, [name for name in spec.schema.names if name in RECORDS.names] or ["offset"])
        keys_only = take is None and not {"value", "headers"} & set(self.schema.names)
        self.reader = LogReader(CHUNK_BYTES, spec.max_batch_bytes, secret=spec.secret, keys_only=keys_only)
        self.searched = select(
            RECORDS,
            (["key"] if spec.wanted.keys is not None else []) + (["timestamp_ms"] if spec.wanted.by_time else []),
        )
        self.gaps = Gaps(spec)
        self.keys = None if spec.wanted.keys is None else pa.array(sorted(spec.wanted.keys), pa.binary())

    def read(self, piece: Piece) -> Iterator[Any]:
        """Yield the records of one piece."""
        return read_piece(piece, self.spec, self.gaps, self.reader, partial(self._stretches, piece))

    def _stretches(self, piece: Piece, log: LogFile, position: int, previous: int) -> Iterator[Stretch]:
        outcomes = self._outcomes(piece, position)
        for chunk in self.reader.chunks(log, position, previous_last_offset=previous):
            yield self._chunk(piece, chunk, outcomes), chunk

    def _outcomes(self, piece: Piece, position: int) -> Outcomes | None:
        """Return the outcomes of transactions from a position on; None if aborted records are wanted too.

        After damage new ones are needed, since no marker is looked for across it.
        """
        if not self.spec.wanted.committed:
            return None
        return Outcomes(replace(piece, start=position), self.spec.logs_behind)

    def _within(self, piece: Piece, chunk: Chunk) -> Generator[Any, None, Piece]:
        """Return the piece, cut to its segment's offsets if the chunk has others; that raises, or yields a row."""
        try:
            check_offsets(piece.shown, piece.base_offset, piece.next_base_offset, chunk.batches)
        except LogFormatError as error:
            if not self.spec.quarantine:
                raise
            yield problem_row(self.spec.schema, piece, Problem.of(error))
            return limited(piece)
        return piece

    def _chunk(self, piece: Piece, chunk: Chunk, outcomes: Outcomes | None) -> Iterator[Any]:
        piece, batches = (yield from self._within(piece, chunk)), chunk.batches
        wanted = self.spec.wanted.batches(batches, piece.start_offset, piece.end_offset)
        if outcomes is not None and wanted.any():
            aborted, unknown = outcomes.aborted(chunk, wanted)
            if unknown is not None:
                if not self.spec.quarantine:
                    raise unknown
                yield problem_row(self.spec.schema, piece, Problem.of(unknown))
            wanted &= ~aborted
        if not wanted.any():
            return
        if not self.spec.quarantine:
            for run in self.reader.runs(chunk, wanted):
                yield from self._run(piece, run)
            return
        for run_or_damage in self.reader.runs_around_damage(chunk, wanted):
            if isinstance(run_or_damage, BadBatch):
                yield problem_row(self.spec.schema, piece, Problem.of(run_or_damage.error))
            else:
                yield from self._run(piece, run_or_damage)

    def _run(self, piece: Piece, run: Run) -> Iterator[Any]:
        if not len(run.spans):
            return
        if self.take is not None:
            self.take(run, piece)
            yield pa.RecordBatch.from_pylist([], schema=self.spec.schema)
            return
        keep = self._keep(run) if self.searched.names else None
        if keep is not None and not keep.any():
            return
        for batch in record_batches(
            run,
            self.schema,
            TopicPartition(piece.topic, piece.partition),
            start_offset=piece.start_offset,
            end_offset=piece.end_offset,
            max_rows=self.spec.max_rows or MAX_ROWS,
            keep=keep,
        ):
            yield aligned(batch, self.spec.schema, piece)

    def _keep(self, run: Run) -> NDArray[np.bool_]:
        """Return bool[n] for the n spans of the run: those with a wanted key and time. Only these get other columns."""
        limits = self.spec.wanted
        masks = []
        for records in record_batches(
            run, self.searched, TopicPartition(), max_rows=len(run.spans), max_bytes=_SEARCH_BYTES
        ):
            mask = np.ones(len(records), np.bool_)
            if limits.by_time:
                time = np.asarray(records.column("timestamp_ms"))
                mask &= time >= limits.start_ms if limits.start_ms is not None else True
                mask &= time < limits.end_ms if limits.end_ms is not None else True
            if self.keys is not None:
                equal = pc.is_in(records.column("key"), value_set=self.keys)
                mask &= np.asarray(equal)
            masks.append(mask)
        return np.concatenate(masks)


_MAX_ROWS: Final = 1 << 16


def read_batches(spec: ReadSpec, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the batches of all pieces that are within the pieces' offsets, as pa.RecordBatch of spec.schema.

    Raises LogFormatError for what cannot be read; with spec.quarantine it yields a row with the problem instead.
    """
    schema = select(BATCHES, [name for name in spec.schema.names if name in BATCHES.names] or ["position"])
    reader, gaps = LogReader(), Gaps(spec)

    def stretches(piece: Piece, log: LogFile, position: int, previous: int) -> Iterator[Stretch]:
        for chunk in reader.headers(log, position, previous_last_offset=previous):
            if not spec.quarantine:  # with quarantine, batches are shown as they are
                check_offsets(piece.shown, piece.base_offset, piece.next_base_offset, chunk.batches)
            yield _rows(piece, spec, schema, chunk.batches, chunk.before), chunk

    for piece in pieces:
        yield from read_piece(piece, spec, gaps, reader, partial(stretches, piece))


def _rows(piece: Piece, spec: ReadSpec, schema: Any, batches: np.ndarray, previous: int) -> Iterator[Any]:
    """Yield the batches within the piece's offsets as rows. previous: last offset of the batch before them. A
    compressed batch of magic 0 or 1 begins right after the one before it: no header states where.
    """
    behind = np.concatenate([[previous], batches["last_offset"][:-1]]) + 1
    begins = np.where(batches["base_offset"] < 0, behind, batches["base_offset"])
    inside = (batches["last_offset"] >= piece.start_offset) & (begins < piece.end_offset)
    chosen = batches[inside]
    step = spec.max_rows or _MAX_ROWS
    for first in range(0, len(chosen), step):
        rows = header_batch(chosen[first : first + step], schema, TopicPartition(piece.topic, piece.partition))
        yield aligned(rows, spec.schema, piece)
