"""Look-ups by Spark: the Delta table `time_index` with the answers to `--at`, and tables of queries (`--queries`).

`time_index`: minute -> first offset, of every segment of an archive. A refresh reads only segments that are new, or
whose size or time has changed, and is one Delta commit: the same commit removes the rows of segments that changed or
vanished. Readers of the table see the state before it or after it.

A table of queries is answered by tasks, a group of partitions each. Queries of one partition go to one task, one after
the other; the answers are columns after the query's own (udfs.lookup.queries.ANSWER), in no order. Rows are sorted by
one number, a hash of their partition, because Spark sorts it in a tenth of the time of names and offsets; the task that
answers the queries sorts those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypedDict, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegralType, StringType, StructType, TimestampNTZType, TimestampType

from lastkey.jobs.archive.places import Place, check_apart, is_same
from lastkey.jobs.command.parse import LAST_TIME_MS, check_topics, nearest, parse_time
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, TextTable, counted, size
from lastkey.jobs.command.whole_file import list_archives
from lastkey.jobs.errors import NOT_EMPTY, MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.lookup.partitions import list_partitions
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.spark.tasks import count_cores
from lastkey.jobs.store.folders import check_not_inside
from lastkey.jobs.store.minutes import known_segments, minute_table, replace_segments, uri_for_spark
from lastkey.jobs.store.paths import TIME_INDEX, table_folder
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import EVERY_TOPIC, Key
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.groups import groups
from lastkey.udfs.lookup.minutes import MINUTE_MS, TIME_INDEX_ROWS, TimedSegment, time_index_rows
from lastkey.udfs.lookup.queries import ANSWER, lookup_table
from lastkey.udfs.storage import exists, is_link, normal_uri, open_root

_TASK_BYTES = 256 << 20
_FILES_A_CORE = 4  # tasks of a refresh, at most, each of which writes a file of the table
_MOST_PROBLEMS = 100  # in a report, one of each partition


class MinuteRow(TypedDict):
    """Partition with data in a window of minutes. timestamps: their types, with commas."""

    topic: str
    partition: int
    first_minute_ms: int
    first_offset: int
    minutes: int
    segments: int
    timestamps: str


@dataclass
class AtReport(JobReport):
    """Report of a window of minutes: the partitions with data in it."""

    job = "lookup"
    done = "{rows:partition} with data from {start_ms:time} to {end_ms:time}"
    facts = "archive store start_ms end_ms partitions=rows refreshed"
    text_tables = (
        TextTable(
            "rows", "partition first_minute_ms:first_minute first_offset minutes:minutes_with_data segments timestamps"
        ),
    )

    archive: str | None
    store: str
    start_ms: int
    end_ms: int  # exclusive
    rows: list[MinuteRow] = field(default_factory=list)
    refreshed: dict[str, int] = field(default_factory=dict)

    def _lines(self) -> Iterable[str]:
        if done := self.refreshed:
            yield (
                f"time_index: read {counted(done['segments_read'], 'segment')}, {size(done['bytes_read'])}; "
                f"{done['segments_removed']:,} removed, {done['segments_kept']:,} unchanged"
            )


def run_at(options: LookupOptions, progress: Progress) -> AtReport:
    """Bring the table up to date, and query it."""
    begin, dots, until = (options.at or "").partition("..")
    start = parse_time(begin) // MINUTE_MS * MINUTE_MS
    last = parse_time(until) if dots else start + 1
    if last <= start:
        raise UsageError(message=f"--at {options.at}: expected TIME, or FROM..TO with a TO after FROM")
    end = -(-last // MINUTE_MS) * MINUTE_MS
    if not 0 <= start < end <= LAST_TIME_MS:
        raise UsageError(message=f"--at {options.at}: expected times from 1970 to the year 9999")
    store = normal_uri(options.store or "")
    report = AtReport(options.archive, store, start, end)
    listed = list_partitions(options, report) if options.refresh and options.archive is not None else None
    name, tables = "lookup --at", (as_hadoop_names_it(store),)
    with spark_workers(name, options, report, progress, tables=tables) as made, made.spark(name) as spark:
        _query_minutes(spark, options, report, listed)
    return report


def _query_minutes(
    spark: SparkSession, options: LookupOptions, report: AtReport, listed: list[SourcePartition] | None
) -> None:
    at, store = time.perf_counter(), report.store
    state = open_state(store)
    connector.connect(spark, uri_for_spark(state.root))
    covers = _covers(options)
    if options.refresh:
        if listed is None:
            report.archive = _find_archive(state)
            listed = list_partitions(replace(options, archive=report.archive), report)
        check_apart(Place("the store", store), Place("the archive", report.archive or ""))
        report.other_problems += [str(one.problem) for one in listed if one.problem is not None]
        report.refreshed = refresh(spark, state, listed, covers)
    elif not state.table_exists(TIME_INDEX):
        raise MissingPathError(
            path=f"{store}/{table_folder(TIME_INDEX)}", expected="the table, made by a refresh", found="none"
        )
    report.seconds["refresh"] = time.perf_counter() - at
    at = time.perf_counter()
    minutes = minute_table(spark, state.root)
    if not options.refresh:
        _check_known(options, minutes, f"{store}/{table_folder(TIME_INDEX)}")
    ends = {one.key: one.high_watermark for one in listed or () if one.high_watermark is not None}
    report.rows, problems = happened(minutes, report.start_ms, report.end_ms, covers, ends)
    report.other_problems += problems
    report.seconds["ask"] = time.perf_counter() - at


def _check_known(options: LookupOptions, minutes: DataFrame, where: str) -> None:
    """Raise UsageError if a wanted name is not in the table. With a refresh the archive's listing checks names."""
    if options.topics == EVERY_TOPIC and not options.partitions:
        return
    held = minutes.select("topic", "partition").distinct().toArrow().to_pylist()
    check_topics(options.topics, (row["topic"] for row in held), where)
    names = sorted(f"{row['topic']}-{row['partition']}" for row in held)
    for name in options.partitions:
        if names and name not in names:
            raise UnknownNameError(message=f"no such partition in {where}: {name}", near=nearest(name, names))


