"""Compaction of a large partition: one Spark job, whose stages exchange key hashes and offsets, and no records.

  scan      a task for each segment: headers and checksums -> analysis and splits, on the driver
  clean     one job of three stages (`udfs.compact.split_stages`): local survivors of each split; Spark brings those
            of a key together, and the last one of each key stays; the offsets that stay go to the tasks that write
  finish    on the driver: joins empty groups to the next one, writes the generation's other files
All ways share every function that decides or writes, so the same input gives the same bytes; tests check that.
Executors import this module, so it may not import Delta, which they may lack.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lastkey.jobs.command.progress import Watcher
from lastkey.jobs.spark.running import folder_of_this_attempt, is_sparks
from lastkey.jobs.spark.workers import Runner, SparkTasks
from lastkey.logformat.storage.io_counts import count
from lastkey.udfs.compact.compact_partition import RunStages, as_result, clean_in_stages, compact_partition, finish
from lastkey.udfs.compact.output.generation import remove_attempts
from lastkey.udfs.compact.passes import Clock
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult, chunk_buffer
from lastkey.udfs.compact.scan.analyse import analyse
from lastkey.udfs.compact.scan.scan_partition import scan_identity, scan_one
from lastkey.udfs.compact.split_stages import (
    OFFSETS,
    SURVIVORS,
    LargePartition,
    RewrittenGroup,
    last_of_each_key,
    local_survivors,
    rewrite_group,
)
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.segments import SegmentScan


def one_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact a partition in one task, unless several tasks share the partition."""
    # another try of this task has another folder; that of the one that counts is the generation's
    folder = folder_of_this_attempt(plan.run.store_uri, plan.run.folder)
    return compact_partition(replace(plan, run=replace(plan.run, folder=folder)))


def compact_large(workers: Runner, plan: PartitionPlan, watcher: Watcher, run_stages: RunStages) -> PartitionResult:
    """Compact one partition, all of it, as `one_partition` does, but in many tasks. `watcher` hears how much they read.

    run_stages: as `on_spark`.
    """
    clock = Clock()
    try:
        done = attempt(plan.name, lambda: _compact_if_due(workers, plan, clock, watcher, run_stages))
    finally:  # for example if the disk is full, which ends the run
        remove_attempts(plan)
    if isinstance(done, Exception):
        raise done
    result = as_result(plan, done)
    return replace(result, work=replace(result.work, seconds=clock.seconds))


def _compact_if_due(
    workers: Runner, plan: PartitionPlan, clock: Clock, watcher: Watcher, run_stages: RunStages
) -> PartitionResult | Exception:
    """Return the result; or an error of Spark, or of the machine through Spark, which is no problem of
    the partition.
    """
    try:
        return _compact(workers, plan, clock, watcher, run_stages)
    except Exception as error:
        if not is_sparks(error):
            raise
        return error


def _scans(workers: Runner, plan: PartitionPlan, watcher: Watcher) -> list[SegmentScan]:
    def scan(number: int) -> SegmentScan | Problem:
        return attempt(plan.input.segments[number].path, lambda: scan_one(plan, number, chunk_buffer(plan)))

    out: list[SegmentScan] = []
    for outcome in workers.run(scan, range(len(plan.input.segments)), f"compact {plan.name}: scan", watcher):
        if isinstance(outcome, Problem):
            raise outcome.as_error()
        out.append(outcome)
        if outcome.reached_end_offset:
            break
    return out


def _compact(
    workers: Runner, plan: PartitionPlan, clock: Clock, watcher: Watcher, run_stages: RunStages
) -> PartitionResult:
    with clock.phase("scan"):
        scans = _scans(workers, plan, watcher)
        analysis = analyse(plan, scans, scan_identity(plan, chunk_buffer(plan)), plan.extent)
    if isinstance(analysis, PartitionResult):
        return analysis
    if analysis.affected:  # single records expire: no keys are looked up, and few segments change
        [done] = workers.run(one_partition, [plan], f"compact {plan.name}: expire")
        return done
    with clock.phase("clean"):
        cleaned = clean_in_stages(plan, analysis, workers.cores, run_stages)
    return finish(plan, cleaned, clock)


def on_spark(workers: SparkTasks, watcher: Watcher, of: LargePartition) -> list[RewrittenGroup | Problem]:
    """Run the stages as one Spark job. Spark exchanges the rows, spills them, and tries a task again that is lost.

    Spark gives all stages of a query one name. Their functions' names, in the query's plan, distinguish them.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - threads need no pyspark
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    from lastkey.jobs.spark.tasks import RESULT, result_batch  # noqa: PLC0415 - as above

    n, n_groups = len(of.splits), len(of.groups)
    name = f"compact {of.plan.name}: local survivors, last of each key, rewrite"
    with workers.stages(name, n + n_groups, watcher) as (spark, around):

        def local_survivors_of_splits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with around(number):
                        yield from local_survivors(of, number)

        def last_of_keys_in_buckets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from last_of_each_key(of, batches)

        def rewritten_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task: Any = TaskContext.get()
            with around(n + task.partitionId()):  # the number of the group
                for result in rewrite_group(of, batches):
                    yield result_batch(result)

        survivors = (
            spark.range(0, n, 1, n).mapInArrow(local_survivors_of_splits, SURVIVORS).repartitionById(of.n_parts, "part")
        )
        in_order = survivors.sortWithinPartitions("bucket", F.desc("split"), "block")
        offsets = in_order.mapInArrow(last_of_keys_in_buckets, OFFSETS).repartitionById(n_groups, "group")
        results = offsets.mapInArrow(rewritten_groups, RESULT).toArrow()
    groups = [pickle.loads(one) for one in results.column("result").to_pylist()]
    for report in (report for group in groups if isinstance(group, RewrittenGroup) for report in group.reports):
        count(**report.counts)
    return groups
