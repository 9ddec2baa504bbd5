"""Segments that a run by yield rewrites: what filters say about them, their ages, and the model's choice.

Each age is counted in offsets, from the middle of a segment to the end of the cleaned log: that is how many records
came after it, which a rewrite does not change (`udfs.yields.yield_table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.clean.pending_keys import PendingKeys
from lastkey.udfs.compact.clean.slot_kernels import SLOT
from lastkey.udfs.compact.plan import PartitionPlan, ScheduledSegment
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.segment_facts import filter_beside
from lastkey.udfs.segments import OutputSegment
from lastkey.udfs.yields.key_filter import count_held
from lastkey.udfs.yields.schedule import REASONS, Pace, Policy, Segments, choose, pace, wish_of
from lastkey.udfs.yields.yield_table import AGES, from_text, no_yields, record_yields, to_text

Rows = Mapping[int, OutputSegment]  # rows of the last generation, by number of the source


def policy_of(plan: PartitionPlan) -> Policy:
    """Return the prices and limits of a partition's schedule."""
    return Policy(
        price=plan.settings.compaction_dead_byte_price,
        min_yield=plan.settings.compaction_min_yield,
        io_budget_bytes=plan.io_budget_bytes,
        segment_bytes=plan.settings.group_bytes,
    )


def pace_of(plan: PartitionPlan, rows: Sequence[OutputSegment], dirty: int, until: int, new_bytes: int) -> Pace:
    """Return whether a run is worth it now, and how, before anything is read.

    rows: cleaned ones, by offset; dirty, until: the first new offset, and the end of the new ones; new_bytes: of them.
    """
    yields = from_text(plan.yields)
    of_run = yields.run_offsets or until - dirty
    waiting, age = (until - dirty) / of_run, _ages(rows, dirty, of_run)
    segments = _segments(rows, [row.superseded for row in rows], age, np.zeros(len(rows), bool), np.zeros(len(rows)))
    return pace(segments, yields, policy_of(plan), new_bytes=round(new_bytes / waiting), waiting=max(round(waiting), 1))


def wish_before(plan: PartitionPlan) -> tuple[float, float, float]:
    """Return `wish_of` a partition by what was known after its last run: deaths of this one are not known yet."""
    yields, dirty = from_text(plan.yields), plan.checkpoint or 0
    rows = [s.row for s in plan.segments if s.row is not None and s.base_offset < dirty]
    if not yields.run_offsets:
        return 0.0, 0.0, 0.0  # no run has learned anything yet
    age = np.rint(_ages(rows, dirty, yields.run_offsets)) + 1
    none = np.zeros(len(rows))
    return wish_of(_segments(rows, [row.superseded for row in rows], age, none > 0, none), yields, policy_of(plan))


def superseded_by_filters(plan: PartitionPlan, rows: Rows, hashes: np.ndarray) -> tuple[dict[int, int], int]:
    """Return how many records of each older segment newer ones have superseded by now, as far as filters show, and the
    bytes of these filters. A filter that holds one key in a thousand wrongly is corrected for as many.

    hashes: uint64[n], of the keys of new records.
    """
    found, n_bytes, share_left = {}, 0, 1.0
    for number in sorted(rows, reverse=True):
        row = rows[number]
        key_filter = filter_beside(plan, row)
        if key_filter is None:
            continue
        n_bytes += key_filter.nbytes
        held, false_share = count_held(key_filter, hashes)
        died = max(np.count_nonzero(held) - false_share * len(hashes), 0) / (1 - false_share) / share_left
        found[number] = min(row.superseded + round(died), row.records)
        share_left *= 1 - false_share  # keys that a newer filter took wrongly are not looked up in older ones
        hashes = hashes[~held]
    return found, n_bytes


