"""Segments that a run by yield rewrites: what filters say about them, and the schedule's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.plan import PartitionPlan, ScheduledSegment
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.segment_facts import filter_beside
from lastkey.udfs.segments import OutputSegment
from lastkey.udfs.yields.key_filter import count_held
from lastkey.udfs.yields.schedule import REASONS, Policy, Segments, choose

Rows = Mapping[int, OutputSegment]  # rows of the last generation, by number of the source


def policy_of(plan: PartitionPlan) -> Policy:
    """Return the limits of a partition's schedule."""
    settings = plan.policy.settings
    return Policy(settings.compaction_min_yield, plan.policy.io_budget_bytes, settings.segment_bytes)


def older_segments(rows: Sequence[OutputSegment], dead: Sequence[int]) -> Segments:
    """Return segments of the last generation for the schedule. dead: records of each that newer ones supersede."""
    return Segments(
        np.array([row.size_bytes for row in rows], np.int64),
        np.array([row.records for row in rows], np.int64),
        np.array(dead, np.int64),
        np.zeros(len(rows), bool),
    )


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
    plan: PartitionPlan, analysis: Analysis, rows: Rows, superseded: Mapping[int, int]
) -> list[ScheduledSegment]:
    """Return what becomes of each older segment. Those without facts or filter are rewritten, and those with tombstones
    past their horizon that may go then; of the others, those that pay.
    """
    numbers = sorted(rows)
    sources = [analysis.sources[n] for n in numbers]
    dead = [superseded.get(n, rows[n].superseded) for n in numbers]
    must = np.array([s.facts_bytes == 0 or n not in superseded for n, s in zip(numbers, sources, strict=True)], bool)
    older, policy = replace(older_segments([rows[n] for n in numbers], dead), must=must), policy_of(plan)
    schedule = choose(older, policy)
    past = np.array([rows[n].tombstones > 0 for n in numbers], bool)
    past &= np.array([-1 < s.last_horizon_ms <= plan.run.now_ms for s in sources], bool)
    met = np.array([rows[n].applied_to for n in numbers], np.int64)
    ends = np.array([s.last_offset for s in sources], np.int64)
    while numbers:
        least = np.minimum.accumulate(np.append(MAX_OFFSET, np.where(schedule.output < 0, met, MAX_OFFSET)))[:-1]
        more = must | (past & (ends < least))
        if (more == must).all():
            break
        must = more
        schedule = choose(replace(older, must=must), policy)
    return [
        ScheduledSegment(n, rows[n].base_offset, rows[n].size_bytes, rows[n].records, d, REASONS[why])
        for n, d, why in zip(numbers, dead, schedule.reason.tolist(), strict=True)
    ]
