"""Records of A and their copies in B, and the table of what audits of two sides find.

Records are copies of each other if topic, key, value, headers (by digest) and timestamp are equal; offsets may differ.
Equal records are matched by occurrence, in the order of their places: the first of A with the first of B, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.udfs.audit.group_kernels import Links, match_records
from lastkey.udfs.audit.runs import Groups, VersionRows, by_key

# Columns of `audit_pairs`. `mirror` writes findings, and rows for all that is lawful of a partition; `failover` has a
# row with kind "partition" for each partition, and one with kind "lost" for each undelivered record without a copy
PAIRS: Final = pa.schema(
    [
        pa.field("source", pa.string()),  # the pair; of failover with the group
        pa.field("group", pa.string()),  # group of failover; null: mirror
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),  # A's name
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        # columns of mirror
        pa.field("without_key", pa.bool_()),
        pa.field("a_partition", pa.int32()),
        pa.field("a_offset", pa.int64()),
        pa.field("a_timestamp_ms", pa.int64()),
        pa.field("b_partition", pa.int32()),
        pa.field("b_offset", pa.int64()),
        pa.field("b_timestamp_ms", pa.int64()),
        pa.field("keys", pa.int64()),
        pa.field("a_versions", pa.int64()),
        pa.field("b_versions", pa.int64()),
        pa.field("missing_versions", pa.int64()),
        pa.field("extra_versions", pa.int64()),
        # columns of failover
        pa.field("b_topic", pa.string()),
        pa.field("committed", pa.int64()),  # in A; null: none
        pa.field("offset", pa.int64()),  # in B; null: B has none. Of a lost record: in A
        pa.field("way", pa.string()),  # identity, time or start
        pa.field("why", pa.string()),
        pa.field("undelivered", pa.int64()),  # records of A
        pa.field("lost", pa.int64()),  # records without a copy
        pa.field("superseded", pa.int64()),  # without a copy, but B has a newer version of the key
        pa.field("read", pa.int64()),  # records of B from the offset on
        pa.field("again", pa.int64()),  # records delivered before
        pa.field("again_ms", pa.int64()),
        pa.field("not_of_a", pa.int64()),
        pa.field("passed_over", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),  # timestamp of a lost record
    ]
)
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
