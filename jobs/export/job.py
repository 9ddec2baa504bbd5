"""`export (ARCHIVE | --store STORE) --format FORMAT --output DIR`: all records, a folder for each topic.

Spark reads by the data source `kafka_log`, decodes, and writes. What cannot be read is left out, named in the report,
and makes exit code 3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import counted
from lastkey.jobs.errors import UsageError
from lastkey.jobs.export import latest
from lastkey.jobs.export.origin import listed_for_latest
from lastkey.jobs.export.output import ExportFolder, taken
from lastkey.jobs.export.read import (
    MALFORMED,
    Extent,
    Seen,
    decoded,
    ends_of_partition,
    listed,
    observed,
    open_notes,
    records_of,
    seen_by,
)
from lastkey.jobs.export.report import ExportedTopic, ExportReport
from lastkey.jobs.functions import decoding
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.store.latest import write_delta
from lastkey.jobs.store.minutes import session_for
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import normal_uri, open_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FEW_BYTES: Final = 256 << 20  # of log: the JVM starts for a short time
_TEXT: Final = "string"  # JSON has no bytes
_ONE_TO_ONE: Final = ("string", "json", "boolean", "short", "int", "long", "hex", "base64")


def run(options: ExportOptions, progress: Progress) -> ExportReport:
    """Export the records of every topic that the options name."""
    began = time.monotonic()
    decoders = decoders_of(options)
    check_latest(options)
    partitions, origin = listed_for_latest(options) if options.latest else (listed(options), None)
    root = open_root(normal_uri(options.output))
    check_output(root.uri, options, partitions)
    report = ExportReport(root.uri, options.format, options.latest)
    report.other_problems += [p.problem for p in partitions if p.topic is None and p.problem is not None]
    by_topic = {topic: list(group) for topic, group in groupby(partitions, lambda p: p.topic) if topic is not None}
    output = ExportFolder(root, request_of(options))
    size = sum(s.size_bytes for p in partitions for s in p.segments)
    with (
        taken(root),
        spark_workers(
            "export", options, report, progress, brief=size < _FEW_BYTES, tables=(output.uri_of(""),)
        ) as workers,
        workers.spark("export") as whole,
    ):
        spark = session_for(whole, size)
        connector.connect(whole, output.uri_of(""))
        if origin is None:
            output.begin([*by_topic])
        else:
            output.go_on()
            report.other_problems += latest.missing_topics(output, options, [*by_topic])
        progress.start("export", len(by_topic), "topic")
        for topic, of_topic in by_topic.items():
            if origin is None:
                made = _export(spark, options, decoders, topic, of_topic, output, report)
            else:
                made = latest.update(spark, options, decoders, topic, of_topic, origin, output, report)
            report.topics.append(made)
            progress.advance()
        progress.close()
        if origin is None:
            said = {t.topic: {"records": t.records, "problems": t.problems} for t in report.topics}
            output.mark("with problems" if report.problems else "whole", said)
    report.seconds["total"] = round(time.monotonic() - began, 3)
    return report


def decoders_of(options: ExportOptions) -> dict[str, str | None]:
    """Return the decoder of each column. UsageError for an unknown name."""
    default = _TEXT if options.format == "ndjson" else None
    named = {"key": options.key_decoder or default, "value": options.value_decoder or default}
    for column, name in named.items():
        try:
            decoding(name or _TEXT)
        except ValueError as error:
            raise UsageError(message=f"--{column}-decoder: {error}") from error
    return named


def check_latest(options: ExportOptions) -> None:
    """Raise UsageError unless the options go with --latest, if it is given."""
    if not options.latest:
        return
    if options.format != "delta" or options.isolation != "read_committed":
        raise UsageError(message="--latest needs --format delta, and reads committed records alone")
    if options.key_decoder not in (None, *_ONE_TO_ONE):
        raise UsageError(message=f"--key-decoder {options.key_decoder}: with --latest expected one that gives different"
                                 f" keys different values: {', '.join(_ONE_TO_ONE)}")  # fmt: skip


def check_output(uri: str, options: ExportOptions, partitions: Sequence[SourcePartition]) -> None:
    """Raise UsageError if the output and what is read lie in one another."""
    read = {normal_uri(place) for place in (options.archive_place, options.store) if place is not None}
    read |= {segment.root for one in partitions for segment in one.segments}
    check_apart(Place("--output", uri), *(Place("what is exported", place) for place in sorted(read)))


def request_of(options: ExportOptions) -> dict[str, object]:
    """Return what decides the content of an export, as its file keeps it."""
    source = [None if place is None else normal_uri(place) for place in (options.archive_place, options.store)]
    topics = {"topics": [*options.topics.include], "exclude": [*options.topics.exclude]}
    whose = {} if options.latest else topics | {"generation": options.generation}
    return whose | {
        "latest": options.latest,
        "archive": source[0],
        "store": source[1],
        "format": options.format,
        "isolation": options.isolation,
        "key_decoder": options.key_decoder,
        "value_decoder": options.value_decoder,
    }


def _export(
    spark: SparkSession,
    options: ExportOptions,
    decoders: dict[str, str | None],
    topic: str,
    partitions: Sequence[SourcePartition],
    output: ExportFolder,
    report: ExportReport,
) -> ExportedTopic:
    """Write one topic."""
    if options.isolation == "read_committed":
        for one in partitions:
            ends, _ = ends_of_partition(one)
            report.notes += [] if ends is None else open_notes(one, ends)
    records = records_of(spark, options, topic, {one.partition or 0: Extent() for one in partitions})
    good, watch = observed(decoded(records, decoders))
    _write(good.drop("topic", "path", "problem"), options.format, output.uri_of(topic))
    seen = seen_by(watch)
    report.other_problems += list(dict.fromkeys(problem for _, problem in seen.problems))
    report.notes += malformed_notes(topic, seen, decoders)
    return ExportedTopic(topic, len(partitions), seen.records, seen.tombstones, len(seen.problems))


def malformed_notes(topic: str, seen: Seen, decoders: dict[str, str | None]) -> list[str]:
    """Return notes about values that a decoder refused."""
    return [
        f"{topic}: {counted(n, column.removesuffix(MALFORMED))} cannot be decoded as "
        f"{decoders[column.removesuffix(MALFORMED)]}; the bytes are in the column {column}"
        for column, n in seen.malformed.items()
        if n
    ]


def _write(rows: DataFrame, kind: str, uri: str) -> None:
    """Write a topic's folder."""
    writer = rows.write.mode("errorifexists")
    if kind == "ndjson":
        writer.option("ignoreNullFields", "false").option("timeZone", "UTC").json(uri)
    elif kind == "parquet":
        writer.option("compression", "zstd").parquet(uri)
    else:
        write_delta(writer, uri)
