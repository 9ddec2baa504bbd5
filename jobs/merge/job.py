"""`merge ARCHIVE... --output DIR`: the most complete log of several copies of a log directory.

A task for each partition (udfs.merge). The archives are only read. The output is a log directory that a broker loads
without recovery: checkpoints, and `.kafka_cleanshutdown` last of all. A partition whose copies contradict each other is
a problem and is left out; the others continue. A run that fails removes what it wrote.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import Place, check_apart, check_outside, lies_in
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.new_log_directory import encode_checkpoints, finish_log_directory, new_log_directory
from lastkey.jobs.command.options import MergeOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.command.reporting import with_io_counts
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import LOG_DIRECTORY_IN_USE, MissingPathError, UsageError
from lastkey.jobs.merge.report import MergeReport
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.merge.copies import LogCopy, MergedPartition, MergeSettings, MergeTask
from lastkey.udfs.merge.merge_partition import merge_partition
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, delete_folder, folder_identity, normal_uri, open_root

Key = tuple[str, int]


@with_io_counts
def run(options: MergeOptions, progress: Progress) -> MergeReport:
    """Merge the partitions of the topics."""
    started = time.perf_counter()
    output = open_root(normal_uri(options.output))
    report = MergeReport([normal_uri(uri) for uri in options.archives], output.uri, options.dry_run)
    places = list(_places(options, report.archives))
    _check_different(places)
    for uri in report.archives:
        check_apart(Place("--output", output.uri), Place("the archive", uri))
    check_empty(output)
    archives = [(place, _list(place, options, report)) for place in places]
    if not any(archive.partitions for _, archive in archives):
        check_holds_partitions(archives[0][1])
    report.notes += [f"{place.uri}: no partition of these topics" for place, one in archives if not one.partitions]
    for _, archive in archives:
        check_outside(Place("--output", output.uri), archive)
    found = {topic for _, archive in archives for topic in archive.topics}
    check_topics(options.topics, found, ", ".join(report.archives))
    tasks = list(_tasks(options, archives, report))
    report.seconds["list"] = time.perf_counter() - started
    if options.dry_run:
        _merge(options, [replace(task, output_uri="") for task in tasks], report, progress)
    else:
        _write(options, tasks, output, report, progress)
    return report


def _places(options: MergeOptions, uris: Sequence[str]) -> Iterator[Place]:
    """Yield the folders that are a copy each. Raise MissingPathError or UsageError if there are none."""
    for uri in uris:
        if options.layout == "copies":
            yield Place("the archive", uri)
            continue
        root = open_root(uri)
        try:
            entries, _ = text_entries(root.filesystem.get_file_info(pafs.FileSelector(root.base)))
        except FileNotFoundError:
            raise MissingPathError(path=uri, expected="a folder with a folder of each broker", found="none") from None
        brokers = sorted(one.base_name for one in entries if one.type == pafs.FileType.Directory)
        for name in brokers:
            files = root.filesystem.get_file_info(pafs.FileSelector(root.full(name)))
            if any(names.parse_segment_file(one.base_name) is not None for one in text_entries(files)[0]):
                message = f"--layout replicas: {uri}: expected a folder of each broker, found the partition {name}"
                raise UsageError(message=f"{message}; leave out --layout")
            path, mark, options_of = uri.partition("?")  # the URI of a bucket may have options
            yield Place("the broker's folder", f"{path.rstrip('/')}/{name}{mark}{options_of}")


def _check_different(places: Sequence[Place]) -> None:
    """Raise UsageError if there are not two copies, or one is inside another."""
    for one, other in combinations(places, 2):
        for inner, outer in ((one, other), (other, one)):
            if lies_in(inner.uri, outer.uri):
                raise UsageError(message=f"{inner.uri} and {outer.uri} are the same folder, or one lies in the other")
    if len(places) < 2:
        hint = "name each copy, or give --layout replicas for a folder with a folder of each broker"
        raise UsageError(message=f"merge needs two copies or more, found {len(places)}; {hint}")


def _list(place: Place, options: MergeOptions, report: MergeReport) -> Archive:
    archive = listed(place.uri, options.topics)
    report.notes += archive.notes
    report.notes += [f"{problem}; this copy is left out" for problem in archive.unreadable]
    held = next((one for one in archive.partitions.values() if one.held_by_broker), None)
    if held is not None:
        folder = posixpath.dirname(archive.root.full(held.path))
        raise LOG_DIRECTORY_IN_USE(path=folder, found="a running broker that holds it")
    return archive


def _tasks(
    options: MergeOptions, archives: Sequence[tuple[Place, Archive]], report: MergeReport
) -> Iterator[MergeTask]:
    """Yield a task for each partition; add those of different topics to the report."""
    keys = sorted({key for _, archive in archives for key in archive.partitions})
    shown = _names([place.uri for place, _ in archives])
    for key in keys:
        copies = [
            _copy(name, archive.root, archive.partitions.get(key))
            for name, (_, archive) in zip(shown, archives, strict=True)
        ]
        _check_folders(key, archives)
        topic, partition = key
        if (problem := _other_topic(copies)) is not None:
            report.partitions.append(MergedPartition(topic, partition, problems=[problem], refused=True))
            continue
        folder = names.partition_folder(topic, partition)
        yield MergeTask(
            topic, partition, tuple(copies), _settings(options.config, topic), normal_uri(options.output), folder
        )


def _names(uris: Sequence[str]) -> list[str]:
    """Return what the report calls the copies: the parts of their paths that differ."""
    paths = ["/" + (uri.partition("://")[2] or uri).partition("?")[0].strip("/") for uri in uris]
    above = posixpath.commonpath(paths)
    shown = [path.removeprefix(above).strip("/") or uri for path, uri in zip(paths, uris, strict=True)]
    return shown if len(set(shown)) == len(shown) else list(uris)


def _copy(name: str, root: Root, found: ArchivedPartition | None) -> LogCopy:
    if found is None:
        return LogCopy(name, root.uri, "", problem=None)
    return LogCopy(
        name,
        found.root,
        found.path,
        tuple(found.segments),
        found.leader_epochs,
        found.topic_id,
        found.log_start_checkpoint or 0,
        found.cleaner_checkpoint or 0,
        max(found.high_watermark or 0, *found.snapshots, *(base + 1 for base in found.orphans), 0),
        found.problem,
    )


def _check_folders(key: Key, archives: Sequence[tuple[Place, Archive]]) -> None:
    """Raise UsageError if two copies of a partition are one folder, such as by a link below the archives."""
    seen: dict[tuple[int, int], str] = {}
    for _, archive in archives:
        one = archive.partitions.get(key)
        identity = None
        with suppress(OSError):
            identity = folder_identity(archive.root, one.path) if one is not None else None
        if one is None or identity is None:
            continue
        path = archive.root.full(one.path)
        if identity in seen:
            raise UsageError(message=f"{seen[identity]} and {path} are the same folder: each copy counts once")
        seen[identity] = path


def _other_topic(copies: Sequence[LogCopy]) -> Problem | None:
    """Return the problem of copies with different topic ids."""
    known = [copy for copy in copies if copy.topic_id is not None]
    for copy in known[1:]:
        if copy.topic_id != known[0].topic_id:
            expected = f"topic id {known[0].topic_id}, as in {known[0].place}"
            hint = "copies of different topics are not merged: leave out one of the two"
            return Problem("duplicate", copy.place, NO_POSITION, expected, f"{copy.topic_id}", hint=hint)
    return None


def _settings(config: Config, topic: str) -> MergeSettings:
    settings = config.topic_settings(topic)
    expiration_ms, segment_bytes = settings.producer_id_expiration_ms, settings.segment_bytes
    return MergeSettings.of(
        settings, config.job.chunk_bytes, segment_bytes=segment_bytes, producer_id_expiration_ms=expiration_ms
    )


def _write(
    options: MergeOptions, tasks: Sequence[MergeTask], output: Root, report: MergeReport, progress: Progress
) -> None:
    """Write the log directory. If that fails, or is interrupted, remove what was written."""
    with new_log_directory(output) as created:
        created.trees += [task.folder for task in tasks]
        _merge(options, tasks, report, progress)
        for p in report.partitions:
            if p.refused:
                with suppress(FileNotFoundError):  # refused before anything was written
                    delete_folder(output, names.partition_folder(p.topic, p.partition))
        finish_log_directory(created, _encode_checkpoints([p for p in report.partitions if not p.refused]))


def _merge(options: MergeOptions, tasks: Sequence[MergeTask], report: MergeReport, progress: Progress) -> None:
    sizes = [sum(s.size_bytes for copy in task.copies for s in copy.segments) for task in tasks]
    progress.start("merge", sum(sizes), BYTES)
    with workers(chosen_engine(options, writes=True), sum(sizes), options.config, report, progress) as made:
        try:
            merged = made.run(merge_partition, tasks, "merge: partitions", CountedBytes(progress, sizes))
        except BaseException as error:  # wait for the other tasks, so that their output can be removed
            made.cancel([])
            if not made.await_end() and not options.dry_run:
                error.add_note(f"a task may still write into {options.output}: remove the folder before the next run")
            raise
        made.count(bytes_read=sum(sizes), bytes_written=sum(p.bytes for p in merged))
    report.partitions = sorted([*report.partitions, *merged], key=lambda p: (p.topic, p.partition))
    for p in report.partitions:
        p.problems += [_gap(p, first, until) for first, until in p.gaps]
        report.notes += [f"{p.topic}-{p.partition}: {note}" for note in _notes(p, options)]
    progress.close()


def _gap(p: MergedPartition, first: int, until: int) -> Problem:
    name = names.partition_folder(p.topic, p.partition)
    hint = "a consumer skips them; bring another copy, or accept the loss"
    return Problem("gap", name, NO_POSITION, f"a copy with offsets {first} to {until - 1}", "none", first, hint, "gap")


def _notes(p: MergedPartition, options: MergeOptions) -> Iterator[str]:
    if p.topic_id is None and not p.refused and not options.dry_run:
        yield (
            f"no copy has {names.PARTITION_METADATA}: a KRaft broker takes the folder for stray; write a line "
            "'version: 0' and a line 'topic_id: ID' into it, with the ID of kafka-topics --describe"
        )


def _encode_checkpoints(partitions: Sequence[MergedPartition]) -> Iterator[tuple[str, bytes]]:
    ends = {(p.topic, p.partition): p.next_offset for p in partitions}
    cleaned = {(p.topic, p.partition): p.cleaned_until for p in partitions if p.cleaned_until}
    starts = {
        (p.topic, p.partition): p.log_start_offset for p in partitions if p.log_start_offset > p.first_base_offset
    }
    return encode_checkpoints(ends, cleaned, starts)
