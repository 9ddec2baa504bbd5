"""Keys of a log: what it holds of each, and those that lie where the default partitioner would not put them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.udfs.audit.runs import VersionRows, by_key, grouped, sums
from lastkey.udfs.decode.partitioner import default_partitions

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
        pa.field("bytes", pa.int64()),  # size of all versions
        pa.field("last_bytes", pa.int64()),
        pa.field("expected_partition", pa.int32()),  # by the default partitioner
        pa.field("misplaced", pa.bool_()),
        pa.field("partitions", pa.int32()),  # partitions of the topic with the key
    ]
)
# First keys of a report: which, and their order, the largest first; then by topic, partition and key. No key that is
# wanted comes behind one that is not
FIRST: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "versions": (pc.field("versions") > 1, ("versions", "bytes")),
    "misplaced": (pc.field("misplaced"), ("misplaced", "versions")),
    "several_partitions": (pc.field("partitions") > 1, ("partitions", "key")),
}
SUMS: Final = ("tombstones", "versions", "bytes", "last_bytes", "misplaced", "elsewhere_too")
Summary = tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]  # rows of partitions; first keys by FIRST


@dataclass(frozen=True)
class KeysQuestion:
    """Question of `audit keys`. n_partitions: of the topic of each unit."""

    source: str
    n_partitions: tuple[int, ...]
    most: int
    columns = ("timestamp_ms", "tombstone", "size_bytes", "versions", "bytes")

    def answer(self, versions: VersionRows) -> pa.Table:
        """Return a row for each key of each partition."""
        return pa.concat_tables([self._part(part) for part in versions.split()])

    def _part(self, versions: VersionRows) -> pa.Table:
        found = by_key(versions)
        last = found.order[found.ends - 1]
        keyed = np.flatnonzero(~versions["keyless"][last])
        last = last[keyed]
        keys, expected = versions.arrow(last, "key", "expected")
        unit, high = versions.unit[last], versions["high"][last]
        units = versions.sides.units
        topics, topic = (
            np.unique([topic for topic, _ in units], return_inverse=True) if units else ([], np.zeros(0, int))
        )
        topic, partition = topic[unit], np.array([number for _, number in units], np.int32)[unit]
        of_key = grouped(topic, high, versions["low"][last])
        partitions = np.empty(len(last), np.int32)
        partitions[of_key.order] = np.diff(np.append(of_key.starts, len(last)))[of_key.of]
        counts = np.array(self.n_partitions, np.int32)[unit]
        expected = pc.coalesce(expected, default_partitions(keys, pa.array(counts))) if len(keys) else expected
        columns = {
            "source": pa.repeat(pa.scalar(self.source), len(last)),
            "topic": pa.DictionaryArray.from_arrays(pa.array(topic), pa.array(topics, pa.string())),
            "partition": partition,
            "key": keys,
            "last_offset": versions["offset"][last],
            "last_timestamp_ms": versions["timestamp_ms"][last],
            "tombstone": versions["tombstone"][last],
            **{name: sums(found, versions[name][found.order])[keyed] for name in ("versions", "bytes")},
            "last_bytes": versions["size_bytes"][last],
            "expected_partition": expected,
            "misplaced": partition != np.asarray(expected),
            "partitions": partitions,
        }
        arrays = [one if isinstance(one, pa.Array) else pa.array(one) for one in (columns[n] for n in AUDIT_KEYS.names)]
        return pa.table([one.cast(c.type) for one, c in zip(arrays, AUDIT_KEYS, strict=True)], schema=AUDIT_KEYS)

    def summary(self, table: pa.Table) -> Summary:
        """Return the counts of each partition, and the first keys of each kind that a report shows."""
        return _by_partition(table), {name: first_keys(table, name, self.most) for name in FIRST}


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
    by = [*((name, "descending") for name in order), *((name, "ascending") for name in ("topic", "partition", "key"))]
    rows = keys.take(pc.select_k_unstable(keys, most, sort_keys=by)).filter(wanted)
    return list(rows.drop_columns("source").to_pylist())
