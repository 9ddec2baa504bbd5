"""Plans of a look-up: the partitions that it asks, of an archive or of a store's generations.

Of a generation the manifest names the files and their times. `open_partition` opens one partition of an archive for a
Python program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

from lastkey.jobs.archive.listing import ArchivedPartition, list_folder, listed
from lastkey.jobs.command.config import Gaps
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.parse import check_location, check_topics, nearest
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.errors import MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.store.generations import (
    file_names,
    nobody_has,
    open_store,
    readable_at,
    snapshots,
)
from lastkey.jobs.topics import TopicFilter, select_topics
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import parse_partition_folder
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.lookup.queries import LookupPlan, Partition, open_whole
from lastkey.udfs.storage import Root, exists, normal_uri, open_root, read_file


def list_plans(options: LookupOptions, report: JobReport) -> list[LookupPlan]:
    """Return the plans of the wanted logs in order. Add notes, and folders that cannot be listed, to the report."""
    if options.archive is None:
        plans = generation_plans(options, report.notes)
    else:
        plans = archive_plans(normal_uri(options.archive or ""), options.topics, report.notes, report.other_problems)
    chosen = [
        _with_settings(plan, options)
        for plan in _chosen(plans, options.partitions, all_known=not report.other_problems)
    ]
    return [replace(plan, read_committed=True) for plan in chosen] if options.isolation == "read_committed" else chosen


def _with_settings(plan: LookupPlan, options: LookupOptions) -> LookupPlan:
    settings = options.config.topic_settings(plan.topic)
    accepted = settings.gaps == "accept"
    most = settings.max_decompressed_batch_bytes
    return replace(plan, max_batch_bytes=most, traces=None if accepted else plan.traces)


def archive_plans(
    uri: str, topics: TopicFilter, notes: list[str], problems: list[Any] | None = None
) -> list[LookupPlan]:
    """Return the plans of an archive's logs; add folders that cannot be listed to `problems`."""
    archive = listed(uri, topics)
    notes += archive.notes
    if problems is not None:
        problems += map(str, archive.unreadable)
    check_topics(topics, archive.topics, uri)
    plans = []
    for archived in archive.partitions.values():
        notes += [note for note in archived.notes if names.REBUILT not in note]
        plans.append(archived_plan(archived, archive.root))
    return plans


def archived_plan(archived: ArchivedPartition, root: Root) -> LookupPlan:
    """Return the plan of an archived partition."""
    return LookupPlan(
        archived.topic,
        archived.partition,
        root.uri,
        tuple(archived.segments),
        archived.log_start_checkpoint,
        archived.high_watermark if archived.held_by_broker else None,
        archived.leader_epochs or (),
        tuple((offset, root.uri, path) for offset, path in sorted(archived.snapshots.items())),
        problem=archived.problem,
        traces=archived.traces,
    )


def _chosen(plans: Iterable[LookupPlan], wanted: Sequence[str], *, all_known: bool) -> list[LookupPlan]:
    """Return the wanted plans. UsageError for an unknown partition, unless it may be in an unreadable folder."""
    by_name = {plan.name: plan for plan in sorted(plans, key=lambda plan: (plan.topic, plan.partition))}
    if not by_name and all_known:
        raise UsageError(message="no partition to look into")
    for name in wanted:
        if name not in by_name and all_known:
            raise UnknownNameError(message=f"no such partition: {name}", near=nearest(name, by_name))
    return [by_name[name] for name in dict.fromkeys(wanted) if name in by_name] if wanted else list(by_name.values())


def generation_plans(options: LookupOptions, notes: list[str]) -> list[LookupPlan]:
    """Return a plan for each partition that has the wanted generation; add a note on each of the others."""
    tables = open_store(options.store or "")
    store = tables.root
    store_uri = store.uri
    current = tables.checkpoints()
    check_topics(options.topics, (topic for topic, _ in current), store_uri)
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
    plans = []
    for checkpoint in generations:
        folder = checkpoint.folder
        archive_uri = normal_uri(checkpoint.archive_uri)
        segments = tuple(
            replace(
                s,
                root=store_uri if s.root == "store" else archive_uri,
                index=f"{folder}/{names.segment_file(s.base_offset, names.INDEX)}",
                time_index=f"{folder}/{names.segment_file(s.base_offset, names.TIME_INDEX)}",
                side_root=store_uri,
            )
            for s in manifests[checkpoint.key]
        )
        files = file_names(store, checkpoint)
        if not files:
            notes.append(f"{store_uri}/{folder}: vacuum has deleted generation {checkpoint.generation}; left out")
            continue
        located = tuple((offset, store_uri, path) for offset, path in snapshots(checkpoint, files))
        epochs = f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}"
        epochs_known: tuple[checkpoints.EpochEntry, ...] = ()
        try:
            epochs_known = tuple(checkpoints.read_leader_epochs(read_file(store, epochs), epochs))
        except FileNotFoundError:
            pass
        except LogFormatError as error:
            notes.append(f"{error}; leader epochs unknown")
        plans.append(
            LookupPlan(
                *checkpoint.key,
                archive_uri,
                segments,
                checkpoint.log_start_offset,
                checkpoint.next_offset,
                epochs_known,
                located,
            )
        )
    return plans


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
    plan = archived_plan(partitions[0], root)
    return open_whole(replace(plan, traces=None) if gaps == "accept" else plan)
