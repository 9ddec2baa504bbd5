"""`audit compaction`: a generation against the one before it, and against the archive, key by key.

By whole keys and digests of values, in Spark's own joins: no line of it is shared with the cleaner or with `verify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import Audit, run_audit
from lastkey.jobs.audit.compaction_rules import KINDS, findings
from lastkey.jobs.audit.compaction_sides import Known, Sides, Store, line_of, parent_of
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.audit.sources import Source, archive_source
from lastkey.jobs.command.options import AuditCompactionOptions, AuditSource
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import count, counted
from lastkey.jobs.data_source.store import generation_partition
from lastkey.jobs.errors import MissingPathError, NoGenerationError, UsageError
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.store.audits import replace_results
from lastkey.jobs.store.generations import generation_of, manifests_of, nobody_has, open_store, runs_at
from lastkey.jobs.store.paths import AUDIT_COMPACTION
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key, of_topics, of_users
from lastkey.logformat.listing import Segment
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import normal_uri

_BEFORE, _ARCHIVE = "the generation before", "the archive"


def run(options: AuditCompactionOptions, progress: Progress) -> AuditReport:
    """Audit generations of a store."""
    listed: list[Store] = []

    def listed_by(report: AuditReport) -> list[Source]:
        listed.append(found := _listed(options, report))
        return [found.after, found.before, *found.archives]

    source = AuditSource(options.archive, options.store, options.generation)
    ask = lambda audit: _ask(options, listed[0], audit)  # noqa: E731 - the listing is known by then
    return run_audit("compaction", options, [source], ask, progress, listed_by)


def _listed(options: AuditCompactionOptions, report: AuditReport) -> Store:
    state = open_store(normal_uri(options.store))
    checkpoints = state.checkpoints()
    check_topics(options.topics, (topic for topic, _ in checkpoints), state.root.uri)
    wanted = of_topics(of_users(options.topics), checkpoints)
    chains = state.histories({topic for topic, _ in wanted})
    runs = runs_at(wanted, chains, options.generation)
    if not runs and options.generation is not None:
        raise nobody_has(options.generation)
    lines, parents = {}, {}
    for key, made in runs.items():
        known: Known = {(run.generation_after, run.run_id): run for run in chains[key]}
        lines[key] = list(line_of(made, known))
        if parent := parent_of(lines[key][0], known):
            parents[key] = parent
    manifests = manifests_of(state, map(generation_of, runs.values()))
    after = _partitions(state, runs, manifests, options, must=True)
    before = _partitions(state, parents, manifests_of(state, map(generation_of, parents.values())), options, must=False)
    for key in sorted(runs):
        if lines[key][0].generation_before and key not in before:
            report.notes.append(
                f"{key[0]}-{key[1]}: not compared with {_BEFORE}: vacuum has deleted it, or it began anew"
            )
    uris = sorted({normal_uri(options.archive or made.archive_uri) for made in runs.values()})
    archives = []
    for uri in uris:
        try:
            archives.append(archive_source(uri, replace(options.topics, include=tuple(sorted({t for t, _ in runs})))))
        except (MissingPathError, UsageError) as error:
            report.notes.append(f"not compared with {_ARCHIVE}: {error}")
    name = f"{state.root.uri}@{options.generation or 'current'}"
    return Store(
        lines,
        Source(name, tuple(after.values())),
        Source(f"{name}, before", tuple(before.values())),
        archives,
        {key: max((row.next_offset for row in rows if row.cleaned), default=0) for key, rows in manifests.items()},
    )


def _partitions(
    state: State,
    runs: Mapping[Key, RunRow],
    manifests: Mapping[Key, list[Segment]],
    options: AuditCompactionOptions,
    *,
    must: bool,
) -> dict[Key, SourcePartition]:
    found = {}
    for key, made in sorted(runs.items()):
        try:
            found[key] = generation_partition(state.root, generation_of(made), manifests[key], options.archive)
        except NoGenerationError:
            if must:
                raise
    return found


def _ask(options: AuditCompactionOptions, store: Store, audit: Audit) -> None:
    report, name = audit.report, store.after.name
    after = audit.records.where(F.col("source") == name)
    sides = Sides(store, audit)
    frames, partitions = [], {}
    for against, before, rules in (
        (_BEFORE, sides.input(), [sides.against_before(made) for made in sides.with_input()]),
        (_ARCHIVE, sides.archived(), [sides.against_archive(made) for made in sides.archived_later()]),
    ):
        if rules:
            frames.append(findings(before, after, rules).withColumn("against", F.lit(against)))
            partitions[against] = len(rules)
            report.notes += [
                f"{rule.topic}-{rule.partition}: not judged against {against} whether records are missing: not all of "
                "both could be read"
                for rule in rules
                if not (rule.before_whole and rule.after_whole)
            ]
            report.notes += [
                f"{rule.topic}-{rule.partition}: not judged against {against}: keys of which nothing is left below "
                f"offset {rule.erased_until}, for an erasure may have taken them; verify --store counts those"
                for rule in rules
                if rule.erased_until
            ]
    if not frames:
        report.notes.append("nothing to compare with: neither a generation before nor the archive is there")
        return
    found = reduce(DataFrame.unionByName, frames).withColumn("source", F.lit(name))
    result = replace_results(audit.state, AUDIT_COMPACTION, name, found)
    by_kind = result.groupBy("against", "kind").count().toArrow().to_pylist()
    rows = result.orderBy("topic", "partition", "offset", "kind").limit(options.most).drop("source").toArrow()
    counts = {(row["against"], row["kind"]): row["count"] for row in by_kind}
    _fill(report, options, partitions, counts, rows.to_pylist())


def _fill(
    report: AuditReport,
    options: AuditCompactionOptions,
    partitions: Mapping[str, int],
    counts: Mapping[tuple[str, str], int],
    rows: Sequence[dict[str, Any]],
) -> None:
    report.findings = sum(counts.values())
    report.summary = {
        "partitions": dict(partitions),
        "findings": {against: {kind: counts.get((against, kind), 0) for kind in KINDS} for against in partitions},
    }
    report.details = {"found": [row | {"key": shown_key(row["key"], options.hide_keys)} for row in rows]}
    report.cards = [Card(f"compared with {against}", counted(n, "partition")) for against, n in partitions.items()]
    report.cards.append(
        Card(
            "findings",
            count(report.findings),
            "" if report.findings else "every promise is kept",
            "bad" if report.findings else "good",
        )
    )
    header = ("partition", "key", "kind", "offset", "against", "expected")
    body = [
        [
            f"{row['topic']}-{row['partition']}", shown_key(row["key"], options.hide_keys), row["kind"],
            str(row["offset"]), row["against"], KINDS[row["kind"]],
        ]
        for row in rows
    ]  # fmt: skip
    report.tables = [Table("Findings", header, body, (1, 2, 4, 5))]
