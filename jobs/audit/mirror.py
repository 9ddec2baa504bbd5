"""Two copies of the same topics, key by key: what B lacks, has late, has otherwise, or has beside.

The versions of a key are its records, tombstones included, in the order of their offsets, matched by `matches`. Only
the number of equal versions can differ between the sides.

A key is judged by its last version on each side, since compaction may drop all others on either side at any time:

| kind | last versions |
|---|---|
| equal | are the same |
| deleted | one side ends with a tombstone, the other has nothing of the key: compaction dropped the tombstone too |
| missing, extra | one side has nothing of the key |
| stale | B does not have A's, and its own is an older version of A (or older than all that A still has) |
| different | neither side has the other's |
| ahead | B has A's, and newer versions that A does not have |
| order | B has A's, but before an older version; also if older versions changed places |
| unknown | would be one of these, but what would decide it lies where a log could not be read |

Older versions on one side only are counted, and are findings (`missing_version`, `extra_version`) if the caller says
that neither side was compacted; then a key that is `deleted` is missing or extra.

Records without a key are compared as a set that counts, partition by partition: `missing_record`, `extra_record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.matches import AT, DIGEST, KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EQUAL, DELETED, UNKNOWN = "equal", "deleted", "unknown"
LAWFUL: Final = (EQUAL, DELETED)
# Columns of a row, beside topic, partition, kind, without_key and key. Without a key "keys" are groups of equal records
COUNTS: Final = ("keys", "a_versions", "b_versions", "missing_versions", "extra_versions")
PLACES: Final = ("a_partition", "a_offset", "a_timestamp_ms", "b_partition", "b_offset", "b_timestamp_ms")
_RESTS_ON_A: Final = ("extra", "different", "ahead", "extra_version", "extra_record")
_RESTS_ON_B: Final = ("missing", "stale", "different", "missing_version", "missing_record")
_SHOWN: Final = ("partition", "offset", "timestamp_ms")
_FIRST: Final = Window.unboundedPreceding


def compare(
    matches: DataFrame,
    unread: DataFrame | None = None,
    *,
    ignore_timestamps: bool = False,
    every_version: bool = False,
) -> DataFrame:
    """Return the findings, one a row, and one row for all lawful keys of each kind and partition.

    matches: of `match`. unread: topic, partition, a_unread, b_unread (bool), where logs could not be read; None: all
    was read.
    """
    keyed = _judged(_keys(matches.where("key IS NOT NULL")), ignore_timestamps, every_version)
    outcomes = keyed.unionByName(_without_key(matches.where("key IS NULL")))
    return _collapsed(_with_unknown(outcomes, unread))


def _keys(matches: DataFrame) -> DataFrame:
    """Return a row for each key: counts, and what stands first and last on each side."""
    in_a, in_b = F.col("a").isNotNull(), F.col("b").isNotNull()
    told = F.struct(*DIGEST, "tombstone", "n_a", "n_b")
    # Of versions that repeat, another number on one side, nobody knows which one is there
    certain = in_a & in_b & (F.col("n_a") == F.col("n_b"))
    earlier = Window.partitionBy(*KEY).orderBy(*[f"a.{name}" for name in AT]).rowsBetween(_FIRST, -1)
    turned = certain & (F.col("b") < F.max(F.when(certain, F.col("b"))).over(earlier))
    return (
        matches.select("*", told.alias("told"), turned.alias("is_turned"))
        .groupBy(*KEY)
        .agg(
            F.max(F.when(in_a, F.struct("a", "told"))).alias("a_last"),
            F.max(F.when(in_b, F.struct("b", "told"))).alias("b_last"),
            F.min("a").alias("a_first"),
            F.min(F.when(F.col("is_turned"), F.struct("a", "b"))).alias("turned"),
            F.min(F.when(~in_b, F.col("a"))).alias("a_alone"),
            F.min(F.when(~in_a, F.col("b"))).alias("b_alone"),
            F.count("a").alias("a_versions"),
            F.count("b").alias("b_versions"),
            F.count(F.when(~in_b, 1)).alias("missing_versions"),
            F.count(F.when(~in_a, 1)).alias("extra_versions"),
        )
    )


def _judged(keys: DataFrame, ignore_timestamps: bool, every_version: bool) -> DataFrame:
    """Return the kind of each key, and the places that show it."""
    a, b = F.col("a_last.told"), F.col("b_last.told")
    a_ms, b_ms = F.col("a_last.a.timestamp_ms"), F.col("b_last.b.timestamp_ms")
    no_a, no_b, turned = F.col("a_last").isNull(), F.col("b_last").isNull(), F.col("turned").isNotNull()
    same = F.lit(True) if ignore_timestamps else a_ms == b_ms
    for name in DIGEST:
        same &= a[name] == b[name]
    misses_last, last_is_known = a["n_b"] < a["n_a"], b["n_a"] > 0
    a_begins_later = F.lit(False) if ignore_timestamps else b_ms < F.col("a_first.timestamp_ms")
    missing, extra = F.col("missing_versions") > 0, F.col("extra_versions") > 0
    dropped = F.lit(False) if every_version else F.coalesce(a["tombstone"], b["tombstone"])
    kind = (
        F.when((no_a | no_b) & dropped, DELETED)
        .when(no_b, "missing")
        .when(no_a, "extra")
        .when(same, F.when(turned, "order").otherwise(EQUAL))
        .when(misses_last, F.when(last_is_known | a_begins_later, "stale").otherwise("different"))
        .when(last_is_known, "order")
        .otherwise("ahead")
    )
    if every_version:
        older = F.when(missing, "missing_version").when(extra, "extra_version").otherwise(EQUAL)
        kind = F.when(kind == EQUAL, older).otherwise(kind)
    judged, kind = keys.withColumn("kind", kind), F.col("kind")  # a column: else it is worked out again for each use
    a_place = F.when(kind == "extra_version", None).when(kind == "missing_version", F.col("a_alone"))
    b_place = F.when(kind == "missing_version", None).when(kind == "extra_version", F.col("b_alone"))
    swapped = (kind == "order") & turned
    return judged.select(
        "topic",
        F.col("place").alias("partition"),
        kind,
        "key",
        F.lit(False).alias("without_key"),
        "a_versions",
        "b_versions",
        "missing_versions",
        "extra_versions",
        *_places("a", a_place.when(swapped, F.col("turned.a")).otherwise(F.col("a_last.a"))),
        *_places("b", b_place.when(swapped, F.col("turned.b")).otherwise(F.col("b_last.b"))),
    )


def _places(side: str, place: Column) -> list[Column]:
    return [place[name].alias(f"{side}_{name}") for name in _SHOWN]


def _without_key(matches: DataFrame) -> DataFrame:
    """Return a row for each group of equal records without a key: how many each side has, and the first of them."""
    n_a, n_b = F.col("n_a"), F.col("n_b")
    return matches.where("occurrence = 1").select(
        "topic",
        F.col("place").alias("partition"),
        F.when(n_a > n_b, "missing_record").when(n_a < n_b, "extra_record").otherwise(EQUAL).alias("kind"),
        F.lit(None).cast("binary").alias("key"),
        F.lit(True).alias("without_key"),
        n_a.alias("a_versions"),
        n_b.alias("b_versions"),
        F.greatest(n_a - n_b, F.lit(0)).alias("missing_versions"),
        F.greatest(n_b - n_a, F.lit(0)).alias("extra_versions"),
        *_places("a", F.col("a")),
        *_places("b", F.col("b")),
    )


def _with_unknown(outcomes: DataFrame, unread: DataFrame | None) -> DataFrame:
    """Return the outcomes; what rests on a record's absence is unknown where that side could not be read."""
    if unread is None:
        return outcomes
    kind = F.col("kind")
    rests_on_a, rests_on_b = kind.isin(*_RESTS_ON_A), kind.isin(*_RESTS_ON_B)
    unknown = (rests_on_a & F.col("a_unread")) | (rests_on_b & F.col("b_unread"))
    joined = outcomes.join(F.broadcast(unread), ["topic", "partition"], "left")
    return joined.withColumn("kind", F.when(unknown, UNKNOWN).otherwise(kind)).drop("a_unread", "b_unread")


def _collapsed(outcomes: DataFrame) -> DataFrame:
    """Return a row for each finding, and one for all that is lawful of a kind and a partition."""
    lawful = F.col("kind").isin(*LAWFUL)
    shown = [F.when(~lawful, F.col(name)).alias(name) for name in ("key", *PLACES)]  # so each finding is a group
    return outcomes.groupBy("topic", "partition", "kind", "without_key", *shown).agg(
        F.count("*").alias("keys"), *[F.sum(name).alias(name) for name in COUNTS if name != "keys"]
    )
