"""Queries of `audit compaction`: a generation against what it was made of, record by record and key by key.

The records of both sides meet at their offsets, then at their keys, by whole bytes. Nothing here knows how the cleaner
works: the rules are the guarantees of COMPACTION.md, said over rows. One join and one aggregation; a broadcast table
has what is allowed in each partition.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import reduce
from typing import TYPE_CHECKING, Final

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
class Below:
    """Records below an offset, and a time that decides about them."""

    offset: int
    ms: int


@dataclass(frozen=True)
class Allowed:
    """Offsets and times of one partition that decide what may be missing from a generation."""

    topic: str
    partition: int
    start_offset: int  # the log start: records below it may be missing
    cleaned_until: int  # superseded records may be missing below it
    end_offset: int  # what is compared
    now_ms: int
    legacy_until_ms: int  # tombstones of magic 0 and 1 may go where their file is not younger
    by: str  # which record of a key is its last one: offset, timestamp, or "": nobody knows, as where headers decide
    horizons: tuple[Below, ...] = ()  # tombstones may go from these times on; the lowest offset first, which decides
    too_old: tuple[Below, ...] = ()  # records older than these times may be missing
    unkeyed_until: int = 0  # records without a key may be missing below it
    exact_until: int = 0  # below it every record older than ... must be missing
    oldest_ms: int = 0  # ... this
    before_whole: bool = True  # all of either side could be read: else nothing is known to be missing there
    after_whole: bool = True
    added_from: int = -1  # offsets in [added_from, added_until) may be new: the other side does not hold what it held
    added_until: int = 0
    erased_until: int = 0  # below it all records of a key may be missing, by an erasure


_BELOW: Final = pa.list_(pa.struct({"offset": pa.int64(), "ms": pa.int64()}))
_TYPES: Final = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_(), "tuple[Below, ...]": _BELOW}
_ALLOWED: Final = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(Allowed)])


def findings(before: DataFrame, after: DataFrame, allowed: Sequence[Allowed]) -> DataFrame:
    """Return a row for each thing that must not be: kind, topic, partition, key, offset.

    before, after: records as of records_of, of one source each. allowed: of all partitions that are compared.
    """
    rows = [asdict(one) for one in allowed]
    told = F.broadcast(before.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _ALLOWED)))
    sides = [
        side.select(*AT, *(F.col(name).alias(f"{name}_{label}") for name in _COMPARED), F.lit(True).alias(label))
        for side, label in ((before, "before"), (after, "after"))
    ]
    met = sides[0].join(sides[1], list(AT), "full_outer").join(told, ["topic", "partition"])
    met = met.where(F.col("offset") < F.col("end_offset"))
    met = met.withColumn("key", F.when(F.col("before"), F.col("key_before")).otherwise(F.col("key_after")))
    too_old = F.expr("exists(too_old, x -> offset < x.offset AND timestamp_ms_before BETWEEN 0 AND x.ms - 1)")
    met = met.withColumn("expired", (F.col("offset") < F.col("start_offset")) | F.coalesce(too_old, F.lit(False)))
    found = reduce(lambda a, b: a.unionByName(b), [_of_records(met), _of_keys(met)])
    return _unless_erased(found, met, told) if any(one.erased_until for one in allowed) else found


def _unless_erased(found: DataFrame, met: DataFrame, told: DataFrame) -> DataFrame:
    """Return the findings without those of keys that an erasure may have taken: nothing of them is left below it."""
    key = ["topic", "partition", "key"]
    left = met.where(F.col("after") & (F.col("offset") < F.col("erased_until"))).select(*key).distinct()
    found = found.join(told.select("topic", "partition", "erased_until"), ["topic", "partition"])
    missing = F.col("kind").isin("lost", "dropped") & F.col("key").isNotNull()
    maybe = missing & (F.col("offset") < F.col("erased_until"))
    kept = found.where(maybe).join(left, key, "left_semi")
    return found.where(~maybe).unionByName(kept).drop("erased_until")


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
    time = F.col("timestamp_ms_after")
    kind = (
        F.when(known & there & ~same, "changed")
        .when(there & ~known & F.col("before_whole") & ~may_be_new, "added")
        .when(gone & (F.col("offset") >= F.col("cleaned_until")), "dropped")
        .when(gone & F.col("key").isNull() & (F.col("offset") >= F.col("unkeyed_until")), "unkeyed")
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
    judged = F.col("key").isNotNull() & (F.col("by") != "") & whole
    cleaned = met.where(judged & (F.col("offset") < F.col("cleaned_until")))
    readable = F.col("before").isNotNull() & (F.col("offset") >= F.col("start_offset"))
    by_time = F.col("by") == "timestamp"
    time = F.when(by_time, F.greatest("timestamp_ms_before", F.lit(-1))).otherwise(F.lit(0))
    order = F.when(readable, F.struct(time, F.col("offset")))
    last = F.struct(
        F.col("offset").alias("offset"),
        F.col("after").isNotNull().alias("is_there"),
        (F.col("tombstone_before") & _is_past()).alias("may_go"),
        F.col("expired").alias("expired"),
    )
    keys = cleaned.groupBy("topic", "partition", "key").agg(
        F.max_by(last, order).alias("last"),
        F.max(F.when(F.col("key_after") == F.col("key"), F.col("offset"))).alias("left"),
        F.first(by_time).alias("by_time"),
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
    by_runs = F.expr("get(filter(horizons, x -> offset < x.offset), 0).ms <= now_ms")
    return F.coalesce(of_batch, F.lit(False)) | legacy | F.coalesce(by_runs, F.lit(False))
