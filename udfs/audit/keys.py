"""Keys of a log: the state of each, and keys in a partition that the default partitioner would not select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.udfs.audit.runs import VersionRows, by_key, grouped, sums
from lastkey.udfs.audit.tables import added_up, first_rows, joined, make_table
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
# Counts of the keys of a partition
PARTITION_KEYS: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in (
            "keys", "tombstones", "versions", "most_versions", "bytes", "last_bytes", "misplaced", "elsewhere_too",
        )),
    ]
)  # fmt: skip
KEY: Final = AUDIT_KEYS.remove(AUDIT_KEYS.get_field_index("source"))
# First keys of a report: which, and their order, the largest first; then by topic, partition and key. All wanted
# keys come first
FIRST: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "versions": (pc.field("versions") > 1, ("versions", "bytes")),
    "misplaced": (pc.field("misplaced"), ("misplaced", "versions")),
    "several_partitions": (pc.field("partitions") > 1, ("partitions", "key")),
}
Summary = Mapping[str, pa.Table]  # "partitions": PARTITION_KEYS; those of FIRST: KEY


@dataclass(frozen=True)
class KeysQuestion:
    """Question of `audit keys`. n_partitions: of each topic."""

    source: str
    n_partitions: Mapping[str, int]
    most: int
    schema = AUDIT_KEYS
    columns = ("timestamp_ms", "tombstone", "size_bytes", "versions", "bytes")

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, None]:
        """Return a row for each key of each partition."""
        return pa.concat_tables([self._part(part) for part in parts]), None

    def _part(self, versions: VersionRows) -> pa.Table:
        found = by_key(versions)
        last = found.order[found.ends - 1]
        keyed = np.flatnonzero(~versions["keyless"][last])
        last = last[keyed]
        keys, expected = versions.arrow(last, "key", "expected")
        units, places = versions.sides.units, versions.sides.places(versions["unit"][last])
        any_unit = {topic: number for number, (topic, _) in enumerate(units)}  # a unit of each topic
        topic = np.array([any_unit[topic] for topic, _ in units], np.int64)[versions["unit"][last]]
        of_key = grouped(topic, versions["high"][last], versions["low"][last])
        partitions = np.empty(len(last), np.int32)
        partitions[of_key.order] = np.diff(np.append(of_key.starts, len(last)))[of_key.of]
        counts = np.array([self.n_partitions[topic] for topic, _ in units], np.int32)[topic]
        expected = pc.coalesce(expected, default_partitions(keys, pa.array(counts))) if len(keys) else expected
        columns = {
            "source": self.source,
            **places,
            "key": keys,
            "last_offset": versions["offset"][last],
            "last_timestamp_ms": versions["timestamp_ms"][last],
            "tombstone": versions["tombstone"][last],
            **{name: sums(found, versions[name][found.order])[keyed] for name in ("versions", "bytes")},
            "last_bytes": versions["size_bytes"][last],
            "expected_partition": expected,
            "misplaced": places["partition"] != np.asarray(expected),
            "partitions": partitions,
        }
        return make_table(len(last), columns, AUDIT_KEYS)

    def summary(self, table: pa.Table) -> Summary:
        """Return the counts of each partition, and the first keys of each kind that a report shows."""
        ones, several = np.ones(len(table), np.int64), pc.greater(table["partitions"], 1)
        columns = {name: table[name] for name in PARTITION_KEYS.names if name in table.column_names}
        columns |= {"keys": ones, "tombstones": table["tombstone"], "most_versions": table["versions"]}
        counts = make_table(len(table), columns | {"elsewhere_too": several}, PARTITION_KEYS)
        return self.merged([{"partitions": counts, **dict.fromkeys(FIRST, table.select(KEY.names))}])

    def merged(self, summaries: Sequence[Summary]) -> Summary:
        """Return the counts, and the first keys, of all."""
        tables = joined(summaries)
        counts = added_up(tables["partitions"], ("topic", "partition"), most_versions="max")
        return {"partitions": counts} | {name: self._first(tables[name], name) for name in FIRST}

    def _first(self, keys: pa.Table, which: str) -> pa.Table:
        wanted, order = FIRST[which]
        by = [(name, "descending") for name in order]
        by += [(name, "ascending") for name in ("topic", "partition", "key")]
        return first_rows(keys, by, self.most).filter(wanted)
