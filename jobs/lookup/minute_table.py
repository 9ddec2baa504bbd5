"""The Delta table `time_index`: minute -> first offset, of every segment of an archive; and the answers to `--at`.

A refresh reads only segments that are new, or whose size or time has changed, and is one Delta commit: the same commit
removes the rows of segments that changed or vanished. Readers of the table see the state before it or after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypedDict, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from lastkey.jobs.archive.places import Place, check_apart, is_same
from lastkey.jobs.command.parse import LAST_TIME_MS, check_topics, nearest, parse_time
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, TextTable, counted, size
from lastkey.jobs.errors import MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.lookup.partitions import list_partitions
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.spark.tasks import count_cores
from lastkey.jobs.store.minutes import known_segments, minute_table, replace_segments, uri_for_spark
from lastkey.jobs.store.paths import TIME_INDEX, table_folder
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import EVERY_TOPIC, Key
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.groups import groups
from lastkey.udfs.lookup.minutes import MINUTE_MS, TIME_INDEX_ROWS, TimedSegment, time_index_rows
from lastkey.udfs.storage import normal_uri

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
    spark: SparkSession,
    state: State,
    partitions: list[SourcePartition],
    covers: Callable[[str, int], bool] = _all,
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
