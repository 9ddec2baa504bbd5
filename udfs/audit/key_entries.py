"""The keys of logs, from the files of `audit_records`. An entry is a key of a partition. Both stages merge entries of
the same key, in the same way.

  files  -> a task for some files of a topic: entries, sorted by the hash of their keys, in a file: a run
  runs   -> a task for a range of hashes: reads this range of each run, merges, counts the partitions of each key

Keys are told apart by 128 bits of SipHash under the secret of the tables. The first stage tells how many entries are in
each of _BINS ranges of hashes, so the driver can give each task of the second stage as many as fit its memory.

In memory at a time: twice `most_bytes` of entries, and the rows of a row group.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.udfs.audit.key_set import hashes_of
from lastkey.udfs.audit.rows import Secret
from lastkey.udfs.storage import Root, flush, make_folder, open_file, open_output, open_root

BINS: Final = 1 << 12  # ranges of hashes
_BIN_SHIFT: Final = np.uint64(64 - 12)
_FEW_BYTES: Final = 16 << 20  # of entries: not worth a task
_RUN_ROWS: Final = 1 << 15  # of a row group: a later task reads only those of its range
_READ: Final = ["read_id", "partition", "offset", "timestamp_ms", "key", "murmur2", "size_bytes", "tombstone"]
_VALUES: Final = (
    pa.field("last_timestamp_ms", pa.int64()),
    pa.field("tombstone", pa.bool_()),
    pa.field("versions", pa.int64()),
    pa.field("bytes", pa.int64()),  # of all versions
    pa.field("last_bytes", pa.int64()),
)
_ENTRIES: Final = pa.schema(
    [
        pa.field("bin", pa.int32()),  # the upper bits of the hash
        pa.field("high", pa.uint64()),
        pa.field("low", pa.uint64()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.large_binary()),
        pa.field("murmur2", pa.int32()),
        pa.field("last_offset", pa.int64()),
        *_VALUES,
    ]
)
AUDIT_KEYS: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("last_offset", pa.int64()),
        *_VALUES,
        pa.field("expected_partition", pa.int32()),  # by the default partitioner
        pa.field("misplaced", pa.bool_()),
        pa.field("partitions", pa.int32()),  # of the topic that hold the key
    ]
)
# First keys of a report: which, and their order, the largest first; then by topic, partition and key
FIRST: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "versions": (pc.field("versions") > 1, ("versions", "bytes")),
    "misplaced": (pc.field("misplaced"), ("versions",)),
    "several_partitions": (pc.field("partitions") > 1, ("partitions", "key")),
}
Visible = tuple[int, int, int]  # read_id, and offsets [start, end) of it


@dataclass(frozen=True)
class RunTask:
    """Files of `audit_records` to merge into runs: path -> what counts of it."""

    root: str  # URI of the store
    files: Mapping[str, Sequence[Visible]]
    folder: str  # of the runs
    secret: Secret
    most_bytes: int  # of entries that are merged at a time


@dataclass
class Runs:
    """Files of entries, and the number of entries in each bin: int64[BINS]."""

    paths: list[str] = field(default_factory=list)
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    size: int = 0  # bytes of the entries in memory

    def add(self, other: Runs) -> None:
        """Add the files of another task."""
        self.paths += other.paths
        self.bins += other.bins
        self.size += other.size


@dataclass(frozen=True)
class KeysTask:
    """Range of bins of a topic's runs to merge into a file of `audit_keys`."""

    root: str
    runs: Sequence[str]
    first_bin: int
    stop_bin: int
    folder: str  # of the file
    source: str
    topic: str
    n_partitions: int
    most: int  # keys for the report


@dataclass
class Keys:
    """File that a task wrote, and what a report shows of it."""

    path: str
    size: int
    by_partition: dict[int, dict[str, int]]
    first: dict[str, list[dict[str, Any]]]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(one["keys"] for one in self.by_partition.values())


def write_runs(task: RunTask) -> Runs:
    """Write the entries of some files, sorted by hash."""
    root, out = open_root(task.root), Runs()
    waiting: list[pa.Table] = []
    for path, visible in task.files.items():
        for rows in _visible_rows(root, path, visible):
            waiting.append(_merged(_entries_of(rows, task.secret)))
            if sum(one.nbytes for one in waiting) >= task.most_bytes:
                waiting = [_merged(pa.concat_tables(waiting))]
                if waiting[0].nbytes >= task.most_bytes // 2:
                    _write_run(root, task.folder, waiting.pop(), out)
    if waiting:
        _write_run(root, task.folder, _merged(pa.concat_tables(waiting)), out)
    return out


