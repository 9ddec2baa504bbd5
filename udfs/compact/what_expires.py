"""What retention takes of a scanned log, before anything is written: whole segments, and records that are too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logformat.side_files.producer_state import ProducerState
from udfs.compact import cleaner
from udfs.compact.cleaner import LastBatches, Rules, SegmentFacts
from udfs.compact.plan import PartitionPlan
from udfs.compact.retention import Reason, expired_segments
from udfs.compact.scan_segment import SegmentScan
from udfs.compact.sources import Source


def facts_of(sources: Sequence[Source]) -> SegmentFacts:
    """What the rules ask of scanned segments."""
    scans = [s.scan for s in sources]
    return SegmentFacts(
        np.array([s.base_offset for s in scans], np.int64),
        np.array([s.size for s in scans], np.int64),
        np.array([s.max_timestamp for s in scans], np.int64),
        np.array([s.first_timestamp for s in scans], np.int64),
        np.array([s.mtime_ms for s in sources], np.int64),
    )


def expired(plan: PartitionPlan, segments: SegmentFacts, sealed: bool) -> dict[Reason, int]:
    """How many segments retention takes, by rule."""
    return expired_segments(
        segments,
        plan.settings.retention,
        log_start_offset=plan.log_start_offset,
        now_ms=plan.now_ms,
        last_may_go=sealed,
    )


def aging_sources(
    plan: PartitionPlan, sources: Sequence[Source], log_end: int, producers: ProducerState, sealed: bool
) -> range:
    """Numbers of the sources, from the first that stays on to the last that may hold a record older than it may be:
    none that may still be written to, and none with an open transaction.
    """
    if plan.oldest_ms < 0:
        return range(0)
    facts = facts_of(sources)
    limit = cleaner.cleanable_range(
        facts,
        first_dirty=sources[0].scan.base_offset,
        log_end_offset=log_end,
        active_base_offset=log_end if sealed else sources[-1].scan.base_offset,
        last_stable_offset=producers.last_stable_offset(log_end),
        min_compaction_lag_ms=0,
        now_ms=plan.now_ms,
    ).first_uncleanable_offset
    stop = sum(s.scan.base_offset < limit for s in sources)
    while stop and not may_hold_old(plan, sources[stop - 1].scan, plan.segments[stop - 1].min_timestamp_ms):
        stop -= 1
    by_time = replace(plan, settings=replace(plan.settings, retention_bytes=-1))
    first = sum(expired(by_time, facts, sealed).values())  # what goes by size is known when the rest is written
    return range(min(first, stop), stop)


def may_hold_old(plan: PartitionPlan, scan: SegmentScan, min_timestamp_ms: int) -> bool:
    """Whether a segment may hold records that are older than they may be; one without any timestamp does not."""
    return min_timestamp_ms < plan.oldest_ms and scan.max_timestamp >= 0


def rules_of_time(plan: PartitionPlan, log_end: int, producers: ProducerState) -> Rules:
    """Rules by which nothing goes but records that are too old."""
    entries, none = producers.entries(), np.empty(0, np.int64)
    return Rules(
        now_ms=plan.now_ms,
        delete_retention_ms=plan.settings.delete_retention_ms,
        first_uncleanable_offset=log_end,
        legacy_horizon_ms=cleaner.NO_LEGACY_HORIZON,
        keep_null_keys=True,
        producers=LastBatches(entries["producer_id"], entries["last_offset"], entries["producer_epoch"]),
        txn_base_offsets=none,
        txn_discardable=none.astype(np.bool_),
        oldest_ms=plan.oldest_ms,
        compacts=False,
        dry_run=plan.dry_run,
    )
