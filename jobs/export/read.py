"""Records to export: which partitions, and each topic as a DataFrame of the data source `kafka_log`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import count
from lastkey.jobs.data_source.plan_tasks import source_partitions
from lastkey.jobs.data_source.read_options import ReadOptions, Selection
from lastkey.jobs.functions import decoding, refusal
from lastkey.jobs.topics import of_users
from lastkey.logformat.errors import stopped
from lastkey.udfs.data_source.log_end import Ends, ends_of
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp", "timestamp_ms", "timestampType", "key", "value", "headers", "path",
)  # fmt: skip
_OF_BATCHES: Final = "partition,base_offset,producer_id,transactional,control,control_type"
_EARLIEST, _LATEST = -2, -1  # as Kafka's own tools write them
TOMBSTONE: Final = "tombstone"
MALFORMED: Final = "_malformed"  # ending of the column with bytes that a decoder refused


@dataclass(frozen=True)
class Extent:
    """Offsets [start, end) of a partition to read; None: from the log start, to the end of what may be read."""

    start: int | None = None
    end: int | None = None
    generation: int | None = None  # of a store; None: as the options say


@dataclass(frozen=True)
class Seen:
    """Counts and problems of one reading of a topic."""

    records: int
    tombstones: int
    null_keys: int
    malformed: dict[str, int]  # by column
    problems: list[tuple[int | None, Problem]]  # partition, problem


def listed(options: ExportOptions) -> list[SourcePartition]:
    """Return the partitions that the options name, by topic and number. Raise as the data source does."""
    paths = () if options.archive_place is None else (options.archive_place,)
    asked = ReadOptions(
        "kafka_log",
        paths,
        store=options.store,
        generation=options.generation,
        selection=Selection(topics=of_users(options.topics)),
    )
    return source_partitions(asked)


def ends_of_partition(partition: SourcePartition) -> tuple[Ends | None, Problem | None]:
    """Return the offsets at which reading begins and ends (None: not known), and what is in the way."""
    if partition.problem is not None:
        return None, partition.problem
    try:
        return ends_of(partition, committed=True), None
    except Exception as found:  # of any kind: the problem names the partition
        problem = Problem.of(stopped(found, partition.name))
    try:
        return ends_of(partition, committed=True, set_aside=True), problem
    except Exception:  # as before: nobody knows
        return None, problem


def open_notes(partition: SourcePartition, ends: Ends) -> list[str]:
    """Return a note if records at the end are left out."""
    if ends.end >= ends.log_end or not ends.certain:
        return []
    why = "an open transaction, or the high watermark, is there"
    return [f"{partition.name}: ends at offset {count(ends.end)} of {count(ends.log_end)}: {why}"]


def records_of(spark: SparkSession, options: ExportOptions, topic: str, extents: Mapping[int, Extent]) -> DataFrame:
    """Return a row for each record of some partitions of a topic, and one with `problem` for what cannot be read."""
    settings = options.config.topic_settings(topic)
    given = {
        "isolationLevel": options.isolation,
        "gaps": options.gaps or settings.gaps,
        "maxDecompressedBatchBytes": settings.max_decompressed_batch_bytes,
        "columns": ",".join(_COLUMNS),
    }
    records = _loaded(spark, "kafka_log", options, topic, extents, given)
    return records.withColumn(TOMBSTONE, F.col("value").isNull())


def batches_of(spark: SparkSession, options: ExportOptions, topic: str, extents: Mapping[int, Extent]) -> DataFrame:
    """Return a row for each batch of some partitions of a topic, by their headers; gaps do not count."""
    return _loaded(spark, "kafka_log_batches", options, topic, extents, {"gaps": "accept", "columns": _OF_BATCHES})


def _loaded(
    spark: SparkSession,
    source: str,
    options: ExportOptions,
    topic: str,
    extents: Mapping[int, Extent],
    given: Mapping[str, object],
) -> DataFrame:
    frames = []
    for number in sorted({one.generation for one in extents.values()}, key=lambda number: number or 0):
        some = {n: one for n, one in extents.items() if one.generation == number}
        where = {
            "path": options.archive_place,
            "store": options.store,
            "generation": number or options.generation,
            "assign": json.dumps({topic: sorted(some)}),
            "startingOffsets": _bounds(topic, {n: one.start for n, one in some.items()}, _EARLIEST),
            "endingOffsets": _bounds(topic, {n: one.end for n, one in some.items()}, _LATEST),
            "badRecords": "set_aside",
        }
        named = {name: str(value) for name, value in (where | dict(given)).items() if value is not None}
        frames.append(spark.read.format(source).options(**named).load())
    return functools.reduce(DataFrame.unionAll, frames)


def _bounds(topic: str, offsets: Mapping[int, int | None], default: int) -> str:
    return json.dumps({topic: {str(n): default if offset is None else offset for n, offset in offsets.items()}})


def decoded(records: DataFrame, decoders: Mapping[str, str | None]) -> DataFrame:
    """Decode columns by name (None: bytes as they are). Bytes that a decoder refuses stay in a column of their own."""
    for column, name in decoders.items():
        if name is not None:
            refused = F.when(refusal(name)(column).isNotNull(), F.col(column))
            records = records.withColumn(column + MALFORMED, refused).withColumn(column, decoding(name)(column))
    return records


def observed(records: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the rows without problems, and what tells about all of them once they are written."""
    good = F.col("problem").isNull()
    malformed = [name for name in records.columns if name.endswith(MALFORMED)]
    watch = Observation()
    seen = records.observe(
        watch,
        F.count_if(good).alias("records"),
        F.count_if(good & F.col(TOMBSTONE)).alias("tombstones"),
        F.count_if(good & F.col("key").isNull()).alias("null_keys"),
        *(F.count_if(good & F.col(name).isNotNull()).alias(name) for name in malformed),
        F.collect_set(F.when(~good, F.struct("partition", "problem"))).alias("problems"),
    )
    return seen.where(good), watch


def seen_by(watch: Observation) -> Seen:
    """Return what an observation saw, once the rows are written."""
    found: dict[str, Any] = watch.get
    problems = [(row["partition"], Problem(**row["problem"].asDict())) for row in found["problems"]]
    problems.sort(key=lambda one: (one[0] or 0, one[1].path, one[1].position))
    malformed = {name: found[name] for name in found if name.endswith(MALFORMED)}
    return Seen(found["records"], found["tombstones"], found["null_keys"], malformed, problems)
