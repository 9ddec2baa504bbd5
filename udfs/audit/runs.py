"""Entries in a range of hashes, read from the runs of `audit_entries`, and grouped by key.

A *unit* is a topic and partition under A's name, or a topic that is compared as a whole. A *side* is the source A, or
its copy B. Each task of a question reads one range of bins for all units:

  load(sides, range)   entries of every run in the range that the sources show, with unit and side, in parts
  by_key(versions)     their order by unit, key, side and place, and where a key begins
  match(versions)      the records of A and their copies in B

No row is compared with another by its key's bytes: keys are compared by 128 bits of SipHash.

Records are copies of each other if topic, key, value, headers (by digest) and timestamp are equal; offsets may differ.
Equal records are matched by occurrence, in the order of their places: the first of A with the first of B, and so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.udfs.audit.entries import BINS, ENTRIES, GROUP_BINS, ONE_VERSION, bins
from lastkey.udfs.audit.group_kernels import UNSORTED, KeyedRows, Links, group_rows, match_records
from lastkey.udfs.audit.tables import make_table
from lastkey.udfs.storage import open_file, open_root

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Unit = tuple[str, int]  # topic, partition
ALL_PARTITIONS: Final = -1  # partition of a unit whose topic is compared as a whole
_PLACES: Final = pa.schema([("side", pa.bool_()), ("unit", pa.int32()), ("partition", pa.int32())])
_LEAST_BIN: Final = -BINS // 2
_PART_ROWS: Final = 1 << 18
_INDEXES: Final = 128  # files that a process caches, a megabyte each


class Shown(NamedTuple):
    """Entries that a source shows, by their id, and where they belong."""

    read_id: int
    unit: int  # its place among the units
    partition: int


@dataclass(frozen=True)
class Sides:
    """Entries that the sources show, in the files of `audit_entries`, by side and path."""

    root: str  # URI of the store
    units: tuple[Unit, ...]
    files: tuple[Mapping[str, Sequence[Shown]], ...]

    def places(self, unit: NDArray[np.int32]) -> dict[str, Any]:
        """Return the columns topic and partition of rows of units."""
        topics, numbers = (
            pa.array([topic for topic, _ in self.units], pa.string()),
            [number for _, number in self.units],
        )
        return {
            "topic": pa.DictionaryArray.from_arrays(pa.array(unit), topics),
            "partition": np.array(numbers, np.int32)[unit],
        }


@dataclass
class VersionRows:
    """Rows of a range of bins."""

    sides: Sides
    bounds: tuple[int, int]
    columns: dict[str, NDArray[Any]]  # side (B), unit, partition, and columns of ENTRIES: arrays of one length
    placed: Ints  # the row of each in `late`
    late: Callable[[tuple[str, ...]], pa.Table]  # reads columns of ENTRIES, of this range and others

    def __len__(self) -> int:
        return len(self.placed)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def arrow(self, rows: Ints, *names: str) -> list[Any]:
        """Return columns of some rows as Arrow arrays, read when they are needed: keys, of few rows or none."""
        if not len(rows):
            return [ENTRIES.empty_table()[name].combine_chunks() for name in names]
        return [column.combine_chunks() for column in self.late(names).take(pa.array(self.placed[rows])).columns]


def ranges(n_rows: int, most_rows: int, workers: int = 1) -> list[tuple[int, int]]:
    """Return even ranges of bins, [first, stop), of at most about most_rows each: at least one, and as many for each
    worker if there are enough.
    """
    groups = BINS // GROUP_BINS  # row groups on disk: a range of whole groups reads no other rows
    wanted = max(-(-n_rows // most_rows), 1)
    n = -(-groups // (groups // wanted)) if wanted <= groups else min(wanted, BINS)
    n += -n % workers if workers <= n < groups - workers else 0
    step, units = (GROUP_BINS, groups) if n <= groups else (1, BINS)
    return list(itertools.pairwise(_LEAST_BIN + number * units // n * step for number in range(n + 1)))


def load(sides: Sides, bounds: tuple[int, int], names: Sequence[str]) -> Iterator[VersionRows]:
    """Read the rows of a range, and yield them in parts of about _PART_ROWS, which processors hold in their caches; a
    bin is in one part. names: columns of ENTRIES that are wanted beside the hashes and places.
    """
    table, (begin, end) = _read(sides, bounds, ("high", "low", "keyless", "offset", *names)), bounds
    n_parts = max(-(-len(table) // _PART_ROWS), 1)
    part = (bins(np.asarray(table["high"])).astype(np.int64) - begin) * n_parts // (end - begin)
    placed = np.argsort(part.astype(np.int16), kind="stable")  # a file's rows of a part are adjacent
    columns = {name: np.asarray(table[name])[placed] for name in table.column_names}
    late = cache(lambda names: _read(sides, bounds, names).select(names).combine_chunks())
    stops = np.cumsum(np.bincount(part, minlength=n_parts)).tolist()
    for n, (first, stop) in enumerate(itertools.pairwise([0, *stops])):
        least, most = (begin + -(-number * (end - begin) // n_parts) for number in (n, n + 1))
        rows = {name: column[first:stop] for name, column in columns.items()}
        yield VersionRows(sides, (least, most), rows, placed[first:stop], late)


def load_file(root: str, path: str, bounds: tuple[int, int]) -> pa.Table:
    """Read the rows of a range from another file that is in the order of `bins` of its column `high`."""
    index = _index(root, path)
    with open_file(open_root(root), path) as file:
        rows = pq.ParquetFile(file, metadata=index.metadata).read_row_groups(index.groups(bounds), use_threads=False)
    bin_ = bins(np.asarray(rows["high"]))
    return rows.filter(pa.array((bin_ >= bounds[0]) & (bin_ < bounds[1])))


class _Index(NamedTuple):
    """Metadata of a file of runs, and the least and largest bin of each row group."""

    metadata: Any
    least: NDArray[np.int16]
    most: NDArray[np.int16]

    def groups(self, bounds: tuple[int, int]) -> list[int]:
        """Return the row groups that may have rows in the range."""
        found: list[int] = np.flatnonzero((self.most >= bounds[0]) & (self.least < bounds[1])).tolist()
        return found


@lru_cache(maxsize=_INDEXES)
def _index(root: str, path: str) -> _Index:
    """Return the index of a file, whose path is never used again: a worker's next task reads the same files."""
    with open_file(open_root(root), path) as file:
        metadata = pq.read_metadata(file)
    column = metadata.schema.names.index("high")
    found = [metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)]
    least, most = (np.array([getattr(one, name) for one in found], np.int64) for name in ("min", "max"))
    return _Index(metadata, bins(least), bins(most))


