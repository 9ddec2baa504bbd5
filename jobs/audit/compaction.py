"""`audit compaction`: a generation against the one before it, and against the archive, key by key.

By whole keys and digests of values, in Spark's own joins: no line of it is shared with the cleaner or with `verify`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import Audit, run_audit
from lastkey.jobs.audit.compaction_rules import KINDS, NEVER, Allowed, findings
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
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import normal_uri

_BEFORE, _ARCHIVE = "the generation before", "the archive"


@dataclass(frozen=True)
class _Store:
    """Runs and sources that are compared."""

    runs: dict[Key, RunRow]  # that made the audited generations
    chains: Mapping[Key, Sequence[RunRow]]  # newest first
    after: Source
    before: Source
    archives: list[Source]


def run(options: AuditCompactionOptions, progress: Progress) -> AuditReport:
    """Audit generations of a store."""
    listed: list[_Store] = []

    def listed_by(report: AuditReport) -> list[Source]:
        listed.append(found := _listed(options, report))
        return [found.after, found.before, *found.archives]

    source = AuditSource(options.archive, options.store, options.generation)
    ask = lambda audit: _ask(options, listed[0], audit)  # noqa: E731 - the listing is known by then
    return run_audit("compaction", options, [source], ask, progress, listed_by)


def _listed(options: AuditCompactionOptions, report: AuditReport) -> _Store:
    state = open_store(normal_uri(options.store))
    checkpoints = state.checkpoints()
    check_topics(options.topics, (topic for topic, _ in checkpoints), state.root.uri)
    wanted = of_topics(of_users(options.topics), checkpoints)
    chains = state.histories({topic for topic, _ in wanted})
    runs = {key: _made_of(made, chains[key]) for key, made in runs_at(wanted, chains, options.generation).items()}
    if not runs and options.generation is not None:
        raise nobody_has(options.generation)
    parents = {
        key: parent
        for key, made in runs.items()
        for parent in chains[key]
        if (parent.generation_after, parent.run_id) == (made.generation_before, made.parent_run_id) and not made.anew
    }
    after = _partitions(state, runs, options, report, must=True)
    before = _partitions(state, parents, options, report, must=False)
    for key in sorted(runs):
        if runs[key].generation_before and key not in before:
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
    return _Store(
        runs, chains, Source(name, tuple(after.values())), Source(f"{name}, before", tuple(before.values())), archives
    )


def _made_of(made: RunRow, chain: Sequence[RunRow]) -> RunRow:
    """Return the run that wrote a generation's files: a rollback's are those of the generation that it goes back to."""
    old = (run for run in chain if (run.generation_after, run.run_id) == (made.back_to, made.back_to_run_id))
    return next(old, made) if made.back_to else made


def _partitions(
    state: State, runs: Mapping[Key, RunRow], options: AuditCompactionOptions, report: AuditReport, *, must: bool
) -> dict[Key, SourcePartition]:
    manifests = manifests_of(state, map(generation_of, runs.values()))
    found = {}
    for key, made in sorted(runs.items()):
        try:
            found[key] = generation_partition(state.root, generation_of(made), manifests[key], options.archive)
        except NoGenerationError:
            if must:
                raise
    return found


def _ask(options: AuditCompactionOptions, store: _Store, audit: Audit) -> None:
    report, name = audit.report, store.after.name
    after = audit.records.where(F.col("source") == name)
    sides = _Sides(store, audit)
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
    if not frames:
        report.notes.append("nothing to compare with: neither a generation before nor the archive is there")
        return
    found = reduce(DataFrame.unionByName, frames).withColumn("source", F.lit(name))
    result = replace_results(audit.state, AUDIT_COMPACTION, name, found)
    by_kind = result.groupBy("against", "kind").count().toArrow().to_pylist()
    rows = result.orderBy("topic", "partition", "offset", "kind").limit(options.most).drop("source").toArrow()
    counts = {(row["against"], row["kind"]): row["count"] for row in by_kind}
    _fill(report, options, partitions, counts, rows.to_pylist())


class _Sides:
    """Sides of the comparisons, and what each may lack."""

    def __init__(self, store: _Store, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._begins: dict[tuple[str, Key], int] = {}
        self._ends: dict[tuple[str, Key], int] = {}
        for part in audit.found.parts:
            place = part.source, (part.read.topic, part.read.partition)
            self._begins[place] = min(self._begins.get(place, part.start_offset), part.start_offset)
            self._ends[place] = max(self._ends.get(place, 0), part.end_offset)
        self._archive_of = {(p.topic, p.partition): one.name for one in store.archives for p in one.partitions}
        self._held = {key: end for (source, key), end in self._ends.items() if source == store.before.name}

    def with_input(self) -> list[RunRow]:
        """Return the runs whose input is there: the generation before, or, of a first one, the archive."""
        runs = sorted(self._store.runs.items())
        return [made for key, made in runs if key in self._held or (_is_first(made) and key in self._archive_of)]

    def archived_later(self) -> list[RunRow]:
        """Return the runs of later generations whose partition is in the archive."""
        runs = sorted(self._store.runs.items())
        return [made for key, made in runs if key in self._archive_of and not _is_first(made)]

    def input(self) -> DataFrame:
        """Return what generations were made of: the generations before, and the archive from their ends on."""
        rows = [(*key, end) for key, end in self._held.items()]
        held = self._audit.spark.createDataFrame(rows, "topic string, partition int, held_until long")
        known = self._audit.records.join(F.broadcast(held), ["topic", "partition"], "left")
        behind = F.col("offset") >= F.coalesce("held_until", F.lit(0))
        is_archived = F.col("source").isin([source.name for source in self._store.archives])
        return known.where((F.col("source") == self._store.before.name) | (is_archived & behind)).drop("held_until")

    def archived(self) -> DataFrame:
        """Return the archive."""
        return self._audit.records.where(F.col("source").isin([source.name for source in self._store.archives]))

    def against_before(self, made: RunRow) -> Allowed:
        """Return what a run may leave out of what it read."""
        settings, key = json.loads(made.settings), (made.topic, made.partition)
        expired_until = max((one.until for one in made.went if one.reason == "time"), default=0)
        retention_ms, strategy = settings.get("retention_ms", -1), settings.get("compaction_strategy", "offset")
        exact_until = made.end_offset if settings.get("retention_exact", False) and retention_ms >= 0 else 0
        held, archive = self._held.get(key, 0), self._archive_of.get(key, "")
        return Allowed(
            topic=made.topic,
            partition=made.partition,
            start_offset=made.log_start_offset,
            cleaned_until=made.end_offset,
            end_offset=min(self._ends.get((self._store.after.name, key), 0), made.next_offset),
            now_ms=made.now_ms,
            horizons="",
            legacy_until_ms=made.now_ms - settings["delete_retention_ms"],
            null_keys_stay=settings["null_keys"] == "keep",
            compacted=settings.get("compacts", True) and made.compacted,
            old_until=max(expired_until, exact_until),
            oldest_ms=made.now_ms - retention_ms,
            exact_until=exact_until,
            by_key=strategy != "header",
            by_time=strategy == "timestamp",
            before_whole=self._is_whole(self._store.before.name, key) and self._is_whole(archive, key),
            after_whole=self._is_whole(self._store.after.name, key),
            added_from=held,
            added_until=self._begins.get((archive, key), NEVER),
        )

    def against_archive(self, made: RunRow) -> Allowed:
        """Return what all runs up to a generation may have left out of the archive."""
        key = made.topic, made.partition
        chain = [run for run in self._store.chains[key] if run.generation_after <= made.generation_after]
        settings = [json.loads(run.settings) for run in chain]
        horizons = sorted(
            (run.end_offset, run.now_ms + told["delete_retention_ms"])
            for run, told in zip(chain, settings, strict=True)
            if not run.back_to
        )
        by_offset = {told.get("compaction_strategy", "offset") for told in settings} == {"offset"}
        return replace(
            self.against_before(made),
            horizons=",".join(f"{end}:{ms}" for end, ms in horizons) if _is_first(chain[-1]) else f"{NEVER}:0",
            null_keys_stay=all(told["null_keys"] == "keep" for told in settings),
            compacted=True,
            by_key=by_offset and not any(told.get("retention_exact", False) for told in settings),
            by_time=False,
            exact_until=0,
            before_whole=self._is_whole(self._archive_of[key], key),
            added_from=0,
            added_until=NEVER,
        )

    def _is_whole(self, source: str, key: Key) -> bool:
        return not self._audit.found.problems.get((source, *key)) and not self._audit.found.unlisted


def _is_first(made: RunRow) -> bool:
    """Return whether a run made its generation of the archive alone."""
    return made.generation_before == 0 or made.anew


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
