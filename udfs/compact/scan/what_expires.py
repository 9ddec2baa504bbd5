"""The parts of a scanned log that retention removes, found before anything is written: whole segments, and records that
are too old; or the sources that may hold records of erased keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.udfs.compact import cleaner
from lastkey.udfs.compact.cleaner import LastBatches, Rules, SegmentFacts
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.retention import Reason, expired_segments
from lastkey.udfs.compact.scan.scan_segment import SegmentScan


def facts_of(sources: Sequence[SegmentScan]) -> SegmentFacts:
    """Return the facts about scanned segments that the rules need."""
    return SegmentFacts(
        np.array([s.base_offset for s in sources], np.int64),
        np.array([s.size for s in sources], np.int64),
        np.array([s.max_timestamp for s in sources], np.int64),
        np.array([s.first_timestamp for s in sources], np.int64),
        np.array([s.mtime_ms for s in sources], np.int64),
        sources[-1].bytes_above if sources else 0,
    )


def expired(plan: PartitionPlan, segments: SegmentFacts, sealed: bool) -> dict[Reason, int]:
    """Return how many segments retention removes, by rule."""
    return expired_segments(
        segments,
        plan.policy.settings.retention,
        log_start_offset=plan.input.log_start_offset,
        now_ms=plan.run.now_ms,
        last_may_go=sealed,
    )


def aging_sources(
    plan: PartitionPlan, sources: Sequence[SegmentScan], log_end: int, producers: ProducerState, sealed: bool
) -> range:
    """Return the numbers of the sources from the first that stays to the last that may hold a record that is too old,
    without those that may still grow or hold an open transaction. An erasure spares none.
    """
    if plan.policy.erasing is not None:
        return range(len(sources))
    if plan.oldest_ms < 0:
        return range(0)
    facts = facts_of(sources)
    limit = cleaner.cleanable_range(
        facts,
        first_dirty=sources[0].base_offset,
        log_end_offset=log_end,
        active_base_offset=log_end if sealed else sources[-1].base_offset,
        last_stable_offset=producers.last_stable_offset(log_end),
        min_compaction_lag_ms=0,
        now_ms=plan.run.now_ms,
    ).first_uncleanable_offset
    stop = sum(s.base_offset < limit for s in sources)
    while stop and not may_hold_old(plan, sources[stop - 1]):
        stop -= 1
    settings = replace(plan.policy.settings, retention_bytes=-1)
    by_time = replace(plan, policy=replace(plan.policy, settings=settings))
    first = sum(expired(by_time, facts, sealed).values())  # sizes are known only after the rewrite
    return range(min(first, stop), stop)


def may_hold_old(plan: PartitionPlan, source: SegmentScan) -> bool:
    """Return whether a segment may hold records that are too old; one without any timestamp does not."""
    return source.segment.min_timestamp_ms < plan.oldest_ms and source.max_timestamp >= 0


def rules_of_time(plan: PartitionPlan, log_end: int, producers: ProducerState, witnesses: np.ndarray) -> Rules:
    """Return rules that drop only records that are too old, or of erased keys. witnesses: as in Rules."""
    entries, none = producers.entries(), np.empty(0, np.int64)
    return Rules(
        now_ms=plan.run.now_ms,
        delete_retention_ms=plan.policy.settings.delete_retention_ms,
        first_uncleanable_offset=log_end,
        legacy_horizon_ms=cleaner.NO_LEGACY_HORIZON,
        keep_null_keys=True,
        producers=LastBatches(entries["producer_id"], entries["last_offset"], entries["producer_epoch"]),
        txn_base_offsets=none,
        txn_discardable=none.astype(np.bool_),
        oldest_ms=plan.oldest_ms,
        compacts=False,
        keep_batches=plan.policy.erasing is not None,
        dry_run=plan.run.dry_run,
        witnesses=witnesses,
    )
