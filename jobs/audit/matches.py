"""Records of two sides, A and its copy B, matched: the comparison from which audits of two sides answer.

Records are copies of each other if topic, key, value, headers (by digest) and timestamp are equal; offsets may differ.
Equal records are matched by occurrence, in the order of their offsets: the first of A with the first of B, and so on.
So a *match* is a record of A and its copy in B, or a record that one side alone has. `mirror` judges the matches of
each key by the last one on each side; `failover` looks for the first match that a group must read in B.

One shuffle, by topic, place and key, then sorts within its partitions: Spark spills to disk what memory does not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What tells a record from others of its key, beside the place among equal ones
DIGEST: Final = ("digest_high", "digest_low")
ALL_PARTITIONS: Final = -1  # place of a topic that has other partitions in B than in A
AT: Final = ("time", "partition", "offset")  # the order of versions
KEY: Final = ("topic", "place", "key", "keyless")
_SIDE_ROWS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "tombstone", *DIGEST)
_PLACE: Final = (*AT, "timestamp_ms")


def two_sides(records: DataFrame, a: str, b: str, topics: Collection[str], names: Mapping[str, str]) -> DataFrame:
    """Return the rows of both sides that are compared, and `of_b`.

    topics: of source `a`. names: topic of source `b` -> what A calls it.
    """
    renamed = {topic: name for topic, name in names.items() if topic != name}
    of_a = _of(records, a, topics).withColumn("of_b", F.lit(False))
    of_b = _of(records, b, names).withColumn("of_b", F.lit(True))
    if renamed:
        pairs = [F.lit(text) for pair in renamed.items() for text in pair]
        of_b = of_b.withColumn("topic", F.coalesce(F.create_map(*pairs)[F.col("topic")], F.col("topic")))
    return of_a.select(*_SIDE_ROWS, "of_b").unionByName(of_b.select(*_SIDE_ROWS, "of_b"))


def _of(records: DataFrame, source: str, topics: Collection[str]) -> DataFrame:
    return records.where((F.col("source") == source) & F.col("topic").isin(*sorted(topics)))


def identity(ignore_timestamps: bool) -> tuple[str, ...]:
    """Return the columns by which copies of a record are known."""
    return (*KEY, *DIGEST) if ignore_timestamps else (*KEY, *DIGEST, "timestamp_ms")


def match(rows: DataFrame, *, spread: Collection[str] = (), ignore_timestamps: bool = False) -> DataFrame:
    """Return a row for each match of `two_sides`.

    Columns: those of `identity`; `a` and `b`: structs of time, partition, offset and timestamp_ms, null on a side that
    lacks the record; occurrence (from 1); tombstone; n_a and n_b: equal records on each side. spread: topics with
    another number of partitions in B, which are compared as a whole.
    """
    keyed, of_b = F.col("key").isNotNull(), F.col("of_b")
    apart = F.col("topic").isin(*spread) if spread else F.lit(False)
    same = identity(ignore_timestamps)
    placed = rows.withColumns(
        {
            "place": F.when(apart, ALL_PARTITIONS).otherwise(F.col("partition")),
            # Of a key in several partitions nobody knows the order but by time
            "time": F.when(apart & keyed, F.col("timestamp_ms")).otherwise(0),
            # Records without a key are known by their digest alone: no task gets all of them
            "keyless": F.when(~keyed, F.col(DIGEST[1])),
        }
    ).repartition(*KEY)
    equal = Window.partitionBy(*same)
    numbered = placed.withColumns(
        {
            "occurrence": F.row_number().over(Window.partitionBy(*same, "of_b").orderBy(*AT)),
            "n_a": F.sum((~of_b).cast("long")).over(equal),
            "n_b": F.sum(of_b.cast("long")).over(equal),
        }
    )
    matched = numbered.groupBy(*same, "occurrence").agg(
        *[F.max(F.when(~of_b, F.col(name))).alias(f"a_{name}") for name in _PLACE],
        *[F.max(F.when(of_b, F.col(name))).alias(f"b_{name}") for name in _PLACE],
        *[F.max(name).alias(name) for name in ("tombstone", "n_a", "n_b")],
    )
    return matched.select(*same, "occurrence", "tombstone", "n_a", "n_b", _side("a"), _side("b"))


def _side(side: str) -> Column:
    place = F.struct(*[F.col(f"{side}_{name}").alias(name) for name in _PLACE])
    return F.when(F.col(f"{side}_offset").isNotNull(), place).alias(side)
