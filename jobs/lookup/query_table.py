"""`lookup --queries FILE --output FILE`: a table of queries, answered by Spark tasks, a group of partitions each.

Queries of one partition go to one task, one after the other; the answers are columns after the query's own
(udfs.lookup.queries.ANSWER), in no order. Rows are sorted by one number, a hash of their partition, because Spark sorts
it in a tenth of the time of names and offsets; the task that answers the queries sorts those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegralType, StringType, StructType, TimestampNTZType, TimestampType

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, TextTable
from lastkey.jobs.command.whole_file import list_archives
from lastkey.jobs.errors import NOT_EMPTY, MissingPathError, UsageError
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.spark.tasks import count_cores
from lastkey.jobs.store.folders import check_not_inside
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.lookup.queries import ANSWER, lookup_table
from lastkey.udfs.storage import exists, is_link, normal_uri, open_root

_FORMATS = ("parquet", "csv", "json")
_ASKED = ("offset", "timestamp")
_TASKS_A_CORE = 4


@dataclass
class TableReport(JobReport):
    """Counts of the answers by status. A query without an answer has the reason in its row, and is no problem; a folder
    that cannot be listed is one.
    """

    job = "lookup"
    done = "queries of {queries} answered in {output}"
    facts = "archive store queries output answers=by_status"
    text_tables = (TextTable("_statuses", "status queries"),)

    queries: str
    output: str
    archive: str | None = None
    store: str | None = None
    by_status: dict[str, int] = field(default_factory=dict)

    @property
    def _statuses(self) -> list[dict[str, Any]]:
        return [{"status": status, "queries": n} for status, n in sorted(self.by_status.items())]


def run_table(
    options: LookupOptions, partitions: list[SourcePartition], listed: JobReport, progress: Progress
) -> TableReport:
    """Answer every query of the table. `listed`: the report with the notes and problems of planning."""
    source, target = normal_uri(options.queries or ""), normal_uri(options.output or "")
    given = (Place("the archive", options.archive or ""), Place("the store", options.store or ""))
    archives = list_archives(options.store) if options.store is not None else []
    check_apart(Place("--output", target), *(place for place in (*given, *archives) if place.uri))
    kinds = _format(source, "--queries"), _format(target, "--output")
    if not exists(open_root(source), ""):
        raise MissingPathError(path=source, expected="a table of queries", found="none")
    check_not_inside("--output", open_root(target))
    if exists(open_root(target), "") or is_link(open_root(target), ""):
        raise NOT_EMPTY(path=target, found="something")
    store = options.store if options.archive is None else None
    report = TableReport(source, target, options.archive, store)
    report.notes, report.other_problems = listed.notes, listed.other_problems
    name, tables = "lookup --queries", (as_hadoop_names_it(source), as_hadoop_names_it(target))
    with spark_workers(name, options, report, progress, brief=False, tables=tables) as made, made.spark(name) as spark:
        answer = partial(answered, partitions=partitions, committed=options.isolation == "read_committed")
        _answer_all(spark, (source, target), kinds, answer, report, progress)
    return report


def _answer_all(
    spark: SparkSession,
    uris: tuple[str, str],
    kinds: tuple[str, str],
    answer: Callable[[DataFrame], DataFrame],
    report: TableReport,
    progress: Progress,
) -> None:
    reader = spark.read.option("header", "true").option("inferSchema", "true") if kinds[0] == "csv" else spark.read
    questions, answers = map(as_hadoop_names_it, uris)
    for uri in (questions, answers):
        connector.connect(spark, uri)
    queries = _checked(reader.format(kinds[0]).load(questions), uris[0])
    at = time.perf_counter()
    progress.start("lookup", 1, "table")
    writer = answer(queries).write.format(kinds[1])
    (writer.option("header", "true") if kinds[1] == "csv" else writer).save(answers)
    progress.advance()
    progress.close()
    report.seconds["lookup"] = time.perf_counter() - at
    done = spark.read.option("header", "true") if kinds[1] == "csv" else spark.read.schema("status STRING")
    counts = done.format(kinds[1]).load(answers).groupBy("status").count().toArrow().to_pylist()
    report.by_status = {row["status"]: row["count"] for row in counts}


def answered(queries: DataFrame, partitions: list[SourcePartition], *, committed: bool = False) -> DataFrame:
    """Return the queries with the columns of ANSWER after their own; lazy."""
    by_key = {partition.key: partition for partition in partitions}

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from lookup_table(by_key, batches, committed=committed)

    schema = StructType([*queries.schema.fields, *from_arrow_schema(ANSWER).fields])
    tasks = min(len(partitions) + 1, _TASKS_A_CORE * count_cores(queries.sparkSession))
    key = F.xxhash64("topic", "partition")
    return queries.repartition(tasks, "topic", "partition").sortWithinPartitions(key).mapInArrow(work, schema)


def _format(uri: str, option: str) -> str:
    kind = uri.rstrip("/").rpartition(".")[2].lower()
    kind = {"jsonl": "json", "ndjson": "json"}.get(kind, kind)
    if kind not in _FORMATS:
        raise UsageError(message=f"{option} {uri}: expected a name that ends in .parquet, .csv or .json")
    return kind


def _checked(queries: DataFrame, source: str) -> DataFrame:
    """Return the queries. UsageError: a needed column is missing or of another type, or is named like an answer."""
    have = dict(zip(queries.columns, queries.schema.fields, strict=True))
    missing = [name for name in ("topic", "partition") if name not in have]
    if missing or not any(name in have for name in _ASKED):
        wanted = "the columns topic, partition, and offset or timestamp"
        raise UsageError(message=f"{source}: expected {wanted}; found {', '.join(have)}")
    taken = sorted(set(have) & set(ANSWER.names))
    if taken:
        raise UsageError(message=f"{source}: {', '.join(taken)} would be a column of the answers: rename it")
    types = {
        "topic": (StringType,),
        "partition": (IntegralType,),
        "offset": (IntegralType,),
        "timestamp": (IntegralType, TimestampType, TimestampNTZType),
    }
    for name, kinds in types.items():
        if name in have and not isinstance(have[name].dataType, kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(
                message=f"{source}: column {name}: expected {expected}, found {have[name].dataType.simpleString()}"
            )
    return queries