def _read(sides: Sides, bounds: tuple[int, int], names: Sequence[str]) -> pa.Table:
    root, parts = open_root(sides.root), []
    for side, files in enumerate(sides.files):
        for path, shown in files.items():
            index = _index(sides.root, path)
            with open_file(root, path) as file:
                parquet = pq.ParquetFile(file, metadata=index.metadata, page_checksum_verification=True)
                parts.append(_shown_rows(parquet, index.groups(bounds), shown, side, bounds, names))
    return pa.concat_tables([_columns(names).empty_table(), *parts])


def _columns(names: Sequence[str]) -> pa.Schema:
    return pa.schema([*(ENTRIES.field(name) for name in names), *_PLACES])


def _shown_rows(
    parquet: Any, groups: list[int], shown: Sequence[Shown], side: int, bounds: tuple[int, int], names: Sequence[str]
) -> pa.Table:
    """Return the rows of a file's runs in a range that count, in the order of the file."""
    table = np.array(sorted(shown), np.int64)  # read_id, unit, partition
    needed = dict.fromkeys(("read_id", "high", *names, *(ONE_VERSION[name] for name in names if name in ONE_VERSION)))
    rows = parquet.read_row_groups(groups, columns=list(needed), use_threads=False)
    bin_, read = bins(np.asarray(rows["high"])), np.asarray(rows["read_id"])
    at = np.minimum(np.searchsorted(table[:, 0], read), len(table) - 1)
    counts = (bin_ >= bounds[0]) & (bin_ < bounds[1]) & (table[at, 0] == read)
    if not counts.all():
        rows, at = rows.filter(pa.array(counts)), at[counts]
    columns = {name: rows[name] for name in names} | {
        "side": bool(side),
        "unit": table[at, 1],
        "partition": table[at, 2],
    }
    for name in names:
        if name in ONE_VERSION:
            columns[name] = pc.coalesce(rows[name], rows[ONE_VERSION[name]].cast(pa.int64()))
        elif name == "versions":
            columns[name] = rows[name].fill_null(1)
    return make_table(len(rows), columns, _columns(names))


