"""`inspect PATH...`: log files, indexes and side files as the lines of kafka-dump-log, or as JSON.

Lines go to stdout, file after file, from this process. `--output` writes a text for each file. These texts, and a
search for some records in more than a few files, are made in parallel by the engine of the user's choice.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import list_folder
from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import InspectOptions
from lastkey.jobs.command.reporting import JobReport, counted
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import DONE, PROBLEMS, MissingPathError, UsageError
from lastkey.jobs.spark.engine import chosen_engine, each, local_cores
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.logformat import names
from lastkey.logformat.dump.files import DumpFile, DumpOptions, dump_files, list_files, select_files
from lastkey.logformat.dump.findings import DumpFindings
from lastkey.logformat.dump.log import LogOptions, RecordLimits
from lastkey.udfs.dump_files import (
    Dumped,
    dump_tasks,
    dump_to_file,
    folder_topic,
    gaps_of_folder,
    record_decoder,
    search_files,
    search_tasks,
)
from lastkey.udfs.problem import Problem, timed
from lastkey.udfs.storage import exists, holds_segments, normal_uri, open_root

_LOG = logging.getLogger("lastkey")
_SEARCH_BYTES = 64 << 20  # a search of up to this takes one file after the other, unless the user names Spark


@dataclass
class InspectReport(JobReport):
    """Report beside the dumped lines: findings, and damage."""

    job = "inspect"
    done = "{dumped:file} as text in {output}"
    facts = "output files=dumped"

    output: str | None
    dumped: list[Dumped] = field(default_factory=list)
    messages: Iterable[str] = ()  # whole lines for stderr, many at a time
    lines: BytesIO = field(default_factory=BytesIO)  # output of a run without --output whose caller does not write it
    n_problems: int = 0
    n_mismatches: int = 0
    verified: bool = False  # --print mismatches: wrong indexes count

    @property
    def exit_code(self) -> int:
        """3 if a file is damaged, with --print mismatches also if an index contradicts its log; else 0."""
        return PROBLEMS if self.n_problems or (self.verified and self.n_mismatches) else DONE

    @property
    def problems(self) -> list[Any]:
        """Problems, as text: gaps, and the lines about damaged files."""
        bad = (f for f in self.dumped if f.n_problems or (self.verified and f.n_mismatches))
        return [*map(str, self.other_problems), *(f"{f.path}: {line}" for f in bad for line in f.tool_lines)]

    @property
    def raw(self) -> str | None:
        """Lines of a run without an output file."""
        return self.lines.getvalue().decode("utf-8", "backslashreplace") if self.output is None else None

    def _lines(self) -> Iterable[str]:
        return [f"{f.path}: {line}" for f in self.dumped for line in f.tool_lines]

    def _problem_texts(self) -> Sequence[object]:
        return ()  # gaps are reported on stderr, other problems are in `_lines`


def run(options: InspectOptions, progress: Progress, write: Callable[[Any], object] | None = None) -> InspectReport:
    """Dump files and folders with `write`, into files below `options.output`, or else into the report."""
    spec = _spec(options)
    report = InspectReport(options.output, verified=options.parts == "mismatches")
    write = write or report.lines.write
    if options.output is not None:
        report.output = normal_uri(options.output)
        check_apart(Place("--output", report.output), *_places(options.paths))
        check_empty(open_root(report.output))
    ignored: list[str] = []
    listed = _listed(options, ignored)
    files, gaps = select_files(listed, spec), _gaps(listed, options, spec)
    report.messages = unseen = [f"Ignoring {what}\n" for what in ignored] + [f"problem: {gap}\n" for gap in gaps]
    if report.output is not None:
        _into_files(files, spec, options, report, progress)
        report.n_problems += len(gaps)
        report.other_problems += gaps
        return report
    if _is_search(files, spec, options):
        findings = _search(files, spec, options, report, progress, write)
    else:
        with timed(counted(len(files), "file")):
            findings = dump_files(files, spec, write)
    unknown = (f"Ignoring unknown file {path}\n" for path in findings.unknown)
    report.messages = itertools.chain(unseen, unknown, findings.text())
    report.n_problems, report.n_mismatches = len(findings.all_problems) + len(gaps), findings.n_mismatches
    return report


def _gaps(files: Sequence[DumpFile], options: InspectOptions, spec: DumpOptions) -> list[Problem]:
    """Return the gaps in the wanted offsets, if records are searched for in partitions' folders."""
    out: list[Problem] = []
    if spec.log.wanted.everything:
        return out
    for uri in dict.fromkeys(normal_uri(file.shown).rpartition("/")[0] for file in files if not file.named):
        parent, _, folder = uri.rpartition("/")
        for archived in list_folder(open_root(parent or "/"), folder).partitions.values():
            if options.config.topic_settings(archived.topic).gaps != "accept":
                out += gaps_of_folder(archived.segments, archived.traces, spec.log.wanted)
    return out


