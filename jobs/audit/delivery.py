"""`audit delivery`: the delivered offset of each key, and how far each group lags behind the last updates.

Committed offsets come from the coordinators' own topics (coordinators.py), or deliveries by key from a table
(delivery_table.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Final, cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from lastkey.jobs.audit.audit import MOST, Audit
from lastkey.jobs.audit.coordinators import committed_in, committed_offsets, committed_positions, list_coordinators
from lastkey.jobs.audit.delivery_table import read_deliveries
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, TextTable, count, counted, duration
from lastkey.jobs.command.store_options import AuditDeliveryOptions
from lastkey.jobs.errors import UsageError
from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.history import job_rows
from lastkey.jobs.store.paths import AUDIT_DELIVERIES
from lastkey.jobs.topics import Key
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.audit.committed import Committed
from lastkey.udfs.audit.delivery import (
    COUNTS,
    GROUP_FIGURES,
    TABLE_GROUP,
    TOLD_FILES,
    WORST_KEY,
    DeliveryQuestion,
    DeliveryUnit,
    Position,
    write_told,
)
from lastkey.udfs.audit.entries import Cuts
from lastkey.udfs.storage import normal_uri

_TREND: Final = 10  # earlier audits in the report
GroupRow = Annotated[dict[str, Any], GROUP_FIGURES]
WorstRow = Annotated[dict[str, Any], WORST_KEY]
_DELIVERY_SUMMARY: Final = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS),
        pa.field("groups", pa.list_(pa.struct(list(GROUP_FIGURES))), nullable=False),
    ]
)
_LAG_COLUMNS: Final = (
    "keys undelivered unknown lag_versions.p50:versions_p50 lag_versions.p99:p99 lag_versions.max:most"
    " p50:waits_p50 p99 max:most"
)


def _span(*path: str) -> Callable[[Any], str]:
    def show(row: Any) -> str:
        for name in path:
            row = row[name]
        return duration(row)

    return show


def _group_name(row: Mapping[str, Any]) -> str:
    """Return a group's name in one line."""
    name = str(row["group"])
    return name if name.isprintable() else repr(name)


_COMPUTED: Final[dict[str, Callable[[Any], object]]] = {
    "group": _group_name,
    **{share: _span("age_ms", share) for share in ("p50", "p99", "max")},
    **{name: _span(name) for name in ("lag_ms", "age_ms")},
}


@dataclass(frozen=True)
class EarlierAudit:
    """Figures of the same groups and topics in an earlier audit."""

    at_ms: int
    audit_id: str
    groups: list[GroupRow]


@dataclass(kw_only=True)
class DeliveryReport(AuditReport):
    """Report of `audit delivery`."""

    job = "audit delivery"
    facts = f"{AuditReport.facts} unknown_groups worst trend"
    result_tables = (
        TextTable("summary.groups", f"group group_type:type topic {_LAG_COLUMNS}", _COMPUTED, "Groups"),
        TextTable(
            "latest",
            "group partition key last_offset delivered_offset:delivered lag_versions:versions lag_offsets:offsets"
            " lag_ms:time age_ms:waits",
            _COMPUTED,
            "Keys that have waited longest",
        ),
        TextTable("earlier_rows", f"at_ms:time group topic {_LAG_COLUMNS}", _COMPUTED, "Trend"),
    )

    summary: Annotated[dict[str, Any], _DELIVERY_SUMMARY] = field(default_factory=dict)
    unknown_groups: dict[str, str] = field(default_factory=dict)  # group -> why its commits are unknown
    worst: list[WorstRow] = field(default_factory=list)
    trend: list[EarlierAudit] = field(default_factory=list)

    def latest(self) -> list[WorstRow]:
        """Return the keys that have waited longest."""
        return sorted(self.worst, key=lambda row: (-(row["age_ms"] or 0), -row["lag_versions"]))[:MOST]

    def earlier_rows(self) -> list[dict[str, Any]]:
        """Return the figures of earlier audits, the oldest first."""
        return [row | {"at_ms": audit.at_ms} for audit in self.trend for row in audit.groups]

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        total = self.summary
        n_groups, n_topics = (len({row[name] for row in total["groups"]}) for name in ("group", "topic"))
        yield Card("groups", count(n_groups), f"{counted(n_topics, 'topic')} read by them")
        yield Card("keys", count(total["keys"]), "counted for each group")
        yield Card("undelivered", count(total["undelivered"]), "keys whose last update was not delivered")
        yield Card("none delivered", count(total["never"]), "of them: no version that is left was delivered")
        yield Card("tombstones", count(total["undelivered_tombstones"]), "of them: the last update deletes the key")
        yield Card("unknown", count(total["unknown"]), "what was delivered could not be read")
        yield Card("versions", count(total["versions_behind"]), "wait to be delivered")


def run(options: AuditDeliveryOptions, progress: Progress) -> DeliveryReport:
    """Audit what groups have been delivered of a source."""
    return DeliveryAudit(options, DeliveryReport()).run(progress)