def _visible_rows(root: Root, path: str, visible: Sequence[Visible]) -> Iterator[pa.Table]:
    """Yield the rows of a file that count and have a key, a row group at a time."""
    known: dict[int, list[tuple[int, int]]] = {}
    for read_id, start, end in visible:
        known.setdefault(read_id, []).append((start, end))
    with open_file(root, path) as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=_READ, use_threads=False)
            keyed = np.asarray(rows["key"].is_valid())
            counts = keyed & _inside(rows, known)
            if counts.any():
                yield rows if counts.all() else rows.filter(pa.array(counts))


def _inside(rows: pa.Table, known: Mapping[int, Sequence[tuple[int, int]]]) -> NDArray[np.bool_]:
    """Return bool[n]: which rows are in a range of offsets of their read."""
    offsets, inside = np.asarray(rows["offset"]), np.zeros(len(rows), np.bool_)
    reads, of = np.unique(np.asarray(rows["read_id"]), return_inverse=True)
    ranges = [known.get(read_id, ()) for read_id in reads.tolist()]
    for i in range(max(map(len, ranges), default=0)):
        bounds = np.array([each[i] if i < len(each) else (0, 0) for each in ranges])[of]
        inside |= (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
    return inside


def _entries_of(rows: pa.Table, secret: Secret) -> pa.Table:
    """Return an entry for each record."""
    hashes = hashes_of(rows["key"].combine_chunks(), secret)
    high, low = hashes[:, 1], hashes[:, 0]
    columns = {
        "bin": (high >> _BIN_SHIFT).astype(np.int32),
        "high": high,
        "low": low,
        "last_offset": rows["offset"],
        "last_timestamp_ms": rows["timestamp_ms"],
        "versions": np.ones(len(rows), np.int64),
        "bytes": rows["size_bytes"].cast(pa.int64()),
        "last_bytes": rows["size_bytes"].cast(pa.int64()),
        "key": rows["key"].cast(pa.large_binary()),
        **{name: rows[name] for name in ("partition", "murmur2", "tombstone")},
    }
    return pa.table([columns[name] for name in _ENTRIES.names], schema=_ENTRIES)


def _merged(entries: pa.Table) -> pa.Table:
    """Return one entry for each key and partition, by hash and partition."""
    if not len(entries):
        return entries
    high, low, partition, offset = (np.asarray(entries[name]) for name in ("high", "low", "partition", "last_offset"))
    bits = np.uint64(len(entries).bit_length())
    order = _by_hash(high, offset, bits)
    new, other_hash = _changes(order, high, low, partition), _changes(order, high >> bits)
    if (new & ~other_hash).any():  # keys in several partitions; or, for once, of nearly the same hash
        order = np.lexsort((offset, partition, low, high))
        new = _changes(order, high, low, partition)
    starts = np.flatnonzero(new)
    last = np.append(starts[1:], len(order)) - 1
    out = entries.take(pa.array(order[last]))
    for name in ("versions", "bytes"):
        sums = np.add.reduceat(np.asarray(entries[name])[order], starts)
        out = out.set_column(_ENTRIES.get_field_index(name), _ENTRIES.field(name), pa.array(sums))
    return out


def _by_hash(high: NDArray[np.uint64], offset: NDArray[np.int64], bits: np.uint64) -> NDArray[np.int64]:
    """Return the order by hashes without their lower `bits`, which hold a row's number, then by offset: int64[n]. Two
    sorts of one array each take a fifth of the time of np.lexsort.
    """
    by_offset = np.argsort(offset)
    key = (high[by_offset] >> bits << bits) | np.arange(len(high), dtype=np.uint64)
    key.sort()
    return by_offset[(key & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)]


def _changes(order: NDArray[np.int64], *columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool[n]: which rows, in this order, differ from the one before."""
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for values in columns:
        there = values[order]
        new[1:] |= there[1:] != there[:-1]
    return new


def _write_run(root: Root, folder: str, entries: pa.Table, out: Runs) -> None:
    path = f"{folder}/{uuid.uuid4().hex}.parquet"
    make_folder(root, folder)
    with open_output(root, path) as stream:
        pq.write_table(entries, stream, compression="lz4", row_group_size=_RUN_ROWS)
    out.paths.append(path)
    out.bins += np.bincount(np.asarray(entries["bin"]), minlength=BINS)
    out.size += entries.nbytes


def bin_ranges(runs: Runs, cores: int, most_bytes: int) -> list[tuple[int, int]]:
    """Return ranges of bins, first and stop, for tasks of at most about most_bytes each; of fewer, so that all cores
    work, unless that makes small files.
    """
    for_cores = min(cores, runs.size // _FEW_BYTES + 1)
    wanted, total = max(-(-runs.size // most_bytes), for_cores), max(int(runs.bins.sum()), 1)
    filled = np.flatnonzero(runs.bins)  # a range of empty bins would be a task for an empty file
    of_range = ((np.cumsum(runs.bins) - runs.bins) * wanted // total)[filled]
    starts = filled[1:][of_range[1:] != of_range[:-1]].tolist()
    return list(itertools.pairwise([0, *starts, BINS]))


def write_keys(task: KeysTask) -> Keys:
    """Merge a range of hashes of all runs, and write and flush it as a file of `audit_keys`."""
    root = open_root(task.root)
    entries = _merged(pa.concat_tables([_ENTRIES.empty_table(), *(_range_of(root, run, task) for run in task.runs)]))
    high, low, partition = (np.asarray(entries[name]) for name in ("high", "low", "partition"))
    new = np.ones(len(entries), np.bool_)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    of_key = np.cumsum(new) - 1
    expected = np.asarray(entries["murmur2"]) % np.int32(task.n_partitions)
    columns = {
        "source": pa.repeat(pa.scalar(task.source), len(entries)),
        "topic": pa.repeat(pa.scalar(task.topic), len(entries)),
        "expected_partition": expected,
        "misplaced": pa.array(partition != expected),
        "partitions": np.bincount(of_key, minlength=1).astype(np.int32)[of_key],
    }
    columns |= {name: entries[name] for name in AUDIT_KEYS.names if name not in columns}
    columns["key"] = entries["key"].cast(pa.binary())
    keys = pa.table([columns[name] for name in AUDIT_KEYS.names], schema=AUDIT_KEYS)
    path = f"{task.folder}/{uuid.uuid4().hex}.parquet"  # a repeated task has another
    make_folder(root, task.folder)
    with open_output(root, path) as stream:
        pq.write_table(keys, stream, compression="zstd", compression_level=1, write_page_checksum=True)
    flush(root, path)
    size = root.filesystem.get_file_info(root.full(path)).size
    return Keys(path, size, _by_partition(keys), {name: first_keys(keys, name, task.most) for name in FIRST})


def _range_of(root: Root, path: str, task: KeysTask) -> pa.Table:
    """Return the entries of a run in the task's bins."""
    with open_file(root, path) as file:
        parquet = pq.ParquetFile(file)
        column = _ENTRIES.get_field_index("bin")
        bounds = [parquet.metadata.row_group(n).column(column).statistics for n in range(parquet.num_row_groups)]
        groups = [n for n, bin_ in enumerate(bounds) if bin_.max >= task.first_bin and bin_.min < task.stop_bin]
        rows = parquet.read_row_groups(groups, use_threads=False)
    inside = (pc.field("bin") >= task.first_bin) & (pc.field("bin") < task.stop_bin)
    return rows.filter(inside)


def _by_partition(keys: pa.Table) -> dict[int, dict[str, int]]:
    flags = {
        "tombstones": keys["tombstone"],
        "misplaced": keys["misplaced"],
        "elsewhere_too": pc.greater(keys["partitions"], 1),
    }
    columns = {"partition": keys["partition"], **{name: flag.cast(pa.int64()) for name, flag in flags.items()}}
    columns |= {name: keys[name] for name in ("versions", "bytes", "last_bytes")}
    sums = ("tombstones", "versions", "bytes", "last_bytes", "misplaced", "elsewhere_too")
    asked = [("versions", "max"), ([], "count_all"), *((name, "sum") for name in sums)]
    found = pa.table(columns).group_by("partition", use_threads=False).aggregate(asked).to_pylist()
    return {
        row["partition"]: {
            "keys": row["count_all"],
            **{name: row[f"{name}_sum"] for name in sums[:2]},
            "most_versions": row["versions_max"],
            **{name: row[f"{name}_sum"] for name in sums[2:]},
        }
        for row in found
    }


def first_keys(keys: pa.Table, which: str, most: int) -> list[dict[str, Any]]:
    """Return the first keys of one of the kinds that a report shows, as rows of `audit_keys`."""
    wanted, order = FIRST[which]
    keys = keys.filter(wanted)
    by = [*((name, "descending") for name in order), *((name, "ascending") for name in ("topic", "partition", "key"))]
    rows = keys.take(pc.sort_indices(keys, by)[:most])
    return list(rows.drop_columns("source").to_pylist())
