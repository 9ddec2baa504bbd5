"""Compaction of one large partition in several splits: the last offset of each key is found by a Spark window.

  scan      a task a segment: headers and checksums                               -> analysis on the driver
  keys      a task a split: (key hash, last offset in the split) rows             -> the only shuffle
  window    over the key: the row with the last dirty offset survives, and rows of clean segments without one
  rewrite   a task a segment group: survivors, sorted by group and offset, are read as a stream
Both ways share every function that decides or writes, so the same input gives the same bytes (tests say so).
"""

from __future__ import annotations

import itertools
import pickle
import resource
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from jobs.command.progress import BySize, Progress
from jobs.spark.tasks import (
    RESULT,
    StoppedTask,
    carried_problem,
    for_this_attempt,
    is_sparks,
    result_batch,
    run_tasks,
    watched,
)
from logformat.errors import stopped
from logformat.names import LOG, segment_file
from udfs.attempt import attempt
from udfs.compact.analyse import Analysis, analyse, result_of
from udfs.compact.clean_batches import Tally
from udfs.compact.decide_kernels import COUNTER_NAMES
from udfs.compact.generation import join_empty_groups, remove_folder, write_generation
from udfs.compact.one_task import Clock, check_null_keys
from udfs.compact.plan import NotDue, PartitionPlan, PartitionResult
from udfs.compact.rewrite_group import GroupResult, rewrite_group
from udfs.compact.scan_keys import make_splits, scan_keys
from udfs.compact.scan_partition import scan_identity, scan_one, source_of
from udfs.compact.scan_segment import SegmentScan, chunk_buffer
from udfs.problem import Problem, SetAside
from udfs.segments import OutputSegment

_KEYS = "key_low long, key_high long, offset long, dirty boolean, segment_group int"
_SENTINEL = -1  # offset of a row that says only: this group exists


def compact_in_splits(spark: SparkSession, plan: PartitionPlan, progress: Progress) -> PartitionResult:
    """As `udfs.compact.one_task`, over many tasks. Advances `progress` by the partition's bytes, or nearly so."""
    clock = Clock()
    done = attempt(f"{plan.topic}-{plan.partition}", lambda: _compact_if_due(spark, plan, clock, progress))
    if isinstance(done, Exception):
        raise done
    if isinstance(done, PartitionResult):
        return done if done.status == "not_due" else replace(done, seconds=clock.seconds)
    remove_folder(plan)
    return PartitionResult(plan.topic, plan.partition, "set_aside", problem=done)


def _compact_if_due(
    spark: SparkSession, plan: PartitionPlan, clock: Clock, progress: Progress
) -> PartitionResult | Exception:
    """The result; an error of Spark's, or of the machine's through it, is no problem of this partition."""
    try:
        return _compact(spark, plan, clock, progress)
    except NotDue as reason:
        return reason.result
    except Exception as error:
        if not is_sparks(error):
            raise
        problem = carried_problem(error)
        if problem is None:
            return error
        raise SetAside(problem) from error


def _scan(plan: PartitionPlan, number: int) -> SegmentScan | Problem:
    return attempt(plan.segments[number].listed.path, lambda: scan_one(plan, number, chunk_buffer(plan)))


