"""Entries of the table `audit_entries`: what audits keep of the keys of a log, in sorted runs that tasks write.

An *entry* is a key of a partition with one version or more: the last one, and sums. There are two modes:

  apart      each record is an entry, with a digest of key, value and headers
  added up   the versions of a key between two cuts are one entry; there are no digests, and no records without a key.
             Cuts are offsets that a question asks about: the entry shows whether a version is below one of them.

A task reads stretches of logs as a consumer with read_committed does (udfs.data_source). A *group* is a row of adjacent
stretches of a partition that are added up together. Its entries count only if all of its stretches count. A task writes
runs into one Parquet file: the entries of a run are in the order of the upper bits of their hash (`bins`). So a later
task reads only a range of hashes of every run. The task returns values only as hashes. Unreadable data is a problem of
its stretch, and reading continues after it.

In memory at a time: what udfs.data_source needs, and a run: _MOST_ENTRIES with at most _MOST_KEY_BYTES of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import TIMESTAMP_TYPE_MASK
from lastkey.logformat.schemas import PROBLEM
from lastkey.logformat.storage.io_counts import WRITTEN, spend
from lastkey.udfs.audit import entry_kernels as kernels
from lastkey.udfs.audit.entry_kernels import ENTRY, FIRST, GROUP, KEY_BYTES, LAST, N_STATE, NEWEST_MS, Entries
from lastkey.udfs.audit.tables import make_table, new_file
from lastkey.udfs.data_source.pieces import Piece, ReadSpec, Wanted, logs_behind
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.decode.partitioner import default_partitions
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import Root, cached_root, file_size, flush, log_file, open_root

Secret = tuple[int, int]  # key of the hashes, two uint64
PartitionLogs = Sequence[Sequence[ListedLog]]  # logs of all partitions that are read
Cuts = tuple[int, ...] | None  # rising offsets; None: entries apart
_MOST_ENTRIES: Final = 6_000_000
_MOST_KEY_BYTES: Final = 192 << 20
_SLACK: Final = 1 << 20  # entries, and bytes, above the most of a run
_LEAST_SLOTS: Final = 1 << 12
_GROUP_ROWS: Final = 1 << 14  # minimum size of a row group: a later task reads only groups in its range
_BIN_SHIFT: Final = 48
BINS: Final = 1 << 16
GROUP_BINS: Final = 1 << 9  # a row group begins at a multiple of it
# Delta has no unsigned numbers: hashes are signed here
ENTRIES: Final = pa.schema(
    [
        pa.field("read_id", pa.int64()),  # `entries_id` of the rows of `audit_reads` that count it
        pa.field("high", pa.int64()),  # halves of the hash of the key; without a key of the digest
        pa.field("low", pa.int64()),
        pa.field("keyless", pa.bool_()),
        pa.field("digest", pa.int64()),  # half of a hash of key, value and headers; null: versions were added up
        pa.field("offset", pa.int64()),  # offset of the last version, like the next columns
        pa.field("timestamp_ms", pa.int64()),  # -1: none
        pa.field("tombstone", pa.bool_()),  # the value is null
        pa.field("size_bytes", pa.int32()),  # size of key, value and headers with their lengths, uncompressed
        pa.field("key", pa.binary()),  # null: none; where keys are hidden the 16 bytes of its hash
        pa.field("expected", pa.int32()),  # partition of a hidden key by the default partitioner; null: not hidden
        pa.field("versions", pa.int32()),  # null, as the next columns: one
        pa.field("bytes", pa.int64()),  # size of all versions
        pa.field("first_offset", pa.int64()),
        pa.field("first_timestamp_ms", pa.int64()),
    ]
)
ONE_VERSION: Final = {"bytes": "size_bytes", "first_offset": "offset", "first_timestamp_ms": "timestamp_ms"}
_PLAIN: Final = ("high", "low", "digest")  # hashes cannot be compressed
_WRITTEN: Final[dict[str, Any]] = {
    "compression": {name: "NONE" if name in _PLAIN else "LZ4" for name in ENTRIES.names}, "write_page_checksum": True,
    "use_dictionary": ["read_id", "size_bytes", "versions"], "write_statistics": ["high"],
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Stretches of a partition, by read_id, whose versions are added up together; apart: one stretch."""

    entries_id: int
    n_partitions: int  # partitions of the topic
    partition: int  # its place among `PartitionLogs`
    cuts: Cuts
    stretches: list[tuple[int, Piece]]

    @property
    def size(self) -> int:
        """Bytes of log."""
        return sum(piece.end - piece.start for _, piece in self.stretches)


@dataclass(frozen=True)
class ReadTask:
    """Groups that one task reads into one file."""

    groups: tuple[Group, ...]
    store_uri: str
    folder: str  # folder of the table, below the store
    secret: Secret
    hide_keys: bool
    max_batch_bytes: int = MAX_BATCH_BYTES


