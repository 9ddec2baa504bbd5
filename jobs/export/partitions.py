"""Partitions that an export reads, and how far."""

from __future__ import annotations

from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import count
from lastkey.jobs.data_source.plan_tasks import source_partitions
from lastkey.jobs.data_source.read_options import ReadOptions, Selection
from lastkey.jobs.topics import without_kafkas_own
from lastkey.logformat.errors import stopped
from lastkey.udfs.data_source.log_end import Ends, find_ends
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem


def listed(options: ExportOptions) -> list[SourcePartition]:
    """Return the partitions that the options name, by topic and number. Raise as the data source does."""
    paths = () if options.archive_place is None else (options.archive_place,)
    asked = ReadOptions(
        "kafka_log",
        paths,
        store=options.store,
        generation=options.generation,
        selection=Selection(topics=without_kafkas_own(options.topics)),
    )
    return source_partitions(asked)


def ends_of_partition(partition: SourcePartition) -> tuple[Ends | None, Problem | None]:
    """Return the offsets at which reading begins and ends (None: not known), and the problem that prevents it."""
    if partition.problem is not None:
        return None, partition.problem
    try:
        return find_ends(partition, committed=True), None
    except Exception as found:  # any error: the problem names the partition
        problem = Problem.of(stopped(found, partition.name))
    try:
        return find_ends(partition, committed=True, quarantine=True), problem
    except Exception:  # unknown, as before
        return None, problem


def open_notes(partition: SourcePartition, ends: Ends | None) -> list[str]:
    """Return a note if records at the end are left out."""
    if ends is None or ends.end >= ends.log_end or not ends.certain:
        return []
    why = "an open transaction, or the high watermark, is there"
    return [f"{partition.name}: ends at offset {count(ends.end)} of {count(ends.log_end)}: {why}"]
