"""`audit keys`: what a log holds of each key, and the keys that lie where the default partitioner would not put them.

A topic is answered as a whole: its number of partitions, and the partitions that hold a key, are in every row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from lastkey.jobs.audit.answers import ReadSource, Request, ask, commit, parts_by_unit
from lastkey.jobs.audit.audit import MOST, Audit, run_audit
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.audit_options import AuditKeysOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, Table, count, counted, moment, size
from lastkey.jobs.store.paths import AUDIT_KEYS
from lastkey.udfs.audit.keys import AUDIT_KEYS as KEYS
from lastkey.udfs.audit.keys import FIRST, KeysQuestion, add_partitions, first_keys
from lastkey.udfs.audit.runs import Sides

_MISPLACED_SHARE = 0.5  # above it the number of partitions, or the partitioner, is another one


def run(options: AuditKeysOptions, progress: Progress) -> AuditReport:
    """Audit the keys of a source."""

    def listed_by(_: AuditReport) -> list[AuditedLogs]:
        return [replace(list_source(options.source, options.topics), counts=options.n_partitions)]

    return run_audit(
        "keys", options, [options.source], partial(_ask, options), progress, listed_by, cuts=lambda _: lambda _: ()
    )


def _ask(options: AuditKeysOptions, audit: Audit) -> None:
    (name,) = audit.report.sources
    counts = {topic: n for (_, topic), n in audit.found.n_partitions.items()}
    parts = parts_by_unit(audit.found, [ReadSource(name)])
    reads = defaultdict[str, list[tuple[int, int, int]]](list)
    for (topic, _), of in sorted(parts.items()):
        reads[topic] += sorted((part.read.read_id, part.start_offset, part.end_offset) for _, part in of)

    def question(sides: Sides) -> KeysQuestion:
        n_partitions = tuple(counts[topic] for topic, _ in sides.units)
        return KeysQuestion(name, n_partitions, MOST)

    extra = {(topic, n): [counts[topic], reads[topic]] for topic, n in parts}
    request = Request(AUDIT_KEYS, KEYS, name, parts, extra, question)
    answers = ask(audit, request)
    commit(audit, request, answers)
    by_partition = add_partitions([of for of, _ in answers.summaries])
    worst = {
        which: first_keys(pa.Table.from_pylist([row for _, first in answers.summaries for row in first[which]], KEYS),
                          which, MOST)
        for which in FIRST
    }  # fmt: skip
    _fill(audit.report, options, by_partition, worst)


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
        _key_table("Keys with the most versions", told["versions"]),
        _key_table("Keys that the default partitioner would put elsewhere", told["misplaced"]),
        _key_table("Keys in several partitions", told["several_partitions"]),
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


def _key_table(label: str, rows: list[dict[str, Any]]) -> Table:
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
