"""The specification of audits in plain code: dictionaries over decoded records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.reference.any_magic import decode_any
from tests.reference.log import Batch, Record
from tests.reference.murmur2 import murmur2
from tests.reference.read_committed import committed_offsets

Place = tuple[str, int]  # topic, partition


def visible_records(folder: Path) -> list[Record]:
    """Return what a consumer with read_committed sees of a partition's folder."""
    batches: list[Batch] = [b for log in sorted(folder.glob("*.log")) for b in decode_any(log.read_bytes())]
    seen = set(committed_offsets(batches))
    return [r for b in batches if not b.control for r in b.records if r.offset in seen]


def key_rows(records: Mapping[Place, Iterable[Record]]) -> list[dict[str, Any]]:
    """Return the rows of `audit_keys`, without sizes, by topic, partition and key."""
    n_partitions: dict[str, int] = {}
    for topic, number in records:
        n_partitions[topic] = max(n_partitions.get(topic, 0), number + 1)
    versions: dict[tuple[Place, bytes], list[Record]] = defaultdict(list)
    for place, of in records.items():
        for record in of:
            if record.key is not None:
                versions[place, record.key].append(record)
    places: dict[tuple[str, bytes], int] = defaultdict(int)
    for (topic, _), key in versions:
        places[topic, key] += 1
    rows = []
    for ((topic, number), key), of in versions.items():
        last = max(of, key=lambda record: record.offset)
        expected = (murmur2(key) & 0x7FFFFFFF) % n_partitions[topic]
        rows.append(
            {
                "topic": topic, "partition": number, "key": key, "last_offset": last.offset,
                "last_timestamp_ms": last.timestamp, "tombstone": last.value is None, "versions": len(of),
                "expected_partition": expected, "misplaced": number != expected, "partitions": places[topic, key],
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["key"]))
