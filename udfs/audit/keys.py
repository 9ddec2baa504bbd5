"""Keys of a log: what it holds of each, and those that lie where the default partitioner would not put them.

An *entry* is a key of a partition: its last record, and sums over its versions. Entries of the same key are added, be
they single records or what an earlier audit has found: so a later audit reads what is new, and the earlier result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.logformat.primitives.siphash import hashes_of
from lastkey.udfs.audit.runs import Ints, VersionRows, by_key, grouped, mixed, sums
from lastkey.udfs.audit.versions import Secret
from lastkey.udfs.decode.partitioner import partition_of
from lastkey.udfs.storage import open_file, open_root

AUDIT_KEYS: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("last_offset", pa.int64()),
        pa.field("last_timestamp_ms", pa.int64()),
        pa.field("tombstone", pa.bool_()),
        pa.field("versions", pa.int64()),
        pa.field("bytes", pa.int64()),  # of all versions
        pa.field("last_bytes", pa.int64()),
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
_VALUES: Final = ("last_offset", "last_timestamp_ms", "tombstone", "versions", "bytes", "last_bytes")
SUMS: Final = ("tombstones", "versions", "bytes", "last_bytes", "misplaced", "elsewhere_too")
Summary = tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]  # of partitions; first keys by FIRST


@dataclass(frozen=True)
class KeysQuestion:
    """Question of `audit keys`. n_partitions: of the topic of each unit; earlier: files of the result that is added to,
    by range.
    """

    source: str
    n_partitions: tuple[int, ...]
    most: int
    secret: Secret
    hide_keys: bool = False
    earlier: Mapping[tuple[int, int], str] = field(default_factory=dict)
    columns = ("timestamp_ms", "tombstone", "size_bytes")

    def answer(self, versions: VersionRows) -> pa.Table:
        """Return a row for each key of each partition."""
        if path := self.earlier.get(versions.bounds):
            return self._table(versions, _added(_entries(versions), self._earlier(versions, path)))
        return pa.concat_tables([self._table(part, _entries(part)) for part in versions.split()])

    def _earlier(self, versions: VersionRows, path: str) -> _KeyEntries:
        """Return the entries of an earlier result, as far as they are of the units."""
        with open_file(open_root(versions.sides.root), path) as file:
            rows = pq.ParquetFile(file, page_checksum_verification=True).read(use_threads=False)
        units = versions.sides.units
        topics = pc.index_in(rows["topic"], pa.array([topic for topic, _ in units], pa.string())).fill_null(-1)
        number = {unit: n for n, unit in enumerate(units)}
        first = np.asarray(topics).astype(np.int64)  # of its topic
        partition = np.asarray(rows["partition"])
        codes, back = np.unique((first << 32) + partition, return_inverse=True)
        known = [
            number.get((units[code >> 32][0], code & 0xFFFFFFFF), -1) if code >= 0 else -1 for code in codes.tolist()
        ]
        unit = np.array(known, np.int32)[back] if len(rows) else np.zeros(0, np.int32)
        rows, unit = rows.filter(pa.array(unit >= 0)), unit[unit >= 0]
        keys = rows["key"].combine_chunks()
        if self.hide_keys:
            hashes = np.frombuffer(b"".join(keys.to_pylist()), np.uint64).reshape(len(keys), 2)
        else:
            hashes = hashes_of(keys, self.secret)
        expected = rows["expected_partition"].combine_chunks() if self.hide_keys else pa.nulls(len(keys), pa.int32())
        low, high = (np.ascontiguousarray(hashes[:, half]).view(np.int64) for half in (0, 1))
        return _KeyEntries(unit, high, low, keys, expected, {name: np.asarray(rows[name]) for name in _VALUES})

    def _table(self, versions: VersionRows, entries: _KeyEntries) -> pa.Table:
        units = versions.sides.units
        topics, topic = (
            np.unique([topic for topic, _ in units], return_inverse=True) if units else ([], np.zeros(0, int))
        )
        topic, numbers = topic[entries.unit], np.array([number for _, number in units], np.int32)
        of_key = grouped(mixed(entries.high, topic), topic, entries.high, entries.low)
        partitions = np.empty(len(topic), np.int32)
        partitions[of_key.order] = np.diff(np.append(of_key.starts, len(topic)))[of_key.of]
        keys, expected = entries.keys, entries.expected
        counts = np.array(self.n_partitions, np.int32)[entries.unit]
        expected = pc.coalesce(expected, partition_of(keys, pa.array(counts))) if len(keys) else expected
        partition = numbers[entries.unit]
        columns = {
            "source": pa.repeat(pa.scalar(self.source), len(topic)),
            "topic": pa.DictionaryArray.from_arrays(pa.array(topic), pa.array(topics, pa.string())),
            "partition": partition,
            "key": keys,
            **entries.values,
            "expected_partition": expected,
            "misplaced": partition != np.asarray(expected),
            "partitions": partitions,
        }
        arrays = [one if isinstance(one, pa.Array) else pa.array(one) for one in (columns[n] for n in AUDIT_KEYS.names)]
        return pa.table([one.cast(c.type) for one, c in zip(arrays, AUDIT_KEYS, strict=True)], schema=AUDIT_KEYS)

    def summary(self, table: pa.Table) -> Summary:
        """Return the counts of each partition, and the first keys of each kind that a report shows."""
        return _by_partition(table), {name: first_keys(table, name, self.most) for name in FIRST}


@dataclass(frozen=True)
class _KeyEntries:
    """Keys of partitions: arrays of one length."""

    unit: NDArray[np.int32]
    high: Ints
    low: Ints
    keys: Any  # pa.BinaryArray
    expected: Any  # pa.Int32Array; null: it follows from the key
    values: dict[str, NDArray[Any]]  # columns of AUDIT_KEYS


def _entries(versions: VersionRows) -> _KeyEntries:
    found = by_key(versions)
    last, n = found.order[found.ends - 1], found.ends - found.starts
    keyed = np.flatnonzero(~versions["keyless"][last])
    last = last[keyed]
    keys, expected = versions.arrow(last, "key", "expected")
    sizes = versions["size_bytes"]
    values = {
        "last_offset": versions["offset"][last],
        "last_timestamp_ms": versions["timestamp_ms"][last],
        "tombstone": versions["tombstone"][last],
        "versions": n[keyed],
        "bytes": sums(found, sizes[found.order])[keyed],
        "last_bytes": sizes[last].astype(np.int64),
    }
    return _KeyEntries(versions.unit[last], versions["high"][last], versions["low"][last], keys, expected, values)


def _added(entries: _KeyEntries, more: _KeyEntries) -> _KeyEntries:
    """Return the entries of both: of each key the last record, and sums."""
    unit = np.concatenate([entries.unit, more.unit])
    high, low = np.concatenate([entries.high, more.high]), np.concatenate([entries.low, more.low])
    values = {name: np.concatenate([entries.values[name], more.values[name]]) for name in _VALUES}
    order = np.argsort(values["last_offset"], kind="stable")
    found = grouped(mixed(high[order], unit[order]), unit[order], high[order], low[order])
    rows = order[found.order]
    last = rows[found.ends - 1]
    keys, expected = (
        pa.concat_arrays(pair).take(pa.array(last))
        for pair in ((entries.keys, more.keys), (entries.expected, more.expected))
    )
    out = {name: column[last] for name, column in values.items()}
    out |= {name: sums(found, values[name][rows]) for name in ("versions", "bytes")}
    return _KeyEntries(unit[last], high[last], low[last], keys, expected, out)


def _by_partition(keys: pa.Table) -> list[dict[str, Any]]:
    """Return the counts of each topic and partition."""
    flags = {
        "tombstones": keys["tombstone"],
        "misplaced": keys["misplaced"],
        "elsewhere_too": pc.greater(keys["partitions"], 1),
    }
    columns = {name: keys[name] for name in ("topic", "partition", "versions", "bytes", "last_bytes")}
    columns |= {name: flag.cast(pa.int64()) for name, flag in flags.items()}
    asked = [("versions", "max"), ([], "count_all"), *((name, "sum") for name in SUMS)]
    found = pa.table(columns).group_by(["topic", "partition"], use_threads=False).aggregate(asked).to_pylist()
    return [
        {
            **{name: row[name] for name in ("topic", "partition")},
            "keys": row["count_all"],
            **{name: row[f"{name}_sum"] for name in SUMS[:2]},
            "most_versions": row["versions_max"],
            **{name: row[f"{name}_sum"] for name in SUMS[2:]},
        }
        for row in found
    ]


def add_partitions(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the counts of each topic and partition over all files."""
    out: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for rows in parts for row in rows):
        known = out.setdefault((row["topic"], row["partition"]), dict.fromkeys(row, 0))
        most = max(known["most_versions"], row["most_versions"])
        known |= {n: known[n] + row[n] for n in row if n not in ("topic", "partition")}
        known |= {"topic": row["topic"], "partition": row["partition"], "most_versions": most}
    return [out[place] for place in sorted(out)]


def first_keys(keys: pa.Table, which: str, most: int) -> list[dict[str, Any]]:
    """Return the first keys of one of the kinds that a report shows, as rows of `audit_keys`."""
    wanted, order = FIRST[which]
    keys = keys.filter(wanted)
    if len(keys) > most:  # few have as many as the last of the first: only these are sorted
        counts = np.asarray(keys[order[0]])
        keys = keys.filter(pa.array(counts >= np.partition(counts, -most)[-most]))
    by = [*((name, "descending") for name in order), *((name, "ascending") for name in ("topic", "partition", "key"))]
    rows = keys.take(pc.sort_indices(keys, sort_keys=by)[:most])
    return list(rows.drop_columns("source").to_pylist())