@dataclass
class StretchRead:
    """Outcome of a stretch. first_offset, last_offset, newest_ms: of its records; -1: there are none."""

    read_id: int
    entries_id: int
    cuts: Cuts
    end_position: int  # after the last batch: reading continues there
    entries: int = 0  # number of entries that begin in it
    last_position: int = -1  # position of the last batch, with its checksum: a grown log begins the same
    last_crc: int = -1
    first_offset: int = -1
    last_offset: int = -1
    newest_ms: int = -1
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class FileRead:
    """File that a task wrote, and the outcomes of its stretches. Without an entry there is no file: path is ""."""

    path: str
    size: int
    entries: int
    stretches: list[StretchRead]


def read_task(logs: PartitionLogs, task: ReadTask) -> FileRead:
    """Read the groups of a task, and write and flush their entries as one Parquet file.

    logs: searched for the end of a transaction, and for cleaned batches above a hole.
    """
    store, found = open_root(task.store_uri), list[StretchRead]()
    with ExitStack() as stack:
        collector = _Collector(task, store, stack)
        for group in task.groups:
            collector.begin(group)
            found += [_read(task, group, stretch, logs[group.partition], collector) for stretch in group.stretches]
        collector.write()
    if not collector.path:
        return FileRead("", 0, 0, found)
    flush(store, collector.path)
    name = collector.path.removeprefix(f"{task.folder}/")
    return FileRead(name, file_size(store, collector.path) or 0, collector.entries, found)


def _read(
    task: ReadTask, group: Group, stretch: tuple[int, Piece], logs: Sequence[ListedLog], collector: _Collector
) -> StretchRead:
    read_id, piece = stretch
    found = StretchRead(read_id, group.entries_id, group.cuts, piece.start)
    spec = ReadSpec(
        pa.schema([PROBLEM]),
        Wanted(committed=True),
        quarantine=True,
        max_batch_bytes=task.max_batch_bytes,
        logs_behind=partial(logs_behind, [logs]),
        secret=task.secret,
    )
    state, before = collector.state, collector.entries
    state[[FIRST, LAST, NEWEST_MS]] = -1

    def take(run: Run, piece: Piece) -> None:
        found.last_position = int(run.batches["position"][run.bodies["n_records"] > 0][-1])
        collector.add(run, piece)

    for batch in read_records(spec, [piece], take):
        found.problems += [Problem(**row) for row in batch.column(PROBLEM.name).to_pylist()]
        if collector.is_full:
            collector.write()  # here: an error of `take` would be a problem of the log
    found.entries = collector.entries - before
    found.first_offset, found.last_offset, found.newest_ms = state[[FIRST, LAST, NEWEST_MS]].tolist()
    last = last_batch(piece, max(found.last_position, piece.start))
    if last is not None:
        found.last_position, found.last_crc, found.end_position = last
    return found


