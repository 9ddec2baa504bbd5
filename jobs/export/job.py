"""`export (ARCHIVE | --store STORE) --format FORMAT --output DIR`: all records, a folder for each topic.

Tasks read logs, decode and write files (udfs.export). Then the driver makes them one table of each topic: Parquet and
JSON lines by `_SUCCESS` and the mark in the output, Delta by the table's first commit. Unreadable data is skipped and
named in the report, with exit code 3. `--latest` is another job (jobs.export.latest), which needs Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import counted
from lastkey.jobs.data_source.plan_tasks import each, partitions_of_command
from lastkey.jobs.errors import UsageError
from lastkey.jobs.export.output import (
    MARK,
    ExportedTopic,
    ExportFolder,
    ExportReport,
    ends_of_partition,
    open_notes,
    taken,
)
from lastkey.jobs.spark.engine import chosen_engine, spark_workers, workers
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.delta import create_table
from lastkey.udfs.data_source.pieces import Range, SourcePartition, Wanted, listed_logs, pack
from lastkey.udfs.decode.decoders import decoder
from lastkey.udfs.export.write_files import MALFORMED, Exported, ExportSpec, ExportTask, export_file, export_schema
from lastkey.udfs.problem import Problem
from lastkey.udfs.steps import step
from lastkey.udfs.storage import normal_uri, open_root

if TYPE_CHECKING:
    from lastkey.jobs.export.latest import Origin

_FEW_BYTES: Final = 256 << 20  # size of logs for which the JVM starts only briefly
_TEXT: Final = "string"  # JSON has no bytes
_ONE_TO_ONE: Final = ("string", "json", "boolean", "short", "int", "long", "hex", "base64")


def run(options: ExportOptions, progress: Progress) -> ExportReport:
    """Export the records of every topic that the options name."""
    decoders = choose_decoders(options)
    check_latest(options)
    origin: Origin | None = None
    if options.latest:
        from lastkey.jobs.export.latest import listed_for_latest  # noqa: PLC0415 - threads need no pyspark

        partitions, origin = listed_for_latest(options)
    else:
        partitions = partitions_of_command(options)
    root = open_root(normal_uri(options.output))
    check_output(root.uri, options, partitions)
    report = ExportReport(root.uri, options.format, options.latest)
    report.other_problems += [p.problem for p in partitions if p.topic is None and p.problem is not None]
    by_topic = {topic: list(group) for topic, group in groupby(partitions, lambda p: p.topic) if topic is not None}
    output = ExportFolder(root, describe_request(options))
    with taken(root):
        if origin is None:
            _export(options, decoders, by_topic, output, report, progress)
        else:
            _update(options, decoders, by_topic, origin, output, report, progress)
    return report


def _update(
    options: ExportOptions,
    decoders: dict[str, str | None],
    by_topic: dict[str, list[SourcePartition]],
    origin: Origin,
    output: ExportFolder,
    report: ExportReport,
    progress: Progress,
) -> None:
    """Bring the tables of --latest up to date."""
    from lastkey.jobs.export import latest  # noqa: PLC0415 - as above
    from lastkey.jobs.spark import connector  # noqa: PLC0415

    size = sum(s.size_bytes for of_topic in by_topic.values() for p in of_topic for s in p.segments)
    brief, uri = size < _FEW_BYTES, output.topic_uri("")
    with spark_workers("export --latest", options, report, progress, brief=brief, tables=(uri,)) as workers:
        with workers.spark("export") as spark:
            connector.connect(spark, uri)
        output.resume()
        output.delete_new_files()
        report.other_problems += latest.missing_topics(output, options, [*by_topic])
        progress.start("export", len(by_topic), "topic")
        for topic, of_topic in by_topic.items():
            of = latest.Topic(topic, options, decoders, workers, output)
            try:
                report.topics.append(latest.update(of, of_topic, origin, report))
            finally:
                output.delete_new_files()
            progress.advance()
        progress.close()


def _export(
    options: ExportOptions,
    decoders: dict[str, str | None],
    by_topic: dict[str, list[SourcePartition]],
    output: ExportFolder,
    report: ExportReport,
    progress: Progress,
) -> None:
    """Write all records, a file of each task."""
    engine = chosen_engine(options, writes=True)
    output.begin([*by_topic])
    tasks = [task for topic, of_topic in by_topic.items() for task in _tasks(options, topic, of_topic)]
    sizes = [sum(piece.end - piece.start for piece in task.pieces) for task in tasks]
    committed = options.isolation == "read_committed"
    spec = ExportSpec(output.root.uri, MARK, output.run, options.format, decoders, committed)
    logs = [listed_logs(partition) for of_topic in by_topic.values() for partition in of_topic]
    with workers(engine, sum(sizes), options.config, report, progress) as engine_workers:
        progress.start("export", sum(sizes), BYTES)
        files = engine_workers.run(partial(export_file, spec, logs), tasks, "export", CountedBytes(progress, sizes))
        progress.close()
        engine_workers.count(bytes_read=sum(sizes))
    step("files exported")
    output.check_own()
    for topic, group in groupby(files, lambda file: file.topic):
        exported = [*group]
        if committed:
            report.notes += [
                note for partition in by_topic[topic] for note in open_notes(partition, ends_of_partition(partition)[0])
            ]
        report.topics.append(_exported(topic, len(by_topic[topic]), exported, decoders, report))
        if options.format == "delta":
            written = [DataFile(f.path.rpartition("/")[2], f.size, f.statistics) for f in exported if f.path]
            create_table(output.root, topic, export_schema(decoders), written)
    said = {t.topic: {"records": t.records, "problems": t.problems} for t in report.topics}
    output.finish("with problems" if report.problems else "whole", said)


def _tasks(options: ExportOptions, topic: str, partitions: Sequence[SourcePartition]) -> list[ExportTask]:
    """Return the tasks of a topic: at least one, which writes its columns."""
    settings = options.config.topic_settings(topic)
    asked = Range(
        wanted=Wanted(committed=options.isolation == "read_committed"),
        quarantine=True,
        accept_gaps=settings.gaps == "accept",
    )
    pieces = each(partitions, [asked] * len(partitions))
    return [
        ExportTask(topic, number, task, settings.max_decompressed_batch_bytes)
        for number, task in enumerate(pack(pieces) or [()])
    ]


def _place(problem: tuple[int | None, Problem]) -> tuple[int, str, int]:
    return problem[0] or 0, problem[1].path, problem[1].position


def _exported(
    topic: str, n_partitions: int, files: Sequence[Exported], decoders: dict[str, str | None], report: ExportReport
) -> ExportedTopic:
    """Return the row of a topic, and add its problems and notes to the report."""
    problems = sorted({one for file in files for one in file.problems}, key=_place)
    report.other_problems += dict.fromkeys(problem for _, problem in problems)
    malformed = Counter[str]()
    for file in files:
        malformed.update(file.malformed)
    report.notes += malformed_notes(topic, malformed, decoders)
    records, tombstones = sum(file.records for file in files), sum(file.tombstones for file in files)
    return ExportedTopic(topic, n_partitions, records, tombstones, len(problems))


def choose_decoders(options: ExportOptions) -> dict[str, str | None]:
    """Return the decoder of each column. UsageError for an unknown name."""
    default = _TEXT if options.format == "ndjson" else None
    named = {"key": options.key_decoder or default, "value": options.value_decoder or default}
    for column, name in named.items():
        try:
            decoder(name or _TEXT)
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
    """Raise UsageError if the output is inside a source, or a source inside the output."""
    read = {normal_uri(place) for place in (options.archive_place, options.store) if place is not None}
    read |= {segment.root for one in partitions for segment in one.segments}
    check_apart(Place("--output", uri), *(Place("what is exported", place) for place in sorted(read)))


def describe_request(options: ExportOptions) -> dict[str, object]:
    """Return the options that decide the content of an export, as its file records them."""
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


def malformed_notes(topic: str, malformed: Mapping[str, int], decoders: dict[str, str | None]) -> list[str]:
    """Return notes about values that a decoder refused."""
    return [
        f"{topic}: {counted(n, column.removesuffix(MALFORMED))} cannot be decoded as "
        f"{decoders[column.removesuffix(MALFORMED)]}; the bytes are in the column {column}"
        for column, n in sorted(malformed.items())
        if n
    ]
