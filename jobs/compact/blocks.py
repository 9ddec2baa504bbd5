"""Compaction in several tasks by blocks of key hashes: what is large never goes through the JVM.

  walk      a task for each split, backwards: writes key hashes of the records that leave it, by bucket, to a file,
            and where they are few these records; that of the last split writes its survivors instead, unless Spark's
            `window` or versions decide, or the keys do not fit the task
  settle    a task for some buckets, over all splits from the last to the first: writes a bit for each hash; or
            Spark's `window` decides, and writes the same bits
  rewrite   a task for each split: marks and bits say which records stay; pieces of a group that several splits share
  join      a task for each such group: makes segments of its pieces
A record leaves its split if the split holds no later record of its key; by `compaction.strategy`, none of so high a
version. Spark carries names of files, counts and checksums. Measured, 128 MB of hashes in cells of 0.25 to 8 MiB, on 2
cores: through Spark's shuffle into Arrow and back, as binary cells, they take 0.9 to 1.1 processor seconds of the JVM
more than their names alone, and 2 GB of them 13 to 20 s more.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from lastkey.jobs.command.progress import Watcher
from lastkey.jobs.spark.workers import Runner
from lastkey.logformat.listing import Segment
from lastkey.udfs.attempt import attempt, peak_memory
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.deciders import TooManyKeys, check_versions
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.output.segment_output import manifest_row
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.split.rewrite_split import (
    CleanedSplit,
    JoinedGroup,
    RewrittenSplit,
    clean_last_split,
    join_pieces,
    rewrite_split,
)
from lastkey.udfs.compact.split.settle import Buckets, SettledBuckets, settle, share_out, slot_of
from lastkey.udfs.compact.split.splits import Split, bytes_of, cut_between_groups
from lastkey.udfs.compact.split.walk_split import WalkedSplit, buckets_for, walk_split
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import SegmentScan
from lastkey.udfs.steps import Stage, step

_PIECES_A_CORE = 4  # tasks of the rewrite, as far as segment groups allow

T = TypeVar("T")
R = TypeVar("R", WalkedSplit | CleanedSplit, SettledBuckets, RewrittenSplit, JoinedGroup)
SettleAll = Callable[[PartitionPlan, Sequence[WalkedSplit], int], SettledBuckets]


def rewrite_by_blocks(
    workers: Runner,
    plan: PartitionPlan,
    analysis: Analysis,
    splits: Sequence[Split],
    watcher: Watcher,
    settle_all: SettleAll | None = None,
) -> tuple[list[Segment], Tally, int]:
    """Rewrite a partition; return (segments in order, counters, largest peak memory of a task in bytes).

    settle_all: settles all buckets at once, if given.
    """
    scans = {part.number: analysis.sources[part.number].lean() for split in splits for part in split.parts}
    n_buckets = buckets_for(sum(scan.most_records for scan in scans.values()))
    rules, first_dirty = analysis.rules, analysis.cleanable.first_dirty_offset
    kept_aborts = analysis.kept_aborts
    groups = {g: analysis.group(numbers) for g, numbers in enumerate(analysis.groups)}
    in_splits = [g for split in splits for g in {part.group for part in split.parts}]
    shared = frozenset(g for g in groups if in_splits.count(g) > 1)

    def sources(split: Split) -> list[SegmentScan]:
        return [scans[part.number] for part in split.parts]

    at_once = splits[-1].number if splits and settle_all is None and plan.policy.settings.by_offset else -1

    def walk(split: Split) -> WalkedSplit | CleanedSplit:
        of_split = sources(split)
        if split.number == at_once:
            with suppress(TooManyKeys):
                name = _name("last", split.number)
                return clean_last_split(
                    plan, split, groups, shared, of_split, rules, first_dirty, kept_aborts, n_buckets, name
                )
        return walk_split(plan, of_split, split, rules, first_dirty, n_buckets, _name("walk", split.number))

    # the last split first: it may take twice as long as others
    results = _run(workers, plan, "walk", walk, splits[::-1], watcher)[::-1]
    walked = [done.walked if isinstance(done, CleanedSplit) else done for done in results]
    cleaned = [done.rewritten for done in results if isinstance(done, CleanedSplit)]
    check_versions(
        plan, max((walk.highest for walk in walked), default=NO_VERSION), any(walk.n_entries for walk in walked)
    )

    def settle_one(buckets: Buckets) -> SettledBuckets:
        return settle(plan, walked, buckets, n_buckets, _name("settle", buckets.first))

    if settle_all is None or not walked:
        shares = share_out(walked, n_buckets, plan.run.limits.task_memory_bytes, workers.cores, slot_of(plan))
        settled = _run(workers, plan, "settle", settle_one, shares)
    else:
        settled = [settle_all(plan, walked, n_buckets)]

    def rewrite(split: Split) -> RewrittenSplit:
        name = _name(f"rewrite-{split.number}", split.before)
        walk = walked[split.number]
        return rewrite_split(plan, split, groups, shared, sources(split), rules, kept_aborts, walk, settled, name)

    left = splits[: len(splits) - len(cleaned)]
    n_bytes = sum(bytes_of(part, scans) for split in left for part in split.parts)
    least = n_bytes // (_PIECES_A_CORE * workers.cores)  # cut: most records that stay are in the last ones
    cut = [piece for split in left for piece in cut_between_groups(split, scans, least)]
    rewritten = [*_run(workers, plan, "rewrite", rewrite, cut, watcher), *cleaned]
    pieces = {g: [piece for done in rewritten for piece in done.pieces if piece.group == g] for g in sorted(shared)}

    def join(g: int) -> JoinedGroup:
        return join_pieces(plan, g, groups[g], pieces[g], kept_aborts)

    joined = _run(workers, plan, "join", join, sorted(shared))
    tally = Tally()
    segments = {g: [manifest_row(group)] for g, group in groups.items()}
    for done in rewritten:
        tally.counters += done.counters
        tally.recompressed_bytes += done.recompressed_bytes
        segments |= done.segments
    segments |= {done.group: done.segments for done in joined}
    peaks = (
        [s.peak_memory_bytes for s in results],
        [s.peak_memory_bytes for s in settled],
        [s.peak_memory_bytes for s in rewritten],
        [s.peak_memory_bytes for s in joined],
    )
    in_order = list(itertools.chain.from_iterable(segments[g] for g in sorted(segments)))
    return in_order, tally, max(itertools.chain(*peaks), default=0)


def _run(
    workers: Runner,
    plan: PartitionPlan,
    stage: Stage,
    work: Callable[[T], R],
    items: Sequence[T],
    watcher: Watcher | None = None,
) -> list[R]:
    """Run a stage and return the result of `work` for each item. LogFormatError: an item's problem."""

    def one(item: T) -> R | Problem:
        result = attempt(plan.name, lambda: work(item))
        if isinstance(result, Problem):
            return result
        step(stage)
        return replace(result, peak_memory_bytes=peak_memory())

    out: list[R] = []
    for result in workers.run(one, items, f"compact {plan.name}: {stage}", watcher):
        if isinstance(result, Problem):
            raise result.as_error()
        out.append(result)
    return out


def _name(what: str, number: int) -> str:
    """Return a name for a task's file that no other attempt of this task has."""
    return f"{what}-{number}-{secrets.token_hex(8)}"
