"""`audit delivery`: the delivered offset of each key, and how far each group lags behind the last updates.

Committed offsets come from the coordinators' own topics (coordinators.py), or deliveries by key from a table
(delivery_table.py); lags.py has the queries over `audit_records`. The results are written first, and asked then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import MOST, SparkAudit, by_spark, run_audit
from lastkey.jobs.audit.coordinators import committed_in, coordinators_of, positions_of
from lastkey.jobs.audit.delivery_table import read_deliveries
from lastkey.jobs.audit.lags import (
    LAGS,
    by_positions,
    by_starts,
    by_table,
    figures_of,
    newest_times,
    spread_of,
    with_lags,
    worst_keys,
)
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.command.audit_options import AuditDeliveryOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import TO_THE_MINUTE, count, counted, duration, moment
from lastkey.jobs.errors import UsageError
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.store.audits import audit_secret, replace_results
from lastkey.jobs.store.job_rows import job_rows
from lastkey.jobs.store.paths import AUDIT_DELIVERIES
from lastkey.jobs.store.rows import JobRow
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.audit.group_records import CONSUMER_OFFSETS
from lastkey.udfs.storage import normal_uri

if TYPE_CHECKING:
    from lastkey.jobs.audit.sources import Source

_TREND: Final = 10  # earlier audits in the report
_COUNTS: Final = ("keys", "delivered", "undelivered", "unknown", "never", "undelivered_tombstones", "versions_behind")


def run(options: AuditDeliveryOptions, progress: Progress) -> AuditReport:
    """Audit what groups have been delivered of a source."""
    if options.deliveries is not None and options.offsets_archive is not None:
        raise UsageError(message="--deliveries contradicts --offsets-archive: give only one of them")
    coordinators = None
    if options.deliveries is None:  # before Spark starts: it may be missing
        coordinators = coordinators_of(options.source, options.offsets_archive)
    tables = () if options.deliveries is None else (as_hadoop_names_it(normal_uri(options.deliveries)),)
    asked = by_spark(partial(_ask, options, coordinators))
    return run_audit("delivery", options, [options.source], asked, progress, tables=tables)


def _ask(options: AuditDeliveryOptions, coordinators: Source | None, audit: SparkAudit) -> None:
    (name,) = audit.report.sources
    audit.report.details["unknown_groups"] = {}
    counts = {topic: n for (_, topic), n in audit.found.n_partitions.items()}
    if coordinators is None:
        of_keys, places = _from_table(options, audit)
    else:
        of_keys, places = _from_commits(options, coordinators, counts, audit)
    times = newest_times(audit.records)
    damaged = {(topic, partition) for (_, topic, partition), found in audit.found.problems.items() if found}
    places = _with_whole(places, damaged).join(F.broadcast(times), ["topic", "partition"], "left")
    result = replace_results(audit.state, AUDIT_DELIVERIES, name, with_lags(of_keys, places, name))
    figures = figures_of(result).toArrow().to_pylist()
    worst = worst_keys(result, MOST).toArrow().to_pylist()
    if options.max_age_ms is not None:
        late = (F.col("verdict") == "undelivered") & (F.col("age_ms") > options.max_age_ms)
        audit.report.findings = result.where(late).count()
    runs = (row for row in job_rows(audit.state) if row.job == "audit delivery")
    earlier = [row for row in runs if row.told.get("sources") == [name]]
    _fill(audit.report, options, figures, worst, earlier)


def _from_commits(
    options: AuditDeliveryOptions, coordinators: Source, counts: Mapping[str, int], audit: SparkAudit
) -> tuple[DataFrame, DataFrame]:
    """Return (what each group was delivered of each key, its places), by committed offsets."""
    accepts = options.config.topic_settings(CONSUMER_OFFSETS).gaps == "accept"
    found = committed_in(audit.spark, coordinators, accept_gaps=accepts)
    ends: dict[tuple[str, int], int] = {}
    for part in audit.found.parts:
        place = part.read.topic, part.read.partition
        ends[place] = max(ends.get(place, 0), part.end_offset)
    positions = positions_of(found, options.groups, counts, ends)
    audit.report.other_problems += [*found.problems, *found.unreadable(options.groups, counts)]
    audit.report.notes += [*found.notes, *positions.notes]
    for group, why in sorted(positions.unknown.items()):  # who asked for a group by name gets no answer
        told = audit.report.other_problems if group in options.groups else audit.report.notes
        told.append(f"group {group!r} is not known: {why}")
    audit.report.details["unknown_groups"] = dict(positions.unknown)
    table, spark = positions.table, audit.spark
    is_share = pc.equal(table["group_type"], "share")
    of_share, others = table.filter(is_share), table.filter(pc.invert(is_share))
    parts = [by_starts(audit.records, spark.createDataFrame(others))]
    if len(of_share):
        parts.append(by_positions(audit.records, spark.createDataFrame(of_share)))
    places = spark.createDataFrame(table).select("group", "topic", "partition", "group_type", "known")
    return reduce(DataFrame.unionByName, parts), places


def _from_table(options: AuditDeliveryOptions, audit: SparkAudit) -> tuple[DataFrame, DataFrame]:
    """Return (what each group was delivered of each key, its places), by a table of deliveries."""
    secret = audit_secret(audit.state) if options.hide_keys else None
    told = read_deliveries(audit.spark, options.deliveries or "", options.key_format, secret)
    if options.groups:
        told = told.where(F.col("group").isin(*options.groups))
    of_keys = by_table(audit.records, told)
    columns: list[str] = [name for name in told.columns if name in ("topic", "partition", "key")]
    there = audit.records.select(*columns).distinct()
    n_without = told.join(there, columns, "left_anti").count()
    if n_without:
        audit.report.notes.append(
            f"{counted(n_without, 'row')} of {options.deliveries}: no record with this key is left"
        )
    named = set(told.select("topic").distinct().toArrow()["topic"].to_pylist())
    if others := sorted({topic for _, topic in audit.found.n_partitions} - named):
        audit.report.notes.append(f"{options.deliveries} names no key of {', '.join(others)}: not judged")
    places = (
        told.select("group", "topic")
        .distinct()
        .join(F.broadcast(audit.records.select("topic", "partition").distinct()), "topic")
        .withColumn("group_type", F.lit("table"))
        .withColumn("known", F.lit(True))
    )
    return of_keys, places


def _with_whole(places: DataFrame, damaged: set[tuple[str, int]]) -> DataFrame:
    """Add the column `whole`: false for the partitions of which something could not be read."""
    columns = {
        "topic": pa.array([topic for topic, _ in damaged], pa.string()),
        "partition": pa.array([partition for _, partition in damaged], pa.int32()),
        "damaged": pa.array([True] * len(damaged), pa.bool_()),
    }
    marked = places.sparkSession.createDataFrame(pa.table(columns))
    joined = places.join(F.broadcast(marked), ["topic", "partition"], "left")
    return joined.withColumn("whole", F.col("damaged").isNull()).drop("damaged")


# -- the report


def _fill(
    report: AuditReport,
    options: AuditDeliveryOptions,
    figures: list[dict[str, Any]],
    worst: list[dict[str, Any]],
    earlier: Sequence[JobRow],
) -> None:
    groups = [
        {
            **{name: row[name] for name in ("group", "group_type", "topic", *_COUNTS)},
            **{lag: spread_of(row, lag) for lag in LAGS},
        }
        for row in figures
    ]
    total = {name: sum(row[name] or 0 for row in groups) for name in _COUNTS}
    report.summary = total | {"groups": groups}
    worst = [row | {"key": shown_key(row["key"], options.hide_keys)} for row in worst]
    trend = _trend(groups, earlier)
    report.details |= {"worst": worst, "trend": trend, "keys_hidden": options.hide_keys}
    latest = sorted(worst, key=lambda row: (-(row["age_ms"] or 0), -row["lag_versions"]))[:MOST]
    report.cards = _cards(groups, total)
    report.tables = [
        Table(
            "Groups",
            ("group", "type", "topic", "keys", "undelivered", "unknown", *_spread_header("versions"),
             *_spread_header("waits")),
            [_group_row(row) for row in groups],
            (1, 2),
        ),
        Table(
            "Keys that have waited longest",
            ("group", "partition", "key", "last offset", "delivered", "versions", "offsets", "time", "waits"),
            [_key_row(row) for row in latest],
            (1, 2),
        ),
        Table(
            "Trend",
            ("time", "group", "topic", "keys", "undelivered", "unknown", *_spread_header("versions"),
             *_spread_header("waits")),
            [[moment(at_ms, TO_THE_MINUTE), *_trend_row(row)] for at_ms, row in _flat(trend)],
            (1, 2),
        ),
    ]  # fmt: skip


def _cards(groups: Sequence[Mapping[str, Any]], total: Mapping[str, int]) -> list[Card]:
    """Return the figures at the top."""
    n_groups, n_topics = (len({row[name] for row in groups}) for name in ("group", "topic"))
    return [
        Card("groups", count(n_groups), f"{counted(n_topics, 'topic')} read by them"),
        Card("keys", count(total["keys"]), "counted for each group"),
        Card("undelivered", count(total["undelivered"]), "keys whose last update was not delivered"),
        Card("none delivered", count(total["never"]), "of them: no version that is left was delivered"),
        Card("tombstones", count(total["undelivered_tombstones"]), "of them: the last update deletes the key"),
        Card("unknown", count(total["unknown"]), "what was delivered could not be read"),
        Card("versions", count(total["versions_behind"]), "wait to be delivered"),
    ]


def _trend(groups: Sequence[Mapping[str, Any]], earlier: Sequence[JobRow]) -> list[dict[str, Any]]:
    """Return the figures of the same groups and topics in earlier audits, the oldest first."""
    now = {(row["group"], row["topic"]) for row in groups}
    out = []
    for audit in earlier[-_TREND:]:
        told = [row for row in audit.told["summary"].get("groups", ()) if (row["group"], row["topic"]) in now]
        out.append({"at_ms": audit.started_ms, "audit_id": audit.run_id, "groups": told})
    return out


def _flat(trend: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(audit["at_ms"], row) for audit in trend for row in audit["groups"]]


def _spread_header(what: str) -> tuple[str, ...]:
    return f"{what} p50", "p99", "most"


def _spread(row: Mapping[str, Any], lag: str, show: Any) -> list[str]:
    return [show(row[lag][share]) for share in ("p50", "p99", "max")]


def _group_row(row: Mapping[str, Any]) -> list[str]:
    return [
        _name(row["group"]), row["group_type"], row["topic"],
        *(count(row[name]) for name in ("keys", "undelivered", "unknown")),
        *_spread(row, "lag_versions", count),
        *_spread(row, "age_ms", duration),
    ]  # fmt: skip


def _trend_row(row: Mapping[str, Any]) -> list[str]:
    group, _, *rest = _group_row(row)
    return [group, *rest]


def _key_row(row: Mapping[str, Any]) -> list[str]:
    return [
        _name(row["group"]), f"{row['topic']}-{row['partition']}", row["key"], str(row["last_offset"]),
        "-" if row["delivered_offset"] is None else str(row["delivered_offset"]),
        count(row["lag_versions"]), count(row["lag_offsets"]), duration(row["lag_ms"]), duration(row["age_ms"]),
    ]  # fmt: skip


def _name(group: str) -> str:
    """Return a group's name in one line."""
    return group if group.isprintable() else repr(group)
