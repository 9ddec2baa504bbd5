"""Report of an export: what each topic's folder holds, how far partitions were read, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastkey.jobs.command.reporting import JobReport, TextTable, count
from lastkey.logformat.errors import stopped
from lastkey.udfs.data_source.log_end import Ends, find_ends
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem


@dataclass
class ExportedTopic:
    """Row of the report for one topic: what was read and written."""

    topic: str
    partitions: int
    records: int = 0
    tombstones: int = 0
    problems: int = 0
    inserted: int = 0  # rows of a table with --latest
    updated: int = 0
    deleted: int = 0


@dataclass
class ExportReport(JobReport):
    """Report of `export`."""

    job = "export"
    done = "{topics:topic} as {format} in {output}"
    facts = "output format latest topics"
    text_tables = (
        TextTable("topics", "topic partitions records tombstones problems inserted updated deleted", total="topic"),
    )

    output: str
    format: str
    latest: bool = False
    topics: list[ExportedTopic] = field(default_factory=list)


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
