"""Sides of `audit compaction`: a generation, the one before it and the archive; and what each of them may lack.

The runs that led to a generation say that, by their settings, offsets and times; nothing else of them is believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.audit import Audit
from lastkey.jobs.audit.compaction_rules import NEVER, Allowed, Below
from lastkey.jobs.audit.sources import Source
from lastkey.jobs.store.erasures import searched
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.topics import Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Known = Mapping[tuple[int, str | None], RunRow]  # runs of a partition, by generation and run id


@dataclass(frozen=True)
class Store:
    """Runs and sources that are compared."""

    lines: dict[Key, list[RunRow]]  # the run that made the audited generation, and those before it that it built on
    after: Source
    before: Source
    archives: list[Source]
    exact_until: Mapping[Key, int]  # end of what the runs have written, of retention.exact


def line_of(made: RunRow, known: Known) -> Iterator[RunRow]:
    """Yield the run that wrote a generation's files, and all that it built on: a rollback's are those of the generation
    that it goes back to, and what came between is not among them.
    """
    run: RunRow | None = made
    while run is not None:
        run = known.get((run.back_to, run.back_to_run_id), run) if run.back_to else run
        yield run
        run = parent_of(run, known)


def parent_of(made: RunRow, known: Known) -> RunRow | None:
    """Return the run whose generation a run read; None: it read the archive alone, or that run is lost."""
    return None if is_first(made) else known.get((made.generation_before, made.parent_run_id))


class Sides:
    """Sides of the comparisons, and what each may lack."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._begins: dict[tuple[str, Key], int] = {}
        self._ends: dict[tuple[str, Key], int] = {}
        for part in audit.found.parts:
            place = part.source, (part.read.topic, part.read.partition)
            self._begins[place] = min(self._begins.get(place, part.start_offset), part.start_offset)
            self._ends[place] = max(self._ends.get(place, 0), part.end_offset)
        self._archive_of = {(p.topic, p.partition): one.name for one in store.archives for p in one.partitions}
        for source in (store.after, store.before):  # a generation without a batch has no parts
            for one in source.partitions:
                empty = not any(segment.size_bytes for segment in one.segments)
                end = one.high_watermark if empty else one.log_start_offset
                self._ends.setdefault((source.name, (str(one.topic), one.partition or 0)), end or 0)
        self._held = {key: end for (source, key), end in self._ends.items() if source == store.before.name}

    def with_input(self) -> list[RunRow]:
        """Return the runs whose input is there: the generation before, or, of a first one, the archive."""
        runs = sorted((key, line[0]) for key, line in self._store.lines.items())
        return [made for key, made in runs if key in self._held or (is_first(made) and key in self._archive_of)]

    def archived_later(self) -> list[RunRow]:
        """Return the runs of later generations whose partition is in the archive."""
        runs = sorted((key, line[0]) for key, line in self._store.lines.items())
        return [made for key, made in runs if key in self._archive_of and not is_first(made)]

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
        key = made.topic, made.partition
        held, archive = self._held.get(key, 0), self._archive_of.get(key, "")
        begins = self._begins.get((archive, key), NEVER)
        rules = self._allowed(made, [made], held, [self._store.before.name, archive])
        if rules.by == "timestamp" and not held and begins > self._begins.get((self._store.after.name, key), 0):
            rules = replace(rules, by="")  # what the archive has lost since may have been the last record of a key
        oldest_ms = _oldest_ms(made, json.loads(made.settings))
        return replace(
            rules,
            exact_until=self._store.exact_until[key] if oldest_ms >= 0 else 0,
            oldest_ms=oldest_ms,
            added_from=held,
            added_until=begins,
        )

    def against_archive(self, made: RunRow) -> Allowed:
        """Return what all runs up to a generation may have left out of the archive."""
        key = made.topic, made.partition
        line = self._store.lines[key]
        rules = self._allowed(made, line, 0, [self._archive_of[key]])
        if not is_first(line[-1]):  # earlier runs are lost, and with them when they met tombstones
            rules = replace(rules, horizons=(Below(NEVER, 0),))
        return replace(rules, by=rules.by if rules.by == "offset" else "", added_from=0, added_until=NEVER)

    def _allowed(self, made: RunRow, runs: Sequence[RunRow], held: int, sources: Sequence[str]) -> Allowed:
        """Return what runs, of which `made` is the newest, may have left out of the sources. held: the end of the part
        that is not of the archive.
        """
        key = made.topic, made.partition
        told = [(run, json.loads(run.settings)) for run in runs]
        cleaned = [(run, settings) for run, settings in told if _compacts(run, settings)]
        strategies = {settings.get("compaction_strategy", "offset") for _, settings in cleaned}
        horizons = [
            Below(run.end_offset, run.now_ms + s["delete_retention_ms"]) for run, s in cleaned if run is not made
        ]
        ends = [held, *(self._ends.get((source, key), 0) for source in sources)]
        return Allowed(
            topic=made.topic,
            partition=made.partition,
            start_offset=made.log_start_offset,
            cleaned_until=max((run.end_offset for run, _ in cleaned), default=0),
            # behind the first open transaction of either side nothing is known
            end_offset=min(self._ends.get((self._store.after.name, key), 0), made.next_offset, max(ends)),
            now_ms=made.now_ms,
            legacy_until_ms=max((run.now_ms - s["delete_retention_ms"] for run, s in told), default=0),
            by=strategies.pop() if strategies in ({"offset"}, {"timestamp"}) else "",
            horizons=tuple(sorted(horizons, key=lambda one: one.offset)),
            too_old=tuple(
                Below(run.end_offset if _compacts(run, settings) else run.next_offset, _oldest_ms(run, settings))
                for run, settings in told
                if _oldest_ms(run, settings) >= 0
            ),
            unkeyed_until=max((run.end_offset for run, s in cleaned if s["null_keys"] != "keep"), default=0),
            before_whole=all(self._is_whole(source, key) for source in sources),
            after_whole=self._is_whole(self._store.after.name, key),
            erased_until=max((searched(run) for run, settings in told if settings.get("erases")), default=0),
        )

    def _is_whole(self, source: str, key: Key) -> bool:
        return not self._audit.found.problems.get((source, *key)) and not self._audit.found.unlisted


def is_first(made: RunRow) -> bool:
    """Return whether a run made its generation of the archive alone."""
    return made.generation_before == 0 or made.anew


def _compacts(made: RunRow, settings: Mapping[str, Any]) -> bool:
    return made.compacted and bool(settings.get("compacts", True))


def _oldest_ms(made: RunRow, settings: Mapping[str, Any]) -> int:
    """Return the time before which retention.exact let no record stay; -1: it took none."""
    retention_ms = -1 if settings.get("erases") else settings.get("retention_ms", -1)
    return made.now_ms - retention_ms if settings.get("retention_exact", False) and retention_ms >= 0 else -1