class DeliveryAudit(Audit[AuditDeliveryOptions, DeliveryReport]):
    """Audit of what groups have been delivered of a source."""

    committed: Committed

    def __init__(self, options: AuditDeliveryOptions, report: DeliveryReport) -> None:
        super().__init__(options, report)
        if options.deliveries is None:  # before Spark starts: the coordinators' topics may be missing
            self._coordinators = list_coordinators(options.source, options.offsets_archive)
            return
        if options.offsets_archive is not None:
            raise UsageError(message="--deliveries contradicts --offsets-archive: give only one of them")
        self.spark_tables = (as_hadoop_names_it(normal_uri(options.deliveries)),)

    def cuts(self) -> Callable[[Key], Cuts]:
        """Read the commits: versions are added up between the committed offsets of a partition. Acknowledged ranges of
        share groups, and deliveries by key, need all versions.
        """
        if self.options.deliveries is not None:
            return super().cuts()
        self.committed = committed_in(self.workers, self._coordinators, self.options.config)
        offsets, apart = committed_offsets(self.committed, self.options.groups)
        return lambda key: None if key in apart else tuple(sorted(offsets.get(key, ())))

    def ask(self) -> None:
        """Fill the report, and write the results."""
        options, report, (name,) = self.options, self.report, self.report.sources
        parts = self.parts_by_unit([(name, None)])
        told: tuple[str, ...] = ()
        positions: Mapping[Key, Sequence[Position]]
        with self.work_folder(AUDIT_DELIVERIES, "told") as folder:
            if options.deliveries is None:
                positions = self._positions()
            else:
                told, positions = self._read_table(options.deliveries, folder, list(parts))
            damaged = {(topic, partition) for (_, topic, partition), found in self.found.problems.items() if found}
            newest = {unit: max(part.read.newest_ms for _, part in of) for unit, of in parts.items()}
            units = {
                unit: DeliveryUnit(tuple(positions.get(unit, ())), unit not in damaged, None if ms < 0 else ms)
                for unit, ms in newest.items()
            }
            extra = {unit: [asdict(one), options.hide_keys, folder if told else ""] for unit, one in units.items()}
            question = DeliveryQuestion(name, units, MOST, options.max_age_ms, told)
            figures, without = self.answer(AUDIT_DELIVERIES, question, parts, extra)
        if sum(without):
            report.notes.append(
                f"{counted(sum(without), 'row')} of {options.deliveries}: no record with this key is left"
            )
        report.findings, groups = figures.late, figures.groups
        report.summary = {count: sum(row[count] for row in groups) for count in COUNTS} | {"groups": groups}
        report.worst = report.show_keys(figures.worst.to_pylist())
        report.trend = self._trend(groups)

    def _positions(self) -> Mapping[Key, Sequence[Position]]:
        """Return what each group was delivered of each partition, by committed offsets."""
        report, found, groups = self.report, self.committed, self.options.groups
        counts = {topic: n for (_, topic), n in self.found.n_partitions.items()}
        ends: dict[Key, int] = {}
        for part in self.found.parts:
            place = part.read.topic, part.read.partition
            ends[place] = max(ends.get(place, 0), part.end_offset)
        positions = committed_positions(found, groups, counts, ends)
        report.other_problems += [*found.problems, *found.unreadable(groups, counts)]
        report.notes += [*found.notes, *positions.notes]
        for group, why in sorted(positions.unknown.items()):  # a group that was named gets no answer
            texts = report.other_problems if group in groups else report.notes
            texts.append(f"group {group!r} is not known: {why}")
        report.unknown_groups = dict(positions.unknown)
        return positions.by_unit

    def _read_table(
        self, table: str, folder: str, units: Sequence[Key]
    ) -> tuple[tuple[str, ...], dict[Key, list[Position]]]:
        """Return the files of deliveries by key, and the groups that a table names of each partition."""
        write = partial(write_told, self.state.root.uri, folder, audit_secret(self.state))
        with cast(SparkTasks, self.workers).spark(self.report.job) as spark:
            rows = read_deliveries(spark, table, self.options.key_format)
            if self.options.groups:
                rows = rows.where(rows["group"].isin(*self.options.groups))
            files = rows.mapInArrow(write, from_arrow_schema(TOLD_FILES)).toArrow().to_pylist()
        named = sorted({(row["topic"], row["group"]) for row in files})
        if others := sorted({topic for topic, _ in units} - {topic for topic, _ in named}):
            self.report.notes.append(f"{table} names no key of {', '.join(others)}: not judged")
        positions = {
            unit: [Position(group, TABLE_GROUP) for topic, group in named if topic == unit[0]] for unit in units
        }
        return tuple(sorted({row["path"] for row in files})), positions

    def _trend(self, groups: Sequence[GroupRow]) -> list[EarlierAudit]:
        """Return the figures of the same groups and topics in earlier audits, the oldest first."""
        places = {(row["group"], row["topic"]) for row in groups}
        runs = [row for row in job_rows(self.state) if row.job == self.report.job]
        earlier = [row for row in runs if row.amounts.get("sources") == self.report.sources]
        out = []
        for row in earlier[-_TREND:]:
            figures = [of for of in row.amounts["summary"].get("groups", ()) if (of["group"], of["topic"]) in places]
            out.append(EarlierAudit(row.started_ms, row.run_id, figures))
        return out
