"""`audit mirror A B`: whether B is a copy of A, key by key."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs.audit.answers import Request, ask, commit, parts_by_unit
from lastkey.jobs.audit.audit import MOST, Audit
from lastkey.jobs.audit.pairs import Pair, list_sides, run_pair, spread, unread
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.command.audit_options import AuditMirrorOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, Table, count, counted, moment
from lastkey.jobs.store.paths import AUDIT_PAIRS
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.mirror import (
    COUNTS,
    DELETED,
    EQUAL,
    FINDINGS,
    UNKNOWN,
    MirrorQuestion,
    by_partition,
    first_findings,
)
from lastkey.udfs.audit.pairs import PAIRS
from lastkey.udfs.audit.runs import ALL_PARTITIONS, Sides

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
    UNKNOWN: "keys whose state is unknown: their place could not be read",
}


def run(options: AuditMirrorOptions, progress: Progress) -> AuditReport:
    """Compare two copies."""
    return run_pair("mirror", options, partial(_ask, options), progress)


def _ask(options: AuditMirrorOptions, audit: Audit, pair: Pair) -> None:
    apart = spread(pair, audit.found.n_partitions)
    in_a, in_b = (_placed(keys, apart) for keys in unread(pair, audit.found))
    parts = parts_by_unit(audit.found, list_sides(pair), apart)
    asked = [options.ignore_timestamps, options.every_version, options.hide_keys]

    def question(sides: Sides) -> MirrorQuestion:
        unread_units = tuple((unit in in_a, unit in in_b) for unit in sides.units)
        return MirrorQuestion(pair.result, unread_units, options.ignore_timestamps, options.every_version, MOST)

    extra = {unit: [*asked, unit in in_a, unit in in_b] for unit in parts}
    request = Request(AUDIT_PAIRS, PAIRS, pair.result, parts, extra, question, n_sides=2, timed=True)
    answers = ask(audit, request)
    commit(audit, request, answers)
    by_kind = by_partition(pa.Table.from_pylist([row for of, _ in answers.summaries for row in of], PAIRS))
    first = [row for _, of in answers.summaries for row in of]
    first = first_findings(pa.Table.from_pylist(first, PAIRS), MOST)
    audit.report.notes += [
        f"{topic}: another number of partitions in B: compared as a whole" for topic in sorted(apart)
    ]
    _fill(audit.report, options, pair, by_kind, first)


def _placed(keys: Collection[Key], apart: Collection[str]) -> set[Key]:
    return {(topic, ALL_PARTITIONS if topic in apart else partition) for topic, partition in keys}


def _fill(
    report: AuditReport,
    options: AuditMirrorOptions,
    pair: Pair,
    by_partition: list[dict[str, Any]],
    first: list[dict[str, Any]],
) -> None:
    keys = {kind: sum(r["keys"] for r in by_partition if r["kind"] == kind) for kind in (EQUAL, DELETED, *FINDINGS)}
    keys[EQUAL] = sum(r["keys"] for r in by_partition if r["kind"] == EQUAL and not r["without_key"])
    total = {name: sum(r[name] for r in by_partition) for name in COUNTS if name != "keys"}
    report.findings = sum(keys[kind] for kind in FINDINGS)
    report.summary = {"keys": keys, **total}
    shown = [row | {"key": None if row["without_key"] else shown_key(row["key"], options.hide_keys)} for row in first]
    report.details = {"partitions": by_partition, "first": shown, "keys_hidden": options.hide_keys}
    report.cards = [
        Card("equal", counted(keys[EQUAL], "key"), "the last version is the same"),
        Card("deleted", counted(keys[DELETED], "key"), "a tombstone on one side, nothing on the other"),
        *[Card(kind.replace("_", " "), count(keys[kind]), _SAY[kind]) for kind in FINDINGS if keys[kind]],
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
    return [kind for kind in (EQUAL, DELETED, *FINDINGS) if kind in there]


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
