"""A generation of the store -> a log directory that a broker starts on with no recovery.

  checkpoints, or manifests of older generations -> which files, from the store and the archive (no file is written yet)
  every file is there, at least as long as its row states -> copies, checksum by checksum, partitions in parallel
     (batches of magic 3 become magic 2, and the indexes of their files new ones)
  -> recovery-point, high watermark, cleaner and log-start checkpoints -> .kafka_cleanshutdown, last of all

The archive and the store are only read. If two restores write to one folder, one continues; in a bucket, which has no
locks, the later one finds what the other has written by then. A restore that fails removes only what it wrote: files
that another process put into the folder meanwhile stay, and the error names them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.archive.places import Place, check_apart, is_same
from lastkey.jobs.command.config import Config, TopicSettings
from lastkey.jobs.command.functions import imported
from lastkey.jobs.command.new_log_directory import (
    CreatedFiles,
    encode_checkpoints,
    finish_log_directory,
    new_log_directory,
)
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import counted, size, with_io_counts
from lastkey.jobs.command.stopping import await_result
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import (
    BAD_LOG_START,
    NOT_CLEANED,
    OTHER_FORMAT,
    RUNNING_MEANWHILE,
    ConflictError,
    RunningError,
    UsageError,
)
from lastkey.jobs.restore.choose_generations import (
    before_resets,
    check_files,
    choose,
    choose_at_time,
    left_out,
    list_apart,
)
from lastkey.jobs.restore.copy_files import check_checksum, compute_checksum, copy_log, copy_small, finish
from lastkey.jobs.restore.report import TRANSACTION_STATE, RestoredPartition, RestoreReport, advice
from lastkey.jobs.restore.topic_ids import GivenTopic, is_beyond_topic, read_topic_ids
from lastkey.jobs.store.generations import current_commits, open_store
from lastkey.jobs.store.rows import Checkpoint, RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key, TopicFilter
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.checkpoints import format_uuid, read_partition_metadata, write_partition_metadata
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.logformat.storage.io_counts import limited
from lastkey.udfs.convert_log import ConvertedLog, ConvertSettings, convert_log, holds_magic_3
from lastkey.udfs.last_records import segment_end
from lastkey.udfs.problem import timed
from lastkey.udfs.segments import cleaner_checkpoint, side_checksums
from lastkey.udfs.storage import Root, normal_uri, open_root, read_file, same_kind, write_file

if TYPE_CHECKING:
    from lastkey.jobs.compact.report import CompactReport

_THREADS = 2 * (os.cpu_count() or 1)


@dataclass(frozen=True)
class RestorePlan:
    """Generations to restore, and the files that they use."""

    store: Root
    archives: Mapping[str, Root]  # by their URIs when the generations were written
    targets: Sequence[Checkpoint]
    manifests: Mapping[Key, Sequence[Segment]]
    side_files: Mapping[Key, Sequence[str]]
    topic_ids: Mapping[str, GivenTopic]  # topic ids of the target cluster, as far as they are given


@with_io_counts
def run(options: RestoreOptions, progress: Progress) -> RestoreReport:
    """Restore the current generation, or `options.generation`, of every partition that the topics name."""
    began = time.monotonic()
    output = open_root(normal_uri(options.output))
    check_empty(output)
    tables = open_store(options.store)
    check_apart(Place("--output", output.uri), Place("the store", tables.root.uri))
    report = RestoreReport(output.uri)
    targets = _targets(tables, options, report.notes)
    topic_ids = read_topic_ids(options.topic_ids, {target.topic for target in targets})
    manifests = tables.manifests(targets)
    archives = _archives(options, targets)
    listed = list_apart(output, archives, options)
    if options.full_clean and (cleaned := clean_first(tables, options, targets, manifests, progress)):
        done = counted(len(cleaned.generations), "partition")
        report.notes += [f"first cleaned {done}, in run {cleaned.run_id}", *cleaned.notes]
        report.work = cleaned.work
        report.seconds["clean"] = cleaned.seconds["total"]
        targets = choose(tables, options.topics, None)
        manifests = tables.manifests(targets)
        archives |= _archives(options, targets)
    side_files = check_files(tables, tables.root, archives, targets, manifests)
    report.notes += before_resets(tables, targets) if options.generation or options.as_of is not None else []
    report.seconds["plan"] = round(time.monotonic() - began - report.seconds.get("clean", 0.0), 3)
    report.other_problems += left_out(tables, options.topics, listed)
    plan = RestorePlan(tables.root, archives, targets, manifests, side_files, topic_ids)
    report.partitions = _restore(plan, output, options.config, progress)
    report.topic_ids = options.topic_ids
    report.notes += advice(report.partitions, options.topic_ids)
    _list_beyond(report, listed, targets, manifests)
    return report


def _targets(tables: State, options: RestoreOptions, notes: list[str]) -> list[Checkpoint]:
    """Return the generations to restore. Raise BAD_LOG_START if the log of one ends below its start."""
    if options.as_of is None:
        targets = choose(tables, options.topics, options.generation)
    else:
        targets = choose_at_time(tables, options.topics, options.as_of, notes)
    for target in targets:
        if target.log_start_offset > target.next_offset:
            shown = f"{target.name}, generation {target.generation}"
            raise BAD_LOG_START(path=shown, expected=target.next_offset, found=target.log_start_offset)
    return targets


def _restore(plan: RestorePlan, output: Root, config: Config, progress: Progress) -> list[RestoredPartition]:
    """Write the whole log directory. If that fails, or is interrupted, remove what was written."""
    progress.start("restore", sum(s.size_bytes for rows in plan.manifests.values() for s in rows), "B")
    with new_log_directory(output) as created:
        try:
            with limited(config.job.max_bytes_per_second), ThreadPoolExecutor(_THREADS) as pool:
                jobs = [
                    pool.submit(_restore_partition, t, plan, created, convert_settings(config, t.topic, 2), progress)
                    for t in plan.targets
                ]
                try:
                    partitions = [await_result(job) for job in jobs]
                except BaseException:
                    created.given_up = True  # each thread finishes the file that it copies
                    pool.shutdown(cancel_futures=True)
                    raise
            finish_log_directory(created, generation_checkpoints(plan.targets, plan.manifests))
        except FileNotFoundError as error:  # such as an older generation's, by a vacuum
            expected = "the files that it held when this run began"
            raise ConflictError(path=plan.store.uri, expected=expected, found=in_one_line(str(error))) from error
    return partitions


def convert_settings(config: Config, topic: str, magic: Literal[2, 3]) -> ConvertSettings:
    """Return the settings that decide the bytes of a topic's converted logs and indexes."""
    return ConvertSettings.of(config.topic_settings(topic), config.job.chunk_bytes, magic=magic)