def _scans(spark: SparkSession, plan: PartitionPlan, progress: Progress) -> list[SegmentScan]:
    out: list[SegmentScan] = []
    counted = BySize(progress, [s.listed.size // 2 for s in plan.segments])  # each byte is read twice
    scans = run_tasks(spark, lambda number: _scan(plan, number), range(len(plan.segments)), counted.advance)
    counted.finish()
    for scan in scans:
        if isinstance(scan, Problem):
            raise SetAside(scan)
        out.append(scan)
        if scan.reached_end_offset:
            break
    return out


def _compact(spark: SparkSession, plan: PartitionPlan, clock: Clock, progress: Progress) -> PartitionResult:
    buffer = chunk_buffer(plan)
    with clock.phase("scan"):
        scans = _scans(spark, plan, progress)
        analysis = analyse(plan, scans, scan_identity(plan, buffer))
    with clock.phase("clean"):
        keys, n_splits = key_offsets(spark, plan, analysis)
        n_tasks = n_splits + len(analysis.groups) + 1
        share = sum(s.listed.size - s.listed.size // 2 for s in plan.segments) // n_tasks
        with watched(spark, BySize(progress, [share] * n_tasks).advance):
            results = _rewrite(spark, plan, analysis, survivors(keys))
    tally = Tally()
    for result in results:
        tally.counters += result.counters
        tally.recompressed_bytes += result.recompressed_bytes
    check_null_keys(plan, tally)
    with clock.phase("write"):
        cleaned: list[OutputSegment] = join_empty_groups(plan, [r.segment for r in results])
        generation = write_generation(plan, analysis, cleaned)
    counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
    out = result_of(plan, analysis, generation, counters, tally.recompressed_bytes)
    return replace(out, splits=n_splits, peak_memory_bytes=max(r.peak_memory_bytes for r in results))


def key_offsets(spark: SparkSession, plan: PartitionPlan, analysis: Analysis) -> tuple[DataFrame, int]:
    """KEY_OFFSETS rows of all splits, lazily, and the number of splits."""
    splits = make_splits([s.scan.size for s in analysis.sources], analysis.groups, plan.limits.split_bytes)
    scans = {i: analysis.sources[i].scan.lean() for split in splits for i in split.numbers}
    rules, first_dirty = analysis.rules, analysis.cleanable.first_dirty_offset

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                split = splits[number]
                sources = [source_of(plan, i, scans[i]) for i in split.numbers]
                try:
                    yield from scan_keys(plan, sources, split, rules, first_dirty)
                except Exception as error:
                    raise StoppedTask(Problem.of(stopped(error, f"{plan.topic}-{plan.partition}"))) from error

    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(work, _KEYS), len(splits)


def survivors(keys: DataFrame) -> DataFrame:
    """(segment_group, offset) of what stays: of each key the last dirty record, or the clean ones if none is dirty."""
    of_key = Window.partitionBy("key_low", "key_high")
    last = F.max(F.when(F.col("dirty"), F.col("offset"))).over(of_key)
    stays = F.when(F.col("last_dirty").isNull(), F.lit(True)).otherwise(F.col("offset") >= F.col("last_dirty"))
    return keys.withColumn("last_dirty", last).where(stays).select("segment_group", "offset")


def _rewrite(spark: SparkSession, plan: PartitionPlan, analysis: Analysis, surviving: DataFrame) -> list[GroupResult]:
    groups = {g: analysis.group(members, None) for g, members in enumerate(analysis.groups)}
    scans = {i: analysis.sources[i].scan.lean() for members in analysis.groups for i in members}
    members_of = analysis.groups
    rules, kept_aborts = analysis.rules, analysis.kept_aborts

    def one(number: int, offsets: Iterator[np.ndarray]) -> GroupResult | Problem:
        start = time.perf_counter()
        mine = for_this_attempt(plan, segment_file(groups[number].base_offset, LOG))
        sources = [source_of(plan, i, scans[i]) for i in members_of[number]]
        result = attempt(
            f"{plan.topic}-{plan.partition}",
            lambda: rewrite_group(mine, number, groups[number], sources, rules, kept_aborts, offsets),
        )
        if isinstance(result, Problem):
            return result
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return replace(result, peak_memory_bytes=peak, seconds=time.perf_counter() - start)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, parts in itertools.groupby(_by_group(batches), key=lambda part: part[0]):
            yield result_batch(one(number, (offsets for _, offsets in parts)))

    n_groups = len(groups)
    sentinels = spark.range(0, n_groups, 1, 1).selectExpr("cast(id as int) segment_group", f"{_SENTINEL}L offset")
    frame = (
        surviving.unionByName(sentinels)
        .repartition(n_groups, "segment_group")
        .sortWithinPartitions("segment_group", "offset")
        .mapInArrow(work, RESULT)
    )
    results = [pickle.loads(row) for row in frame.toArrow().column("result").to_pylist()]
    for result in results:
        if isinstance(result, Problem):
            raise SetAside(result)
    return sorted(results, key=lambda r: r.number)


def _by_group(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, np.ndarray]]:
    """(group, ascending offsets) for each stretch of one group in the sorted rows; sentinels begin each group."""
    for batch in batches:
        group = batch.column("segment_group").to_numpy(zero_copy_only=False)
        offset = batch.column("offset").to_numpy(zero_copy_only=False)
        borders = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        for start, end in itertools.pairwise(borders):
            if end > start:
                part = offset[start:end]
                yield int(group[start]), part[1:] if part[0] == _SENTINEL else part