def _find_archive(state: State) -> str:
    """Return the archive that a store serves. UsageError if the store does not name exactly one."""
    archives: list[str] = []
    for row in state.checkpoints().values():
        if not any(is_same(row.archive_uri, known) for known in archives):
            archives.append(row.archive_uri)
    if len(archives) != 1:
        raise UsageError(message=f"{state.root.uri} does not say which archive it serves: give ARCHIVE too")
    return archives.pop()


def _all(topic: str, partition: int) -> bool:
    return True


def happened(
    minutes: DataFrame,
    start_ms: int,
    end_ms: int,
    covers: Callable[[str, int], bool] = _all,
    ends: Mapping[Key, int] | None = None,
) -> tuple[list[MinuteRow], list[str]]:
    """Return a row for each partition with data in minutes [start, end), with its first minute, first offset and
    counts; and some of the problems that end rows of the table early, of whichever minute.

    ends: where logs end before their files do. The table does not know, as a high watermark moves on without the files.
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first, last = (F.lit(epoch + timedelta(milliseconds=ms)) for ms in (start_ms, end_ms))
    asked = (F.col("minute") >= first) & (F.col("minute") < last)
    if ends:
        rows = pa.table(
            {
                "topic": [topic for topic, _ in ends],
                "partition": pa.array([partition for _, partition in ends], pa.int32()),
                "end_offset": pa.array(ends.values(), pa.int64()),
            }
        )
        known = F.broadcast(minutes.sparkSession.createDataFrame(rows))
        minutes = minutes.join(known, ["topic", "partition"], "left")
        asked &= F.col("end_offset").isNull() | (F.col("first_offset") < F.col("end_offset"))

    def there(name: str) -> Column:
        return F.when(asked, F.col(name))

    grouped = (
        minutes.where(asked | F.col("problem").isNotNull())
        .groupBy("topic", "partition")
        .agg(
            (F.unix_micros(F.min(there("minute"))) / 1000).cast("long").alias("first_minute_ms"),
            F.min(there("first_offset")).alias("first_offset"),
            F.countDistinct(there("minute")).alias("minutes"),
            F.countDistinct(there("segment_base_offset")).alias("segments"),
            F.concat_ws(",", F.sort_array(F.collect_set(there("timestamps")))).alias("timestamps"),
            F.min("problem").alias("problem"),
        )
        .orderBy("topic", "partition")
    )
    rows = [row for row in grouped.toArrow().to_pylist() if covers(row["topic"], row["partition"])]
    problems = [problem for row in rows if (problem := row.pop("problem")) is not None]
    more = len(problems) - _MOST_PROBLEMS
    told = [f"and {counted(more, 'partition')} more whose rows end early"] if more > 0 else []
    return [cast(MinuteRow, row) for row in rows if row["minutes"]], problems[:_MOST_PROBLEMS] + told


def _covers(options: LookupOptions) -> Callable[[str, int], bool]:
    """Return a test for partitions that these options name: if one of them is not listed, it has vanished."""

    def covers(topic: str, partition: int) -> bool:
        by_name = not options.partitions or f"{topic}-{partition}" in options.partitions
        return by_name and options.topics.takes(topic)

    return covers


def refresh(
    spark: SparkSession, state: State, partitions: list[SourcePartition], covers: Callable[[str, int], bool] = _all
) -> dict[str, int]:
    """Make the table equal to the segments there are, in the partitions that `covers` accepts; return counts.

    Rows of a partition that cannot be listed are kept, because its segments may still exist.
    """
    unlisted = {partition.key for partition in partitions if partition.problem is not None}
    with state.lock():  # locked until the write: two concurrent refreshes would both append
        recorded = known_segments(spark, state)
        listed = {(s.topic, s.partition, s.listed.base_offset): s for one in partitions for s in _segments(one)}
        same = {
            key
            for key, s in listed.items()
            if recorded.get(key) == (s.listed.path, s.listed.size_bytes, s.listed.mtime_ms)
        }
        new = [s for key, s in listed.items() if key not in same]
        old = [key for key in recorded if key not in same and key[:2] not in unlisted and covers(*key[:2])]
        if new or old or not state.table_exists(TIME_INDEX):
            replace_segments(state, _frame(spark, new), old)
    return {
        "segments_read": len(new),
        "bytes_read": sum(s.listed.size_bytes for s in new),
        "segments_kept": len(same),
        "segments_removed": len([key for key in old if key not in listed]),
    }


def _segments(partition: SourcePartition) -> Iterator[TimedSegment]:
    for s in partition.segments if partition.problem is None else ():
        yield TimedSegment(*partition.key, s, partition.max_batch_bytes)


def _frame(spark: SparkSession, segments: list[TimedSegment]) -> DataFrame:
    """Return the rows of segments, made in Spark tasks."""
    tasks = list(groups(segments, lambda segment: segment.listed.size_bytes, _TASK_BYTES))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from time_index_rows(tasks[number]).to_batches()

    schema = from_arrow_schema(TIME_INDEX_ROWS)
    n_spark = min(len(tasks), _FILES_A_CORE * count_cores(spark))
    return spark.range(0, len(tasks), 1, max(n_spark, 1)).mapInArrow(work, schema)


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
    logs = {segment.root for one in partitions for segment in one.segments}  # an older generation's archive too
    read = (Place("a log that is read", root) for root in sorted(logs))
    check_apart(Place("--output", target), *(place for place in (*given, *archives, *read) if place.uri))
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