def _archives(options: RestoreOptions, targets: Sequence[Checkpoint]) -> dict[str, Root]:
    """Open the archives that generations use, by their URIs then."""
    return {
        t.archive_uri: open_root(same_kind(normal_uri(options.archive or t.archive_uri), t.archive_uri))
        for t in targets
    }


def _restore_partition(
    target: Checkpoint, plan: RestorePlan, created: CreatedFiles, formats: ConvertSettings, progress: Progress
) -> RestoredPartition:
    """Copy a generation's files. A broker reads magic 2 alone, so a log with batches of magic 3 becomes another one."""
    segments = plan.manifests[target.key]
    cleaned = [s for s in segments if s.base_offset < target.first_dirty_offset]
    until = cleaner_checkpoint(segments, target.first_dirty_offset)
    out = RestoredPartition(
        target.topic,
        target.partition,
        target.generation,
        target.log_start_offset,
        target.next_offset,
        cleaned_until=until,
        cleaned_bytes=sum(s.size_bytes for s in cleaned),
        cleaned_again_bytes=sum(s.size_bytes for s in cleaned if s.next_offset > until),
    )
    output = created.folder(target.name)
    indexes: dict[int, dict[str, bytes]] = {}  # indexes of segments that a broker could not read: base -> kind -> bytes
    mtimes = {s.base_offset: s.mtime_ms for s in segments}
    sizes: dict[int, int] = {}
    with timed(target.name):
        for segment in segments:
            source = plan.store if segment.root == "store" else plan.archives[target.archive_uri]
            to = created.file(f"{target.name}/{names.segment_file(segment.base_offset, names.LOG)}")
            reflinked, converted = _restore_log(source, segment, output, to, formats)
            if converted is not None:
                files = {names.INDEX: converted.offset_index, names.TIME_INDEX: converted.time_index}
                indexes[segment.base_offset] = files
            finish(output, to, segment.mtime_ms)
            out.reflinked += reflinked
            out.converted += converted is not None
            out.segments += 1
            out.from_archive += segment.root == "archive"
            sizes[segment.base_offset] = segment.size_bytes if converted is None else converted.size
            progress.advance(segment.size_bytes)
    out.bytes = sum(sizes.values())
    checksums = side_checksums(s.side_files for s in segments)
    for name in plan.side_files[target.key]:
        if name == names.PARTITION_METADATA and target.topic in plan.topic_ids:
            continue  # the file belongs to another cluster
        to = created.file(f"{target.name}/{name}")
        file = names.parse_segment_file(name)
        rebuilt = indexes.get(file.base, {}).get(file.kind) if file is not None else None
        if rebuilt is None:
            out.bytes += copy_small(plan.store, f"{target.folder}/{name}", output, to, checksums.get(name))
        else:
            write_file(output, to, rebuilt)
            out.bytes += len(rebuilt)
        finish(output, to, mtimes.get(file.base) if file is not None and file.kind != names.SNAPSHOT else None)
    _add_topic_id(out, plan, output, created)
    finish(output, target.name, None)
    _add_ends(out, sizes, output, target.name, formats.max_batch_bytes)
    return out


