"""Compaction of one partition: in one task, or if it is large in several.

  scan      a task for each segment: headers and checksums -> analysis and splits, on the driver
  rewrite   finds the last record of each key and writes segments, by `blocks`
  finish    on the driver: joins empty groups to the next one, writes the generation's other files
All ways share every function that decides or writes, so the same input gives the same bytes; tests check that. A dry
run writes nothing to the store: its key files lie in a temporary folder of the one machine that its workers are on.
Executors import this module, so nothing of Delta, which they may lack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from lastkey.jobs.command.progress import Counted, Silent, Watcher
from lastkey.jobs.compact.blocks import SettleAll, rewrite_by_blocks
from lastkey.jobs.spark.attempts import folder_of_this_attempt, is_sparks
from lastkey.jobs.spark.workers import InTurn, Runner
from lastkey.logformat.listing import Segment
from lastkey.udfs.attempt import attempt
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.one_task.compact_partition import check_null_keys, compact_partition
from lastkey.udfs.compact.one_task.passes import Clock, remove_records, with_what_is_old
from lastkey.udfs.compact.output.generation import remove_folder, result_of, write_generation
from lastkey.udfs.compact.output.segment_output import join_empty_groups, place
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult, Work, chunk_buffer
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import if_nothing_expires, scan_identity, scan_one
from lastkey.udfs.compact.split.splits import Split, make_splits, number_of_splits
from lastkey.udfs.compact.split.walk_split import in_own_folder, remove_key_files, store_of_keys
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import SegmentScan
from lastkey.udfs.storage import exists, flush_whole, open_root

# Why several tasks work on a partition
CORES_IDLE: Final = "cores would be idle"
KEYS: Final = "keys beyond the memory of a task"
ASKED: Final = "as the setting split.by says"

T = TypeVar("T")


def one_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact a partition. A dry run goes on by itself where the keys do not fit this task."""
    # another try of this task has another folder; that of the one that counts is the generation's
    folder = folder_of_this_attempt(plan.run.store_uri, plan.run.folder)
    result = compact_partition(replace(plan, run=replace(plan.run, folder=folder)))
    if result.status != "too_large" or not plan.run.dry_run:
        return result
    result = compact_in_splits(InTurn(), plan, Counted(Silent()))
    return replace(result, work=replace(result.work, several_because=KEYS))


def compact_in_splits(
    workers: Runner, plan: PartitionPlan, watcher: Watcher, settle_all: SettleAll | None = None
) -> PartitionResult:
    """Compact one partition, all of it, as `udfs.compact.one_task` does, but in many tasks. `watcher` hears how much
    they read.

    settle_all: decides which records stay, for all splits at once, if given.
    """
    plan, clock = replace(plan, policy=replace(plan.policy, partial=False)), Clock()
    try:
        done = attempt(plan.name, lambda: _compact_if_due(workers, plan, clock, watcher, settle_all))
    finally:  # above all if the disk is full, which ends the run
        remove_key_files(plan)
    if isinstance(done, Exception):
        raise done
    if isinstance(done, PartitionResult):
        return done if done.status == "not_due" else replace(done, work=replace(done.work, seconds=clock.seconds))
    remove_folder(plan)
    return PartitionResult(
        plan.input.topic, plan.input.partition, "set_aside", problem=done, work=Work(seconds=clock.seconds)
    )


def _compact_if_due(
    workers: Runner, plan: PartitionPlan, clock: Clock, watcher: Watcher, settle_all: SettleAll | None
) -> PartitionResult | Exception:
    """Return the result; or an error of Spark, or of the machine through Spark, which is no problem of
    the partition.
    """
    try:
        return _compact(workers, plan, clock, watcher, settle_all)
    except Exception as error:
        if not is_sparks(error):
            raise
        return error


def _scan(plan: PartitionPlan, number: int) -> SegmentScan | Problem:
    return attempt(plan.input.segments[number].path, lambda: scan_one(plan, number, chunk_buffer(plan)))


def _scans(workers: Runner, plan: PartitionPlan, watcher: Watcher) -> list[SegmentScan]:
    out: list[SegmentScan] = []
    for scan in workers.run(
        lambda number: _scan(plan, number), range(len(plan.input.segments)), f"compact {plan.name}: scan", watcher
    ):
        if isinstance(scan, Problem):
            raise scan.as_error()
        out.append(scan)
        if scan.reached_end_offset:
            break
    return out


def _one(workers: Runner, plan: PartitionPlan, work: Callable[[], T]) -> T:
    """Run `work` in a task of its own and return its result. Raises LogFormatError: its problem."""
    [done] = workers.run(lambda name: attempt(name, work), [plan.name], f"compact {plan.name}: expire")
    if isinstance(done, Problem):
        raise done.as_error()
    return done


def _expire(
    workers: Runner, plan: PartitionPlan, analysis: Analysis
) -> tuple[Analysis, list[Segment], Tally] | PartitionResult:
    """Delete expired records in one task: no keys are looked up, and few segments change."""

    def work() -> tuple[Analysis, list[Segment], Tally] | PartitionResult:
        tally, own = Tally(), in_own_folder(plan)
        done = remove_records(own, analysis, tally, chunk_buffer(plan))
        store = open_root(plan.run.store_uri)
        if exists(store, own.run.folder):
            flush_whole(store, own.run.folder)  # here: the driver may be elsewhere
        return done if isinstance(done, PartitionResult) else (*done, tally)

    done = _one(workers, plan, work)
    if isinstance(done, PartitionResult):
        return done
    analysis_of, segments, tally = done
    return analysis_of, place(plan, segments), tally


def _compact(
    workers: Runner, plan: PartitionPlan, clock: Clock, watcher: Watcher, settle_all: SettleAll | None
) -> PartitionResult:
    buffer = chunk_buffer(plan)
    with clock.phase("scan"):
        if (nothing := if_nothing_expires(plan, buffer)) is not None:
            return nothing
        scans = _scans(workers, plan, watcher)
        identity = scan_identity(plan, buffer)
        found = analysis = analyse(plan, scans, identity)
        if isinstance(found, Analysis) and found.affected and plan.policy.settings.compacts:
            analysis = _one(workers, plan, lambda: with_what_is_old(plan, found, scans, identity, chunk_buffer(plan)))
    if isinstance(analysis, PartitionResult):
        return analysis
    limits, cores = plan.run.limits, workers.cores
    cleaned, tally, peak, splits = list[Segment](), Tally(), 0, list[Split]()
    with clock.phase("clean"):
        if analysis.affected:
            done = _expire(workers, plan, analysis)
            if isinstance(done, PartitionResult):
                return done
            analysis, cleaned, tally = done
        elif analysis.compacts:
            n_splits = number_of_splits(scans, analysis.groups, limits.split_bytes, limits.task_memory_bytes, cores)
            splits = make_splits(scans, analysis.groups, n_splits)
            with store_of_keys(plan) as here:
                cleaned, tally, peak = rewrite_by_blocks(workers, here, analysis, splits, watcher, settle_all)
            cleaned = join_empty_groups(plan, cleaned)
    check_null_keys(plan, tally)
    with clock.phase("write"):
        generation = write_generation(plan, analysis, cleaned)
    out = result_of(plan, analysis, generation, tally)
    return replace(out, work=replace(out.work, splits=max(len(splits), 1), peak_memory_bytes=peak))
