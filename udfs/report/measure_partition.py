"""The profile of a partition: its content, and what cleaning it now would leave. One task; nothing is written.

The log is scanned as a compaction scans it, and then read once from its end to its start. The part that would be
cleaned goes through `clean_batches` itself, told to write nothing, so live and dead are what `compact --dry-run` says,
by construction. Records above the first uncleanable offset, and those of topics that are not compacted, are only
counted; a key that is written there again supersedes nothing yet, as for the cleaner.

Memory: 32 bytes a slot of the key table. At most two thirds of its slots are used; it begins with 512 KiB and doubles
as it fills, up to half of the task's memory. A chunk and its decompressed batches come on top, as everywhere. Results
are small: about 300 bytes a segment, and at most 1,024 buckets of time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.attempt import attempt
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.one_task.compact_partition import clean_everything
from lastkey.udfs.compact.one_task.passes import Clock
from lastkey.udfs.compact.plan import NotDue, PartitionPlan
from lastkey.udfs.compact.retention import Expired, summarize_expired
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.due import expired, facts_of
from lastkey.udfs.compact.scan.gaps import check_gaps
from lastkey.udfs.compact.scan.scan_partition import (
    check_checkpoints,
    check_tails,
    scan_all,
    scan_identity,
    until_high_watermark,
)
from lastkey.udfs.compact.scan.scan_segment import chunk_buffer
from lastkey.udfs.compact.verdicts import COUNTER_NAMES
from lastkey.udfs.problem import Problem
from lastkey.udfs.report.partition_profile import PartitionProfile
from lastkey.udfs.report.walk import Walk
from lastkey.udfs.segments import LastBatch, SegmentScan


@dataclass(frozen=True)
class ProfilePlan:
    """Plan of one profile."""

    plan: PartitionPlan  # as for a compaction; force is ignored
    compacted: bool  # False: everything is alive


def profile_partition(given: ProfilePlan) -> PartitionProfile:
    """Profile one partition. Whatever stops it becomes `problem`."""
    start = time.perf_counter()
    plan = given.plan
    size = sum(s.listed.size for s in plan.input.segments)
    profile = attempt(plan.name, lambda: _profile(plan, given.compacted))
    if isinstance(profile, Problem):
        profile = PartitionProfile(plan.input.topic, plan.input.partition, given.compacted, size, profile)
    return replace(profile, seconds=time.perf_counter() - start)


def _profile(plan: PartitionPlan, compacted: bool) -> PartitionProfile:
    buffer = chunk_buffer(plan)
    notes: list[str] = []
    scans = scan_all(plan, buffer)
    analysis = None
    if compacted:
        analysis, out = _as_the_cleaner_sees_it(plan, scans, scan_identity(plan, buffer))
        if not plan.policy.settings.by_offset:
            by = plan.policy.settings.compaction_strategy
            note = f"{plan.name}: dead records are counted by offset, not by {by}"
            out = replace(out, notes=(*out.notes, note))
    else:
        kept = until_high_watermark(plan, scans, notes)
        check_tails(plan, kept, notes)
        end = max(kept[-1].base_offset, kept[-1].last_offset + 1)
        check_checkpoints(plan, end)
        check_gaps(plan, kept, end, notes)
        out = PartitionProfile(plan.input.topic, plan.input.partition, False, 0, notes=tuple(notes))
    all_scans, scans = scans, list(until_high_watermark(plan, scans, []))
    walk = Walk(plan, scans, analysis, buffer)
    segments = tuple(reversed([walk.segment(i) for i in reversed(range(len(scans)))]))
    counters = sum((t.counters for t in walk.tallies), Tally().counters)
    size, tally = sum(s.size for s in scans), Tally()
    gain = _gain(plan, all_scans, tally, buffer) if not compacted else size - sum(s.bytes_after for s in segments)
    if isinstance(gain, Problem):
        out = replace(out, notes=(*out.notes, f"what a compaction would save is unknown: {gain}"))
    elif gain > 0 and plan.policy.settings.null_keys == "fail" and (keyless := sum(s.null_keys for s in segments)):
        note = f"{keyless:,} records without a key count as kept; compact needs --null-keys keep or drop for them"
        out = replace(out, notes=(*out.notes, note))
    return replace(
        out,
        size_bytes=size,
        bytes_if_compacted=None if isinstance(gain, Problem) else size - gain,
        segments=segments,
        log_start_offset=plan.input.log_start_offset,
        log_end_offset=max(scans[-1].base_offset, scans[-1].last_offset + 1),
        expiring=_expiring(plan, scans),
        bytes_after_is_estimate=walk.estimated or tally.recompressed_bytes > 0,
        counters=dict(zip(COUNTER_NAMES, counters.tolist(), strict=True)) if analysis else {},
        distinct_keys=walk.keys.used,
        hot_keys=walk.hot_keys(),
        times=walk.times.trimmed(),
    )


def _gain(plan: PartitionPlan, scans: Sequence[SegmentScan], tally: Tally, buffer: ChunkBuffer) -> int | Problem:
    """Return the bytes that a compaction would save if cleanup.policy asked for one, or the problem that stops it.

    Reads the log once more, because `Walk` counts by the policy. The key table is half as large as that of `Walk`, and
    so large enough.
    """
    keys = "keep" if plan.policy.settings.null_keys == "fail" else plan.policy.settings.null_keys
    settings = replace(plan.policy.settings, compacts=True, null_keys=keys)
    plan = replace(plan, policy=replace(plan.policy, settings=settings))

    def work() -> int:
        analysis, _ = _as_the_cleaner_sees_it(plan, scans, scan_identity(plan, buffer))
        if analysis is None:
            return 0
        cleaned = clean_everything(plan, analysis, tally, buffer, Clock())
        return sum(analysis.sources[n].size for n in analysis.replaced) - sum(s.size_bytes for s in cleaned)

    return attempt(f"{plan.name}, as if compacted", work)


def _expiring(plan: PartitionPlan, sources: Sequence[SegmentScan]) -> tuple[Expired, ...]:
    """Return what retention would delete, by the headers alone, before anything is cleaned."""
    facts = facts_of(sources)
    by_rule = expired(plan, facts, sealed=False)
    ends = [*(s.base_offset for s in sources[1:]), 0]  # the last one stays
    rows = [(s.base_offset, end, s.n_records, s.size) for s, end in zip(sources, ends, strict=True)]
    return summarize_expired(by_rule, rows[: sum(by_rule.values())], facts.bytes_above)


def _as_the_cleaner_sees_it(
    plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch
) -> tuple[Analysis | None, PartitionProfile]:
    """Return an analysis of what would be cleaned, due or not (None: nothing may be), and the cleaner's figures."""
    compaction = replace(plan.policy.settings, retention_ms=-1, retention_bytes=-1)
    asked = PartitionPlan(
        plan.input, replace(plan.policy, settings=compaction), replace(plan.run, dry_run=True, force=False)
    )
    try:
        due = bool(analyse(asked, scans, identity).sources)
    except NotDue:
        due = False
    null_keys = "keep" if plan.policy.settings.null_keys == "fail" else plan.policy.settings.null_keys
    settings = replace(compaction, min_cleanable_dirty_ratio=-1.0, min_dirty_bytes=0, null_keys=null_keys)
    try:
        analysis = analyse(replace(asked, policy=replace(asked.policy, settings=settings)), scans, identity)
    except NotDue as reason:
        r = reason.result
        profile = PartitionProfile(plan.input.topic, plan.input.partition, compacted=True, size_bytes=0, notes=r.notes)
        return None, replace(
            profile,
            first_dirty_offset=r.first_dirty_before,
            first_uncleanable_offset=r.first_dirty_before,
            dirty_ratio=r.dirty_ratio,
            clean_bytes=r.clean_bytes,
            dirty_bytes=r.dirty_bytes,
        )
    found = analysis.cleanable
    profile = PartitionProfile(
        plan.input.topic, plan.input.partition, compacted=True, size_bytes=0, notes=analysis.notes
    )
    return analysis, replace(
        profile,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=found.first_uncleanable_offset,
        dirty_ratio=found.ratio,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.cleanable_bytes,
        due=due,
    )
