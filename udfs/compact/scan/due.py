"""The work that is due, decided before anything is written: the range that may be cleaned now, the segments and records
that retention removes, the segments that may hold erased keys. If no work is due: the rule that holds the work back.

`analyse` calls these functions with the facts of a scan; the driver calls them with those of a listing, which has only
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.udfs.compact import cleaner
from lastkey.udfs.compact.cleaner import CleanableRange, LastBatches, Rules, SegmentTimes
from lastkey.udfs.compact.plan import CleanedLog, Extent, PartitionPlan, PartitionResult
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.segments import Reason, SegmentScan


def collect_times(sources: Sequence[SegmentScan]) -> SegmentTimes:
    """Return the facts about scanned segments that the rules need."""
    return SegmentTimes(
        np.array([s.first_offset for s in sources], np.int64),
        np.array([s.size for s in sources], np.int64),
        np.array([s.segment.max_timestamp_ms for s in sources], np.int64),
        np.array([s.first_timestamp for s in sources], np.int64),
        np.array([s.mtime_ms for s in sources], np.int64),
        sources[-1].bytes_above if sources else 0,
    )


def listed_times(segments: Sequence[Segment], bytes_above: int = 0) -> SegmentTimes:
    """Return the facts about segments that are known without a scan: sizes as listed, no time of a first batch."""
    rows = [(s.first_offset, s.size_bytes, s.max_timestamp_ms, s.mtime_ms) for s in segments]
    base, size, largest, mtime = np.array(rows, np.int64).reshape(-1, 4).T
    return SegmentTimes(base, size, largest, np.full(len(rows), -1, np.int64), mtime, bytes_above)


def expired(plan: PartitionPlan, segments: SegmentTimes, sealed: bool, *, by_size: bool = True) -> dict[Reason, int]:
    """Return the number of segments that retention removes, by rule. by_size: False ignores sizes."""
    settings = plan.policy.settings
    return cleaner.expired_segments(
        segments,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes if by_size else -1,
        log_start_offset=plan.input.log_start_offset,
        now_ms=plan.run.now_ms,
        last_may_go=sealed,
    )


def affected_sources(
    plan: PartitionPlan, sources: Sequence[SegmentScan], log_end: int, producers: ProducerState, sealed: bool
) -> range:
    """Return the range of sources to check for expired records: from the first one that retention keeps to the last one
    with records that may be too old. Sources that may grow, or have an open transaction, are excluded. An erasure
    returns all sources.
    """
    if plan.policy.erasing is not None:
        return range(len(sources))
    if plan.oldest_ms < 0:
        return range(0)
    facts = collect_times(sources)
    limit = cleaner.cleanable_range(
        facts,
        first_dirty=sources[0].first_offset,
        log_end_offset=log_end,
        active_base_offset=log_end if sealed else sources[-1].first_offset,
        last_stable_offset=producers.last_stable_offset(log_end),
        min_compaction_lag_ms=0,
        now_ms=plan.run.now_ms,
    ).first_uncleanable_offset
    stop = sum(s.first_offset < limit for s in sources)
    while stop and not plan.may_hold_old(sources[stop - 1].segment):
        stop -= 1
    first = sum(expired(plan, facts, sealed, by_size=False).values())  # sizes are known only after the rewrite
    return range(min(first, stop), stop)


def rules_of_removal(plan: PartitionPlan, log_end: int, producers: ProducerState, witnesses: np.ndarray) -> Rules:
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
        by_key=False,
        keep_batches=plan.policy.erasing is not None,
        dry_run=plan.run.dry_run,
        compression=replace(plan.policy.settings.compression, every_batch=False),
        witnesses=witnesses,
    )


def cleanable_now(
    plan: PartitionPlan,
    scans: Sequence[SegmentScan],
    log_end: int,
    producers: ProducerState,
    rows: np.ndarray,
    extent: Extent,
) -> tuple[CleanableRange, bool, tuple[HeldBack, ...]]:
    """Return the cleanable range, whether it is due, and if not, the rules that delay it. rows: TXN_BATCH[n],
    of the whole log.
    """
    facts, settings = collect_times(scans), plan.policy.settings
    if not settings.compacts:
        start = cleaner.first_dirty_offset(plan.input.first_dirty_offset, plan.input.log_start_offset, log_end)
        return CleanableRange(start, start, 0, 0), False, ()
    whole = len(scans) == len(plan.input.segments)
    active = log_end if plan.run.sealed and whole else scans[-1].first_offset
    dirty = cleaner.first_dirty_offset(plan.clean_from(extent), plan.input.log_start_offset, log_end)
    force = extent is Extent.FORCED
    stable = cleaner.last_stable_offset(
        producers.last_stable_offset(log_end),
        plan.input.log_start_offset,
        facts.base_offset,
        np.array([s.last_offset for s in scans], np.int64),
        log_end,
    )
    until = partial(
        cleaner.cleanable_range, facts, first_dirty=dirty, log_end_offset=log_end, active_base_offset=active,
        now_ms=plan.run.now_ms,
    )  # fmt: skip
    lag_ms = settings.min_compaction_lag_ms
    cleanable = until(last_stable_offset=stable, min_compaction_lag_ms=lag_ms)
    delay = cleaner.compaction_delay_ms(facts, dirty, active, settings.max_compaction_lag_ms, plan.run.now_ms)
    ratio, least = settings.min_cleanable_dirty_ratio, settings.min_dirty_bytes
    due = cleaner.is_due(cleanable, delay, ratio, least, force)
    if due and cleanable.first_uncleanable_offset > scans[0].first_offset:
        return cleanable, True, ()
    paths = [s.path for s in scans]
    free = until(last_stable_offset=log_end, min_compaction_lag_ms=0)
    if not cleaner.is_due(free, delay, ratio, least, force) or free.first_uncleanable_offset <= scans[0].first_offset:
        return cleanable, False, (dirt_held_back(plan, facts, paths, free, log_end=log_end, active=active),)
    opened = _oldest_open(producers, rows, facts.base_offset, paths)
    by_txn = until(last_stable_offset=stable, min_compaction_lag_ms=0).first_uncleanable_offset
    by_lag = until(last_stable_offset=log_end, min_compaction_lag_ms=lag_ms).first_uncleanable_offset
    if opened is not None and by_txn <= by_lag:
        return cleanable, False, (opened,)
    return cleanable, False, (_held_back_by_lag(plan, facts, paths, by_lag),)


def _held_back_by_lag(plan: PartitionPlan, segments: SegmentTimes, paths: Sequence[str], until: int) -> HeldBack:
    """Return min.compaction.lag.ms as the rule that holds the compaction back. until: the offset where it begins."""
    now_ms, lag_ms, bases = plan.run.now_ms, plan.policy.settings.min_compaction_lag_ms, segments.base_offset
    at = _segment_at(bases, until)
    newest = int(segments.largest_timestamp()[at])
    return HeldBack(
        "min.compaction.lag.ms", int(bases[at]), paths[at], newest, newest + lag_ms, limit=lag_ms,
        found=now_ms - newest, now_ms=now_ms,
    )  # fmt: skip


def dirt_held_back(
    plan: PartitionPlan,
    segments: SegmentTimes,
    paths: Sequence[str],
    cleanable: CleanableRange,
    *,
    log_end: int,
    active: int,
) -> HeldBack:
    """Return the rule that delays a compaction because no data is dirty, or less than the settings require."""
    settings, bases = plan.policy.settings, segments.base_offset
    dirty = cleanable.first_dirty_offset
    if not len(bases) or cleanable.cleanable_bytes <= 0 or cleanable.first_uncleanable_offset <= bases[0]:
        if len(bases) < len(plan.input.segments) or segments.bytes_above:
            end = log_end if plan.input.high_watermark is None else plan.input.high_watermark
            return HeldBack("high_watermark", end, paths[-1] if paths else "")
        if len(bases) and active < log_end and segments.size[-1]:
            return HeldBack("active_segment", active, paths[-1], int(segments.first_timestamp[-1]))
        return HeldBack("nothing_new", min(active, log_end))
    at = _segment_at(bases, dirty)
    where = dirty, paths[at], int(segments.first_timestamp[at])
    limit = settings.min_cleanable_dirty_ratio
    if cleanable.ratio <= limit:
        return HeldBack("min.cleanable.dirty.ratio", *where, found=round(cleanable.ratio, 6), limit=limit)
    return HeldBack("min.dirty.bytes", *where, found=cleanable.cleanable_bytes, limit=settings.min_dirty_bytes)


def retention_held_back(
    plan: PartitionPlan, segments: SegmentTimes, paths: Sequence[str], *, first: int = 0, active: int
) -> tuple[HeldBack, ...]:
    """Return the rules by which the segment `first` and all later ones stay, which retention has not deleted.

    active: base of the active segment, or the log end.
    """
    settings, bases = plan.policy.settings, segments.base_offset
    if plan.policy.erasing is not None or (settings.compacts and not settings.has_limit):
        return ()  # no retention is asked for
    if not settings.has_limit:
        return (HeldBack("no_retention"),)
    if first >= len(bases) or bases[first] >= active:
        return (HeldBack("active_segment", int(bases[first]), paths[first]),) if first < len(bases) else ()
    where, out = (int(bases[first]), paths[first]), list[HeldBack]()
    if settings.retention_ms >= 0:
        newest, ms = int(segments.largest_timestamp()[first]), settings.retention_ms
        age = plan.run.now_ms - newest
        out.append(HeldBack("retention.ms", *where, newest, newest + ms, limit=ms, found=age, now_ms=plan.run.now_ms))
    if settings.retention_bytes >= 0:
        held = int(segments.size[first:].sum()) + segments.bytes_above
        out.append(HeldBack("retention.bytes", *where, found=held, limit=settings.retention_bytes))
    return tuple(out)


def _oldest_open(
    producers: ProducerState, rows: np.ndarray, bases: np.ndarray, paths: Sequence[str]
) -> HeldBack | None:
    """Return the open transaction that begins first; rows: TXN_BATCH[n]."""
    entries = producers.entries()
    entries = entries[entries["current_txn_first_offset"] >= 0]
    if not len(entries):
        return None
    oldest = entries[np.argmin(entries["current_txn_first_offset"])]
    offset, producer_id = int(oldest["current_txn_first_offset"]), int(oldest["producer_id"])
    first = rows[(rows["base_offset"] == offset) & (rows["producer_id"] == producer_id)]
    since = int(first["max_timestamp"][0]) if len(first) else -1
    return HeldBack("open_transaction", offset, paths[_segment_at(bases, offset)], since, producer_id=producer_id)


def _segment_at(bases: np.ndarray, offset: int) -> int:
    return max(int(np.searchsorted(bases, offset, "right")) - 1, 0)


def with_first(plan: PartitionPlan, first: Segment) -> SegmentTimes:
    """Return the facts about the plan's segments; first: the first one with its timestamps."""
    return listed_times([first, *plan.input.segments[1:]])


