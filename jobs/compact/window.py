"""The decision of `udfs.compact.split.settle` by Spark's own window: `split.by = "window"`.

Key hashes that left their splits come as rows from the files of the walk, and bits for them go into files for the
rewrite. Row by row through the JVM that takes longer; it is there to hold `settle` to account.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.spark.tasks import RESULT, result_batch
from lastkey.logformat.errors import stopped
from lastkey.udfs.attempt import attempt
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split.settle import ROWS, Buckets, SettledBuckets, rows_of, write_bits
from lastkey.udfs.compact.split.walk_split import Slice, WalkedSplit
from lastkey.udfs.problem import Problem

_ROWS_AND_PROBLEMS = f"{ROWS}, problem binary"  # pickled; null but in the row of a split that could not be read
_TYPES = {"long": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary()}
_ARROW = pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, _ROWS_AND_PROBLEMS.split(", "))])


def settle_by_window(
    spark: SparkSession, plan: PartitionPlan, walked: Sequence[WalkedSplit], n_buckets: int
) -> SettledBuckets:
    """Settle all buckets. walked: all splits, by number."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    for rows in rows_of(plan, walked, number):
                        yield rows.append_column("problem", pa.nulls(len(rows), pa.binary()))
                except Exception as error:
                    yield _problem_row(Problem.of(stopped(error, plan.name)), number)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = f"window-{secrets.token_hex(8)}"  # no other try of any task has it
        yield result_batch(attempt(plan.name, lambda: write_bits(plan, walked, _without_problems(batches), name)))

    n = len(walked)
    entries = spark.range(0, n, 1, n).mapInArrow(read, _ROWS_AND_PROBLEMS)
    results = decided(entries).repartition(n, "split").mapInArrow(write, RESULT).toArrow()
    bits: dict[int, Slice] = {}
    for row in results.column("result").to_pylist():
        found = pickle.loads(row)
        if isinstance(found, Problem):
            raise found.as_error()
        bits |= found
    return SettledBuckets(Buckets(0, n_buckets), bits)


def decided(entries: DataFrame) -> DataFrame:
    """Return (split, place, stays, problem) of all rows: of each key stays the dirty one with the highest version, of
    equal ones the last; or all if none is dirty.
    """
    rank = F.struct("version", "place")
    best = F.max(F.when(F.col("dirty"), rank)).over(Window.partitionBy("key_low", "key_high"))
    return entries.select("split", "place", F.coalesce(rank >= best, F.lit(True)).alias("stays"), "problem")


def _problem_row(problem: Problem, number: int) -> pa.RecordBatch:
    """Return a row without a key: it carries the problem of a split to the task that writes the bits of that split."""
    row = {"split": number, "problem": pickle.dumps(problem)}
    return pa.RecordBatch.from_pylist([row], _ARROW)


def _without_problems(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of decided rows without the column `problem`. Raise LogFormatError for a problem, at the end: the
    JVM, which may still write batches, would report a broken pipe instead.
    """
    problems: list[bytes] = []
    for batch in batches:
        problems += batch.column("problem").drop_null().to_pylist()
        if not problems:
            yield batch.drop_columns(["problem"])
    if problems:
        raise pickle.loads(problems[0]).as_error()