def _files(path: str, ignored: list[str]) -> list[DumpFile]:
    """List the files of a path; those of tiered storage as a log directory has them."""
    root = open_root(normal_uri(path))
    files = [] if root.is_tiered else list(list_files([path], ignored=ignored))
    found = {(file.path.rpartition("/")[0], file.path.rpartition("/")[2]) for file in files if not file.named}
    if any(holds_segments(root, folder.removeprefix(root.base).strip("/"), (name,)) for folder, name in found):
        root = root.as_tiered()
    if root.is_tiered:
        listed = list_files([root.base], root.filesystem, ignored)
        files = [replace(file, shown=root.uri + file.path.removeprefix(root.base)) for file in listed]
    return files


def _listed(options: InspectOptions, ignored: list[str]) -> list[DumpFile]:
    """List the files to show. MissingPathError: a path is missing, or there is no file. UsageError: unknown topics."""
    files = [file for path in options.paths for file in _files(path, ignored)]
    for file in files:
        if file.size < 0:
            raise MissingPathError(path=file.shown, expected="a file or a folder", found="nothing")
    if not files:
        paths = ", ".join(options.paths)
        raise MissingPathError(path=paths, expected="log files, indexes, snapshots or checkpoints", found="none")
    of_topic = options.config.topic_settings
    files = [replace(f, max_batch_bytes=of_topic(folder_topic(f) or "").max_decompressed_batch_bytes) for f in files]
    if options.topics == EVERY_TOPIC:
        return files
    topics = [folder_topic(file) or "" for file in files]
    check_topics(options.topics, filter(None, topics), ", ".join(options.paths))
    wanted = options.topics
    return [  # a file without a topic, such as a checkpoint, stays unless topics are named
        file
        for file, topic in zip(files, topics, strict=True)
        if (wanted.takes(topic) if topic else not wanted.include)
    ]


def _is_search(files: Sequence[DumpFile], spec: DumpOptions, options: InspectOptions) -> bool:
    """Return whether to search in parallel: many bytes for few lines, or the user chose Spark."""
    if spec.log.wanted.everything:
        return False
    wants_spark = chosen_engine(options, writes=False) == "spark" or local_cores() is None
    return wants_spark or sum(file.size for file in files) > _SEARCH_BYTES


def _search(
    files: Sequence[DumpFile],
    spec: DumpOptions,
    options: InspectOptions,
    report: InspectReport,
    progress: Progress,
    write: Callable[[Any], object],
) -> DumpFindings:
    """Search in parallel; write what is found in the order of the files."""
    tasks = search_tasks(files, spec)
    findings = DumpFindings()
    sizes = [sum(file.size for file in task.files) for task in tasks]
    progress.start("inspect", sum(sizes), BYTES)
    results = each(search_files, tasks, "inspect: search", options, report, progress, sizes=sizes)
    _LOG.debug("engine: %s", report.work)
    for task, searched in zip(tasks, results, strict=True):
        for file, searched_file in zip(task.files, searched, strict=True):
            if searched_file.text is None:
                findings.add(dump_files([file], spec, write))
            else:
                write(searched_file.text)
                findings.add(searched_file.findings)
    progress.close()
    return findings


def _into_files(
    files: Sequence[DumpFile], spec: DumpOptions, options: InspectOptions, report: InspectReport, progress: Progress
) -> None:
    try:
        tasks = dump_tasks(files, spec, report.output or "")
    except ValueError as error:
        raise UsageError(message=f"--output: {error}; give them one at a time, an output for each") from error
    sizes = [task.file.size for task in tasks]
    progress.start("inspect", sum(sizes), BYTES)
    report.dumped += each(dump_to_file, tasks, "inspect: texts", options, report, progress, sizes=sizes)
    progress.close()
    report.n_problems = sum(f.n_problems for f in report.dumped)
    report.n_mismatches = sum(f.n_mismatches for f in report.dumped)


def _spec(options: InspectOptions) -> DumpOptions:
    (first, end), decode = options.offsets, None
    named = options.key_decoder, options.value_decoder
    by_key = options.key is not None and options.parts != "records"
    if options.decoder or options.parts in ("data", "values") or named != (None, None) or by_key:
        try:
            decode = record_decoder(options.decoder, *(name or "string" for name in named))
        except ValueError as error:
            raise UsageError(message=str(error)) from error
    wanted = RecordLimits(first or 0, RecordLimits.end_offset if end is None else end, *options.times, options.key)
    log = LogOptions(options.parts == "records" or decode is not None, decode, options.parts != "values", wanted)
    return DumpOptions(log, options.parts == "mismatches", options.as_json)


def _places(paths: Iterable[str]) -> Iterator[Place]:
    """Yield the folders that are read: named ones, partitions' folders of named files, the log directories of both."""
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
