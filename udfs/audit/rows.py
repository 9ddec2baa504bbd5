"""Rows of the table `audit_records`: every record of a log with its key, digests and sizes, written by one task.

A task reads stretches of logs as a consumer with read_committed does (udfs.data_source), and writes their rows to one
Parquet file of the table. Values are hashed where they are read; they leave the task in no other form. What cannot be
read is a problem of its stretch, and reading goes on behind it.

In memory at a time: what udfs.data_source says, and 64 MiB of rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.binary_arrays import spans_of
from lastkey.logformat.primitives.siphash_kernels import hash_values
from lastkey.logformat.schemas import PROBLEM, RECORDS, select
from lastkey.udfs.audit.hash_kernels import digest_spans
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, Wanted, logs_behind
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.decode.partitioner import murmur2
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import Root, cached_root, flush, log_file, make_folder, open_root

Secret = tuple[int, int]  # key of the hashes, two uint64
PartitionLogs = Sequence[Sequence[ListedLog]]  # of all partitions that are read
_POSITIVE: Final = 0x7FFFFFFF
_GROUP_BYTES: Final = 64 << 20
# A row is a record. Its digest covers key, value and headers; the timestamp is a column of its own
AUDIT_RECORDS: Final = pa.schema(
    [
        pa.field("read_id", pa.int64()),  # of the row of `audit_reads` that counts it
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),  # -1: none
        pa.field("key", pa.binary()),  # null: none; 16 bytes of a keyed hash where keys are hidden
        pa.field("murmur2", pa.int32()),  # of the key, positive; modulo the partitions where keys are hidden
        pa.field("size_bytes", pa.int32()),  # of key, value and headers with their lengths, uncompressed
        pa.field("tombstone", pa.bool_()),  # the value is null
        pa.field("digest_low", pa.int64()),
        pa.field("digest_high", pa.int64()),
        pa.field("delete_horizon_ms", pa.int64()),  # of the batch; null: not set
        pa.field("magic", pa.int8()),  # of the batch
    ]
)
_READ: Final = select(RECORDS, ["offset", "timestamp_ms", "key", "delete_horizon_ms", "magic"])


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
    end_position: int  # behind the last batch: reading goes on there
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
    store = open_root(task.store_uri)
    out = _File(store, task.folder)
    try:
        found = [_read(task, stretch, logs[stretch.partition], out) for stretch in task.stretches]
        return FileRead(*out.close(), found)
    except BaseException:
        out.abandon()
        raise


def _read(task: ReadTask, stretch: Stretch, logs: Sequence[ListedLog], out: _File) -> StretchRead:
    found = StretchRead(stretch.read_id, stretch.piece.start)
    spec = ReadSpec(
        pa.schema([*AUDIT_RECORDS, PROBLEM]),
        Wanted(committed=True),
        quarantine=True,
        max_batch_bytes=task.max_batch_bytes,
        logs_behind=partial(logs_behind, [logs]),
    )
    for batch in read_records(spec, [stretch.piece], partial(_rows, task, stretch, found)):
        problems = batch.column(PROBLEM.name)
        if problems.null_count < len(batch):
            found.problems += [Problem(**told) for told in problems.to_pylist() if told is not None]
        else:
            found.records += len(batch)
            out.add(batch.select(AUDIT_RECORDS.names))
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
        part = slice(row, row + len(batch))
        keys, hashes = _keys(batch.column("key"), task, stretch)
        columns = {
            "read_id": pa.repeat(pa.scalar(stretch.read_id, pa.int64()), len(batch)),
            "topic": pa.repeat(pa.scalar(piece.topic, pa.string()), len(batch)),
            "partition": pa.repeat(pa.scalar(piece.partition, pa.int32()), len(batch)),
            **{name: batch.column(name) for name in ("offset", "timestamp_ms", "delete_horizon_ms", "magic")},
            "key": keys,
            "murmur2": hashes,
            "size_bytes": pa.array(sizes[part]),
            "tombstone": pa.array(run.spans["null_value"][part]),
            "digest_low": pa.array(low[part].view(np.int64)),
            "digest_high": pa.array(high[part].view(np.int64)),
        }
        yield pa.record_batch([columns[name] for name in AUDIT_RECORDS.names], schema=AUDIT_RECORDS)
        row += len(batch)


def _keys(keys: Any, task: ReadTask, stretch: Stretch) -> tuple[Any, Any]:
    """Return the keys as the table holds them, and their murmur2."""
    hashes = np.asarray(murmur2(keys).fill_null(0)) & np.int32(_POSITIVE)
    none = np.asarray(keys.is_null())
    if task.hide_keys:
        keys = hashed_keys(keys, task.secret)
        hashes %= np.int32(stretch.n_partitions)  # all of it would help to guess a key
    return keys, pa.array(hashes, mask=none)


def hashed_keys(keys: Any, secret: Secret) -> Any:
    """Return 16 bytes of a keyed hash of each key (pa.BinaryArray); null stays null."""
    data, at = spans_of(keys)
    out = np.empty((len(keys), 2), np.uint64)
    hash_values(data, at, np.uint64(secret[0]), np.uint64(secret[1]), out)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(keys), [None, pa.py_buffer(out)])
    return pa.compute.if_else(keys.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


class _File:
    """Parquet file of rows, made with the first of them."""

    def __init__(self, store: Root, folder: str) -> None:
        self._store, self._folder = store, folder
        self._name = f"{uuid.uuid4().hex}.parquet"
        self._stream: Any = None
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._bytes = self._rows = 0

    def add(self, batch: Any) -> None:
        """Add a record batch of AUDIT_RECORDS."""
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        self._rows += len(batch)
        if self._bytes >= _GROUP_BYTES:
            self._write()

    def close(self) -> tuple[str, int, int]:
        """Flush the file. Return its name, bytes and rows; no name without rows."""
        if not self._rows:
            return "", 0, 0
        self._write()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        flush(self._store, self._path)
        return self._name, size, self._rows

    def abandon(self) -> None:
        """Close the file, whatever is in it: nobody will name it."""
        if self._stream is not None:
            self._stream.close()

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"

    def _write(self) -> None:
        if self._writer is None:
            make_folder(self._store, self._folder)
            self._stream = self._store.filesystem.open_output_stream(self._store.full(self._path), compression=None)
            self._writer = pq.ParquetWriter(
                self._stream, AUDIT_RECORDS, compression="zstd", compression_level=1, write_page_checksum=True
            )
        self._writer.write_table(pa.Table.from_batches(self._waiting, AUDIT_RECORDS))
        self._waiting, self._bytes = [], 0


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
