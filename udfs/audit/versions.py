"""Rows of the table `audit_versions`: what audits keep of each record of a log, in sorted runs that tasks write.

A task reads stretches of logs as a consumer with read_committed does (udfs.data_source). It writes runs of about
_RUN_BYTES into one Parquet file: the rows of a run are in the order of the upper bits of their hash (`bins`), and of
their offsets within equal bits. So a later task reads a range of hashes of every run, and no other row. Values are
hashed where they are read; they leave the task in no other form. What cannot be read is a problem of its stretch, and
reading continues behind it.

In memory at a time: what udfs.data_source needs, and three times _RUN_BYTES of rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.siphash import hashes_of
from lastkey.logformat.schemas import PROBLEM, RECORDS, select
from lastkey.logformat.storage.io_counts import WRITTEN, spend
from lastkey.udfs.audit.hash_kernels import digest_spans
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, Wanted, logs_behind
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.decode.partitioner import murmur2
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import Root, cached_root, flush, log_file, make_folder, native_output, open_root

Secret = tuple[int, int]  # key of the hashes, two uint64
PartitionLogs = Sequence[Sequence[ListedLog]]  # of all partitions that are read
POSITIVE: Final = 0x7FFFFFFF
_RUN_BYTES: Final = 160 << 20
_GROUP_ROWS: Final = 1 << 14  # of a row group at the least: a later task reads only those of its range
_BIN_SHIFT: Final = 48
BINS: Final = 1 << 16
GROUP_BINS: Final = 1 << 9  # a row group begins at a multiple of it
# Delta has no unsigned numbers: hashes are signed here
VERSIONS: Final = pa.schema(
    [
        pa.field("read_id", pa.int64()),  # of the row of `audit_reads` that counts it, with topic and partition
        pa.field("high", pa.int64()),  # halves of the hash of the key; without a key of the digest
        pa.field("low", pa.int64()),
        pa.field("keyless", pa.bool_()),
        pa.field("digest", pa.int64()),  # half of a hash of key, value and headers
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),  # -1: none
        pa.field("tombstone", pa.bool_()),  # the value is null
        pa.field("size_bytes", pa.int32()),  # of key, value and headers with their lengths, uncompressed
        pa.field("key", pa.binary()),  # null: none; where keys are hidden the 16 bytes of its hash
        pa.field("expected", pa.int32()),  # partition of a hidden key by the default partitioner; null: not hidden
    ]
)
_DELTAS: Final = dict.fromkeys(("offset", "timestamp_ms"), "DELTA_BINARY_PACKED")
_DENSE: Final = ("high", "low", "digest", *_DELTAS)  # hashes, and deltas: nothing compresses them
_COMPRESSION: Final = {name: "NONE" if name in _DENSE else "LZ4" for name in VERSIONS.names}
_READ: Final = select(RECORDS, ["offset", "timestamp_ms", "key"])


@dataclass(frozen=True)
class Stretch:
    """Stretch of one log to read, and the number of its rows."""

    read_id: int
    piece: Piece
    n_partitions: int  # of the topic
    partition: int  # its place among `PartitionLogs`


@dataclass(frozen=True)
class ReadTask:
    """Stretches that one task reads into one file."""

    stretches: tuple[Stretch, ...]
    store_uri: str
    folder: str  # of the table, below the store
    secret: Secret
    hide_keys: bool
    max_batch_bytes: int = MAX_BATCH_BYTES


@dataclass
class StretchRead:
    """Outcome of a stretch."""

    read_id: int
    end_position: int  # behind the last batch: reading continues there
    records: int = 0
    last_position: int = -1  # of the last batch, and its checksum: a log that has grown begins the same
    last_crc: int = -1
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class FileRead:
    """File that a task wrote, and the outcomes of its stretches. Without a record there is no file: path is ""."""

    path: str
    size: int
    records: int
    stretches: list[StretchRead]


def read_task(logs: PartitionLogs, task: ReadTask) -> FileRead:
    """Read the stretches of a task, and write and flush their rows as one Parquet file.

    logs: where the end of a transaction is looked for, and the cleaner's work behind a hole.
    """
    with ExitStack() as stack:
        out = _RunFile(open_root(task.store_uri), task.folder, stack)
        found = [_read(task, stretch, logs[stretch.partition], out) for stretch in task.stretches]
        out.write()
    return FileRead(*out.written(), found)


def _read(task: ReadTask, stretch: Stretch, logs: Sequence[ListedLog], out: _RunFile) -> StretchRead:
    found = StretchRead(stretch.read_id, stretch.piece.start)
    spec = ReadSpec(
        pa.schema([*VERSIONS, PROBLEM]),
        Wanted(committed=True),
        quarantine=True,
        max_batch_bytes=task.max_batch_bytes,
        logs_behind=partial(logs_behind, [logs]),
    )
    for batch in read_records(spec, [stretch.piece], partial(_rows, task, stretch, found)):
        problems = batch.column(PROBLEM.name)
        if problems.null_count < len(batch):
            found.problems += [Problem(**row) for row in problems.to_pylist() if row is not None]
        else:
            found.records += len(batch)
            out.add(batch.select(VERSIONS.names))
    last = last_batch(stretch.piece, max(found.last_position, stretch.piece.start))
    if last is not None:
        found.last_position, found.last_crc, found.end_position = last
    return found


def _rows(task: ReadTask, stretch: Stretch, found: StretchRead, run: Run, piece: Piece) -> Iterator[Any]:
    """Yield the rows of a run's records in the piece's offsets."""
    k0, k1 = (np.uint64(half) for half in task.secret)
    n = len(run.spans)
    low, high = np.empty(n, np.uint64), np.empty(n, np.uint64)
    digest_spans(run.raw, run.scratch, run.bodies, run.spans, k0, k1, low, high)
    offset = np.repeat(run.bodies["base_offset"], run.bodies["n_records"]) + run.spans["offset_delta"]
    sizes = (run.spans["end"] - run.spans["rest"]).astype(np.int32)
    found.last_position = int(run.batches["position"][run.bodies["n_records"] > 0][-1])
    row = int(np.searchsorted(offset, piece.start_offset))
    place = TopicPartition(piece.topic, piece.partition)
    for batch in record_batches(run, _READ, place, start_offset=piece.start_offset, end_offset=piece.end_offset):
        part, keys = slice(row, row + len(batch)), batch.column("key")
        keyless, hashes = np.asarray(keys.is_null()), hashes_of(keys, task.secret)
        columns = {
            "read_id": pa.repeat(pa.scalar(stretch.read_id, pa.int64()), len(batch)),
            **{name: batch.column(name) for name in ("offset", "timestamp_ms")},
            "high": pa.array(np.where(keyless, high[part], hashes[:, 1]).view(np.int64)),
            "low": pa.array(np.where(keyless, low[part], hashes[:, 0]).view(np.int64)),
            "keyless": pa.array(keyless),
            "digest": pa.array(low[part].view(np.int64)),
            "tombstone": pa.array(run.spans["null_value"][part]),
            "size_bytes": pa.array(sizes[part]),
            "key": _as_bytes(hashes, keys) if task.hide_keys else keys,
            "expected": expected_in(keys, stretch.n_partitions) if task.hide_keys else pa.nulls(len(keys), pa.int32()),
        }
        yield pa.record_batch([columns[name] for name in VERSIONS.names], schema=VERSIONS)
        row += len(batch)


def expected_in(keys: Any, n_partitions: int) -> Any:
    """Return the partition of each key by the default partitioner, pa.Int32Array; of a null one that means nothing."""
    return pa.array((np.asarray(murmur2(keys).fill_null(0)) & np.int32(POSITIVE)) % np.int32(n_partitions))


def hashed_keys(keys: Any, secret: Secret) -> Any:
    """Return 16 bytes of a keyed hash of each key (pa.BinaryArray); null stays null."""
    return _as_bytes(hashes_of(keys, secret), keys)


def _as_bytes(hashes: NDArray[np.uint64], keys: Any) -> Any:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(keys), [None, pa.py_buffer(hashes)])
    return pa.compute.if_else(keys.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def bins(high: NDArray[np.int64]) -> NDArray[np.int16]:
    """Return the upper bits of hashes, signed as they are."""
    return (high >> _BIN_SHIFT).astype(np.int16)


def write_run(writer: Any, rows: pa.Table) -> None:
    """Write rows as one run, to a pq.ParquetWriter."""
    bin_ = bins(np.asarray(rows["high"]))
    order = np.argsort(bin_, kind="stable")
    rows, edges = rows.take(pa.array(order)), np.arange(-BINS // 2, BINS // 2, GROUP_BINS)
    first = 0
    for stop in [*np.searchsorted(bin_[order], edges[1:]).tolist(), len(rows)]:
        if stop - first >= _GROUP_ROWS or (stop == len(rows) and stop > first):
            writer.write_table(rows.slice(first, stop - first))
            first = stop


class _RunFile:
    """Parquet file of runs, made with the first row."""

    def __init__(self, store: Root, folder: str, stack: ExitStack) -> None:
        self._store, self._folder, self._stack = store, folder, stack
        self._name = f"{uuid.uuid4().hex}.parquet"
        self._stream: Any = None
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._bytes = self._rows = 0

    def add(self, batch: Any) -> None:
        """Add a record batch of VERSIONS."""
        if not len(batch):
            return
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        self._rows += len(batch)
        if self._bytes >= _RUN_BYTES:
            self.write()

    def write(self) -> None:
        """Write the waiting rows as one run."""
        if not self._waiting:
            return
        if self._writer is None:
            make_folder(self._store, self._folder)
            self._stream = self._stack.enter_context(native_output(self._store, self._path))
            writer = pq.ParquetWriter(
                self._stream, VERSIONS, compression=_COMPRESSION, write_page_checksum=True,
                use_dictionary=["read_id", "size_bytes"], column_encoding=_DELTAS, write_statistics=["high"],
            )  # fmt: skip
            self._writer = self._stack.enter_context(writer)
        rows = pa.Table.from_batches(self._waiting, VERSIONS).combine_chunks()
        self._waiting, self._bytes = [], 0
        before = self._stream.tell()
        write_run(self._writer, rows)
        spend(self._stream.tell() - before, WRITTEN)

    def written(self) -> tuple[str, int, int]:
        """Flush the closed file. Return its name, bytes and rows; no name without rows."""
        if not self._rows:
            return "", 0, 0
        flush(self._store, self._path)
        return self._name, self._store.filesystem.get_file_info(self._store.full(self._path)).size, self._rows

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"


def last_batch(piece: Piece, position: int) -> tuple[int, int, int] | None:
    """Return position, checksum and end of the last batch in a piece and its offsets, searched from a batch on; None if
    there is none, or it cannot be read.
    """
    last = None
    try:
        for chunk in LogReader(1 << 16).headers(log_file(cached_root(piece.root), piece.path, piece.end), position):
            inside = chunk.batches[chunk.batches["last_offset"] < piece.end_offset]
            if len(inside):
                last = inside[-1]
    except (LogFormatError, OSError):
        return None
    return None if last is None else (int(last["position"]), int(last["crc"]), int(last["position"] + last["size"]))


def batch_end(root: str, path: str, size: int, position: int, crc: int) -> int | None:
    """Return the offset behind the batch at a position of a `.log` of this size; None if it has another checksum, or
    cannot be read.
    """
    try:
        found = next(LogReader(1 << 10).headers(log_file(cached_root(root), path, size), position), None)
    except (LogFormatError, OSError):
        return None
    if found is None or int(found.batches["crc"][0]) != crc:
        return None
    return int(found.batches["last_offset"][0]) + 1
