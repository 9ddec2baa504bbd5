"""Text files beside the partitions' folders of a log directory: readable, and right about the partitions there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import file_size, open_root, read_file


@dataclass(frozen=True)
class DirectoryChecked:
    """Result for one log directory."""

    files: int
    problems: tuple[Problem, ...]


def check_log_directory(uri: str, path: str) -> DirectoryChecked:
    """Read the checkpoints and meta.properties of the log directory `path` below a root; each bad one is a row.

    A high watermark below the log start that another file states is a row too.
    """
    root = open_root(uri)
    problems: list[Problem] = []
    offsets: dict[str, Mapping[tuple[str, int], int]] = {}
    files = 0
    for name in (*names.OFFSET_CHECKPOINTS, names.META_PROPERTIES):
        full = f"{path}/{name}" if path else name
        if file_size(root, full) is None:
            continue
        files += 1
        try:
            data = read_file(root, full)
            if name == names.META_PROPERTIES:
                checkpoints.read_meta_properties(data, full)
            else:
                offsets[name] = checkpoints.read_offset_checkpoint(data, full)
        except LogFormatError as error:
            problems.append(Problem.of(error))
    starts = offsets.get(names.LOG_START_OFFSET_CHECKPOINT, {})
    full = f"{path}/{names.HIGH_WATERMARK_CHECKPOINT}" if path else names.HIGH_WATERMARK_CHECKPOINT
    for (topic, partition), offset in offsets.get(names.HIGH_WATERMARK_CHECKPOINT, {}).items():
        start = starts.get((topic, partition), 0)
        if offset < start:
            expected = f"a high watermark of {topic}-{partition} at or above its log start, {start}"
            problems.append(Problem("side_file", full, 0, expected, str(offset)))
    return DirectoryChecked(files, tuple(problems))
