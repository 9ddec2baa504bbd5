"""Compaction in several tasks by Spark's own window: `split.by = "window"`, the twin of `jobs.compact.blocks`.

  keys      a task for each split: rows of (key hash, last offset in the split)             -> the shuffle
  window    over each key: the row of the last dirty offset survives; without a dirty row, the clean rows do
  rewrite   a task for each segment group: reads its survivors, sorted by group and offset, as a stream
Row by row through the JVM it takes five times as long. It writes nothing but the new segments, so dry runs use it.
"""

from __future__ import annotations

import itertools
import pickle
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.spark.tasks import RESULT, StoppedTask, result_batch
from lastkey.logformat.errors import stopped
from lastkey.udfs.attempt import attempt
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.clean.winners import check_versions
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.scan_segment import SegmentScan
from lastkey.udfs.compact.split.rewrite_group import GroupResult, rewrite_group
from lastkey.udfs.compact.split.scan_keys import scan_keys
from lastkey.udfs.compact.split.scan_versions import scan_versions
from lastkey.udfs.compact.split.splits import Split
from lastkey.udfs.problem import Problem, SetAside
from lastkey.udfs.segments import OutputSegment

_KEYS = "key_low long, key_high long, offset long, dirty boolean, segment_group int"
_VERSIONS = "key_low long, key_high long, version long, offset long, segment_group int"
_SENTINEL = -1  # offset of a row that only says that its group exists


def rewrite_by_window(
    spark: SparkSession, plan: PartitionPlan, analysis: Analysis, splits: Sequence[Split]
) -> tuple[list[OutputSegment], Tally, int]:
    """Rewrite a partition; return (segments by group, counters, largest peak memory of a task in bytes)."""
    if plan.settings.by_offset:
        surviving = survivors(key_offsets(spark, plan, analysis, splits))
    else:
        keys = key_versions(spark, plan, analysis, splits)
        _check_versions(plan, keys)
        surviving = winners(keys)
    results = _rewrite(spark, plan, analysis, surviving)
    tally = Tally()
    for result in results:
        tally.counters += result.counters
        tally.recompressed_bytes += result.recompressed_bytes
    return [r.segment for r in results], tally, max(r.peak_memory_bytes for r in results)


def key_offsets(spark: SparkSession, plan: PartitionPlan, analysis: Analysis, splits: Sequence[Split]) -> DataFrame:
    """Return the KEY_OFFSETS rows of all splits, lazily."""
    rules, first_dirty = analysis.rules, analysis.cleanable.first_dirty_offset
    scan = partial(scan_keys, rules=rules, first_dirty_offset=first_dirty)
    return _rows_of_splits(spark, plan, analysis, splits, scan, _KEYS)


def survivors(keys: DataFrame) -> DataFrame:
    """Select (segment_group, offset) of what stays: a key's last dirty record, or its clean ones if none is dirty."""
    of_key = Window.partitionBy("key_low", "key_high")
    last = F.max(F.when(F.col("dirty"), F.col("offset"))).over(of_key)
    stays = F.when(F.col("last_dirty").isNull(), F.lit(True)).otherwise(F.col("offset") >= F.col("last_dirty"))
    return keys.withColumn("last_dirty", last).where(stays).select("segment_group", "offset")


def key_versions(spark: SparkSession, plan: PartitionPlan, analysis: Analysis, splits: Sequence[Split]) -> DataFrame:
    """Return the KEY_VERSIONS rows of all splits, lazily."""
    bases = [analysis.sources[numbers.start].base_offset for numbers in analysis.groups]
    scan = partial(scan_versions, rules=analysis.rules, group_bases=bases)
    return _rows_of_splits(spark, plan, analysis, splits, scan, _VERSIONS)


def winners(keys: DataFrame) -> DataFrame:
    """Select (segment_group, offset) of the records that stay: of each key the last record with the highest version."""
    of_key = Window.partitionBy("key_low", "key_high")
    place = F.struct("version", "offset")
    best = keys.withColumn("best", F.max(place).over(of_key))
    return best.where(F.col("best") == place).select("segment_group", "offset")


def _check_versions(plan: PartitionPlan, keys: DataFrame) -> None:
    if plan.settings.compaction_strategy == "header":
        highest = keys.select(F.max("version")).first()
        found = None if highest is None else highest[0]
        check_versions(plan, NO_VERSION if found is None else found, found is not None)


def _rows_of_splits(
    spark: SparkSession,
    plan: PartitionPlan,
    analysis: Analysis,
    splits: Sequence[Split],
    scan: Callable[[PartitionPlan, Sequence[SegmentScan], Split], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return the rows that `scan` makes of each split, in a task for each split."""
    scans = {part.number: analysis.sources[part.number].lean() for split in splits for part in split.parts}

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                split = splits[number]
                sources = [scans[part.number] for part in split.parts]
                try:
                    yield from scan(plan, sources, split)
                except Exception as error:
                    raise StoppedTask(Problem.of(stopped(error, plan.name))) from error

    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(work, schema)


def _rewrite(spark: SparkSession, plan: PartitionPlan, analysis: Analysis, surviving: DataFrame) -> list[GroupResult]:
    groups = {g: analysis.group(members) for g, members in enumerate(analysis.groups)}
    scans = {i: analysis.sources[i].lean() for members in analysis.groups for i in members}
    members_of = analysis.groups
    rules, kept_aborts = analysis.rules, analysis.kept_aborts

    def one(number: int, offsets: Iterator[np.ndarray]) -> GroupResult | Problem:
        start = time.perf_counter()
        sources = [scans[i] for i in members_of[number]]
        result = attempt(
            plan.name,
            lambda: rewrite_group(plan, number, groups[number], sources, rules, kept_aborts, offsets),
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
    """Yield (group, ascending offsets) for each stretch of one group in the sorted rows, without sentinels."""
    for batch in batches:
        group = batch.column("segment_group").to_numpy(zero_copy_only=False)
        offset = batch.column("offset").to_numpy(zero_copy_only=False)
        borders = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        for start, end in itertools.pairwise(borders):
            if end > start:
                part = offset[start:end]
                yield int(group[start]), part[1:] if part[0] == _SENTINEL else part
