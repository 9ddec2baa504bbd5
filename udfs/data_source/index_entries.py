"""Index entries of every kind as Arrow record batches: the content of the files beside the logs, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.logformat import names
from lastkey.logformat.errors import stopped
from lastkey.logformat.schemas import INDEX
from lastkey.logformat.side_files import checkpoints, offset_index, producer_snapshot, time_index, transaction_index
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, SourcePartition
from lastkey.udfs.data_source.read_piece import GAP_HINT, aligned, problem_row
from lastkey.udfs.holes import GapFinder
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, read_file

_LOG_PER_INDEX: Final = 4096 // 12  # bytes of log for a byte of index: an entry each index.interval.bytes
_MAX_ROWS: Final = 1 << 16
Columns = Mapping[str, Any]


def index_pieces(partition: SourcePartition, kinds: Sequence[str], *, accept_gaps: bool) -> list[Piece]:
    """Return a piece for each file of the wanted kinds, sized by its log, so that no file is asked for its size.

    No log is opened, so the only gap that is seen is a missing beginning.
    """
    if partition.problem is not None:
        return [Piece(partition.topic, partition.partition, problem=partition.problem)]
    files: list[tuple[str, str, int, int]] = []
    traces = None if accept_gaps else partition.traces
    below = None if traces is None else GapFinder(GAP_HINT).below(partition.segments, traces)
    for segment in partition.segments:
        beside = {"offset": segment.index, "time": segment.time_index, "transaction": segment.txn_index}
        files += [
            (segment.beside, path, segment.base_offset, segment.size_bytes // _LOG_PER_INDEX)
            for kind, path in beside.items()
            if kind in kinds and path
        ]
    if "producer" in kinds:
        files += [(partition.side_root, path, offset, 0) for offset, path in partition.snapshots]
    if "leader_epoch" in kinds and partition.leader_epochs is not None:
        files.append((partition.side_root, partition.leader_epochs, -1, 0))
    key = partition.topic, partition.partition
    told = [] if below is None else [Piece(*key, problem=below)]
    return [*told, *(Piece(*key, root, path, base, 0, size) for root, path, base, size in files)]


def read_index(spec: ReadSpec, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the entries of all files as pa.RecordBatch of spec.schema; zeros after the last entry are no entries.

    Raises LogFormatError for a file that cannot be read; with spec.quarantine it yields a row with the problem instead.
    """
    for piece in pieces:
        try:
            if piece.problem is not None:
                raise piece.problem.as_error()
            columns, n = _entries(piece)
        except Exception as found:  # any error: the problem names the file
            error = stopped(found, piece.shown)
            if not spec.quarantine:
                raise error from error.__cause__
            yield problem_row(spec.schema, piece, Problem.of(error))
            continue
        table = pa.record_batch([_filled(columns, field, n) for field in INDEX], names=INDEX.names)
        step = spec.max_rows or _MAX_ROWS
        for first in range(0, n, step):
            yield aligned(table.slice(first, step), spec.schema, piece)


def _filled(columns: Columns, field: Any, n: int) -> Any:
    """Return a column of n rows; nulls if the kind has no such column."""
    value = columns.get(field.name)
    if value is None or isinstance(value, str | int):
        return pa.repeat(pa.scalar(value, field.type), n)
    return pa.array(np.ascontiguousarray(value)).cast(field.type)


def _entries(piece: Piece) -> tuple[Columns, int]:
    data = read_file(cached_root(piece.root), piece.path, piece.end * _LOG_PER_INDEX)
    name = piece.path.rpartition("/")[2]
    file = names.parse_segment_file(name)
    kind, read = _READERS[names.LEADER_EPOCH_CHECKPOINT if file is None else file.kind]
    columns = read(data, piece)
    n = len(next(iter(columns.values())))
    known = {"topic": piece.topic, "partition": piece.partition, "path": piece.shown, "kind": kind}
    segment = None if piece.base_offset < 0 else piece.base_offset
    return {**known, "segment": segment, "entry": np.arange(n), **columns}, n


def _offsets(data: bytes, piece: Piece) -> Columns:
    entries = offset_index.read(data, piece.base_offset, piece.shown)
    return {"offset": entries["offset"], "position": entries["position"]}


def _times(data: bytes, piece: Piece) -> Columns:
    entries = time_index.read(data, piece.base_offset, piece.shown)
    return {"timestamp_ms": entries["timestamp"], "offset": entries["offset"]}


def _transactions(data: bytes, piece: Piece) -> Columns:
    entries = transaction_index.read(data, piece.shown)
    same = ("producer_id", "first_offset", "last_stable_offset")
    return {"offset": entries["last_offset"], **{name: entries[name] for name in same}}


def _producers(data: bytes, piece: Piece) -> Columns:
    entries = producer_snapshot.read(data, piece.shown)
    same = ("producer_id", "producer_epoch", "last_sequence", "offset_delta", "coordinator_epoch")
    return {
        "offset": entries["last_offset"], "timestamp_ms": entries["timestamp"],
        "first_offset": entries["current_txn_first_offset"], **{name: entries[name] for name in same},
    }  # fmt: skip


def _leader_epochs(data: bytes, piece: Piece) -> Columns:
    epochs = np.array(list(checkpoints.read_leader_epochs(data, piece.shown)), np.int64).reshape(-1, 2)
    return {"leader_epoch": epochs[:, 0], "offset": epochs[:, 1]}


_READERS: Final[Mapping[str, tuple[str, Callable[[bytes, Piece], Columns]]]] = {
    names.INDEX: ("offset", _offsets),
    names.TIME_INDEX: ("time", _times),
    names.TXN_INDEX: ("transaction", _transactions),
    names.SNAPSHOT: ("producer", _producers),
    names.LEADER_EPOCH_CHECKPOINT: ("leader_epoch", _leader_epochs),
}