def _add_topic_id(out: RestoredPartition, plan: RestorePlan, output: Root, created: CreatedFiles) -> None:
    """Write the topic id that is given, and add to the result which id the output has."""
    path = f"{out.topic}-{out.partition}/{names.PARTITION_METADATA}"
    given = plan.topic_ids.get(out.topic)
    out.is_beyond_topic = is_beyond_topic(given, out.partition)
    if given is not None:
        out.topic_id, out.topic_id_is_given = format_uuid(given.topic_id), True
        write_file(output, created.file(path), write_partition_metadata(given.topic_id))
        finish(output, path, None)
    elif names.PARTITION_METADATA in plan.side_files[out.topic, out.partition]:
        out.topic_id = format_uuid(read_partition_metadata(read_file(output, path), f"{output.uri}/{path}"))


def _restore_log(
    source: Root, segment: Segment, output: Root, to: str, formats: ConvertSettings
) -> tuple[bool, ConvertedLog | None]:
    """Copy a segment's log, or convert it if it has batches of magic 3. Return whether the copy is a reflink, and the
    converted log.
    """
    newer, reflinked = _holds_magic_3(segment), False
    if not newer:
        reflinked = copy_log(source, segment.path, output, to, segment.size_bytes, segment.checksum)
    if newer is None:  # the headers show it; those of the copy, where each look at the source costs a request
        looked_at = (source, segment.path) if source.is_local else (output, to)
        newer = holds_magic_3(*looked_at, segment.size_bytes)
    return (False, _in_magic_2(source, segment, output, to, formats)) if newer else (reflinked, None)


def _add_ends(
    out: RestoredPartition, sizes: Mapping[int, int], output: Root, folder: str, max_batch_bytes: int
) -> None:
    """Add the last visible record, and whether a segment ends in an empty batch, as the output has them; leave them
    unknown if a log cannot be read. sizes: bytes of each `.log` by its base.
    """
    try:
        last, of_transactions = -1, out.topic == TRANSACTION_STATE
        for base, size_bytes in sorted(sizes.items(), reverse=True):
            index = read_file(output, f"{folder}/{names.segment_file(base, names.INDEX)}", size_bytes)
            log = f"{folder}/{names.segment_file(base, names.LOG)}"
            end = segment_end(output, log, size_bytes, base, index, max_batch_bytes)
            last = max(last, end.last_record)
            out.ends_in_empty_batch |= end.ends_in_empty_batch and of_transactions
            if last >= 0 and not of_transactions:
                break
        out.last_visible_offset = last if last >= out.log_start_offset else -1
    except LogFormatError:
        return


def _holds_magic_3(segment: Segment) -> bool | None:
    """Return whether a segment holds magic 3, by the manifest; None: an older manifest, without `magics`."""
    return None if segment.magics is None else "3" in segment.magics.split(",")


def _in_magic_2(source: Root, segment: Segment, output: Root, to: str, formats: ConvertSettings) -> ConvertedLog:
    shown, size_bytes = f"{source.uri}/{segment.path}", segment.size_bytes
    try:
        converted = convert_log(segment, source, output, to, formats)
    except LogFormatError as error:
        check_checksum(shown, size_bytes, segment.checksum, compute_checksum(source, segment.path, size_bytes))
        raise OTHER_FORMAT(
            path=shown,
            position=error.position,
            expected=error.expected,
            found="; ".join(filter(None, (error.found, error.hint))),
        ) from error
    check_checksum(shown, size_bytes, segment.checksum, converted.source_checksum)
    return converted


