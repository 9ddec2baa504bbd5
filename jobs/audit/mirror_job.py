"""`audit mirror A B`: whether B is a copy of A, key by key."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import MOST, SparkAudit
from lastkey.jobs.audit.matches import ALL_PARTITIONS
from lastkey.jobs.audit.mirror import COUNTS, DELETED, EQUAL, LAWFUL, UNKNOWN, compare
from lastkey.jobs.audit.pairs import Pair, matches_of, replace_pair_results, run_pair, spread, unread
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.command.audit_options import AuditMirrorOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import count, counted, moment
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.topics import Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS: Final = (
    "missing", "stale", "different", "extra", "ahead", "order", "missing_version", "extra_version",
    "missing_record", "extra_record", UNKNOWN,
)  # fmt: skip
_SAY: Final = {
    "missing": "keys that B does not have",
    "stale": "keys with an older version in B",
    "different": "keys whose last version in B is none of A's",
    "extra": "keys that A does not have",
    "ahead": "keys with newer versions in B, which A does not have",
    "order": "keys whose versions B has in another order",
    "missing_version": "keys with older versions that B does not have",
    "extra_version": "keys with older versions that A does not have",
    "missing_record": "groups of equal records without a key, fewer in B",
    "extra_record": "groups of equal records without a key, more in B",
    UNKNOWN: "keys of which nobody can tell: their place could not be read",
}


def run(options: AuditMirrorOptions, progress: Progress) -> AuditReport:
    """Compare two copies."""
    return run_pair("mirror", options, partial(_ask, options), progress)


def _ask(options: AuditMirrorOptions, audit: SparkAudit, pair: Pair) -> None:
    apart = spread(pair, audit.found.n_partitions)
    in_a, in_b = (_placed(keys, apart) for keys in unread(pair, audit.found))
    outcomes = compare(
        matches_of(audit, pair, spread=apart, ignore_timestamps=options.ignore_timestamps),
        _unread_frame(audit.spark, in_a, in_b),
        ignore_timestamps=options.ignore_timestamps,
        every_version=options.every_version,
    )
    table = replace_pair_results(audit, pair, outcomes).select(outcomes.columns)
    by_partition = (
        table.groupBy("topic", "partition", "kind", "without_key")
        .agg(*[F.sum(name).alias(name) for name in COUNTS])
        .orderBy("topic", "partition", "kind")
        .toArrow()
        .to_pylist()
    )
    findings = table.where(~F.col("kind").isin(*LAWFUL)).orderBy("topic", "partition", "kind", "a_offset", "b_offset")
    first = findings.limit(MOST).drop("keys").toArrow().to_pylist()
    audit.report.notes += [
        f"{topic}: another number of partitions in B: compared as a whole" for topic in sorted(apart)
    ]
    _fill(audit.report, options, pair, by_partition, first)


def _placed(keys: Collection[Key], apart: Collection[str]) -> set[Key]:
    return {(topic, ALL_PARTITIONS if topic in apart else partition) for topic, partition in keys}


def _unread_frame(spark: SparkSession, in_a: Collection[Key], in_b: Collection[Key]) -> DataFrame | None:
    rows = [(*key, key in in_a, key in in_b) for key in sorted({*in_a, *in_b})]
    if not rows:
        return None
    types = (pa.string(), pa.int32(), pa.bool_(), pa.bool_())
    names = ("topic", "partition", "a_unread", "b_unread")
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return spark.createDataFrame(pa.table(columns, names=names))


def _fill(
    report: AuditReport,
    options: AuditMirrorOptions,
    pair: Pair,
    by_partition: list[dict[str, Any]],
    first: list[dict[str, Any]],
) -> None:
    keys = {kind: sum(r["keys"] for r in by_partition if r["kind"] == kind) for kind in (EQUAL, DELETED, *_KINDS)}
    keys[EQUAL] = sum(r["keys"] for r in by_partition if r["kind"] == EQUAL and not r["without_key"])
    total = {name: sum(r[name] for r in by_partition) for name in COUNTS if name != "keys"}
    report.findings = sum(keys[kind] for kind in _KINDS)
    report.summary = {"keys": keys, **total}
    shown = [row | {"key": None if row["without_key"] else shown_key(row["key"], options.hide_keys)} for row in first]
    report.details = {"partitions": by_partition, "first": shown, "keys_hidden": options.hide_keys}
    report.cards = [
        Card("equal", counted(keys[EQUAL], "key"), "the last version is the same"),
        Card("deleted", counted(keys[DELETED], "key"), "a tombstone on one side, nothing on the other"),
        *[Card(kind.replace("_", " "), count(keys[kind]), _SAY[kind]) for kind in _KINDS if keys[kind]],
        Card("versions", count(total["a_versions"]), f"{total['b_versions']:,} in B"),
    ]
    places = sorted({(r["topic"], r["partition"]) for r in by_partition})
    report.tables = [
        Table(
            "Partitions",
            ("partition", "in B", "records", "in B", "not in B", "not in A", *(k for k in _kinds(by_partition))),
            [_partition_row(pair, place, by_partition) for place in places],
            (1,),
        ),
        Table(
            "First findings" if report.findings > len(shown) else "Findings",
            ("partition", "key", "finding", "offset in A", "time in A", "offset in B", "time in B"),
            [_finding_row(row) for row in shown],
            (1, 2),
        ),
    ]
    older = total["missing_versions"] or total["extra_versions"]
    if older and not options.every_version:
        report.notes.append(
            f"{total['missing_versions']:,} records only in A, {total['extra_versions']:,} only in B: compaction of "
            "one side leaves such older versions of equal keys; if neither is compacted, --every-version shows them"
        )


def _kinds(by_partition: list[dict[str, Any]]) -> list[str]:
    there = {r["kind"] for r in by_partition}
    return [kind for kind in (EQUAL, DELETED, *_KINDS) if kind in there]


def _name(topic: str, partition: int) -> str:
    return topic if partition == ALL_PARTITIONS else f"{topic}-{partition}"


def _partition_row(pair: Pair, place: Key, by_partition: list[dict[str, Any]]) -> list[str]:
    of = [r for r in by_partition if (r["topic"], r["partition"]) == place]
    in_b = pair.in_b.get(place[0])
    sums = [sum(r[name] for r in of) for name in COUNTS if name != "keys"]
    kinds = [sum(r["keys"] for r in of if r["kind"] == kind) for kind in _kinds(by_partition)]
    return [_name(*place), "" if in_b is None else _name(in_b, place[1]), *map(count, (*sums, *kinds))]


def _finding_row(row: dict[str, Any]) -> list[str]:
    return [
        _name(row["topic"], row["partition"]),
        "(no key)" if row["without_key"] else row["key"],
        row["kind"].replace("_", " "),
        *(text for side in "ab" for text in (count(row[f"{side}_offset"]), _moment(row[f"{side}_timestamp_ms"]))),
    ]


def _moment(ms: int | None) -> str:
    return "-" if ms is None else moment(ms)