def may_expire(plan: PartitionPlan, segments: SegmentTimes) -> bool:
    """Return whether retention may remove anything, judged by the first segment and by facts that need no look at the
    others.
    """
    closed = plan.input.segments if plan.run.sealed else plan.input.segments[:-1]
    if any(s.size_bytes and s.min_timestamp_ms < plan.oldest_ms for s in closed):
        return True
    return any(expired(plan, segments.with_young_rest(), plan.run.sealed).values())


def not_due(
    plan: PartitionPlan, first_dirty: int, next_offset: int, cleanable: CleanableRange, held_back: tuple[HeldBack, ...]
) -> PartitionResult:
    """Return the result of a partition that has no work to do now."""
    topic, partition, start = plan.input.topic, plan.input.partition, plan.input.log_start_offset
    log = CleanedLog(first_dirty_offset=first_dirty, log_start_offset=start, next_offset=next_offset)
    cleanable = replace(cleanable, first_dirty_offset=first_dirty)
    return PartitionResult(topic, partition, "not_due", cleanable=cleanable, log=log, held_back=held_back)


def unread_result(plan: PartitionPlan, segments: SegmentTimes) -> PartitionResult:
    """Return the result of a partition that is not compacted and loses no segment by retention, as its first segment
    shows.
    """
    start = max(plan.input.first_dirty_offset or 0, plan.input.log_start_offset)
    paths, last = [s.path for s in plan.input.segments], max((s.first_offset for s in plan.input.segments), default=0)
    held_back = retention_held_back(plan, segments, paths, active=MAX_OFFSET if plan.run.sealed else last)
    result = not_due(plan, start, known_end(plan), CleanableRange(start, start, 0, 0), held_back)
    return replace(result, log=replace(result.log, compacted=False))


def known_end(plan: PartitionPlan) -> int:
    """Return the log end of a partition that was not read; -1 if the archive may hold more than the generation."""
    unread = any(s.size_bytes for s in plan.input.segments if not plan.is_ours(s))
    return -1 if unread or plan.input.generation.next_offset is None else plan.input.generation.next_offset