def generation_checkpoints(
    targets: Sequence[Checkpoint], manifests: Mapping[Key, Sequence[Segment]]
) -> Iterator[tuple[str, bytes]]:
    """Return name and bytes of the checkpoints of a log directory that holds these generations."""
    ends = {t.key: t.next_offset for t in targets}
    cleaned = {t.key: cleaner_checkpoint(manifests[t.key], t.first_dirty_offset) for t in targets}
    starts = {  # Kafka writes only those above the first segment's base, which implies the others
        t.key: t.log_start_offset
        for t in targets
        if t.log_start_offset > (manifests[t.key][0].base_offset if manifests[t.key] else 0)
    }
    return encode_checkpoints(ends, cleaned, starts)


def _list_beyond(
    report: RestoreReport,
    listed: Mapping[str, Archive | None],
    targets: Sequence[Checkpoint],
    manifests: Mapping[Key, Sequence[Segment]],
) -> None:
    """Report what the archive holds at or beyond each partition's end, and partitions that the store does not hold."""
    ends = {t.key: t.next_offset for t in targets}
    named = {problem.path for problem in report.problems}
    for uri, archive in listed.items():
        if archive is None:
            report.notes.append(f"{uri}: the archive cannot be read, so what it holds beyond the store is unknown")
            continue
        for key, partition in sorted(archive.partitions.items()):
            if names.partition_folder(*key) in named:
                continue
            if key not in ends:
                total = sum(s.size_bytes for s in partition.segments)
                report.beyond.append(f"{partition.path}: {counted(len(partition.segments), 'segment')}, {size(total)}")
                continue
            used = {s.path: s.size_bytes for s in manifests[key] if s.root == "archive"}
            report.beyond += [
                f"{s.path}: {size(s.size_bytes - used.get(s.path, 0))} from offset {max(s.base_offset, ends[key])} on"
                for s in partition.segments
                if s.size_bytes > used.get(s.path, s.size_bytes if s.base_offset < ends[key] else 0)
            ]


def clean_first(
    tables: State,
    options: RestoreOptions,
    targets: Sequence[Checkpoint],
    manifests: Mapping[Key, Sequence[Segment]],
    progress: Progress,
) -> CompactReport | None:
    """Commit a new generation, with all cleaned, of each topic with a partition that is not clean as a broker means it;
    return the report of that run. None: there is no such topic. NOT_CLEANED: a partition is uncleanable.
    UsageError: the archive has moved.
    """
    behind = [t for t in targets if cleaner_checkpoint(manifests[t.key], t.first_dirty_offset) < t.first_dirty_offset]
    if not behind:
        return None
    archive, topics = behind[0].archive_uri, sorted({t.topic for t in behind})  # a store serves one archive
    if options.archive is not None and not is_same(normal_uri(options.archive), archive):
        raise UsageError(
            message=f"--full-clean: expected the archive of this store, {archive}, found --archive {options.archive}; "
            "move it back, or leave out --full-clean, and the broker cleans"
        )
    asked = CompactOptions(
        archive=archive,
        store=tables.root.uri,
        now_ms=time.time_ns() // 1_000_000,
        config=_with_settings_of_runs(options.config, tables, topics),
        topics=TopicFilter(tuple(topics)),
        force=True,
    )
    try:
        cleaned: CompactReport = imported("compact").run(asked, progress)
    except RunningError as error:
        raise RUNNING_MEANWHILE(**error.fields) from error
    if cleaned.conflict:
        raise ConflictError(path=tables.root.uri, expected="no other run on these topics", found=cleaned.conflict)
    for problem in cleaned.problems:
        raise NOT_CLEANED(**{name: getattr(problem, name) for name in ("path", "position", "expected", "found")})
    return cleaned


def _with_settings_of_runs(config: Config, tables: State, topics: Collection[str]) -> Config:
    """Return settings in which each topic without a cleanup.policy of its own has those of its last run."""
    rows = (row for key, row in tables.checkpoints().items() if key[0] in topics)
    runs = [commit.run for commit in current_commits(tables.root, rows)]
    last = {run.topic: run for run in sorted(runs, key=lambda run: run.now_ms)}
    of_runs = {topic: _parse_settings(run) for topic, run in last.items() if not config.topic_settings(topic).compacts}
    return replace(config, topics={**of_runs, **config.topics})


def _parse_settings(run: RunRow) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(run.settings)
    expires = settings["retention_ms"] >= 0 or settings["retention_bytes"] >= 0
    policy = ("compact",) * settings["compacts"] + ("delete",) * expires
    return {name: value for name, value in settings.items() if name in TopicSettings.__dataclass_fields__} | {
        "cleanup_policy": policy
    }
