"""Consecutive segments of an archived partition -> the same in another format, below an output folder.

Each `.log` comes with new indexes; every other file of the partition is copied. Files keep their times. A log that
cannot be read leaves no file, and is a problem; the others go on. A segment that an earlier run finished stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lastkey.logformat import names
from lastkey.logformat.listing import ListedSegment
from lastkey.udfs.attempt import attempt
from lastkey.udfs.convert.convert_log import ConvertedLog, ConvertSettings, convert_log
from lastkey.udfs.convert.unfinished import being_written, give_name, whole_segments
from lastkey.udfs.problem import Problem
from lastkey.udfs.read_back import check_written
from lastkey.udfs.storage import Root, flush, flush_folder, make_folder, open_root, opened, set_time, write_file


@dataclass(frozen=True)
class Copy:
    """A small file to copy."""

    root: str  # URI
    path: str  # below the root
    to: str  # below the task's folder


@dataclass(frozen=True)
class ConvertTask:
    """Consecutive segments of one partition, and small files to copy."""

    output_uri: str
    folder: str  # of the partition, below the output
    segments: tuple[ListedSegment, ...]
    copies: tuple[Copy, ...]
    settings: ConvertSettings


@dataclass(frozen=True)
class ConvertedSegments:
    """Sums over a task, and its problems."""

    segments: int
    kept: int  # of these: an earlier run has converted them, and their batches are not counted
    batches: int
    changed: int
    bytes_before: int
    bytes_after: int
    problems: tuple[Problem, ...]
    seconds: float


def convert_segments(task: ConvertTask) -> ConvertedSegments:
    """Convert and copy. Raises OSError for a full disk."""
    started = time.perf_counter()
    output = make_folder(open_root(task.output_uri), task.folder)
    whole = whole_segments(output, task.folder) if task.segments else {}
    kept = [segment for segment in task.segments if segment.base_offset in whole]
    done: list[tuple[ListedSegment, ConvertedLog]] = []
    problems: list[Problem] = []
    for segment in task.segments:
        if segment.base_offset in whole:
            continue
        one = attempt(segment.path, lambda s=segment: _convert(s, output, task))  # type: ignore[misc]
        if isinstance(one, Problem):
            problems.append(one)
            _remove(output, being_written(output, _path(task, segment, names.LOG)))
        else:
            done.append((segment, one))
    for copy in task.copies:
        copied = attempt(copy.path, lambda c=copy: _copy(c, output, task.folder))  # type: ignore[misc]
        problems += [copied] if isinstance(copied, Problem) else []
    if output.is_local:
        flush_folder(output, task.folder)
    return ConvertedSegments(
        len(done) + len(kept),
        len(kept),
        sum(one.batches for _, one in done),
        sum(one.changed for _, one in done),
        sum(segment.size for segment in (*kept, *(segment for segment, _ in done))),
        sum(one.size for _, one in done) + sum(whole[segment.base_offset] for segment in kept),
        tuple(problems),
        time.perf_counter() - started,
    )


def _path(task: ConvertTask, segment: ListedSegment, kind: str) -> str:
    return f"{task.folder}/{names.segment_file(segment.base_offset, kind)}"


def _convert(segment: ListedSegment, output: Root, task: ConvertTask) -> ConvertedLog:
    root, to = open_root(segment.root), being_written(output, _path(task, segment, names.LOG))
    one = convert_log(root, segment.path, segment.size, output, to, segment.base_offset, task.settings)
    check_written(output, to, one.size, one.checksum)
    mtime_ns = segment.mtime_ms * 1_000_000
    set_time(output, to, mtime_ns)
    flush(output, to)
    for kind, data in ((names.INDEX, one.offset_index), (names.TIME_INDEX, one.time_index)):
        path = being_written(output, _path(task, segment, kind))
        write_file(output, path, data)
        set_time(output, path, mtime_ns)
    for kind in (names.LOG, names.INDEX, names.TIME_INDEX):
        give_name(output, _path(task, segment, kind))
    return one


def _copy(copy: Copy, output: Root, folder: str) -> None:
    source, to = open_root(copy.root), f"{folder}/{copy.to}" if folder else copy.to
    make_folder(output, to.rpartition("/")[0])
    with opened(source, copy.path) as file:
        write_file(output, to, file.read())
    mtime_ns = source.filesystem.get_file_info(source.full(copy.path)).mtime_ns
    if mtime_ns is not None:
        set_time(output, to, mtime_ns)


def _remove(root: Root, path: str) -> None:
    with suppress(OSError):
        root.filesystem.delete_file(root.full(path))


def sums(parts: Sequence[ConvertedSegments]) -> dict[str, int]:
    """Return the sums of several tasks' counts."""
    named = ("segments", "kept", "batches", "changed", "bytes_before", "bytes_after")
    return {name: sum(getattr(part, name) for part in parts) for name in named}
