"""Offsets at which a group of A goes on in B, a copy of A, and loses nothing, partition by partition.

A record of A was *delivered* if its offset is below the group's committed offset. Copies in B are known by identity:
the same key, value, headers (by digest) and timestamp. Where equal records repeat, the first of B is the first of A
if both sides have as many; else as few copies count as delivered as can be.

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

One shuffle, by partition and key; its result is kept on disk for two questions. Holes are looked for only in
partitions where they can change the answer: those records are sorted once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.sides import DIGEST, identity, of_side, on

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# States of B's records, and of A's
DELIVERED, UNDELIVERED, REPEATED, UNMATCHED = "delivered", "undelivered", "repeated", "unmatched"
COPIED, LOST, SUPERSEDED = "copied", "lost", "superseded"
_PARTITION: Final = ("topic", "partition")
_KEY: Final = (*_PARTITION, "key", "keyless")


def states(rows: DataFrame, committed: DataFrame, *, ignore_timestamps: bool = False) -> DataFrame:
    """Return the records of both sides with what became of each: `state`, `is_delivered` and `has_copy` (of A),
    `has_newer` (of B: a copy of a record of its key stands behind it).

    rows: of `two_sides`. committed: topic, partition, committed; partitions without a row have nothing delivered.
    """
    same = (*_KEY, *identity(ignore_timestamps))
    joined = rows.join(F.broadcast(committed), [*_PARTITION], "left")
    is_delivered = ~F.col("of_b") & (F.col("offset") < F.coalesce("committed", F.lit(-1)))
    # Records without a key are known by their digest alone: no task gets all of them
    keyless = F.when(F.col("key").isNull(), F.col(DIGEST[1]))
    known = joined.withColumns({"is_delivered": is_delivered, "keyless": keyless}).repartition(*_KEY)
    equal, of_key = Window.partitionBy(*same), Window.partitionBy(*_KEY)
    ranked = known.withColumns(
        {
            "rank": F.row_number().over(Window.partitionBy(*same, "of_b").orderBy("offset")),
            "n_a": F.sum(on(b=False)).over(equal),
            "n_b": F.sum(on(b=True)).over(equal),
            "delivered": F.sum(F.col("is_delivered").cast("long")).over(equal),
        }
    )
    n_a, n_b, rank, delivered = (F.col(name) for name in ("n_a", "n_b", "rank", "delivered"))
    undelivered = n_a - delivered
    # Copies of B before the first that may be undelivered: as many as were delivered, fewer if B has lost some
    before = F.greatest(F.least(delivered, n_b - undelivered), F.lit(0))
    in_b = (
        F.when(n_a == 0, UNMATCHED)
        .when((undelivered == 0) | (rank <= before), DELIVERED)
        .when(rank - before <= undelivered, UNDELIVERED)
        .otherwise(REPEATED)
    )
    keyed, offset = F.col("key").isNotNull(), F.col("offset")
    last_copy = F.max(F.when(F.col("of_b") & (n_a > 0), offset)).over(of_key)
    last_copied = F.max(F.when(~F.col("of_b") & (n_b > 0), offset)).over(of_key)
    in_a = (
        F.when(F.col("is_delivered"), DELIVERED)
        .when(rank - delivered > undelivered - n_b, COPIED)
        .otherwise(F.when(keyed & (last_copied > offset), SUPERSEDED).otherwise(LOST))
    )
    return ranked.withColumns(
        {
            "state": F.when(F.col("of_b"), in_b).otherwise(in_a),
            "has_copy": rank <= n_b,
            "has_newer": F.coalesce(keyed & (last_copy > offset), F.lit(False)),
        }
    )


def figures(known: DataFrame) -> DataFrame:
    """Return a row for each partition of `states`: what it holds on each side, and what decides where to go on."""
    offset, time, state, b = (F.col(name) for name in ("offset", "timestamp_ms", "state", "of_b"))

    def number(which: Column) -> Column:
        return F.count(F.when(which, 1))

    return known.groupBy(*_PARTITION).agg(
        number(~b).alias("a_records"),
        number(b).alias("b_records"),
        F.min(F.when(~b, offset)).alias("a_first"),
        F.max(F.when(~b, offset) + 1).alias("a_end"),
        F.min(F.when(b, offset)).alias("b_first"),
        F.max(F.when(b, offset) + 1).alias("b_end"),
        number(~b & F.col("has_copy")).alias("matched"),
        number(~b & ~F.col("is_delivered")).alias("undelivered"),
        number(state == LOST).alias("lost"),
        number(state == SUPERSEDED).alias("superseded"),
        F.min(F.when(b & (state == UNDELIVERED), offset)).alias("first_undelivered"),
        F.min(F.when(b & (state == UNMATCHED), offset)).alias("first_unmatched"),
        F.min(F.when(b & (state != UNMATCHED), offset)).alias("first_copy"),
        F.min(F.when(~b & ~F.col("is_delivered"), time)).alias("undelivered_from_ms"),
        F.max(F.when(~b & F.col("is_delivered"), time)).alias("delivered_to_ms"),
    )


def first_new(known: DataFrame, starts: DataFrame, *, ignore_timestamps: bool = False) -> DataFrame:
    """Return the first record of B, in each partition of `starts`, that A never had: topic, partition, first_new; null
    where all unmatched records are passed over.

    starts: topic, partition, committed, a_first, first_copy.
    """
    offset = F.col("offset")
    wanted = known.join(F.broadcast(starts.select(*_PARTITION)), [*_PARTITION], "left_semi")
    in_order = Window.partitionBy(*_PARTITION).orderBy("offset")
    of_a = wanted.where("NOT of_b").select(
        *_PARTITION, offset.alias("a_offset"), (offset + 1 - F.row_number().over(in_order)).alias("holes")
    )
    copies = (
        wanted.where("n_a = n_b")
        .groupBy(*_KEY, *identity(ignore_timestamps), "rank")
        .agg(
            F.max(of_side(b=False, column=offset)).alias("a_offset"),
            F.max(of_side(b=True, column=offset)).alias("offset"),
        )
        .select(*_PARTITION, "a_offset", "offset")
        .join(of_a, [*_PARTITION, "a_offset"])
        .withColumn("has_newer", F.lit(None).cast("boolean"))
    )
    new = wanted.where(F.col("of_b") & (F.col("state") == UNMATCHED)).select(
        *_PARTITION, *[F.lit(None).cast("long").alias(name) for name in ("a_offset", "holes")], "offset", "has_newer"
    )
    alone = ~F.col("has_newer")
    # A run: a copy, and the unmatched records between it and the next copy; the first run may have no copy
    runs = (
        copies.select(*new.columns)
        .unionByName(new)
        .withColumn("run", F.count("a_offset").over(in_order))
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
    later = F.col("of_b") & (F.col("timestamp_ms") >= F.col("from_ms"))
    joined = known.join(F.broadcast(times), [*_PARTITION])
    return joined.groupBy(*_PARTITION).agg(F.min(F.when(later, F.col("offset"))).alias("first_at"))


def behind(known: DataFrame, offsets: DataFrame) -> DataFrame:
    """Return what a consumer reads of B from offsets on, a row for each partition. offsets: topic, partition, go_on."""
    joined = known.where("of_b").join(F.broadcast(offsets), [*_PARTITION])
    time, state = F.col("timestamp_ms"), F.col("state")
    read = F.col("offset") >= F.col("go_on")
    again = read & state.isin(DELIVERED, REPEATED)
    return joined.groupBy(*_PARTITION).agg(
        F.count(F.when(read, 1)).alias("read"),
        F.count(F.when(again, 1)).alias("again"),
        F.coalesce(F.try_subtract(F.max(F.when(again, time)), F.min(F.when(again, time))), F.lit(0)).alias("again_ms"),
        F.count(F.when(read & (state == UNMATCHED), 1)).alias("not_of_a"),
        F.count(F.when(~read & (state == UNMATCHED), 1)).alias("passed_over"),
    )
