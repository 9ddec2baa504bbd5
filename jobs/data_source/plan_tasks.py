"""Planning of a query on the driver: options -> partitions -> pieces of their files -> tasks of several pieces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from lastkey.jobs.command.option_groups import SourceOptions
from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import ReadOptions, Selection
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import without_kafkas_own
from lastkey.udfs.data_source.find_pieces import OutOfRangeError, find_pieces
from lastkey.udfs.data_source.index_entries import index_pieces
from lastkey.udfs.data_source.pieces import EARLIEST, Piece, Range, SourcePartition, Task, pack

_LEAST_SPLIT: Final = 1 << 20
_THREADS: Final = 16  # look-ups wait for object stores


def source_partitions(options: ReadOptions, *, may_be_none: bool = False) -> list[SourcePartition]:
    """Return the partitions that the options name."""
    if options.store is not None:
        from lastkey.jobs.data_source.store import generation_partitions  # noqa: PLC0415 - few queries read a store

        return generation_partitions(options)
    return find_partitions(options.paths, options.selection, may_be_none=may_be_none)


def partitions_of_command(options: SourceOptions) -> list[SourcePartition]:
    """Return the partitions that the options of a command name, by topic and number."""
    paths = () if options.archive_place is None else (options.archive_place,)
    selection = Selection(topics=without_kafkas_own(options.topics))
    store, generation = options.store, options.generation
    return source_partitions(ReadOptions("kafka_log", paths, store, generation, selection))


def plan(options: ReadOptions) -> list[Task]:
    """Return the tasks of a batch query."""
    found = source_partitions(options)
    partitions = [p for p in found if p.problem is not None or options.allow(p.topic, p.partition)]
    if options.source == "kafka_log_index":
        accept = options.asked.accept_gaps
        pieces = [piece for p in partitions for piece in index_pieces(p, options.kinds, accept_gaps=accept)]
        return pack(pieces, options.asked.split_bytes, options.min_partitions)
    size = sum(segment.size_bytes for partition in partitions for segment in partition.segments)
    ranges = [make_range(options, partition, size) for partition in partitions]
    return pack(each(partitions, ranges), ranges[0].split_bytes if ranges else 1, options.min_partitions)


def each(partitions: Sequence[SourcePartition], ranges: Sequence[Range]) -> list[Piece]:
    """Return the pieces of all partitions, in their order. UsageError for a start or end that does not exist."""
    if not partitions:
        return []
    remote = any("://" in segment.root for partition in partitions for segment in partition.segments[:1])
    workers = min(len(partitions), _THREADS if remote else os.cpu_count() or 1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return [piece for pieces in pool.map(find_pieces, partitions, ranges) for piece in pieces]
    except OutOfRangeError as error:
        raise UsageError(message=str(error)) from error


def make_range(options: ReadOptions, partition: SourcePartition, total_bytes: int) -> Range:
    """Return the range of one partition in a query over `total_bytes` of log."""
    key, asked = (partition.topic, partition.partition), options.asked
    if options.min_partitions > 1:
        least = max(total_bytes // options.min_partitions, _LEAST_SPLIT)
        asked = replace(asked, split_bytes=min(asked.split_bytes, least))
    start = options.start.of(*key) if options.start is not None else EARLIEST
    return replace(asked, start=start, end=options.end.of(*key))
