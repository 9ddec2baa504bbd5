"""A run by yield: clean what is new, and of the older segments those whose dead records pay for their rewrite.

  1. walk what is new backwards, as every run does, and write it; its keys are in the table then, and go into a key file
  2. hold these keys against the filters of the older segments, the newest first. A key has one live record: the first
     filter that holds the key shows the segment in which that record has just died
  3. choose the segments to rewrite (`what_pays`); the others are carried over as they are
  4. walk the chosen ones backwards, each held against the keys of all later records that it has not met yet

Filters only choose. What goes is decided by exact hashes, as everywhere. Each segment says up to which offset it has
met the keys of later records (`applied_to`). A tombstone goes only if every older segment that stays has met it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.compact.clean.clean_batches import MarkLast, Tally
from lastkey.udfs.compact.clean.key_table import KeyTable, TooManyKeys
from lastkey.udfs.compact.clean.pending_keys import PendingKeys, known_from, pending_of, read_keys, write_keys
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.one_task.clean_groups import Clock, clean_groups
from lastkey.udfs.compact.one_task.what_pays import schedule_of, superseded_by_filters
from lastkey.udfs.compact.plan import PartitionPlan, ScheduledSegment
from lastkey.udfs.compact.scan.analyse import Analysis, groups_of
from lastkey.udfs.segments import OutputSegment


class KeysLost(Exception):
    """Key files of earlier runs are gone or damaged: everything must be cleaned."""


@dataclass(frozen=True)
class Cleaned:
    """Result of a cleaning, by yield or not."""

    analysis: Analysis  # with the sources that are replaced, and what the filters say about the others
    segments: list[OutputSegment]  # in order
    keys: PendingKeys | None = None  # of what was new
    schedule: tuple[ScheduledSegment, ...] = ()
    bytes_read: int = 0  # of filters and key files, and of segments that an erasure searched in vain
    bytes_written: int = 0  # of key files


def clean_by_yield(plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer, clock: Clock) -> Cleaned:
    """Clean what is new and what pays. Raises TooManyKeys, and KeysLost if keys that are needed cannot be read."""
    dirty, sources = analysis.cleanable.first_dirty_offset, analysis.sources
    below = sorted(analysis.replaced)
    fresh = [n for n in below if sources[n].base_offset >= dirty]
    older = [n for n in below if sources[n].base_offset < dirty]
    rows = {n: row for n in older if (row := sources[n].segment.row) is not None}
    applied = {n: row.applied_to for n, row in rows.items()}
    pending = pending_of(rows.values())
    if len(rows) < len(older) or min(applied.values(), default=dirty) < known_from(pending, dirty):
        raise KeysLost
    table = KeyTable(plan.run.limits.task_memory_bytes // 2)
    mark_last = marker(table, dirty)
    keeps = replace(analysis.rules, tombstones_from=min([analysis.rules.tombstones_from, *applied.values()]))
    written = clean_groups(
        plan, analysis, _groups(plan, analysis, fresh), lambda _: keeps, mark_last, tally, buffer, clock
    )
    keys = table.keys()
    superseded, filter_bytes = superseded_by_filters(plan, rows, keys["high"])
    schedule = tuple(schedule_of(plan, analysis, rows, superseded))
    chosen = [] if plan.run.only_schedule else [one.number for one in schedule if one.reason != "kept"]
    kept = None
    if fresh and len(chosen) < len(older) and not plan.run.dry_run:
        kept = write_keys(plan, dirty, analysis.cleanable.first_uncleanable_offset, keys)
    before = _KeysBehind(plan, table, pending)
    rules_of = partial(_rules_of, analysis, applied, chosen, before)
    groups = [g for one in _neighbours(chosen) for g in _groups(plan, analysis, one)]
    rewritten = clean_groups(plan, analysis, groups, rules_of, mark_last, tally, buffer, clock)
    return Cleaned(
        replace(analysis, replaced=frozenset([*fresh, *chosen]), superseded=superseded),
        [*rewritten, *written],
        kept,
        schedule,
        filter_bytes + before.bytes_read,
        0 if kept is None else keys.nbytes,
    )


def marker(table: KeyTable, first_dirty_offset: int) -> MarkLast:
    """Return a function that marks the last records of a run, by a table of the keys behind it. It raises TooManyKeys.

    first_dirty_offset: records below it are looked up only.
    """

    def mark_last(run: Run, is_last: np.ndarray) -> None:
        if table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, len(run.spans)):
            raise TooManyKeys

    return mark_last


class _KeysBehind:
    """Keys of the records that were clean before this run, entered into the table when the walk passes them."""

    def __init__(self, plan: PartitionPlan, table: KeyTable, pending: list[PendingKeys]) -> None:
        self.plan, self.table, self.pending, self.bytes_read = plan, table, pending, 0

    def enter(self, first: int) -> None:
        """Enter the keys of all records from an offset on. A segment may meet only keys of records behind it: those of
        its own, or of records before it, would take its live ones.
        """
        while self.pending and self.pending[-1].first >= first:
            try:
                keys = read_keys(self.plan, self.pending.pop())
            except LogFormatError as error:
                raise KeysLost from error
            self.bytes_read += keys.nbytes
            if not self.table.enter(keys):
                raise TooManyKeys


def _neighbours(numbers: Sequence[int]) -> list[list[int]]:
    """Return runs of consecutive numbers."""
    return [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]


def _groups(plan: PartitionPlan, analysis: Analysis, numbers: Sequence[int]) -> list[range]:
    """Return the groups, of consecutive sources, that become one segment each."""
    if not numbers:
        return []
    groups = groups_of(plan, [analysis.sources[n] for n in numbers], analysis.end_of(numbers[-1]))
    return [range(numbers[0] + group.start, numbers[0] + group.stop) for group in groups]


def _rules_of(
    analysis: Analysis, applied: Mapping[int, int], chosen: Sequence[int], before: _KeysBehind, number: int
) -> Rules:
    """Return the rules for a chosen source, when all keys that it has not met are in the table. If the source behind it
    stays, the header of its last batch stays too: a segment without batches would mislead searches by time.
    """
    before.enter(applied[number])
    source = analysis.sources[number]
    stays = [offset for n, offset in applied.items() if n < number and n not in chosen]
    rules = replace(analysis.rules, tombstones_from=min([analysis.rules.tombstones_from, *stays]))
    if number + 1 in chosen:
        return rules
    return replace(rules, first_uncleanable_offset=source.last_offset + 1)
