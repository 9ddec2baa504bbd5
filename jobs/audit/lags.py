"""Lag of each key behind its deliveries: transformations of DataFrames.

A *version* is a record of a key; its *last update* is the one with the largest offset. Positions say which offsets are
delivered to a group in a partition: all below `start`, of those up to `tail` the ones in `ranges` (share groups), and
none from `tail` on. A table of deliveries says so for each key by itself.

| column | of a key, for a group |
|---|---|
| delivered_offset | largest offset that was delivered; null: none that is left |
| lag_versions | versions behind it |
| lag_offsets, lag_ms | from there to the last update; if no such version is left, from the oldest one that is |
| age_ms | from the oldest version that lag_versions counts to the newest timestamp of the partition |
| verdict | delivered, undelivered (the last update was not), or unknown |

One aggregation by (group, topic, partition, key) with buffers of a fixed width. Of share groups, records between
`start` and `tail`, of which a broker allows a few thousand in a partition, are marked before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RANGE: Final = pa.struct([pa.field("first", pa.int64()), pa.field("last", pa.int64())])
POSITIONS: Final = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("group_type", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),  # 0: nothing is committed
        pa.field("tail", pa.int64()),
        pa.field("ranges", pa.list_(pa.field("element", _RANGE))),
        pa.field("known", pa.bool_()),  # false: what was committed could not be read
    ]
)
LAGS: Final = ("lag_versions", "lag_offsets", "lag_ms", "age_ms")
RESULT: Final = (
    "source", "group", "group_type", "topic", "partition", "key", "last_offset", "last_timestamp_ms", "tombstone",
    "versions", "delivered_offset", "delivered_timestamp_ms", "oldest_undelivered_offset", *LAGS, "verdict",
)  # fmt: skip
_PLACE: Final = ["group", "topic", "partition"]
_KEY: Final = [*_PLACE, "key"]
_SHARES: Final = [0.5, 0.9, 0.99]
_ACCURACY: Final = 10_000  # of percentile_approx: a rank is off by at most a ten thousandth of the keys
PERCENTILES: Final = ("p50", "p90", "p99", "max")


def by_positions(records: DataFrame, positions: DataFrame) -> DataFrame:
    """Return what each group of `positions` was delivered of each key. positions: rows of POSITIONS."""
    said = F.broadcast(positions.select(*_PLACE, "start", "tail"))
    joined = records.where(F.col("key").isNotNull()).join(said, ["topic", "partition"])
    offset = F.col("offset")
    within = (offset >= F.col("start")) & (offset < F.col("tail"))
    outside = joined.where(~within).withColumn("delivered", offset < F.col("start"))
    outside = outside.withColumn("behind", ~F.col("delivered"))
    inside = _in_ranges(joined.where(within), positions)
    last = F.max(F.when(F.col("delivered"), offset)).over(Window.partitionBy(*_KEY))
    inside = inside.withColumn("behind", ~F.col("delivered") & (last.isNull() | (offset > last)))
    return _by_key(outside.unionByName(inside))


def _in_ranges(records: DataFrame, positions: DataFrame) -> DataFrame:
    """Add the column `delivered`: whether a range of its group and partition holds a record.

    Ranges lie apart, so the last one that begins at or before an offset decides: one sort, however many there are.
    """
    ranges = positions.select(*_PLACE, F.explode("ranges").alias("range")).select(
        *_PLACE, F.col("range.first").alias("offset"), F.col("range.last").alias("until"), F.lit(0).alias("is_record")
    )
    both = records.withColumn("is_record", F.lit(1)).unionByName(ranges, allowMissingColumns=True)
    in_order = Window.partitionBy(*_PLACE).orderBy("offset", "is_record").rowsBetween(Window.unboundedPreceding, 0)
    until = F.last("until", ignorenulls=True).over(in_order)
    marked = both.withColumn("delivered", F.coalesce(F.col("offset") <= until, F.lit(False)))
    return marked.where(F.col("is_record") == 1).drop("is_record", "until")


def by_starts(records: DataFrame, positions: DataFrame) -> DataFrame:
    """Return the same as `by_positions` for groups to which nothing above `start` is delivered, in one step."""
    said = F.broadcast(positions.select(*_PLACE, "start"))
    joined = records.where(F.col("key").isNotNull()).join(said, ["topic", "partition"])
    delivered = F.col("offset") < F.col("start")
    return _by_key(joined.withColumn("delivered", delivered).withColumn("behind", ~delivered))


def by_table(records: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return what each group of a table was delivered of each key of its topics.

    deliveries: group, topic, key, told (an offset), and partition or not: once for each key.
    """
    columns = ["topic", "key", *(["partition"] if "partition" in deliveries.columns else [])]
    groups = F.broadcast(deliveries.select("group", "topic").distinct())
    keyed = records.where(F.col("key").isNotNull()).join(groups, "topic")
    joined = keyed.join(deliveries, ["group", *columns], "left")
    delivered = F.coalesce(F.col("offset") <= F.col("told"), F.lit(False))
    marked = joined.withColumn("delivered", delivered).withColumn("behind", ~delivered)
    told = F.when(F.col("told") >= 0, F.col("told"))  # below 0: nothing is delivered, as tables may say it
    found = _by_key(marked, F.max(told).alias("told"))
    return found.withColumn("delivered_offset", F.coalesce("told", "delivered_offset")).drop("told")


