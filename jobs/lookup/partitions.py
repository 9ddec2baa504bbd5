"""Partitions that a look-up searches, of an archive or of a store's generations.

Of a generation the manifest names the files and their times. `open_partition` opens one partition of an archive for a
Python program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

from lastkey.jobs.archive.listing import list_folder, listed
from lastkey.jobs.command.config import Gaps
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.parse import check_location, check_topics, nearest
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.data_source.files import source_partition
from lastkey.jobs.data_source.store import generation_partition
from lastkey.jobs.errors import MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.store.generations import file_names, nobody_has, open_store, readable_at
from lastkey.jobs.topics import TopicFilter, select_topics
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import parse_partition_folder
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.lookup.queries import Partition, open_whole
from lastkey.udfs.storage import exists, normal_uri, open_root, read_file


def list_partitions(options: LookupOptions, report: JobReport) -> list[SourcePartition]:
    """Return the wanted logs in order. Add notes, and folders that cannot be listed, to the report."""
    if options.archive is None:
        found = stored_partitions(options, report.notes)
    else:
        found = archived_partitions(normal_uri(options.archive), options.topics, report.notes, report.other_problems)
    chosen = _chosen(found, options.partitions, all_known=not report.other_problems)
    return [_with_settings(partition, options) for partition in chosen]


def _with_settings(partition: SourcePartition, options: LookupOptions) -> SourcePartition:
    settings = options.config.topic_settings(partition.key[0])
    traces = None if settings.gaps == "accept" else partition.traces
    return replace(partition, max_batch_bytes=settings.max_decompressed_batch_bytes, traces=traces)


def archived_partitions(
    uri: str, topics: TopicFilter, notes: list[str], problems: list[Any] | None = None
) -> list[SourcePartition]:
    """Return an archive's logs; add folders that cannot be listed to `problems`."""
    archive = listed(uri, topics)
    notes += archive.notes
    if problems is not None:
        problems += map(str, archive.unreadable)
    check_topics(topics, archive.topics, uri)
    for archived in archive.partitions.values():
        notes += [note for note in archived.notes if names.REBUILT not in note]
    return [source_partition(archived, archive.root) for archived in archive.partitions.values()]


def _chosen(found: Iterable[SourcePartition], wanted: Sequence[str], *, all_known: bool) -> list[SourcePartition]:
    """Return the wanted logs. UsageError for an unknown partition, unless it may be in an unreadable folder."""
    by_name = {partition.name: partition for partition in sorted(found, key=lambda partition: partition.key)}
    if not by_name and all_known:
        raise UsageError(message="no partition to look into")
    for name in wanted:
        if name not in by_name and all_known:
            raise UnknownNameError(message=f"no such partition: {name}", near=nearest(name, by_name))
    return [by_name[name] for name in dict.fromkeys(wanted) if name in by_name] if wanted else list(by_name.values())


def stored_partitions(options: LookupOptions, notes: list[str]) -> list[SourcePartition]:
    """Return each partition that has the wanted generation; add a note on each of the others."""
    tables = open_store(options.store or "")
    store = tables.root
    current = tables.checkpoints()
    check_topics(options.topics, (topic for topic, _ in current), store.uri)
    wanted = select_topics(options.topics, current)
    checkpoints_by_key = wanted if options.generation is None else readable_at(store, wanted, options.generation)
    notes += [
        f"{topic}-{partition}: it has no generation {options.generation}; left out"
        for topic, partition in wanted
        if (topic, partition) not in checkpoints_by_key
    ]
    if not checkpoints_by_key and options.generation is not None:
        raise nobody_has(options.generation)
    generations = [checkpoint for _, checkpoint in sorted(checkpoints_by_key.items())]
    manifests = tables.manifests(generations)
    found = []
    for row in generations:
        files = file_names(store, row)
        if not files:
            notes.append(f"{store.uri}/{row.folder}: vacuum has deleted generation {row.generation}; left out")
            continue
        partition = generation_partition(store, row, manifests[row.key], None, files)
        path = f"{row.folder}/{names.LEADER_EPOCH_CHECKPOINT}"  # every generation has the file
        try:
            epochs = tuple(checkpoints.read_leader_epochs(read_file(store, path), path))
            partition = replace(partition, epochs=epochs)
        except LogFormatError as error:
            notes.append(f"{error}; leader epochs unknown")
        found.append(partition)
    return found


@raises_job_errors
def open_partition(path_or_uri: str | os.PathLike[str], *, gaps: Gaps = "fail") -> Partition:
    """Open a partition's folder, `<topic>-<partition>`, and look for gaps in it.

        with lastkey.open_partition("archive/orders-0") as log:
            for batch in log.records(["offset", "key"], start_offset=4711): ...  # pyarrow.RecordBatch
            log.lookup_offset(4711)
            log.offsets_for_times([1_700_000_000_000])

    gaps: "fail" raises LogFormatError "gap", with path and offsets, for missing offsets that no cleaner removed; it
    reads the end of each segment. "accept" reads on, and opens by file names alone. The log ends at the high watermark
    if a running broker holds it. MissingPathError: the folder is missing, or has no log. UsageError: the folder's name
    is not a partition's. LogFormatError: the log is damaged.
    """
    if gaps not in get_args(Gaps):
        raise UsageError(message=f"gaps: expected {' or '.join(get_args(Gaps))}, found {gaps!r}")
    uri = normal_uri(check_location("path_or_uri", path_or_uri))
    parent, _, folder = uri.rstrip("/").rpartition("/")
    name = parse_partition_folder(folder)
    if name is None or name.mark:
        raise UsageError(message=f"{uri}: expected a partition's folder, <topic>-<partition>")
    root = open_root(parent or "/")
    if not exists(root, folder):
        raise MissingPathError(path=uri, expected="a partition's folder", found="none")
    partitions = list(list_folder(root, folder).partitions.values())
    if not partitions:
        raise MissingPathError(path=uri, expected="a partition's folder with a log", found="none")
    partition = source_partition(partitions[0], root)
    return open_whole(replace(partition, traces=None) if gaps == "accept" else partition)
