"""Records that are older than retention.ms taken out of the segments that hold any: `retention.exact`.

Where a topic is not compacted, nothing else goes. Where it is, an earlier record of a key would come back if its
last one went alone: so one that is too old makes the partition due (`with_what_is_old`).

A generation's segments in the store are its first ones, so all up to the last one that changes are written; those
behind it stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import ChunkBuffer
from udfs.compact.analyse import Analysis, analyse
from udfs.compact.clean_batches import Tally
from udfs.compact.clean_segment import clean_backwards, clean_forwards
from udfs.compact.decide_kernels import DROPPED_EXPIRED
from udfs.compact.generation import untouched_row, write_group
from udfs.compact.piece_stack import PieceStack
from udfs.compact.plan import NotDue, PartitionPlan
from udfs.compact.scan_segment import SegmentScan
from udfs.compact.segment_output import least_timestamp
from udfs.compact.what_expires import may_hold_old
from udfs.segments import LastBatch, OutputSegment


def with_what_is_old(
    plan: PartitionPlan, analysis: Analysis, scans: Sequence[SegmentScan], identity: LastBatch, buffer: ChunkBuffer
) -> Analysis:
    """The analysis of a partition that is compacted but was not due: as for --force, if there are records that are too
    old. Raises NotDue.
    """
    if not (analysis.aging and plan.settings.compacts):
        return analysis
    try:
        forced = analyse(replace(plan, force=True), scans, identity)
    except NotDue:  # nothing may be cleaned yet
        forced = None
    if forced is not None and _any_is_old(plan, analysis, forced.head, buffer):
        return forced
    if analysis.not_due is not None:
        raise analysis.not_due
    return replace(analysis, aging=range(0))


def _any_is_old(plan: PartitionPlan, analysis: Analysis, stop: int, buffer: ChunkBuffer) -> bool:
    """Whether one of the first `stop` sources holds a record that is too old."""
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes)
    rules = replace(analysis.rules, dry_run=True)
    tally = Tally()
    for number in range(analysis.aging.start, min(analysis.aging.stop, stop)):
        one = analysis.sources[number]
        if may_hold_old(plan, one.scan, plan.segments[number].min_timestamp_ms):
            for _ in clean_forwards(one, rules, loader, _mark_all, tally, buffer):
                if tally.counters[DROPPED_EXPIRED]:
                    return True
    return bool(tally.counters[DROPPED_EXPIRED])


def expire_records(
    plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer
) -> tuple[Analysis, list[OutputSegment]]:
    """The analysis with what was learned, and what replaces its first `head` sources. Raises NotDue where no record is
    too old, and nothing else is to be done.
    """
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes)
    written: list[OutputSegment] = []
    least: dict[int, int] = {}
    for number in reversed(analysis.aging):
        if not written and not may_hold_old(
            plan, analysis.sources[number].scan, plan.segments[number].min_timestamp_ms
        ):
            continue
        # its last batch stays, empty if need be: by the file time of a segment without any, look-ups by time go wrong
        rules = replace(analysis.rules, first_uncleanable_offset=analysis.sources[number].scan.last_offset + 1)
        stack, before = PieceStack(plan.limits.task_memory_bytes // 4), tally.counters[DROPPED_EXPIRED]
        clean_backwards(number, analysis.sources, stack, rules, loader, _mark_all, tally, buffer)
        if written or tally.counters[DROPPED_EXPIRED] > before:
            group = analysis.group(range(number, number + 1), stack)
            written.append(write_group(plan, analysis, group, buffer))
        else:
            least[number] = least_timestamp(stack.rows())
            stack.close()
    if not written and analysis.not_due is not None:
        raise analysis.not_due
    analysis = replace(analysis, least=least)
    if not written:
        return analysis, []
    going = [untouched_row(plan, analysis, number) for number in range(analysis.aging.start)]
    return replace(analysis, head=len(going) + len(written)), going + written[::-1]


def _mark_all(run: Run, is_last: np.ndarray) -> None:
    is_last[:] = True
