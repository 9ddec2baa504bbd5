"""Queries of `audit compaction`: a generation against what it was made of, record by record and key by key.

The records of both sides meet at their offsets, then at their keys, by whole bytes. Nothing here knows how the cleaner
works: the rules are those of GUARANTEES.md, said over rows. One join and one aggregation; a broadcast table has what is
allowed in each partition.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

NEVER: Final = 2**63 - 1
AT: Final = ("topic", "partition", "offset")
# kind -> what must be, of the findings
KINDS: Final = {
    "lost": "the last record of every key, unless it is a tombstone past its horizon",
    "returned": "no record of a key whose last one is gone",
    "unkeyed": "every record without a key",
    "dropped": "every record above what was cleaned, and of topics that are not compacted",
    "changed": "each survivor with its key, value, headers and timestamp",
    "added": "only records that were there before",
    "old": "no record older than retention.ms, as retention.exact says",
}


@dataclass(frozen=True)
class Allowed:
    """Offsets and times of one partition that decide what may be missing from a generation."""

    topic: str
    partition: int
    start_offset: int  # the log start: records below it may be missing
    cleaned_until: int  # superseded records may be missing below it
    end_offset: int  # what is compared
    now_ms: int
    horizons: str  # "end:ms,...": tombstones below the offset `end` may go from that time on, the lowest end first
    legacy_until_ms: int  # tombstones of magic 0 and 1 may go where their file is not younger
    null_keys_stay: bool
    compacted: bool
    old_until: int = 0  # below it records older than ... may be missing
    oldest_ms: int = 0  # ... this
    exact_until: int = 0  # below it every record older than that must be missing
    by_key: bool = True  # the last record of a key is known: not where headers decide
    by_time: bool = False  # the highest timestamp decides
    before_whole: bool = True  # all of either side could be read: else nothing is known to be missing there
    after_whole: bool = True
    added_from: int = -1  # offsets in [added_from, added_until) may be new: the other side does not hold what it held
    added_until: int = 0


def findings(before: DataFrame, after: DataFrame, allowed: Sequence[Allowed]) -> DataFrame:
    """Return a row for each thing that must not be: kind, topic, partition, key, offset.

    before, after: records as of records_of, of one source each. allowed: of all partitions that are compared.
    """
    told = F.broadcast(before.sparkSession.createDataFrame(pa.Table.from_pylist([asdict(one) for one in allowed])))
    sides = [
        side.select(*AT, *(F.col(name).alias(f"{name}_{label}") for name in _COMPARED), F.lit(True).alias(label))
        for side, label in ((before, "before"), (after, "after"))
    ]
    met = sides[0].join(sides[1], list(AT), "full_outer").join(told, ["topic", "partition"])
    met = met.where(F.col("offset") < F.col("end_offset"))
    met = met.withColumn("key", F.when(F.col("before"), F.col("key_before")).otherwise(F.col("key_after")))
    expired = (F.col("offset") < F.col("start_offset")) | (
        (F.col("offset") < F.col("old_until"))
        & ((F.col("timestamp_ms_before") < F.col("oldest_ms")) | (F.col("timestamp_ms_before") < 0))
    )
    met = met.withColumn("expired", expired)
    return reduce(lambda a, b: a.unionByName(b), [_of_records(met), _of_keys(met)])


_COMPARED: Final = (
    "key", "timestamp_ms", "digest_low", "digest_high", "tombstone", "delete_horizon_ms", "magic", "mtime_ms",
)  # fmt: skip


def _of_records(met: DataFrame) -> DataFrame:
    there, missing = F.col("after").isNotNull(), F.col("after").isNull()
    known = F.col("before").isNotNull()
    same = reduce(
        lambda a, b: a & b,
        [F.col(f"{name}_before").eqNullSafe(F.col(f"{name}_after")) for name in _COMPARED[:4]],
    )
    gone = known & missing & ~F.col("expired") & F.col("after_whole")
    may_be_new = (F.col("offset") >= F.col("added_from")) & (F.col("offset") < F.col("added_until"))
    must_stay = ~F.col("compacted") | (F.col("offset") >= F.col("cleaned_until"))
    time = F.col("timestamp_ms_after")
    kind = (
        F.when(known & there & ~same, "changed")
        .when(there & ~known & F.col("before_whole") & ~may_be_new, "added")
        .when(gone & must_stay, "dropped")
        .when(gone & F.col("key").isNull() & F.col("null_keys_stay"), "unkeyed")
        .when(there & (F.col("offset") < F.col("exact_until")) & (time >= 0) & (time < F.col("oldest_ms")), "old")
    )
    return (
        met.withColumn("kind", kind)
        .where(F.col("kind").isNotNull())
        .select("kind", "topic", "partition", "key", "offset")
    )


def _of_keys(met: DataFrame) -> DataFrame:
    """Return the keys that lost their last record, and those of which an older one is left."""
    whole = F.col("before_whole") & F.col("after_whole")
    judged = F.col("key").isNotNull() & F.col("compacted") & F.col("by_key") & whole
    cleaned = met.where(judged & (F.col("offset") < F.col("cleaned_until")))
    readable = F.col("before").isNotNull() & (F.col("offset") >= F.col("start_offset"))
    time = F.when(F.col("by_time"), F.greatest("timestamp_ms_before", F.lit(-1))).otherwise(F.lit(0))
    order = F.when(readable, F.struct(time, F.col("offset")))
    last = F.struct(
        F.col("offset").alias("offset"),
        F.col("after").isNotNull().alias("is_there"),
        (F.col("tombstone_before") & _is_past()).alias("may_go"),
        F.col("expired").alias("expired"),
    )
    keys = cleaned.groupBy("topic", "partition", "key").agg(
        F.max_by(last, order).alias("last"),
        F.max(F.when(F.col("after").isNotNull(), F.col("offset"))).alias("left"),
        F.first("by_time").alias("by_time"),
    )
    gone = ~F.col("last.is_there") & ~F.col("last.expired")
    returned = gone & ~F.col("by_time") & (F.col("left") < F.col("last.offset"))
    kind = F.when(gone & ~F.col("last.may_go"), "lost").when(returned, "returned")
    found = keys.where(F.col("last").isNotNull()).withColumn("kind", kind).where(F.col("kind").isNotNull())
    return found.select("kind", "topic", "partition", "key", F.col("last.offset").alias("offset"))


def _is_past() -> Column:
    """Return whether a tombstone's horizon has passed: that of its batch, or one that earlier runs have set."""
    of_batch = F.col("delete_horizon_ms_before") <= F.col("now_ms")
    legacy = (F.col("magic_before") < 2) & (F.col("mtime_ms_before") <= F.col("legacy_until_ms"))
    ends: Any = F.expr("get(filter(split(horizons, ','), x -> try_cast(split_part(x, ':', 1) as bigint) > offset), 0)")
    by_runs = F.split_part(ends, F.lit(":"), F.lit(2)).try_cast("long") <= F.col("now_ms")
    return F.coalesce(of_batch, F.lit(False)) | legacy | F.coalesce(by_runs, F.lit(False))
