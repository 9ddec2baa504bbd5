"""The pass of one task over segment groups, from the last to the first, and the kinds of runs that choose its segments
and rules: full, by yield, retention of single records, erasure.

**By yield**: clean new records, and the older segments whose dead records justify a rewrite.

  1. walk the new records backwards, as every run does, and write them; write their keys from the table into a key file
  2. probe the Bloom filters of the older segments with these keys, the newest first. A key has one live record: the
     first filter with the key names the segment in which that record has just died
  3. choose the segments to rewrite (`schedule_segments`); the others are carried over as they are
  4. walk the chosen ones backwards, each deduplicated against all later keys beyond its bound

Filters only choose; exact hashes decide what is dropped. Each segment records the offset up to which it is
deduplicated against later records (`deduplicated_through`). A tombstone is dropped only if every older segment that
remains is deduplicated through it.

**Retention of single records and erasure**: the records older than retention.ms (`retention.exact`), or those of erased
keys, leave the segments that hold any. All other records stay as they are, byte for byte. In a compacted topic an
earlier record of a key would reappear if only its last record were removed. So an expired record makes the partition
due (`with_what_is_old`). The store's segments of a generation come before the archive's. So all segments up to the last
one that changes are written; the later segments stay in the archive. No other file may have the erased keys: the new
generation has no filters and key files of runs by yield.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally, clean_backwards, clean_forwards, least_timestamp
from lastkey.udfs.compact.clean.deciders import (
    ErasedKeys,
    KeyTable,
    PendingKeys,
    known_from,
    last_offset_decider,
    list_pending_keys,
    read_keys,
    write_keys,
)
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.generation import Cleaned, write_group
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.plan import (
    CleanSettings,
    Extent,
    PartitionPlan,
    PartitionResult,
    ScheduledSegment,
    Work,
    chunk_buffer,
)
from lastkey.udfs.compact.scan.analyse import Analysis, analyse, group_segments
from lastkey.udfs.compact.scan.facts_files import filter_beside
from lastkey.udfs.segments import LastBatch, SegmentScan, can_begin_at
from lastkey.udfs.yields.key_filter import count_held
from lastkey.udfs.yields.schedule import REASONS, ScheduleLimits, Segments, choose


class Clock:
    """Seconds by phase. The time of a nested phase does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0  # seconds of phases within the current one

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        start, outer = time.perf_counter(), self._inside
        self._inside = 0.0
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inside
            self._inside = outer + spent


