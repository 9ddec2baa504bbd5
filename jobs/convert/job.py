"""`convert --to v3|v2 ARCHIVE --output DIR`: writes an archive again in another message format, without loss.

A task for each segment, or for consecutive small ones (udfs.convert_log). The output of an archive has its folders,
names and times: logs in the other format with their indexes, and copies of all other files that the listing knows. The
output of a store is one log directory, with the current generation of each partition.

An interrupted run leaves no partition that looks complete, and a rerun with the same arguments keeps the finished
segments (udfs.convert_log).
"""

from __future__ import annotations

import hashlib
import posixpath
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from lastkey.jobs.archive.broker_lock import locked
from lastkey.jobs.archive.listing import listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import Place, check_apart, check_outside
from lastkey.jobs.command.options import ConvertOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, counted
from lastkey.jobs.command.stopping import EarlyEndError
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import CONVERT_FULL, NOT_EMPTY
from lastkey.jobs.restore.choose_generations import check_files, choose, list_apart
from lastkey.jobs.restore.job import convert_settings, generation_checkpoints
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.jobs.store.generations import open_store
from lastkey.logformat import names
from lastkey.logformat.errors import is_full
from lastkey.logformat.listing import Segment
from lastkey.udfs.convert_log import (
    MARK,
    ConvertSettings,
    ConvertTask,
    SmallFile,
    close_folder,
    convert_segments,
    mark,
    open_folder,
    sums,
    unmark,
    whole_segments,
)
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, exists, file_size, links_below, make_folders, normal_uri, open_root, write_file


@dataclass
class ConvertedPartition:
    """Counts of one partition."""

    topic: str
    partition: int
    segments: int = 0
    kept: int = 0  # segments that an earlier, interrupted run has converted; their batches are not counted
    batches: int = 0
    changed: int = 0  # batches that have the other format now
    bytes_before: int = 0  # size of the logs before
    bytes_after: int = 0


@dataclass
class ConvertReport(JobReport):
    """Report of all partitions. Problems: folders that cannot be listed, and logs that cannot be read."""

    job = "convert"
    done = "{partitions:partition} converted to {to} in {output}"
    facts = "archive output to partitions"
    text_tables = (
        TextTable(
            "partitions",
            "partition segments batches changed bytes_before:before bytes_after:after",
            total="partition",
            needs_attention=lambda p: p.changed > 0,
        ),
    )

    archive: str
    output: str
    to: str
    partitions: list[ConvertedPartition] = field(default_factory=list)

    def _lines(self) -> Iterable[str]:
        if kept := sum(p.kept for p in self.partitions):
            yield f"kept of a run that was cut off: {counted(kept, 'segment')}; batches are those of this run"


_TASK_BYTES = 64 << 20  # consecutive segments of a partition up to this size make up one task


@dataclass
class _Partition:
    """A partition to convert."""

    topic: str
    partition: int
    folder: str  # below the output
    segments: Sequence[Segment]
    copies: Sequence[SmallFile]


@dataclass
class _Plan:
    """All that is to be written."""

    source: str  # URI
    partitions: list[_Partition] = field(default_factory=list)
    copies: list[SmallFile] = field(default_factory=list)  # beside the partitions
    files: list[tuple[str, bytes]] = field(default_factory=list)  # the same: path and bytes
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def run(options: ConvertOptions, progress: Progress) -> ConvertReport:
    """Convert the partitions of the topics."""
    started = time.perf_counter()
    output = normal_uri(options.output)
    root = open_root(output)
    _check_begun(root)
    plan = _plan_archive(options, output) if options.store is None else _plan_store(options, options.store, output)
    report = ConvertReport(plan.source, output, options.to, notes=plan.notes, other_problems=plan.problems)
    report.seconds["list"] = time.perf_counter() - started
    if root.is_local:
        make_folders(Path(root.base))
    try:
        with locked([Path(root.base)]) if root.is_local else nullcontext():
            _begin(root, options, plan)
            _convert(options, plan, root, report, progress)
            step("archive converted")
            unmark(root)
    except OSError as error:
        if is_full(error):
            raise CONVERT_FULL(path=error.filename or output, found=error.strerror or "disk full") from error
        raise
    except (KeyboardInterrupt, EarlyEndError) as error:
        error.add_note("run it again to continue with what is there")
        raise
    report.other_problems.sort(key=lambda problem: (problem.path, problem.position))
    return report


def _begin(output: Root, options: ConvertOptions, plan: _Plan) -> None:
    """Mark the output as unfinished. Raise NOT_EMPTY if it holds anything but the beginning of this conversion."""
    _check_begun(output)  # again: planning takes a while
    files = [(one.folder, one.segments, one.copies, _settings(options, one.topic)) for one in plan.partitions]
    digest = hashlib.sha256(repr((files, plan.copies, plan.files)).encode()).hexdigest()
    if not mark(output, f"{plan.source} to {options.to}, not finished; SHA-256 of what is planned: {digest}\n"):
        found = f"{MARK} of another conversion, or of this one before its source or settings changed"
        raise NOT_EMPTY(path=output.uri, found=found)


def _check_begun(output: Root) -> None:
    """Raise NOT_EMPTY unless the output is empty, or was begun by a conversion and holds no symbolic link."""
    if file_size(output, MARK) is None:
        check_empty(output)
    elif (link := next(links_below(output), None)) is not None:
        raise NOT_EMPTY(path=output.uri, found=f"{link}: a symbolic link")


