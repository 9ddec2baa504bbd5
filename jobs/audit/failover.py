"""Offsets at which a group of A goes on in B, a copy of A, and loses nothing, partition by partition.

A record of A was *delivered* if its offset is below the group's committed offset; its copy in B is that of its match
(`matches`). Where equal records repeat, more often on one side, as few copies count as delivered as can be.

The group must read, in B,

- every copy of a record that was not delivered;
- every record that A does not have: it was written to B after the clusters parted, or by somebody else. But what A
  had and dropped is not new: it is *passed over* if all of this holds: A has a hole of offsets between the
  neighbours that B has copies of, at least as large; the next neighbour was delivered; and B holds, behind it, a copy
  of a newer record of its key (compaction), or nothing of A's log is left before it (retention).

The safe offset is the smallest of these, and the end of B if there is none. Behind it lie *again* records: copies of
delivered ones, and copies beyond the first.

An undelivered record without a copy is *lost* by the mirror, unless B has a newer version of its key: then B was
compacted, and the record is *superseded*.

Identity is not established if less than half of the records match that could: then values were changed on the way, and
time must do: the first offset of B with a timestamp not below that of any undelivered record, or above that of all
delivered ones.

The matches are kept on disk for several questions. Holes are looked for only in partitions where they can change the
answer: those records are sorted once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.matches import KEY, identity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# States of B's records, and of A's
DELIVERED, UNDELIVERED, REPEATED, UNMATCHED = "delivered", "undelivered", "repeated", "unmatched"
COPIED, LOST, SUPERSEDED = "copied", "lost", "superseded"
_PARTITION: Final = ("topic", "partition")


def states(matches: DataFrame, committed: DataFrame, *, ignore_timestamps: bool = False) -> DataFrame:
    """Return the matches with what became of each record: `a_state`, `b_state` (null: the side lacks it), and
    `has_newer` (of B: a copy of a record of its key stands behind it).

    matches: of `match`, with the same ignore_timestamps. committed: topic, partition, committed; partitions without a
    row have nothing delivered.
    """
    a_offset, b_offset, keyed = F.col("a.offset"), F.col("b.offset"), F.col("key").isNotNull()
    equal, of_key = Window.partitionBy(*identity(ignore_timestamps)), Window.partitionBy(*KEY)
    n_a, n_b, rank, delivered = (F.col(name) for name in ("n_a", "n_b", "occurrence", "n_delivered"))
    is_delivered = F.coalesce(a_offset < F.coalesce("committed", F.lit(-1)), F.lit(False))
    by_place = committed.withColumnRenamed("partition", "place")
    joined = matches.join(F.broadcast(by_place), ["topic", "place"], "left").withColumn("partition", F.col("place"))
    known = joined.withColumns(
        {"is_delivered": is_delivered, "n_delivered": F.sum(is_delivered.cast("long")).over(equal)}
    )
    undelivered = n_a - delivered
    # Copies of B before the first that may be undelivered: as many as were delivered, fewer if B has lost some
    before = F.greatest(F.least(delivered, n_b - undelivered), F.lit(0))
    in_b = (
        F.when(n_a == 0, UNMATCHED)
        .when((undelivered == 0) | (rank <= before), DELIVERED)
        .when(rank - before <= undelivered, UNDELIVERED)
        .otherwise(REPEATED)
    )
    last_copy = F.max(F.when(n_a > 0, b_offset)).over(of_key)
    last_copied = F.max(F.when(n_b > 0, a_offset)).over(of_key)
    in_a = (
        F.when(F.col("is_delivered"), DELIVERED)
        .when(rank - delivered > undelivered - n_b, COPIED)
        .otherwise(F.when(keyed & (last_copied > a_offset), SUPERSEDED).otherwise(LOST))
    )
    return known.withColumns(
        {
            "a_state": F.when(a_offset.isNotNull(), in_a),
            "b_state": F.when(b_offset.isNotNull(), in_b),
            "has_newer": F.coalesce(keyed & (last_copy > b_offset), F.lit(False)),
        }
    )


def figures(known: DataFrame) -> DataFrame:
    """Return a row for each partition of `states`: what it holds on each side, and what decides where to go on."""
    a, b, time = F.col("a.offset"), F.col("b.offset"), F.col("a.timestamp_ms")
    in_a, in_b, is_delivered = F.col("a_state"), F.col("b_state"), F.col("is_delivered")

    def number(which: Column) -> Column:
        return F.count(F.when(which, 1))

    return known.groupBy(*_PARTITION).agg(
        F.count(a).alias("a_records"),
        F.count(b).alias("b_records"),
        F.min(a).alias("a_first"),
        F.max(a + 1).alias("a_end"),
        F.min(b).alias("b_first"),
        F.max(b + 1).alias("b_end"),
        number(in_a.isNotNull() & in_b.isNotNull()).alias("matched"),
        number(in_a.isNotNull() & ~is_delivered).alias("undelivered"),
        number(in_a == LOST).alias("lost"),
        number(in_a == SUPERSEDED).alias("superseded"),
        F.min(F.when(in_b == UNDELIVERED, b)).alias("first_undelivered"),
        F.min(F.when(in_b == UNMATCHED, b)).alias("first_unmatched"),
        F.min(F.when(in_b != UNMATCHED, b)).alias("first_copy"),
        F.min(F.when(in_a.isNotNull() & ~is_delivered, time)).alias("undelivered_from_ms"),
        F.max(F.when(is_delivered, time)).alias("delivered_to_ms"),
    )


def first_new(known: DataFrame, starts: DataFrame) -> DataFrame:
    """Return the first record of B, in each partition of `starts`, that A never had: topic, partition, first_new; null
    where all unmatched records are passed over.

    starts: topic, partition, committed, a_first, first_copy.
    """
    a_offset, offset = F.col("a_offset"), F.col("offset")
    places = known.select(
        *_PARTITION, F.col("a.offset").alias("a_offset"), F.col("b.offset").alias("offset"), "n_a", "n_b", "has_newer",
        "b_state",
    )  # fmt: skip
    wanted = places.join(F.broadcast(starts.select(*_PARTITION)), [*_PARTITION], "left_semi")
    holes = a_offset + 1 - F.row_number().over(Window.partitionBy(*_PARTITION).orderBy("a_offset"))
    copies = wanted.where(a_offset.isNotNull()).withColumn("holes", holes).where("n_a = n_b")
    new = wanted.where(F.col("b_state") == UNMATCHED).withColumn("holes", F.lit(None).cast("long"))
    columns = (*_PARTITION, "a_offset", "holes", "offset", "has_newer")
    alone = a_offset.isNull() & ~F.col("has_newer")
    # A run: a copy, and the unmatched records between it and the next copy; the first run may have no copy
    runs = (
        copies.select(*columns)
        .unionByName(new.select(*columns))
        .withColumn("run", F.count("a_offset").over(Window.partitionBy(*_PARTITION).orderBy("offset")))
        .join(F.broadcast(starts.select(*_PARTITION, "first_copy")), [*_PARTITION])
        .groupBy(*_PARTITION, "run")
        .agg(
            F.max("a_offset").alias("a_offset"),
            F.coalesce(F.max("holes"), F.lit(0)).alias("holes"),
            F.count(F.when(F.col("a_offset").isNull(), 1)).alias("n"),
            F.count(F.when(alone, 1)).alias("n_alone"),
            F.count(F.when(alone & (offset > F.col("first_copy")), 1)).alias("n_alone_inside"),
            F.min(F.when(F.col("a_offset").isNull(), offset)).alias("first"),
        )
    )
    following = Window.partitionBy(*_PARTITION).orderBy("run")
    a_offset, next_offset = F.col("a_offset"), F.lead("a_offset").over(following)
    bounded = runs.withColumns({"next_offset": next_offset, "next_holes": F.lead("holes").over(following)})
    passed_over = (
        (F.col("next_offset") > F.coalesce(a_offset, F.lit(-1)))
        & (F.col("next_offset") < F.col("committed"))
        & (F.col("n") <= F.col("next_holes") - F.col("holes"))
        & (F.col("n_alone_inside") == 0)  # the others may have gone by retention, from below A's first offset
        & (F.col("n_alone") <= F.col("a_first"))
    )
    return (
        bounded.join(F.broadcast(starts), [*_PARTITION])
        .groupBy(*_PARTITION)
        .agg(F.min(F.when(~F.coalesce(passed_over, F.lit(False)), F.col("first"))).alias("first_new"))
    )


def first_at(known: DataFrame, times: DataFrame) -> DataFrame:
    """Return the first offset of B with a timestamp of at least `from_ms`: topic, partition, first_at; null: none.

    times: topic, partition, from_ms.
    """
    later = F.col("b.timestamp_ms") >= F.col("from_ms")
    joined = known.join(F.broadcast(times), [*_PARTITION])
    return joined.groupBy(*_PARTITION).agg(F.min(F.when(later, F.col("b.offset"))).alias("first_at"))


def behind(known: DataFrame, offsets: DataFrame) -> DataFrame:
    """Return what a consumer reads of B from offsets on, a row for each partition. offsets: topic, partition, go_on."""
    joined = known.where("b IS NOT NULL").join(F.broadcast(offsets), [*_PARTITION])
    time, state = F.col("b.timestamp_ms"), F.col("b_state")
    read = F.col("b.offset") >= F.col("go_on")
    again = read & state.isin(DELIVERED, REPEATED)
    return joined.groupBy(*_PARTITION).agg(
        F.count(F.when(read, 1)).alias("read"),
        F.count(F.when(again, 1)).alias("again"),
        F.coalesce(F.try_subtract(F.max(F.when(again, time)), F.min(F.when(again, time))), F.lit(0)).alias("again_ms"),
        F.count(F.when(read & (state == UNMATCHED), 1)).alias("not_of_a"),
        F.count(F.when(~read & (state == UNMATCHED), 1)).alias("passed_over"),
    )