def clean_groups(
    plan: PartitionPlan,
    analysis: Analysis,
    groups: Sequence[range],
    rules_of: Callable[[int], Rules],
    of: Pass,
    clock: Clock,
) -> list[Segment]:
    """Clean groups from last to first, and write each as soon as its base is certain: when the group before it has a
    survivor, since one without passes its base to the group after it. Returns the segments in order.

    groups: numbers of sources; rules_of: is asked for the rules of a source, just before it is cleaned.
    """
    out: list[Segment] = []
    held: tuple[Segment, PieceStack] | None = None
    fails = plan.policy.settings.null_keys == "fail"
    meanwhile = chunk_buffer(plan)  # while `of.buffer` holds the chunk that is cleaned

    def write_held(back: ChunkBuffer) -> None:
        nonlocal held
        if held is not None:
            with clock.phase("write"):
                out.extend(reversed(write_group(plan, analysis, *held, back)))
        held = None

    for numbers in reversed(groups):
        stack = PieceStack(plan.run.limits.task_memory_bytes // 4)
        for number in reversed(numbers):
            for piece, chunk in clean_backwards(of, analysis.sources[number], rules_of(number), stack.room):
                write_held(meanwhile)  # its memory serves this group
                stack.push(number, piece, chunk)
        group = analysis.group(numbers)
        if fails and of.tally["null_keys"]:
            continue  # this partition will not be committed; continue only to complete the counts
        follows = held is not None and held[0].base_offset == group.next_offset
        if held is not None and follows and not len(stack):
            last_offset = held[1].last_offset(plan.run.max_log_bytes)
            if can_begin_at(last_offset, group.base_offset):
                held = replace(held[0], base_offset=group.base_offset), held[1]
                continue
        write_held(of.buffer)
        held = group, stack
    if not (fails and of.tally["null_keys"]):
        write_held(of.buffer)
    return out[::-1]


def clean_everything(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer, clock: Clock) -> Cleaned:
    """Clean all groups by the last offset of each key. Raises TooManyKeys."""
    table = KeyTable(plan.run.limits.task_memory_bytes // 2)
    mark = last_offset_decider(table, analysis.cleanable.first_dirty_offset)
    of = Pass(mark, plan.loader(plan.run.secret), buffer, Tally())
    segments = clean_groups(plan, analysis, analysis.groups, lambda _: analysis.rules, of, clock)
    return Cleaned(analysis, segments, of.tally)


class KeysLost(Exception):
    """Key files of earlier runs are missing or damaged: all segments must be cleaned."""


def clean_by_yield(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer, clock: Clock) -> Cleaned:
    """Clean new records, and segments with enough yield. Raises TooManyKeys, and KeysLost if keys that are needed
    cannot be read.
    """
    dirty, sources = analysis.cleanable.first_dirty_offset, analysis.sources
    below = sorted(analysis.replaced)
    fresh = [n for n in below if sources[n].first_offset >= dirty]
    older = [n for n in below if sources[n].first_offset < dirty]
    rows = {n: row for n in older if (row := plan.input.segments[n]).has_facts}
    bounds = {n: row.deduplicated_through for n, row in rows.items()}
    pending = list_pending_keys(rows.values())
    if len(rows) < len(older) or min(bounds.values(), default=dirty) < known_from(pending, dirty):
        raise KeysLost
    table = KeyTable(plan.run.limits.task_memory_bytes // 2)
    of = Pass(last_offset_decider(table, dirty), plan.loader(plan.run.secret), buffer, Tally())
    keeps = replace(analysis.rules, tombstones_from=min([analysis.rules.tombstones_from, *bounds.values()]))
    written = clean_groups(plan, analysis, _groups(plan, analysis, fresh), lambda _: keeps, of, clock)
    keys = table.keys()
    superseded, filter_bytes = superseded_by_filters(plan, rows, keys["high"])
    schedule = tuple(schedule_segments(plan, analysis, rows, superseded))
    chosen = [scheduled.number for scheduled in schedule if scheduled.reason != "kept"]
    kept = None
    if fresh and len(chosen) < len(older) and not plan.run.dry_run:
        kept = write_keys(plan, dirty, analysis.cleanable.first_uncleanable_offset, keys)
    before = _KeysBehind(plan, table, pending)
    rules_of = partial(_prepare_rules, analysis, bounds, chosen, before)
    groups = [g for scheduled in _neighbours(chosen) for g in _groups(plan, analysis, scheduled)]
    rewritten = clean_groups(plan, analysis, groups, rules_of, of, clock)
    return Cleaned(
        replace(analysis, replaced=frozenset([*fresh, *chosen]), superseded=superseded),
        [*rewritten, *written],
        of.tally,
        kept,
        schedule,
        Work(bytes_read=filter_bytes + before.bytes_read, bytes_written=0 if kept is None else keys.nbytes),
    )


class _KeysBehind:
    """Keys of the records that were clean before this run, entered into the table when the walk passes them."""

    def __init__(self, plan: PartitionPlan, table: KeyTable, pending: list[PendingKeys]) -> None:
        self.plan, self.table, self.pending, self.bytes_read = plan, table, pending, 0

    def enter(self, first: int) -> None:
        """Enter the keys of all records from an offset on. A segment may be probed only with keys of later records:
        keys of its own or of earlier records would mark its live records as superseded.
        """
        while self.pending and self.pending[-1].first >= first:
            try:
                keys = read_keys(self.plan, self.pending.pop())
            except LogFormatError as error:
                raise KeysLost from error
            self.bytes_read += keys.nbytes
            self.table.enter(keys)


def _neighbours(numbers: Sequence[int]) -> list[list[int]]:
    return [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]


def _groups(plan: PartitionPlan, analysis: Analysis, numbers: Sequence[int]) -> list[range]:
    if not numbers:
        return []
    groups = group_segments(plan, [analysis.sources[n] for n in numbers], analysis.source_end(numbers[-1]))
    return [range(numbers[0] + group.start, numbers[0] + group.stop) for group in groups]


def _prepare_rules(
    analysis: Analysis, bounds: Mapping[int, int], chosen: Sequence[int], before: _KeysBehind, number: int
) -> Rules:
    """Enter the keys against which a chosen source is not deduplicated yet, and return its rules. If the next source is
    carried over, the header of this source's last batch stays: a segment without batches would mislead searches by
    time.
    """
    before.enter(bounds[number])
    source = analysis.sources[number]
    stays = [offset for n, offset in bounds.items() if n < number and n not in chosen]
    rules = replace(analysis.rules, tombstones_from=min([analysis.rules.tombstones_from, *stays]))
    if number + 1 in chosen:
        return rules
    return replace(rules, first_uncleanable_offset=source.last_offset + 1)


Rows = Mapping[int, Segment]  # rows of the last generation, by number of the source


def schedule_limits(settings: CleanSettings, io_budget_bytes: int | None) -> ScheduleLimits:
    """Return the limits of a partition's schedule."""
    return ScheduleLimits(settings.compaction_min_yield, io_budget_bytes, settings.segment_bytes)


def older_segments(rows: Sequence[Segment], dead: Sequence[int]) -> Segments:
    """Return segments of the last generation for the schedule. dead: records of each that newer ones supersede."""
    return Segments(
        np.array([row.size_bytes for row in rows], np.int64),
        np.array([row.records for row in rows], np.int64),
        np.array(dead, np.int64),
        np.zeros(len(rows), bool),
    )


def superseded_by_filters(plan: PartitionPlan, rows: Rows, hashes: np.ndarray) -> tuple[dict[int, int], int]:
    """Return the superseded records of each older segment by the filters, and the bytes of these filters. Counts are
    corrected for the filters' false positives, one key in a thousand.

    hashes: uint64[n], of the keys of new records.
    """
    superseded, n_bytes, share_left = {}, 0, 1.0
    for number in sorted(rows, reverse=True):
        row = rows[number]
        key_filter = filter_beside(plan, row)
        if key_filter is None:
            continue
        n_bytes += key_filter.nbytes
        held, false_share = count_held(key_filter, hashes)
        died = max(np.count_nonzero(held) - false_share * len(hashes), 0) / (1 - false_share) / share_left
        superseded[number] = min(row.superseded + round(died), row.records)
        share_left *= 1 - false_share  # false matches of a newer filter are not probed in older ones
        hashes = hashes[~held]
    return superseded, n_bytes


def schedule_segments(
    plan: PartitionPlan, analysis: Analysis, rows: Rows, superseded: Mapping[int, int]
) -> list[ScheduledSegment]:
    """Return the decision for each older segment. Rewritten are those without facts or filter, those with removable
    tombstones, and those whose yield suffices.
    """
    numbers = sorted(rows)
    sources = [analysis.sources[n] for n in numbers]
    dead = [superseded.get(n, rows[n].superseded) for n in numbers]
    must = np.array([s.facts_bytes == 0 or n not in superseded for n, s in zip(numbers, sources, strict=True)], bool)
    older = replace(older_segments([rows[n] for n in numbers], dead), must=must)
    policy = schedule_limits(plan.policy.settings, plan.policy.io_budget_bytes)
    schedule = choose(older, policy)
    past = np.array([rows[n].tombstones > 0 for n in numbers], bool)
    past &= np.array([-1 < s.last_horizon_ms <= plan.run.now_ms for s in sources], bool)
    bounds = np.array([rows[n].deduplicated_through for n in numbers], np.int64)
    ends = np.array([s.last_offset for s in sources], np.int64)
    while numbers:
        least = np.minimum.accumulate(np.append(MAX_OFFSET, np.where(schedule.output < 0, bounds, MAX_OFFSET)))[:-1]
        more = must | (past & (ends < least))
        if (more == must).all():
            break
        must = more
        schedule = choose(replace(older, must=must), policy)
    return [
        ScheduledSegment(n, rows[n].base_offset, rows[n].size_bytes, rows[n].records, d, REASONS[why])
        for n, d, why in zip(numbers, dead, schedule.reason.tolist(), strict=True)
    ]


def with_what_is_old(
    plan: PartitionPlan, analysis: Analysis, scans: Sequence[SegmentScan], identity: LastBatch, buffer: ChunkBuffer
) -> Analysis | PartitionResult:
    """Return the analysis of a compacted partition that was not due: as for --force, if it holds records that are too
    old. Return the result if it holds none and no whole segment expires.
    """
    if not (analysis.affected and plan.policy.settings.compacts):
        return analysis
    forced = analyse(plan, scans, identity, Extent.FORCED)
    if isinstance(forced, Analysis) and _any_is_old(plan, analysis, len(forced.replaced), buffer):
        return forced  # otherwise no offset is cleanable yet
    return analysis.unchanged or replace(analysis, affected=range(0))


def _any_is_old(plan: PartitionPlan, analysis: Analysis, stop: int, buffer: ChunkBuffer) -> bool:
    """Return whether one of the first `stop` sources holds a record that is too old."""
    rules, tally = replace(analysis.rules, dry_run=True), Tally()
    of = Pass(_mark_all, plan.loader(None), buffer, tally)
    for number in range(analysis.affected.start, min(analysis.affected.stop, stop)):
        one = analysis.sources[number]
        if plan.may_hold_old(one.segment):
            for _ in clean_forwards(of, one, rules):
                if tally["dropped_expired"]:
                    return True
    return bool(tally["dropped_expired"])


def remove_records(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer) -> Cleaned | PartitionResult:
    """Remove single records; the segments replace the sources `replaced` of the analysis, which is completed by what
    the pass learned. Return the result if no record is removed and no other work is due.
    """
    erasing, tally = plan.policy.erasing, Tally()
    erased = None if erasing is None else ErasedKeys(plan, erasing)
    loader = plan.loader(None if erasing is None else erasing.secret)
    of = Pass(_mark_all if erased is None else erased.mark, loader, buffer, tally)
    counter = "dropped_expired" if erasing is None else "dropped_erased"
    written: dict[int, list[Segment]] = {}  # by number of the source
    min_timestamps: dict[int, int] = {}
    for number in reversed(analysis.affected):
        source = analysis.sources[number]
        if erasing is None and not written and not plan.may_hold_old(source.segment):
            continue
        # keep the last batch, empty if need be: a segment without batches has only its file time, which misleads
        # look-ups by time
        rules = replace(analysis.rules, first_uncleanable_offset=source.last_offset + 1)
        stack, before = PieceStack(plan.run.limits.task_memory_bytes // 4), tally[counter]
        for piece, chunk in clean_backwards(of, source, rules, stack.room):
            stack.push(number, piece, chunk)
        theirs = not plan.is_ours(source.segment)  # archive segments must not precede segments of the store
        if (written and (theirs or erasing is None)) or tally[counter] > before:
            group = analysis.group(range(number, number + 1))
            segments = write_group(plan, analysis, group, stack, buffer)
            written[number] = [
                replace(segment, deduplicated_through=source.segment.deduplicated_through) for segment in segments
            ]
        else:
            if erasing is None:
                min_timestamps[number] = least_timestamp(stack.rows())
            stack.close()
    if not written and analysis.unchanged is not None and _is_already_applied(plan, analysis):
        return analysis.unchanged
    if erased is not None:
        tally.erased = erased.ranges()
    analysis = replace(analysis, min_timestamps=min_timestamps, replaced=frozenset(written))
    in_vain = 0 if erasing is None else sum(analysis.sources[n].size for n in analysis.untouched)
    segments = [segment for number in sorted(written) for segment in written[number]]
    return Cleaned(analysis, segments, tally, work=Work(bytes_read=in_vain))


def _is_already_applied(plan: PartitionPlan, analysis: Analysis) -> bool:
    """Return whether a new generation that removes no records is unnecessary: the current one notes the erasure up to
    the log end.
    """
    erasing, until = plan.policy.erasing, plan.input.generation.next_offset
    if erasing is None or until is None:  # a run of the archive alone, which has none of the keys
        return True
    return erasing.already_applied and analysis.log_end_offset == until


def _mark_all(run: Run, may_stay: np.ndarray) -> None:
    may_stay[:] = True
