"""Which partitions of an archive may be due, and from where each begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jobs.archive.listing import Archive, ArchivedPartition
from jobs.command.config import TopicSettings
from jobs.command.options import CompactOptions
from jobs.compact.plan import Inputs, NotPlanned, RunPlan, inputs_from_archive, inputs_from_generation, plan_partition
from jobs.compact.report import CompactReport
from jobs.store.paths import generation_folder
from jobs.store.rows import Checkpoint, Segment
from jobs.topics import Key, matches
from udfs.compact.cleaner import SegmentFacts, cleanable_range, first_dirty_offset, is_due
from udfs.compact.plan import PartitionPlan, PartitionResult
from udfs.compact.scan_partition import known_end, may_expire, unread_result
from udfs.problem import Problem
from udfs.segments import LastBatch


@dataclass(frozen=True)
class Start:
    """What a run starts from: what it is asked for, the archive's listing, the store's state."""

    options: CompactOptions
    archive: Archive
    settings: Mapping[str, TopicSettings]  # by topic
    checkpoints: Mapping[Key, Checkpoint]
    manifests: Mapping[Key, Sequence[Segment]]
    report: CompactReport


def is_reset(options: CompactOptions, key: Key) -> bool:
    """Whether --reset names the partition's topic."""
    return options.reset is not None and matches(options.reset, key[0])


def begins_anew(options: CompactOptions, key: Key, problem: Problem | None) -> bool:
    """Whether --reset is meant: a healthy generation goes on, for the archive may not hold any more what is in it."""
    return problem is not None and problem.state in ("diverged", "gap") and is_reset(options, key)


def plans_of(start: Start) -> Iterator[PartitionPlan]:
    """Plans of the partitions that may be due; the others go into the report at once."""
    options, report = start.options, start.report
    run = RunPlan.of(
        options.config,
        start.archive.root.uri,
        report.store,
        options.now_ms,
        sealed=options.sealed,
        force=options.force,
        dry_run=options.dry_run,
    )
    for key, archived in sorted(start.archive.partitions.items()):
        checkpoint, settings = start.checkpoints.get(key), start.settings[key[0]]
        report.notes += archived.notes
        try:
            if archived.problem is not None:
                raise NotPlanned(archived.problem)
            if archived.high_watermark_problem is not None:
                raise NotPlanned(archived.high_watermark_problem)
            if archived.unread is not None:
                raise NotPlanned(archived.unread)
            if options.sealed and archived.held_by_broker:
                raise NotPlanned(_held(archived))
            if checkpoint is None:
                inputs = inputs_from_archive(archived)
            else:
                inputs = inputs_from_generation(archived, checkpoint, start.manifests[key], report.store, settings.gaps)
        except NotPlanned as reason:
            if checkpoint is None or not begins_anew(options, key, reason.problem):
                report.results.append(PartitionResult(*key, "set_aside", problem=reason.problem))
                continue
            report.anew.add(key)
            inputs = inputs_from_archive(archived) | {"anew": True}
        previous = checkpoint.generation if checkpoint else 0
        folder = generation_folder(*key, previous + 1, report.run_id)
        plan = plan_partition(run, archived, settings, inputs, folder)
        not_due = _surely_not_due(plan, start.manifests.get(key, ()))
        if not_due is not None:
            report.results.append(not_due)
        else:
            yield plan


def begun_anew(plan: PartitionPlan, archived: ArchivedPartition, *, checkpoints: bool) -> PartitionPlan:
    """The plan of a partition that turned out to be another log, from what the archive holds alone; without its
    checkpoints where they contradict the log.
    """
    inputs: Inputs = inputs_from_archive(archived, checkpoints=checkpoints) | {
        "known_until": None,
        "known_last_batch": LastBatch(),
        "identity_segment": None,
        "known_gaps": (),
        "expired_until": 0,
        "anew": plan.known_until is not None or plan.anew,
    }
    return replace(plan, **inputs)


def _held(archived: ArchivedPartition) -> Problem:
    return Problem(
        "unreadable",
        archived.path,
        0,
        "an archive that nothing writes to, as --sealed says",
        "a broker's lock",
        hint="leave --sealed out, or stop the broker",
    )


def _may_expire(plan: PartitionPlan, manifest: Sequence[Segment]) -> bool:
    """Whether retention may take the first segment, by what is known without reading it."""
    if not plan.settings.retention.some or not plan.segments:
        return False
    first = plan.segments[0]
    row = next((row for row in manifest if row.base_offset == first.base_offset), None)
    return row is None or may_expire(plan, row.size_bytes, row.max_timestamp_ms, row.mtime_ms)


def _surely_not_due(plan: PartitionPlan, manifest: Sequence[Segment]) -> PartitionResult | None:
    """Not due by the listing alone: high watermark, open transactions and lags could only make less cleanable."""
    if _may_expire(plan, manifest):
        return None
    if not plan.settings.compacts:
        return unread_result(plan)
    if plan.force or plan.settings.max_compaction_lag_ms < 2**63 - 1 or not plan.segments:
        return None
    n = len(plan.segments)
    none = np.full(n, -1, np.int64)
    facts = SegmentFacts(
        np.array([s.base_offset for s in plan.segments], np.int64),
        np.array([s.listed.size for s in plan.segments], np.int64),
        none,
        none,
        np.array([s.listed.mtime_ms for s in plan.segments], np.int64),
    )
    last = plan.segments[-1].base_offset
    end = max(last + 1, plan.known_until or 0)
    active = end if plan.sealed else last
    if max(plan.cleaned_until, plan.log_start_offset, plan.log_start_checkpoint or 0) > end:
        return None  # whether the log reaches that far is seen only in it
    dirty = first_dirty_offset(plan.checkpoint, plan.log_start_offset, end)
    if plan.sealed and any(s.from_offset for s in plan.segments):
        return None  # whether the rest of a cut segment holds anything is seen only in it
    cleanable = cleanable_range(
        facts,
        first_dirty=dirty,
        log_end_offset=end,
        active_base_offset=active,
        last_stable_offset=2**63 - 1,
        min_compaction_lag_ms=0,
        now_ms=plan.now_ms,
    )
    if is_due(cleanable, 0, plan.settings.min_cleanable_dirty_ratio, plan.settings.min_dirty_bytes, False):
        return None
    return PartitionResult(
        plan.topic,
        plan.partition,
        "not_due",
        first_dirty_before=dirty,
        first_dirty_offset=dirty,
        log_start_offset=plan.log_start_offset,
        next_offset=known_end(plan),
        dirty_ratio=cleanable.ratio,
        clean_bytes=cleanable.clean_bytes,
        dirty_bytes=cleanable.cleanable_bytes,
    )
