"""The last record of each key of a partition, as one Parquet file: a task of `export --latest`.

The records are read twice. The first pass enters their keys and last offsets into a table. The second pass keeps the
records at these offsets. Keys that do not fit the task's memory take several rounds, each over a range of their hashes.
Keys are compared by 128 bits of SipHash under a secret of the task.

Also here: where the first transaction begins that is open in front of damage, by headers alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds
from lastkey.logformat.primitives.siphash_kernels import hash_values
from lastkey.logformat.schemas import BATCHES, PROBLEM, RECORDS, select
from lastkey.udfs.compact.clean.deciders import LastOffsets, TooManyKeys
from lastkey.udfs.compact.clean.key_kernels import SLOT
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, ReadSpec, SourcePartition, listed_logs, logs_behind
from lastkey.udfs.data_source.records import read_batches, read_records
from lastkey.udfs.export.write_files import decoded, decoded_schema, write_parquet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, make_folder, native_output

ROWS: Final = ("partition", "offset", "timestamp", "key", "value")
_KEYS: Final = select(RECORDS, ["offset", "key"])
_OF_BATCHES: Final = select(BATCHES, ["base_offset", "producer_id", "transactional", "control", "control_type"])
_ALL: Final = 1 << 32  # values of the upper 32 bits of a hash's second half


@dataclass(frozen=True)
class LastRowsTask:
    """Records of one partition, and the path of a file for the last ones of their keys."""

    partition: SourcePartition
    asked: Range
    root: str  # URI of the output
    path: str  # path of the file, below it
    decoders: Mapping[str, str | None]
    max_batch_bytes: int
    memory_bytes: int
    columns: tuple[str, ...] = ROWS


@dataclass
class LastRows:
    """Result of a task. With a problem no row of the file counts."""

    path: str
    records: int = 0  # read
    tombstones: int = 0
    null_keys: int = 0
    problems: list[Problem] = field(default_factory=list)


def last_rows_schema(decoders: Mapping[str, str | None], columns: Sequence[str] = ROWS) -> Any:
    """Return the pa.Schema of the file of a task."""
    return decoded_schema(select(RECORDS, columns), decoders)


def write_last_rows(task: LastRowsTask) -> LastRows:
    """Write the last record of each key, tombstones too, in the order of the log. Records without a key are counted
    and left out.
    """
    root, done = cached_root(task.root), LastRows(task.path)
    make_folder(root, task.path.rpartition("/")[0])
    with native_output(root, task.path) as stream:
        write_parquet(stream, last_rows_schema(task.decoders, task.columns), _last_rows(task, done))
    return done


def _last_rows(task: LastRowsTask, done: LastRows) -> Iterator[pa.RecordBatch]:
    read = select(RECORDS, sorted({"offset", "key", "value", *task.columns}))
    secret = secrets.randbits(64), secrets.randbits(64)  # the same in all rounds: their ranges are of one hash
    first, width = 0, _ALL
    while first < _ALL:
        stop = min(first + width, _ALL)
        hashed = _Hashed(secret, first, stop)
        table = LastOffsets(task.memory_bytes // 2)
        try:
            for batch in _read(task, _KEYS, done):
                _, keys, offsets = hashed.of(batch)
                table.enter(keys, offsets)
        except TooManyKeys:
            width = max(width // 2, 1)
            continue
        for batch in _read(task, read, done) if not done.problems else ():
            if first == 0:
                done.records += len(batch)
                done.tombstones += batch.column("value").null_count
                done.null_keys += batch.column("key").null_count
            rows, keys, offsets = hashed.of(batch)
            last = batch.select(task.columns).take(pa.array(rows[table.are_last(keys, offsets)]))
            yield decoded(last, task.decoders)
        first = stop if not done.problems else _ALL


@dataclass(frozen=True)
class _Hashed:
    """A secret, and a range of hashes by their upper bits."""

    secret: tuple[int, int]
    first: int
    stop: int

    def of(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows: int64[n] of the batch that have a key whose hash is in the range, its hashes: SLOT[n], and the
        offsets: int64[n].
        """
        values = batch.column("key")
        out = np.empty((len(values), 2), np.uint64)
        data, at = bytes_and_bounds(values)
        hash_values(data, at, np.uint64(self.secret[0]), np.uint64(self.secret[1]), out)
        part = out[:, 1] >> np.uint64(32)
        inside = (part >= np.uint64(self.first)) & (part < np.uint64(self.stop)) & np.asarray(values.is_valid())
        rows = np.flatnonzero(inside)
        return rows, out[rows].view(SLOT)[:, 0], np.asarray(batch.column("offset"))[rows]


def _read(task: LastRowsTask, schema: Any, done: LastRows) -> Iterator[pa.RecordBatch]:
    """Yield the records with these columns, up to the first problem."""
    logs = partial(logs_behind, [listed_logs(task.partition)])
    spec = ReadSpec(pa.schema([*schema, PROBLEM]), task.asked.wanted, True, task.max_batch_bytes, logs_behind=logs)
    for batch in read_records(spec, find_pieces(task.partition, task.asked)):
        problems = batch.column(PROBLEM.name).drop_null()
        done.problems += [found for told in problems.to_pylist() if (found := Problem(**told)) not in done.problems]
        if not len(problems) and not done.problems:
            yield batch.select(schema.names)


def first_open(partition: SourcePartition, asked: Range, cut: int) -> int | None:
    """Return the base offset of the first batch of a transaction that has no marker in front of the offset `cut`; None:
    there is none.
    """
    spec = ReadSpec(pa.schema([*_OF_BATCHES, PROBLEM]), asked.wanted, True)
    batches = read_batches(spec, find_pieces(partition, asked))
    rows = pa.Table.from_batches(batches, spec.schema)
    rows = rows.filter(pc.is_null(rows[PROBLEM.name])).filter(pc.field("base_offset") < cut)
    base, producers, control = (np.asarray(rows[name]) for name in ("base_offset", "producer_id", "control"))
    known, of = np.unique(producers, return_inverse=True)
    ended, ends = np.full(len(known), -1), np.isin(np.asarray(rows["control_type"]), (CONTROL_ABORT, CONTROL_COMMIT))
    np.maximum.at(ended, of[ends], base[ends])
    is_open = np.asarray(rows["transactional"]) & ~control & (base > ended[of])
    return int(base[is_open].min()) if is_open.any() else None
