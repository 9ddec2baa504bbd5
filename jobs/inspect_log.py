"""`inspect PATH...`: log files, indexes and side files as the lines of kafka-dump-log, or as JSON.

Lines go to stdout, file after file, without Spark. With `--output` there is a text for each file. That, and a search
for some records in more than a few files, is done in parallel: in threads where there is little, else in Spark tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyarrow import fs as pafs

from jobs.archive.places import Place, check_apart, check_empty
from jobs.command.options import InspectOptions
from jobs.command.progress import Progress
from jobs.command.reporting import counted, size
from jobs.command.typed import check_topics
from jobs.errors import DONE, PROBLEMS, MissingPathError, UsageError
from jobs.spark.each import WITHOUT_SPARK_BYTES, each
from jobs.topics import matches
from logformat import names
from udfs.dump_files import (
    Dumped,
    DumpFile,
    DumpSpec,
    Findings,
    asked_for,
    dump_files,
    dump_options,
    dump_tasks,
    dump_to_file,
    list_files,
    search_files,
    search_tasks,
    topic_of,
    wanted_of,
)
from udfs.storage import exists, normal_uri, open_root

_SEARCH_BYTES = 64 << 20  # up to this, file after file
_SEARCH_WITHOUT_SPARK_BYTES = 8 << 30  # measured: about 1 s a GiB in two threads, and 9 s for a session


@dataclass
class InspectReport:
    """What is said beside the lines: findings, and damage."""

    output: str | None
    files: list[Dumped] = field(default_factory=list)
    said: Iterable[str] = ()  # whole lines for stderr, many at a time
    n_problems: int = 0
    n_mismatches: int = 0
    verified: bool = False  # indexes were asked to be right

    @property
    def exit_code(self) -> int:
        """3 where a file is damaged; with --verify-index-only also where an index contradicts its log."""
        return PROBLEMS if self.n_problems or (self.verified and self.n_mismatches) else DONE

    def to_json(self) -> dict[str, Any]:
        """Of a run with --output."""
        return {
            "job": "inspect",
            "output": self.output,
            "exit_code": self.exit_code,
            "files": [
                {"path": f.path, "text": f.name, "bytes": f.bytes_written, "problems": f.n_problems, "said": f.said}
                for f in self.files
            ],
        }

    def to_text(self) -> str:
        """Of a run with --output."""
        total = sum(f.bytes_written for f in self.files)
        return "\n".join(
            [
                *(f"{f.path}: {line}" for f in self.files for line in f.said),
                f"{counted(len(self.files), 'file')} as text in {self.output}, {size(total)}",
            ]
        )


def run(options: InspectOptions, progress: Progress, write: Callable[[Any], object]) -> InspectReport:
    """Dump files and folders with `write`, or into files."""
    spec = _spec(options)
    report = InspectReport(options.output, verified=options.verify_index_only)
    if options.output is not None:
        report.output = normal_uri(options.output)
        check_apart(Place("--output", report.output), *_places(options.paths))
        check_empty(open_root(report.output))
    ignored: list[str] = []
    files = asked_for(_listed(options, ignored), dump_options(spec))
    report.said = unseen = [f"Ignoring {what}\n" for what in ignored]
    n_bytes = sum(file.size for file in files)
    if report.output is not None:
        _into_files(files, n_bytes, spec, report, progress)
        return report
    if _is_search(spec, n_bytes):
        findings = _search(files, n_bytes, spec, progress, write)
    else:
        findings = dump_files(files, dump_options(spec), write)
    unknown = (f"Ignoring unknown file {path}\n" for path in findings.unknown)
    report.said = itertools.chain(unseen, unknown, findings.text())
    report.n_problems, report.n_mismatches = len(findings.all_problems), findings.n_mismatches
    return report


def _listed(options: InspectOptions, ignored: list[str]) -> list[DumpFile]:
    """All that is to be shown. MissingPathError, UsageError: a path that is not there, or nothing at all."""
    files = list(list_files(options.paths, ignored=ignored))
    for file in files:
        if file.size < 0:
            raise MissingPathError(path=file.shown, expected="a file or a folder", found="nothing")
    if not files:
        paths = ", ".join(options.paths)
        raise MissingPathError(path=paths, expected="log files, indexes, snapshots or checkpoints", found="none")
    of_topic = options.config.topic_settings
    files = [replace(f, max_batch_bytes=of_topic(topic_of(f) or "").max_decompressed_batch_bytes) for f in files]
    if options.topics is None:
        return files
    topics = [topic_of(file) or "" for file in files]
    check_topics(options.topics, filter(None, topics), ", ".join(options.paths))
    return [file for file, topic in zip(files, topics, strict=True) if topic and matches(options.topics, topic)]


def _is_search(spec: DumpSpec, n_bytes: int) -> bool:
    """Whether much is to be read for little to be shown."""
    return not spec.wanted.everything and n_bytes > _SEARCH_BYTES


def _search(
    files: Sequence[DumpFile], n_bytes: int, spec: DumpSpec, progress: Progress, write: Callable[[Any], object]
) -> Findings:
    """In parallel; what is found is written in the order of the files."""
    tasks = search_tasks(files, spec)
    findings = Findings()
    progress.start("inspect", len(tasks), "task")
    results = each(search_files, tasks, progress, with_spark=n_bytes > _SEARCH_WITHOUT_SPARK_BYTES)
    for task, searched in zip(tasks, results, strict=True):
        for file, found in zip(task.files, searched, strict=True):
            if found.text is None:
                findings.add(dump_files([file], dump_options(spec), write))
            else:
                write(found.text)
                findings.add(found.findings)
    progress.close()
    return findings


def _into_files(
    files: Sequence[DumpFile], n_bytes: int, spec: DumpSpec, report: InspectReport, progress: Progress
) -> None:
    try:
        tasks = dump_tasks(files, spec, report.output or "")
    except ValueError as error:
        raise UsageError(message=f"--output: {error}; give them one at a time, an output for each") from error
    progress.start("inspect", len(tasks), "file")
    report.files += each(dump_to_file, tasks, progress, with_spark=n_bytes > WITHOUT_SPARK_BYTES)
    progress.close()
    report.n_problems = sum(f.n_problems for f in report.files)
    report.n_mismatches = sum(f.n_mismatches for f in report.files)


def _spec(options: InspectOptions) -> DumpSpec:
    wanted = wanted_of(options.start_offset, options.end_offset, options.start_ms, options.end_ms, options.key)
    decoders = (options.key_decoder or "string", options.value_decoder or "string")
    spec = DumpSpec(
        deep=options.deep_iteration,
        print_data=options.print_data_log
        or options.key_decoder is not None
        or options.value_decoder is not None
        or (options.key is not None and not options.deep_iteration),
        metadata=not options.skip_record_metadata,
        max_bytes=options.max_bytes,
        verify_index_only=options.verify_index_only,
        index_sanity_check=options.index_sanity_check,
        as_json=options.as_json,
        key_decoder=decoders[0],
        value_decoder=decoders[1],
        records=options.records,
        wanted=wanted,
    )
    try:
        dump_options(spec)
    except ValueError as error:
        raise UsageError(message=str(error)) from error
    return spec


def _places(paths: Iterable[str]) -> Iterator[Place]:
    """The folders that are read: those that are named; of a file its partition's; and the log directory of both."""
    for path in sorted(set(map(normal_uri, paths))):
        root = open_root(path)
        is_folder = root.filesystem.get_file_info(root.full("") or "/").type == pafs.FileType.Directory
        folder = path if is_folder else path.rpartition("/")[0]
        parent, _, name = folder.rpartition("/")
        is_partition = names.parse_partition_folder(name) is not None
        if is_folder or is_partition:
            yield Place("the folder", folder)
        beside = (names.META_PROPERTIES, *names.OFFSET_CHECKPOINTS)
        if is_partition and any(exists(open_root(parent or "/"), file) for file in beside):
            yield Place("the log directory", parent or "/")
