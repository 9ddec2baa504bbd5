"""What is in a partition, and what cleaning it now would make of it: one task, nothing is written.

The log is scanned as a compaction scans it, and then read once from its end to its start. What would be cleaned goes
through `clean_batches` itself, told that nothing is to be written: so live and dead are what `compact --dry-run` says,
by construction. What lies above the first uncleanable offset, and topics that are not compacted, are only counted; a
key that is written there again supersedes nothing yet, as for the cleaner.

Memory: 32 bytes a slot of the key table, of which two thirds at most are taken and which doubles as it fills, up to
half of the task's memory; 512 KiB to begin with. A chunk and its decompressed batches, as everywhere. Results are
small: about 300 bytes a segment, and at most 1,024 buckets of time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from udfs.attempt import attempt
from udfs.compact.analyse import Analysis, analyse
from udfs.compact.clean_batches import Tally
from udfs.compact.decide_kernels import COUNTER_NAMES
from udfs.compact.gaps import check_gaps
from udfs.compact.plan import NotDue, PartitionPlan
from udfs.compact.retention import Expired, taken
from udfs.compact.scan_partition import (
    check_checkpoints,
    check_tails,
    scan_all,
    scan_identity,
    source_of,
    until_high_watermark,
)
from udfs.compact.scan_segment import SegmentScan, chunk_buffer
from udfs.compact.sources import Source
from udfs.compact.what_expires import expired, facts_of
from udfs.problem import Problem
from udfs.report.partition_profile import PartitionProfile
from udfs.report.walk import Walk
from udfs.segments import LastBatch


@dataclass(frozen=True)
class ProfilePlan:
    """What a task is told."""

    plan: PartitionPlan  # as for a compaction; force is not looked at
    compacted: bool  # False: everything is alive


def profile_partition(given: ProfilePlan) -> PartitionProfile:
    """Profile one partition. Whatever stops it becomes `problem`."""
    start = time.perf_counter()
    plan = given.plan
    size = sum(s.listed.size for s in plan.segments)
    profile = attempt(f"{plan.topic}-{plan.partition}", lambda: _profile(plan, given.compacted))
    if isinstance(profile, Problem):
        profile = PartitionProfile(plan.topic, plan.partition, given.compacted, size, profile)
    return replace(profile, seconds=time.perf_counter() - start)


def _profile(plan: PartitionPlan, compacted: bool) -> PartitionProfile:
    buffer = chunk_buffer(plan)
    notes: list[str] = []
    scans = scan_all(plan, buffer)
    analysis = None
    if compacted:
        analysis, out = _as_the_cleaner_sees_it(plan, scans, scan_identity(plan, buffer))
        if not plan.settings.by_offset:
            by = plan.settings.compaction_strategy
            note = f"{plan.topic}-{plan.partition}: dead records are counted by offset, not by {by}"
            out = replace(out, notes=(*out.notes, note))
    else:
        kept = until_high_watermark(plan, scans, notes)
        check_tails(plan, kept, notes)
        end = max(kept[-1].base_offset, kept[-1].last_offset + 1)
        check_checkpoints(plan, end)
        check_gaps(plan, kept, end, notes)
        out = PartitionProfile(plan.topic, plan.partition, False, 0, notes=tuple(notes))
    scans = list(until_high_watermark(plan, scans, []))
    sources = [source_of(plan, number, scan) for number, scan in enumerate(scans)]
    walk = Walk(plan, sources, analysis, buffer)
    segments = tuple(reversed([walk.segment(i) for i in reversed(range(len(sources)))]))
    counters = sum((t.counters for t in walk.tallies), Tally().counters)
    return replace(
        out,
        size_bytes=sum(s.size for s in scans),
        segments=segments,
        log_start_offset=plan.log_start_offset,
        log_end_offset=max(scans[-1].base_offset, scans[-1].last_offset + 1),
        expiring=_expiring(plan, sources),
        bytes_after_is_estimate=walk.estimated,
        counters=dict(zip(COUNTER_NAMES, counters.tolist(), strict=True)) if analysis else {},
        distinct_keys=walk.keys.used,
        hot_keys=walk.hot_keys(),
        times=walk.times.trimmed(),
    )


def _expiring(plan: PartitionPlan, sources: Sequence[Source]) -> tuple[Expired, ...]:
    """By the headers alone, before anything is cleaned."""
    by_rule = expired(plan, facts_of(sources), sealed=False)
    ends = [*(s.scan.base_offset for s in sources[1:]), 0]  # the last one stays
    rows = [(s.scan.base_offset, end, s.scan.n_records, s.scan.size) for s, end in zip(sources, ends, strict=True)]
    return taken(by_rule, rows[: sum(by_rule.values())])


def _as_the_cleaner_sees_it(
    plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch
) -> tuple[Analysis | None, PartitionProfile]:
    """What would be cleaned, whether it is due or not; None: nothing may be."""
    compaction = replace(plan.settings, retention_ms=-1, retention_bytes=-1)
    asked = replace(plan, dry_run=True, force=False, settings=compaction)
    try:
        due = bool(analyse(asked, scans, identity).sources)
    except NotDue:
        due = False
    null_keys = "keep" if plan.settings.null_keys == "fail" else plan.settings.null_keys
    settings = replace(compaction, min_cleanable_dirty_ratio=-1.0, min_dirty_bytes=0, null_keys=null_keys)
    try:
        analysis = analyse(replace(asked, settings=settings), scans, identity)
    except NotDue as reason:
        r = reason.result
        profile = PartitionProfile(plan.topic, plan.partition, compacted=True, size_bytes=0, notes=r.notes)
        return None, replace(
            profile,
            first_dirty_offset=r.first_dirty_before,
            first_uncleanable_offset=r.first_dirty_before,
            dirty_ratio=r.dirty_ratio,
            clean_bytes=r.clean_bytes,
            dirty_bytes=r.dirty_bytes,
        )
    found = analysis.cleanable
    profile = PartitionProfile(plan.topic, plan.partition, compacted=True, size_bytes=0, notes=analysis.notes)
    return analysis, replace(
        profile,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=found.first_uncleanable_offset,
        dirty_ratio=found.ratio,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.cleanable_bytes,
        due=due,
    )