def _by_key(marked: DataFrame, *more: Column) -> DataFrame:
    """Aggregate records by key. marked: with columns `delivered`, and `behind`: not delivered, and no later one is."""
    done = F.when(F.col("delivered"), F.col("offset"))
    behind = F.when(F.col("behind"), F.col("offset"))
    return marked.groupBy(*_KEY).agg(
        F.max("offset").alias("last_offset"),
        F.max_by(_time(), "offset").alias("last_timestamp_ms"),
        F.max_by("tombstone", "offset").alias("tombstone"),
        F.count(F.lit(1)).alias("versions"),
        F.min("offset").alias("first_offset"),
        F.min_by(_time(), "offset").alias("first_ms"),
        F.count(done).alias("n_delivered"),
        F.max(done).alias("delivered_offset"),
        F.max_by(_time(), done).alias("delivered_timestamp_ms"),
        F.count(behind).alias("lag_versions"),
        F.min(behind).alias("oldest_undelivered_offset"),
        F.min_by(_time(), behind).alias("oldest_ms"),
        *more,
    )


def _time() -> Column:
    return F.when(F.col("timestamp_ms") >= 0, F.col("timestamp_ms"))


def newest_times(records: DataFrame) -> DataFrame:
    """Return the newest timestamp of each partition: topic, partition, newest_ms."""
    return records.groupBy("topic", "partition").agg(F.max(_time()).alias("newest_ms"))


def with_lags(of_keys: DataFrame, places: DataFrame, source: str) -> DataFrame:
    """Return RESULT, from what `by_positions` or `by_table` gave.

    places: a row for each group, topic and partition: group_type, known (what was committed), whole (all of the
    partition could be read), newest_ms.
    """
    lags = F.col("lag_versions") > 0
    since = F.coalesce("delivered_offset", F.col("first_offset") - 1)
    since_ms = F.when(F.col("n_delivered") == 0, F.col("first_ms")).otherwise(F.col("delivered_timestamp_ms"))
    # a later version may be lost; only where all offsets from a start on are undelivered it is undelivered as well
    sure = F.col("whole") | (lags & (F.col("group_type") != "share"))
    return (
        of_keys.join(F.broadcast(places), _PLACE)
        .withColumn("source", F.lit(source))
        .withColumn("lag_offsets", F.when(lags, F.col("last_offset") - since).otherwise(0))
        .withColumn("lag_ms", F.when(lags, _not_below_0(F.col("last_timestamp_ms") - since_ms)).otherwise(0))
        .withColumn("age_ms", F.when(lags, _not_below_0(F.col("newest_ms") - F.col("oldest_ms"))).otherwise(0))
        .withColumn(
            "verdict",
            F.when(~F.col("known") | ~sure, "unknown").when(lags, "undelivered").otherwise("delivered"),
        )
        .select(*RESULT)
    )


def _not_below_0(ms: Column) -> Column:
    return F.when(ms < 0, F.lit(0)).otherwise(ms)  # null stays null


def figures_of(result: DataFrame) -> DataFrame:
    """Return the figures of each group and topic: keys by verdict, and percentiles of each lag over known keys."""
    known = F.col("verdict") != "unknown"
    undelivered = F.col("verdict") == "undelivered"
    counts = [
        F.count(F.lit(1)).alias("keys"),
        F.count_if(F.col("verdict") == "delivered").alias("delivered"),
        F.count_if(undelivered).alias("undelivered"),
        F.count_if(~known).alias("unknown"),
        F.count_if(undelivered & F.col("delivered_offset").isNull()).alias("never"),
        F.count_if(undelivered & F.col("tombstone")).alias("undelivered_tombstones"),
        F.sum(F.when(known, F.col("lag_versions"))).alias("versions_behind"),
    ]
    spread = [
        part
        for lag in LAGS
        for part in (
            F.percentile_approx(F.when(known, F.col(lag)), _SHARES, _ACCURACY).alias(f"{lag}_shares"),
            F.max(F.when(known, F.col(lag))).alias(f"{lag}_max"),
        )
    ]
    return result.groupBy("group", "group_type", "topic").agg(*counts, *spread).orderBy("group", "topic")


def spread_of(row: dict[str, Any], lag: str) -> dict[str, int | None]:
    """Return the percentiles of a lag from a row of `figures_of`; None where no key has that lag."""
    shares = row[f"{lag}_shares"] or [None] * len(_SHARES)
    return dict(zip(PERCENTILES, (*shares, row[f"{lag}_max"]), strict=True))


def worst_keys(result: DataFrame, most: int) -> DataFrame:
    """Return of each group and topic the keys whose last update waits longest, at most so many."""
    order = [F.desc_nulls_last("age_ms"), F.desc("lag_versions"), F.col("partition"), F.col("key")]
    rank = F.row_number().over(Window.partitionBy("group", "topic").orderBy(*order))
    late = result.where(F.col("verdict") == "undelivered").withColumn("rank", rank).where(F.col("rank") <= most)
    return late.orderBy(*order[:2], "group", "topic", *order[2:]).drop("source", "verdict")