def _plan_archive(options: ConvertOptions, output: str) -> _Plan:
    plan = _Plan(normal_uri(options.archive or ""))
    archive = listed(plan.source, options.topics)
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, plan.source)
    check_apart(Place("--output", output), Place("the archive", plan.source))
    check_outside(Place("--output", output), archive)
    plan.notes += archive.notes
    plan.problems += archive.unreadable
    uri = archive.root.uri
    for _, partition in sorted(archive.partitions.items()):
        if partition.problem is not None:
            plan.problems.append(partition.problem)
        kept = [s.txn_index for s in partition.segments if s.txn_index is not None]
        kept += [*partition.snapshots.values(), *partition.orphans.values(), *partition.side_files.values()]
        copies = [SmallFile(uri, path, posixpath.relpath(path, partition.path)) for path in kept]
        plan.partitions.append(
            _Partition(partition.topic, partition.partition, partition.path, partition.segments, copies)
        )
    for folder in sorted({posixpath.dirname(partition.folder) for partition in plan.partitions}):
        for name in (*names.OFFSET_CHECKPOINTS, names.META_PROPERTIES):
            path = posixpath.join(folder, name)
            if exists(archive.root, path):
                plan.copies.append(SmallFile(uri, path, path))
    return plan


def _plan_store(options: ConvertOptions, uri: str, output: str) -> _Plan:
    """Plan what `restore` would copy. Raises its errors for files that are missing."""
    tables = open_store(uri)
    store = tables.root
    check_apart(Place("--output", output), Place("the store", store.uri))
    targets = choose(tables, options.topics, None)
    manifests = tables.manifests(targets)
    archives = {t.archive_uri: open_root(normal_uri(t.archive_uri)) for t in targets}
    list_apart(open_root(output), archives, RestoreOptions(uri, output, config=options.config, topics=options.topics))
    side_files = check_files(tables, store, archives, targets, manifests)
    plan = _Plan(store.uri)
    for t in targets:
        segments = [
            replace(s, root=store.uri if s.root == "store" else archives[t.archive_uri].uri) for s in manifests[t.key]
        ]
        made_again = {
            names.segment_file(s.base_offset, kind)
            for s in manifests[t.key]
            for kind in (names.INDEX, names.TIME_INDEX)
        }
        kept = [name for name in side_files[t.key] if name not in made_again]
        copies = [SmallFile(store.uri, f"{t.folder}/{name}", name) for name in kept]
        plan.partitions.append(_Partition(t.topic, t.partition, t.name, segments, copies))
    plan.files += generation_checkpoints(targets, manifests)
    return plan


def _convert(options: ConvertOptions, plan: _Plan, output: Root, report: ConvertReport, progress: Progress) -> None:
    beside = ConvertTask(output.uri, "", (), tuple(plan.copies), _settings(options, ""))
    report.other_problems += convert_segments(beside).problems
    for path, data in plan.files:
        write_file(output, path, data)
    planned = []
    for partition in plan.partitions:
        folder = open_folder(output, partition.folder, (segment.base_offset for segment in partition.segments))
        if folder is None:
            report.partitions.append(_kept(partition, output))
        else:
            planned.append((partition, list(_tasks(options, partition, output.uri, folder))))
    tasks = [task for _, of in planned for task in of]
    n_bytes = sum(map(_size, tasks))
    progress.start("convert", n_bytes, BYTES)
    with workers(chosen_engine(options, writes=True), n_bytes, options.config, report, progress) as engine_workers:
        watcher = CountedBytes(progress, [*map(_size, tasks)])
        results = iter(engine_workers.run(convert_segments, tasks, "convert: segments", watcher))
        for partition, of in planned:
            parts = [next(results) for _ in of]
            step("partition converted")
            close_folder(output, partition.folder)
            report.partitions.append(ConvertedPartition(partition.topic, partition.partition, **sums(parts)))
            report.other_problems += [problem for part in parts for problem in part.problems]
        engine_workers.count(
            bytes_read=sum(p.bytes_before for p in report.partitions),
            bytes_written=sum(p.bytes_after for p in report.partitions),
        )
    report.partitions.sort(key=lambda p: (p.topic, p.partition))
    progress.close()


def _kept(partition: _Partition, output: Root) -> ConvertedPartition:
    """Return the result of a partition that an earlier run has finished, by its files."""
    n, after = len(partition.segments), sum(whole_segments(output, partition.folder).values())
    before = sum(segment.size_bytes for segment in partition.segments)
    return ConvertedPartition(partition.topic, partition.partition, n, n, bytes_before=before, bytes_after=after)


def _size(task: ConvertTask) -> int:
    return sum(segment.size_bytes for segment in task.segments)


def _settings(options: ConvertOptions, topic: str) -> ConvertSettings:
    return convert_settings(options.config, topic, 3 if options.to == "v3" else 2)


def _tasks(options: ConvertOptions, partition: _Partition, output: str, folder: str) -> Iterator[ConvertTask]:
    settings, copies = _settings(options, partition.topic), tuple(partition.copies)
    parts = [*groups(partition.segments, lambda s: s.size_bytes, _TASK_BYTES)] or [()]
    for number, part in enumerate(parts):
        yield ConvertTask(output, folder, part, () if number else copies, settings)
