"""`audit keys`: what a log holds of each key, and the keys that lie where the default partitioner would not put them.

One aggregation by (topic, partition, key), whose buffers have a fixed width, and a window over (topic, key) for keys in
several partitions; both over `audit_records`, no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import Audit, run_audit, source_of
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.audit.sources import Source
from lastkey.jobs.command.audit_options import AuditKeysOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import count, counted, moment, size
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.store.audits import replace_results
from lastkey.jobs.store.paths import AUDIT_KEYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MISPLACED_SHARE = 0.5  # above it the number of partitions, or the partitioner, is another one


def run(options: AuditKeysOptions, progress: Progress) -> AuditReport:
    """Audit the keys of a source."""

    def listed_by(_: AuditReport) -> list[Source]:
        return [replace(source_of(options.source, options), counts=options.n_partitions)]

    return run_audit("keys", options, [options.source], partial(_ask, options), progress, listed_by)


def keys_of(records: DataFrame, n_partitions: Mapping[str, int]) -> DataFrame:
    """Return a row for each key of each partition, with what is there of it.

    records: as of records_of. n_partitions: of each topic, for the default partitioner.
    """
    by_key = (
        records.where(F.col("key").isNotNull())
        .groupBy("source", "topic", "partition", "key")
        .agg(
            F.max("offset").alias("last_offset"),
            F.max_by("timestamp_ms", "offset").alias("last_timestamp_ms"),
            F.max_by("tombstone", "offset").alias("tombstone"),
            F.count(F.lit(1)).alias("versions"),
            F.sum("size_bytes").alias("bytes"),
            F.max_by("size_bytes", "offset").cast("long").alias("last_bytes"),
            F.max("murmur2").alias("murmur2"),
        )
    )
    counts = records.sparkSession.createDataFrame(
        pa.table({"topic": [*n_partitions], "n_partitions": pa.array(n_partitions.values(), pa.int32())})
    )
    expected = F.col("murmur2") % F.col("n_partitions")
    return (
        by_key.join(F.broadcast(counts), "topic")
        .withColumn("expected_partition", expected)
        .withColumn("misplaced", F.col("partition") != expected)
        .withColumn("partitions", F.count(F.lit(1)).over(Window.partitionBy("source", "topic", "key")).cast("int"))
        .drop("murmur2", "n_partitions")
        .select("source", "topic", "partition", "key", "last_offset", "last_timestamp_ms", "tombstone", "versions",
                "bytes", "last_bytes", "expected_partition", "misplaced", "partitions")
    )  # fmt: skip


def _ask(options: AuditKeysOptions, audit: Audit) -> None:
    (name,) = audit.report.sources
    counts = {topic: n for (_, topic), n in audit.found.n_partitions.items()}
    keys = replace_results(audit.state, AUDIT_KEYS, name, keys_of(audit.records, counts))
    by_partition = (
        keys.groupBy("topic", "partition")
        .agg(
            F.count(F.lit(1)).alias("keys"),
            F.sum(F.col("tombstone").cast("int")).alias("tombstones"),
            F.sum("versions").alias("versions"),
            F.max("versions").alias("most_versions"),
            F.sum("bytes").alias("bytes"),
            F.sum("last_bytes").alias("last_bytes"),
            F.sum(F.col("misplaced").cast("int")).alias("misplaced"),
            F.sum((F.col("partitions") > 1).cast("int")).alias("elsewhere_too"),
        )
        .orderBy("topic", "partition")
        .toArrow()
        .to_pylist()
    )
    worst = {
        "versions": _most(keys, options.most, F.col("versions") > 1, "versions", "bytes"),
        "misplaced": _most(keys, options.most, F.col("misplaced"), "versions"),
        "several_partitions": _most(keys, options.most, F.col("partitions") > 1, "partitions", "key"),
    }
    _fill(audit.report, options, by_partition, worst)


def _most(keys: DataFrame, most: int, which: Any, *by: str) -> list[dict[str, Any]]:
    """Return the first keys of those that `which` selects, by columns, the largest first."""
    order = [F.desc(column) for column in by]
    rows = keys.where(which).orderBy(*order, "topic", "partition", "key").limit(most).drop("source")
    return list(rows.toArrow().to_pylist())


def _fill(
    report: AuditReport,
    options: AuditKeysOptions,
    by_partition: list[dict[str, Any]],
    worst: dict[str, list[dict[str, Any]]],
) -> None:
    names = ("keys", "tombstones", "versions", "bytes", "last_bytes", "misplaced", "elsewhere_too")
    total = {name: sum(row[name] for row in by_partition) for name in names}
    report.summary = total | {"partitions": len(by_partition)}
    hidden = options.hide_keys
    told = {name: [row | {"key": shown_key(row["key"], hidden)} for row in rows] for name, rows in worst.items()}
    report.details = {"partitions": by_partition, "keys": told, "keys_hidden": hidden}
    report.cards = [
        Card("keys", count(total["keys"]), counted(len(by_partition), "partition")),
        Card("tombstones", count(total["tombstones"]), "keys whose last record deletes them"),
        Card("versions", count(total["versions"]), f"{total['versions'] / max(total['keys'], 1):.2f} for each key"),
        Card("bytes", size(total["bytes"]), f"last versions: {size(total['last_bytes'])}; without batch headers"),
        Card("misplaced", count(total["misplaced"]), "not where the default partitioner puts them"),
        Card("in several partitions", count(total["elsewhere_too"]), "counted in each of them"),
    ]
    header = (
        "partition",
        "keys",
        "tombstones",
        "versions",
        "most of a key",
        "bytes",
        "last",
        "misplaced",
        "elsewhere too",
    )
    report.tables = [
        Table("Partitions", header, [_partition_row(row) for row in by_partition]),
        _of_keys("Keys with the most versions", told["versions"]),
        _of_keys("Keys that the default partitioner would put elsewhere", told["misplaced"]),
        _of_keys("Keys in several partitions", told["several_partitions"]),
    ]
    if total["keys"] and total["misplaced"] / total["keys"] > _MISPLACED_SHARE:
        report.notes.append(
            "most keys lie where the default partitioner would not put them: the topic has more partitions than are "
            "here (--partition-count TOPIC=N), or its producers choose partitions in another way (librdkafka does)"
        )


def _partition_row(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['topic']}-{row['partition']}",
        *(count(row[name]) for name in ("keys", "tombstones", "versions", "most_versions")),
        *(size(row[name]) for name in ("bytes", "last_bytes")),
        *(count(row[name]) for name in ("misplaced", "elsewhere_too")),
    ]


def _of_keys(label: str, rows: list[dict[str, Any]]) -> Table:
    header = ("partition", "key", "versions", "bytes", "last", "offset", "time", "expected in", "partitions")
    body = [
        [
            f"{row['topic']}-{row['partition']}", row["key"], count(row["versions"]), size(row["bytes"]),
            "tombstone" if row["tombstone"] else size(row["last_bytes"]), str(row["last_offset"]),
            moment(row["last_timestamp_ms"]), str(row["expected_partition"]), count(row["partitions"]),
        ]
        for row in rows
    ]  # fmt: skip
    return Table(label, header, body, (1,))
