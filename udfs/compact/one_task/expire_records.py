"""Removal of records from the segments that hold any: those older than retention.ms (`retention.exact`), or those of
erased keys. All other records stay as they are, byte for byte.

In a compacted topic an earlier record of a key would come
back if its last record alone were removed, so a record that is too old makes the partition due (`with_what_is_old`).

The store's segments of a generation come before the archive's. So this module writes all segments up to the last one
that changes; those behind it stay in the archive. Nothing else may name the keys that were erased: filters and key
files of runs by yield do not pass into the new generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.clean_segment import clean_backwards, clean_forwards
from lastkey.udfs.compact.clean.erased import ErasedKeys
from lastkey.udfs.compact.output.generation import write_group
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.output.segment_output import least_timestamp
from lastkey.udfs.compact.plan import NotDue, PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_segment import SegmentScan
from lastkey.udfs.compact.scan.what_expires import may_hold_old
from lastkey.udfs.compact.verdicts import DROPPED_ERASED, DROPPED_EXPIRED
from lastkey.udfs.segments import LastBatch, OutputSegment


def with_what_is_old(
    plan: PartitionPlan, analysis: Analysis, scans: Sequence[SegmentScan], identity: LastBatch, buffer: ChunkBuffer
) -> Analysis:
    """Return the analysis of a compacted partition that was not due: as for --force, if it holds records that are too
    old. Raises NotDue if it holds none and no whole segment expires.
    """
    if not (analysis.aging and plan.policy.settings.compacts):
        return analysis
    try:
        forced = analyse(replace(plan, run=replace(plan.run, force=True)), scans, identity)
    except NotDue:  # nothing may be cleaned yet
        forced = None
    if forced is not None and _any_is_old(plan, analysis, len(forced.replaced), buffer):
        return forced
    if analysis.not_due is not None:
        raise analysis.not_due
    return replace(analysis, aging=range(0))


def _any_is_old(plan: PartitionPlan, analysis: Analysis, stop: int, buffer: ChunkBuffer) -> bool:
    """Return whether one of the first `stop` sources holds a record that is too old."""
    loader = BodyLoader(max_batch_bytes=plan.policy.settings.max_decompressed_batch_bytes)
    rules = replace(analysis.rules, dry_run=True)
    tally = Tally()
    for number in range(analysis.aging.start, min(analysis.aging.stop, stop)):
        one = analysis.sources[number]
        if may_hold_old(plan, one):
            for _ in clean_forwards(one, rules, loader, _mark_all, tally, buffer):
                if tally.counters[DROPPED_EXPIRED]:
                    return True
    return bool(tally.counters[DROPPED_EXPIRED])


def expire_records(
    plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer
) -> tuple[Analysis, list[OutputSegment]]:
    """Return the analysis, completed by what the pass learned, and the segments that replace its sources `replaced`.
    Raises NotDue if no record goes and nothing else is to be done.
    """
    erasing, most = plan.policy.erasing, plan.policy.settings.max_decompressed_batch_bytes
    loader = BodyLoader(max_batch_bytes=most, secret=None if erasing is None else erasing.secret)
    erased = None if erasing is None else ErasedKeys(plan, erasing)
    mark = _mark_all if erased is None else erased.mark
    counter = DROPPED_EXPIRED if erasing is None else DROPPED_ERASED
    written: dict[int, list[OutputSegment]] = {}  # by number of the source
    min_timestamps: dict[int, int] = {}
    for number in reversed(analysis.aging):
        source = analysis.sources[number]
        if erasing is None and not written and not may_hold_old(plan, source):
            continue
        # keep the last batch, empty if need be: a segment without batches has only its file time, which misleads
        # look-ups by time
        rules = replace(analysis.rules, first_uncleanable_offset=source.last_offset + 1)
        stack, before = PieceStack(plan.run.limits.task_memory_bytes // 4), tally.counters[counter]
        for piece, chunk in clean_backwards(source, rules, loader, mark, tally, buffer, stack.room):
            stack.push(number, piece, chunk)
        row = source.segment.row
        theirs = not plan.is_ours(source.segment.listed)  # none of the archive's may come before one of ours
        if (written and (theirs or erasing is None)) or tally.counters[counter] > before:
            group = analysis.group(range(number, number + 1))
            segments = write_group(plan, analysis, group, stack, buffer)
            applied_to = -1 if row is None else row.applied_to
            written[number] = [replace(segment, applied_to=applied_to) for segment in segments]
        else:
            if erasing is None:
                min_timestamps[number] = least_timestamp(stack.rows())
            stack.close()
    if not written and analysis.not_due is not None and _is_noted(plan, analysis):
        raise analysis.not_due
    if erased is not None:
        tally.erased = erased.ranges()
    analysis = replace(analysis, min_timestamps=min_timestamps, replaced=frozenset(written))
    return analysis, [segment for number in sorted(written) for segment in written[number]]


def _is_noted(plan: PartitionPlan, analysis: Analysis) -> bool:
    """Return whether a generation that changes nothing would say nothing new: what is erased up to the log end."""
    erasing, until = plan.policy.erasing, plan.input.before.until
    if erasing is None or until is None:  # the archive alone, which holds none of the keys
        return True
    return erasing.noted and analysis.log_end_offset == until


def _mark_all(run: Run, is_last: np.ndarray) -> None:
    is_last[:] = True