def schedule_of(
    plan: PartitionPlan, analysis: Analysis, rows: Rows, superseded: Mapping[int, int], pending: Sequence[PendingKeys]
) -> list[ScheduledSegment]:
    """Return what becomes of each older segment. Those without facts or filter are rewritten, and those with tombstones
    past their horizon that may go then; of the others, those that pay.
    """
    numbers = sorted(rows)
    sources = [analysis.sources[n] for n in numbers]
    yields = from_text(plan.yields)
    dirty, until = analysis.cleanable.first_dirty_offset, analysis.cleanable.first_uncleanable_offset
    of_run = yields.run_offsets or until - dirty
    age = np.rint(_ages([rows[n] for n in numbers], dirty, of_run)) + max(round((until - dirty) / of_run), 1)
    must = np.array([s.facts_bytes == 0 or n not in superseded for n, s in zip(numbers, sources, strict=True)], bool)
    unread = [sum(SLOT.itemsize * one.n for one in pending if rows[n].applied_to <= one.first) for n in numbers]
    dead = [superseded.get(n, rows[n].superseded) for n in numbers]
    of_log = _segments([rows[n] for n in numbers], dead, age, must, np.array(unread, float))
    policy = policy_of(plan)
    schedule = choose(of_log, yields, policy, every=plan.every)
    past = np.array([r.tombstones > 0 for r in rows.values()], bool)
    past &= np.array([-1 < s.last_horizon_ms <= plan.now_ms for s in sources], bool)
    met = np.array([rows[n].applied_to for n in numbers], np.int64)
    ends = np.array([s.last_offset for s in sources], np.int64)
    while numbers:
        least = np.minimum.accumulate(np.append(MAX_OFFSET, np.where(schedule.output < 0, met, MAX_OFFSET)))[:-1]
        more = must | (past & (ends < least))
        if (more == must).all():
            break
        must = more
        schedule = choose(replace(of_log, must=must), yields, policy, every=plan.every)
    return [
        ScheduledSegment(n, rows[n].base_offset, rows[n].size_bytes, rows[n].records, d, float(a), REASONS[why])
        for n, d, a, why in zip(numbers, dead, age, schedule.reason.tolist(), strict=True)
    ]


def learned(
    plan: PartitionPlan, analysis: Analysis, rows: Rows, left: Mapping[int, float], new_survivors: int
) -> str | None:
    """Return the table of yields with this run in it; as it was if no older segment is known.

    left: live records of older segments after this run, by number; new_survivors: records of new ones that are left.
    """
    numbers = sorted(rows.keys() & left.keys())
    dirty = plan.checkpoint or 0
    until = analysis.cleanable.first_uncleanable_offset
    if not numbers or until <= dirty:
        return plan.yields
    yields = from_text(plan.yields)
    if until - dirty > AGES * yields.run_offsets:  # the first run, or that one was no measure: begin anew
        yields = replace(no_yields(), run_offsets=float(until - dirty))
    live = np.array([rows[n].records - rows[n].superseded for n in numbers], float)
    fresh = [s for s in analysis.sources if dirty <= s.base_offset < until]
    return to_text(
        record_yields(
            yields,
            _ages([rows[n] for n in numbers], dirty, yields.run_offsets),
            live,
            np.clip(live - np.array([left[n] for n in numbers]), 0, None),
            new_records=sum(s.n_records for s in fresh),
            new_survivors=new_survivors,
            elapsed=(until - dirty) / yields.run_offsets,
        )
    )


def _ages(rows: Sequence[OutputSegment], dirty: int, run_offsets: float) -> np.ndarray:
    """Return float64[n], the ages of segments in runs' worth at the run before, which ended at `dirty`."""
    middle = np.array([(row.base_offset + row.next_offset) / 2 for row in rows], float)
    return np.asarray(np.maximum((dirty - middle) / run_offsets - 0.5, 0.0))


def _segments(
    rows: Sequence[OutputSegment], dead: Sequence[int], age: np.ndarray, must: np.ndarray, unread: np.ndarray
) -> Segments:
    return Segments(
        np.array([row.size_bytes for row in rows], np.int64),
        np.array([row.records for row in rows], np.int64),
        np.array(dead, float),
        age,
        must,
        unread,
    )
