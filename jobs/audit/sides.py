"""Two logs of the same topics, A and its copy B, as one DataFrame; topics of B under the names that A has for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What tells a record from others of its key, beside the place among equal ones
DIGEST = ("digest_high", "digest_low")
SIDE_ROWS = ("topic", "partition", "offset", "timestamp_ms", "key", "tombstone", *DIGEST)


def two_sides(records: DataFrame, a: str, b: str, topics: Collection[str], names: Mapping[str, str]) -> DataFrame:
    """Return the rows (SIDE_ROWS, and `of_b`) of both sides that are compared.

    topics: of source `a`. names: topic of source `b` -> what A calls it.
    """
    renamed = {topic: name for topic, name in names.items() if topic != name}
    of_a = _of(records, a, topics).withColumn("of_b", F.lit(False))
    of_b = _of(records, b, names).withColumn("of_b", F.lit(True))
    if renamed:
        pairs = [F.lit(text) for pair in renamed.items() for text in pair]
        of_b = of_b.withColumn("topic", F.coalesce(F.create_map(*pairs)[F.col("topic")], F.col("topic")))
    return of_a.select(*SIDE_ROWS, "of_b").unionByName(of_b.select(*SIDE_ROWS, "of_b"))


def _of(records: DataFrame, source: str, topics: Collection[str]) -> DataFrame:
    return records.where((F.col("source") == source) & F.col("topic").isin(*sorted(topics)))


def identity(ignore_timestamps: bool) -> tuple[str, ...]:
    """Return the columns by which copies of a record are known, beside topic and key."""
    return DIGEST if ignore_timestamps else (*DIGEST, "timestamp_ms")


def of_side(b: bool, column: Column) -> Column:
    """Return a column's values on one side, null on the other."""
    return F.when(F.col("of_b") if b else ~F.col("of_b"), column)


def on(b: bool) -> Column:
    """Return 1 for rows of a side, 0 for those of the other: to be summed."""
    return (F.col("of_b") if b else ~F.col("of_b")).cast("long")