class _Collector:
    """Entries of a run, of one group after the other. The first entry makes the file."""

    def __init__(self, task: ReadTask, store: Root, stack: ExitStack) -> None:
        self._task, self._store, self._stack = task, store, stack
        self.path = ""  # path of the file, below the store; "": there is no entry
        self._writer: Any = None
        self._stream: Any = None
        # An array takes memory where it is written
        self._rows, self._keys = np.empty(_MOST_ENTRIES + _SLACK, ENTRY), np.empty(_MOST_KEY_BYTES + _SLACK, np.uint8)
        self._slots = np.zeros(1, np.uint64)
        self.state = np.zeros(N_STATE, np.int64)
        self._written = 0
        self._groups: list[tuple[int, Group]] = []  # first row of each

    @property
    def entries(self) -> int:
        """Entries so far."""
        return self._written + int(self.state[kernels.ENTRIES])

    def begin(self, group: Group) -> None:
        """Add the next records to entries of another group."""
        self.state[GROUP] = self.state[kernels.ENTRIES]
        self._groups.append((int(self.state[GROUP]), group))
        self._slots = np.zeros(1 if group.cuts is None else _LEAST_SLOTS, np.uint64)

    @property
    def is_full(self) -> bool:
        """True if there are enough entries for a run."""
        return bool(self.state[kernels.ENTRIES] >= _MOST_ENTRIES or self.state[KEY_BYTES] >= _MOST_KEY_BYTES)

    def add(self, run: Run, piece: Piece) -> None:
        """Add the records of a run in the piece's offsets."""
        batches, (k0, k1) = run.batches, (np.uint64(half) for half in self._task.secret)
        cuts = self._groups[-1][1].cuts
        own_time = (batches["magic"] < 2) | (batches["attributes"] & TIMESTAMP_TYPE_MASK == 0)
        times = np.where(own_time, kernels.NO_TIME, batches["max_timestamp"])
        row, at_cuts = 0, np.array(cuts or (), np.int64)
        while row != kernels.DONE:
            entries = Entries(self._rows, self._keys, self._slots, self.state)
            row = kernels.add_records(
                run, times, piece.start_offset, piece.end_offset, at_cuts, cuts is None, k0, k1, entries, row
            )
            if row != kernels.DONE:
                self._make_room()

    def _make_room(self) -> None:
        """Enlarge what is full."""
        n, held, first = (int(self.state[field]) for field in (kernels.ENTRIES, KEY_BYTES, GROUP))
        no_rows, no_slots = n == len(self._rows), len(self._slots) > 1 and 2 * (n - first) >= len(self._slots)
        if no_rows:
            self._rows = _larger(self._rows, n, n + _SLACK)
        if no_slots:
            self._slots = np.zeros(4 * len(self._slots), np.uint64)
            kernels.enter_entries(Entries(self._rows, self._keys, self._slots, self.state))
        if not no_rows and not no_slots:
            self._keys = _larger(self._keys, held, 2 * len(self._keys))

    def write(self) -> None:
        """Write the entries as one run. The next one has more of the group."""
        n = int(self.state[kernels.ENTRIES])
        groups, firsts = self._groups, np.array([first for first, _ in self._groups], np.int64)
        order, edges = sort_run(self._rows["high"][:n].view(np.int64))
        for first, stop in edges:
            part = order[first:stop]
            of = np.searchsorted(firsts, part, "right") - 1
            self._write(self._table(part, [group for _, group in groups], of))
        self._written += n
        self.state[[kernels.ENTRIES, KEY_BYTES]] = 0
        self._groups = []
        self.begin(groups[-1][1])

    def _write(self, rows: pa.Table) -> None:
        """Write rows as a row group."""
        if not self.path:
            file = new_file(self._store, self._task.folder, ENTRIES, **_WRITTEN)
            self.path, self._writer, self._stream = self._stack.enter_context(file)
        before = self._stream.tell()
        self._writer.write_table(rows)
        spend(self._stream.tell() - before, WRITTEN)

    def _table(self, part: NDArray[np.int64], groups: Sequence[Group], of: NDArray[np.int64]) -> pa.Table:
        """Return some rows as those of ENTRIES. of: int64[n], the group of each."""
        n = len(part)
        words, ends = np.empty((len(kernels.WORDS), n), np.int64), np.empty(n + 1, np.int32)
        counts, flags = np.empty((len(kernels.COUNTS), n), np.int32), np.empty((len(kernels.FLAGS), n), np.bool_)
        kernels.take_entries(self._rows, part, words, counts, flags, ends)
        names = (*kernels.WORDS, *kernels.COUNTS, *kernels.FLAGS)
        columns: dict[str, Any] = dict(zip(names, (*words, *counts, *flags), strict=True))
        data, keyless = np.empty(int(ends[-1]), np.uint8), columns["keyless"]
        kernels.copy_keys(self._keys, columns["key_at"], ends, data)
        known = pa.py_buffer(np.packbits(~keyless, bitorder="little")) if keyless.any() else None
        keys = pa.Array.from_buffers(pa.binary(), n, [known, pa.py_buffer(ends), pa.py_buffer(data)])
        columns |= dict.fromkeys(("versions", *ONE_VERSION) if groups[0].cuts is None else ("digest",))
        columns |= {"key": keys, "read_id": np.array([group.entries_id for group in groups], np.int64)[of]}
        if self._task.hide_keys:
            n_partitions = np.array([group.n_partitions for group in groups], np.int32)[of]
            columns["expected"] = default_partitions(keys, pa.array(n_partitions))
            columns["key"] = as_bytes(np.column_stack([columns["low"], columns["high"]]).view(np.uint64), keys)
        return make_table(n, columns, ENTRIES)


def _larger(array: NDArray[Any], used: int, n: int) -> NDArray[Any]:
    out = np.empty(n, array.dtype)
    out[:used] = array[:used]
    return out


def as_bytes(hashes: NDArray[np.uint64], keys: Any) -> Any:
    """Return hashes, uint64[n, 2], as pa.BinaryArray; null where `keys` is."""
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(keys), [None, pa.py_buffer(hashes)])
    return pa.compute.if_else(keys.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def bins(high: NDArray[np.int64]) -> NDArray[np.int16]:
    """Return the upper bits of hashes, signed as they are."""
    return (high >> _BIN_SHIFT).astype(np.int16)


def sort_run(high: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return the order of entries in a run, and the bounds of its row groups there. high: of their hashes."""
    order, ends = np.empty(len(high), np.int64), np.zeros(BINS, np.int64)
    kernels.order_by_bin(high, _BIN_SHIFT, ends, order)
    edges, first = [], 0
    for stop in ends[GROUP_BINS - 1 :: GROUP_BINS].tolist():
        if stop - first >= _GROUP_ROWS or (stop == len(high) and stop > first):
            edges.append((first, stop))
            first = stop
    return order, edges


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
    """Return the offset after the batch at a position of a `.log` of this size; None if it has another checksum, or
    cannot be read.
    """
    try:
        found = next(LogReader(1 << 10).headers(log_file(cached_root(root), path, size), position), None)
    except (LogFormatError, OSError):
        return None
    if found is None or int(found.batches["crc"][0]) != crc:
        return None
    return int(found.batches["last_offset"][0]) + 1