# -- groups


class Groups(NamedTuple):
    """Rows in groups: int64[n] in their order, and int64[groups], where each begins there."""

    order: Ints
    starts: Ints

    @property
    def ends(self) -> Ints:
        """Ends of the groups."""
        return np.append(self.starts, len(self.order))[1:]

    @property
    def of(self) -> Ints:
        """Return int64[n]: the group of each row in order."""
        new = np.zeros(len(self.order), np.int64)
        new[self.starts[1:]] = 1
        return np.cumsum(new)


def sorted_groups(rows: KeyedRows) -> Groups:
    """Group rows by unit, high and low; in a group they are in the order of the other columns."""
    n = len(rows.unit)
    placed, order, of = np.arange(n), np.empty(n, np.int64), np.empty(n, np.int64)
    n_groups = UNSORTED
    while n_groups == UNSORTED:
        slots, bounds = np.zeros(1 << max(2 * n - 1, 1).bit_length(), np.int32), np.zeros(2 * n + 2, np.int64)
        n_groups = group_rows(rows, placed, slots, of, bounds, order)
        if n_groups == UNSORTED:
            placed = np.lexsort((rows.offset, rows.partition, rows.time))
    return Groups(order, bounds[: 2 * n_groups : 2].copy())


def grouped(unit: NDArray[Any], high: Ints, low: Ints) -> Groups:
    """Group rows whose columns are equal; the order of rows within a group stays. low: spread evenly."""
    none = np.zeros(len(unit), np.int64)
    return sorted_groups(
        KeyedRows(unit.astype(np.int64), high, low, none.astype(np.bool_), none, none.astype(np.int32), none)
    )


def by_key(versions: VersionRows) -> Groups:
    """Group the rows by unit and key, and records without a key by unit and digest. In a group those of A come first,
    each side's by partition and offset; those of keys of topics that are compared as a whole by time, before that.
    """
    unit, time = 2 * versions["unit"].astype(np.int64) + versions["keyless"], np.zeros(len(versions), np.int64)
    if whole := [2 * n for n, (_, number) in enumerate(versions.sides.units) if number == ALL_PARTITIONS]:
        time = np.where(np.isin(unit, whole), versions["timestamp_ms"], 0)
    high, low, side, partition, offset = (versions[name] for name in ("high", "low", "side", "partition", "offset"))
    return sorted_groups(KeyedRows(unit, high, low, side, time, partition, offset))


def last_valid(found: Groups, valid: Bools) -> Ints:
    """Return int64[groups]: the last row in order of each group that is valid (bool[n], in order); -1: none."""
    return np.maximum.reduceat(np.where(valid, np.arange(len(valid)), -1), found.starts)


def first_valid(found: Groups, valid: Bools) -> Ints:
    """Return int64[groups]: the first row in order of each group that is valid (bool[n], in order); -1: none."""
    n = len(valid)
    first = np.minimum.reduceat(np.where(valid, np.arange(n), n), found.starts)
    return np.where(first == n, -1, first)


def sums(found: Groups, values: NDArray[Any]) -> Ints:
    """Return int64[groups]: the sum of the values (in order) of each group."""
    return np.add.reduceat(values.astype(np.int64), found.starts)


# -- pairs


PAIR_COLUMNS: Final = ("digest", "timestamp_ms", "tombstone")  # columns of ENTRIES for `match`


@dataclass(frozen=True)
class Matches:
    """Versions of two sides in the order of `keys`; all arrays, also of the links, are in that order."""

    versions: VersionRows
    keys: Groups
    links: Links

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.versions[name][self.keys.order]


def match(versions: VersionRows, *, ignore_timestamps: bool = False) -> Matches:
    """Match the records of both sides."""
    keys, n = by_key(versions), len(versions)
    time = np.zeros(n, np.int64) if ignore_timestamps else versions["timestamp_ms"]
    largest = int((keys.ends - keys.starts).max(initial=1))
    links = Links(*np.empty((len(Links._fields), n), np.int64))
    slots = np.empty(1 << (2 * largest - 1).bit_length(), np.int32)
    match_records(keys.order, keys.starts, versions["side"], versions["digest"], time, slots, links)
    return Matches(versions, keys, links)
