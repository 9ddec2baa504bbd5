"""`audit delivery`: the delivered offset of each key, and how far each group lags behind the last updates.

Committed offsets come from the coordinators' own topics (coordinators.py), or deliveries by key from a table
(delivery_table.py).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_schema

from lastkey.jobs.audit.answers import ReadSource, Request, ask, commit, parts_by_unit
from lastkey.jobs.audit.audit import MOST, Audit, run_audit
from lastkey.jobs.audit.coordinators import committed_in, committed_offsets, committed_positions, list_coordinators
from lastkey.jobs.audit.delivery_table import read_deliveries
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.command.audit_options import AuditDeliveryOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import TO_THE_MINUTE, Card, Table, count, counted, duration, moment
from lastkey.jobs.errors import UsageError
from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.history import job_rows
from lastkey.jobs.store.paths import AUDIT_DELIVERIES, table_folder
from lastkey.jobs.store.rows import JobRow
from lastkey.jobs.topics import Key
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.audit.committed import Committed
from lastkey.udfs.audit.delivery import (
    COUNTS,
    DELIVERIES,
    TABLE_GROUP,
    TOLD_FILES,
    DeliveryQuestion,
    DeliveryUnit,
    Position,
    Summary,
    merged_figures,
    write_told,
)
from lastkey.udfs.audit.entries import Cuts
from lastkey.udfs.audit.group_records import CONSUMER_OFFSETS
from lastkey.udfs.audit.runs import Sides
from lastkey.udfs.storage import delete_folder, exists, normal_uri

if TYPE_CHECKING:
    from lastkey.jobs.audit.sources import AuditedLogs

_TREND: Final = 10  # earlier audits in the report


def run(options: AuditDeliveryOptions, progress: Progress) -> AuditReport:
    """Audit what groups have been delivered of a source."""
    if options.deliveries is not None and options.offsets_archive is not None:
        raise UsageError(message="--deliveries contradicts --offsets-archive: give only one of them")
    if options.deliveries is None:  # before Spark starts: the coordinators' topics may be missing
        coordinators = list_coordinators(options.source, options.offsets_archive)
        return _run_by_commits(options, coordinators, progress)
    tables = (as_hadoop_names_it(normal_uri(options.deliveries)),)
    return run_audit("delivery", options, [options.source], partial(_ask, options, None), progress, tables=tables)


def _run_by_commits(options: AuditDeliveryOptions, coordinators: AuditedLogs, progress: Progress) -> AuditReport:
    """Read the commits first: versions are added up between the committed offsets of a partition. Acknowledged ranges
    of share groups need all versions.
    """
    found = list[Committed]()

    def cuts(workers: SparkTasks) -> Callable[[Key], Cuts]:
        accepts = options.config.topic_settings(CONSUMER_OFFSETS).gaps == "accept"
        found.append(committed_in(workers, coordinators, accept_gaps=accepts))
        offsets, apart = committed_offsets(found[0], options.groups)
        return lambda key: None if key in apart else tuple(sorted(offsets.get(key, ())))

    def ask_with(audit: Audit) -> None:
        _ask(options, found[0], audit)

    return run_audit("delivery", options, [options.source], ask_with, progress, cuts=cuts)


def _ask(options: AuditDeliveryOptions, committed: Committed | None, audit: Audit) -> None:
    (name,) = audit.report.sources
    audit.report.details["unknown_groups"] = {}
    folder = f"{table_folder(AUDIT_DELIVERIES)}/told-{uuid.uuid4().hex}"
    parts = parts_by_unit(audit.found, [ReadSource(name)])
    told: tuple[str, ...] = ()
    positions: Mapping[Key, Sequence[Position]]
    try:
        if committed is None:
            told, positions = _from_table(options, audit, folder, list(parts))
        else:
            positions = _from_commits(options, committed, audit)
        damaged = {(topic, partition) for (_, topic, partition), found in audit.found.problems.items() if found}
        newest = {unit: max(part.read.newest_ms for _, part in of) for unit, of in parts.items()}
        units = {
            unit: DeliveryUnit(tuple(positions.get(unit, ())), unit not in damaged, None if ms < 0 else ms)
            for unit, ms in newest.items()
        }

        def question(sides: Sides) -> DeliveryQuestion:
            return DeliveryQuestion(name, tuple(units[unit] for unit in sides.units), MOST, options.max_age_ms, told)

        extra = {unit: [asdict(one), options.hide_keys, folder if told else ""] for unit, one in units.items()}
        request = Request(AUDIT_DELIVERIES, DELIVERIES, name, parts, extra, question)
        answers = ask(audit, request)
        commit(audit, request, answers)
    finally:
        if exists(audit.state.root, folder):
            delete_folder(audit.state.root, folder)
    if n_without := sum(summary.without for summary in answers.summaries):
        audit.report.notes.append(
            f"{counted(n_without, 'row')} of {options.deliveries}: no record with this key is left"
        )
    if options.max_age_ms is not None:
        audit.report.findings = sum(summary.late for summary in answers.summaries)
    runs = (row for row in job_rows(audit.state) if row.job == "audit delivery")
    earlier = [row for row in runs if row.amounts.get("sources") == [name]]
    _fill(audit.report, options, merged_figures(answers.summaries), _worst(answers.summaries), earlier)


def _from_commits(options: AuditDeliveryOptions, found: Committed, audit: Audit) -> Mapping[Key, Sequence[Position]]:
    """Return what each group was delivered of each partition, by committed offsets."""
    counts = {topic: n for (_, topic), n in audit.found.n_partitions.items()}
    ends: dict[Key, int] = {}
    for part in audit.found.parts:
        place = part.read.topic, part.read.partition
        ends[place] = max(ends.get(place, 0), part.end_offset)
    positions = committed_positions(found, options.groups, counts, ends)
    audit.report.other_problems += [*found.problems, *found.unreadable(options.groups, counts)]
    audit.report.notes += [*found.notes, *positions.notes]
    for group, why in sorted(positions.unknown.items()):  # a group that was named gets no answer
        texts = audit.report.other_problems if group in options.groups else audit.report.notes
        texts.append(f"group {group!r} is not known: {why}")
    audit.report.details["unknown_groups"] = dict(positions.unknown)
    return positions.by_unit


def _from_table(
    options: AuditDeliveryOptions, audit: Audit, folder: str, units: Sequence[Key]
) -> tuple[tuple[str, ...], dict[Key, list[Position]]]:
    """Return the files of deliveries by key, and the groups that a table names of each partition."""
    write = partial(write_told, audit.state.root.uri, folder, audit_secret(audit.state))
    with audit.workers.spark("audit delivery") as spark:
        rows = read_deliveries(spark, options.deliveries or "", options.key_format)
        if options.groups:
            rows = rows.where(rows["group"].isin(*options.groups))
        files = rows.mapInArrow(write, from_arrow_schema(TOLD_FILES)).toArrow().to_pylist()
    named = sorted({(row["topic"], row["group"]) for row in files})
    if others := sorted({topic for topic, _ in units} - {topic for topic, _ in named}):
        audit.report.notes.append(f"{options.deliveries} names no key of {', '.join(others)}: not judged")
    positions = {unit: [Position(group, TABLE_GROUP) for topic, group in named if topic == unit[0]] for unit in units}
    return tuple(sorted({row["path"] for row in files})), positions


def _worst(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return of each group and topic the keys whose last update waits longest."""

    def waits(row: Mapping[str, Any]) -> tuple[Any, ...]:
        age = row["age_ms"]
        return age is None, -(age or 0), -row["lag_versions"]

    rows = [row for summary in summaries for row in summary.worst]
    by_place = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for row in sorted(rows, key=lambda row: (*waits(row), row["partition"], row["key"])):
        by_place[row["group"], row["topic"]].append(row)
    first = [row for of in by_place.values() for row in of[:MOST]]
    return sorted(first, key=lambda row: (*waits(row), row["group"], row["topic"], row["partition"], row["key"]))


# -- the report


def _fill(
    report: AuditReport,
    options: AuditDeliveryOptions,
    figures: Mapping[tuple[str, ...], dict[str, Any]],
    worst: list[dict[str, Any]],
    earlier: Sequence[JobRow],
) -> None:
    places = ("group", "group_type", "topic")
    groups = [dict(zip(places, place, strict=True)) | row for place, row in figures.items()]
    total = {name: sum(row[name] for row in groups) for name in COUNTS}
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
        told = [row for row in audit.amounts["summary"].get("groups", ()) if (row["group"], row["topic"]) in now]
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
