"""Runs by yield: the records that each expected to drop from what it rewrote, those that it dropped, and its I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from lastkey.jobs.command.reporting import TextTable
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment

_SUMS: Final = ("rewritten", "kept", "expected_dead", "dead_records", "bytes_read", "bytes_written")


@dataclass(frozen=True)
class GenerationYield:
    """Generation of a partition with runs by yield. A run that cleaned everything has rewritten and kept nothing."""

    topic: str
    partition: int
    generation: int
    run_id: str
    now_ms: int
    rewritten: int  # older segments that became new ones, counted as those
    kept: int  # older segments that were carried over
    expected_dead: int  # records of the rewritten ones, by filters
    dead_records: int  # that went from the rewritten ones
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class YieldSegment:
    """Segment of a current generation."""

    facts: ClassVar[str] = (
        "topic partition base_offset=segment.base_offset records=segment.records superseded=segment.superseded "
        "deduplicated_through=segment.deduplicated_through"
    )
    topic: str
    partition: int
    segment: Segment


@dataclass(frozen=True)
class Yields:
    """Partitions of a store that runs by yield have made."""

    facts: ClassVar[str] = "generations segments=rows"
    generations: tuple[GenerationYield, ...] = ()  # by time
    segments: tuple[tuple[Key, Segment], ...] = ()  # of current generations, by partition and offset, oldest first

    @property
    def rows(self) -> list[YieldSegment]:
        """Segments for programs."""
        return [YieldSegment(*key, segment) for key, segment in self.segments]

    def by_run(self) -> list[list[GenerationYield]]:
        """Return the generations that each run made, oldest first."""
        runs: dict[str, list[GenerationYield]] = {}
        for one in self.generations:
            runs.setdefault(one.run_id, []).append(one)
        return list(runs.values())


def collect_yields(
    state: State, history: Mapping[Key, Sequence[RunRow]], manifests: Mapping[Key, Sequence[Segment]]
) -> Yields:
    """Return the figures of runs by yield for each partition that has one. history: runs by partition; manifests:
    current.
    """
    runs = {(key, r.generation_after, r.run_id): r for key, of in history.items() for r in of if not r.back_to}
    scheduled = {at for at, r in runs.items() if json.loads(r.settings or "{}").get("compaction_schedule") == "yield"}
    yields_by_run = {}
    for at, rows in state.read_segments(runs).items():
        rewritten = [row for row in rows if row.cleaned and row.expected_dead >= 0]
        kept = [row for row in rows if not row.cleaned and row.deduplicated_through >= 0]
        yields_by_run[at] = GenerationYield(
            *at[0],
            at[1],
            at[2],
            runs[at].now_ms,
            len(rewritten),
            len(kept),
            sum(row.expected_dead for row in rewritten),
            sum(row.dead_records for row in rewritten),
            runs[at].bytes_read,
            runs[at].bytes_written,
        )
    by_yield = {at[0] for at, one in yields_by_run.items() if at in scheduled and (one.rewritten or one.kept)}
    return Yields(
        tuple(
            sorted(
                (one for at, one in yields_by_run.items() if at[0] in by_yield),
                key=lambda one: (one.now_ms, one.run_id),
            )
        ),
        tuple(
            (key, row)
            for key in sorted(by_yield & manifests.keys())
            for row in manifests[key]
            if row.deduplicated_through >= 0
        ),
    )


def total(of: Sequence[GenerationYield], name: str) -> int:
    """Sum a column over generations."""
    return sum(getattr(one, name) for one in of)


RUNS_BY_YIELD: Final = TextTable(
    "yields.by_run",
    "now_ms:run_(UTC) id rewritten kept expected_dead:expected dead_records:dead bytes_read:read bytes_written:written",
    {"now_ms": lambda of: of[0].now_ms, "id": lambda of: of[0].run_id[:8]}
    | {name: partial(total, name=name) for name in _SUMS},
    title="runs by yield:",
)
