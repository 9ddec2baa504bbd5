"""Which files of a partition's folder a search needs: listed once, leftovers of a swap resolved, nothing opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from logformat import names
from logformat.batches.chunks import ChunkBuffer, Tail
from logformat.batches.headers import read_headers
from logformat.errors import LogFormatError, unreadable
from logformat.locations import locate, text_entries
from logformat.regular_files import odd_entries, open_input
from logformat.side_files import checkpoints
from logformat.side_files.small_files import read_side_file


@dataclass(frozen=True)
class ListedSegment:
    """One `.log` by its listing, and the paths of what lies beside it; None: there is no such file.

    Plain values: they cross between processes, and say all that is needed to find the files again.
    """

    root: str  # URI that `path` is below; of `list_partition` the folder's path on its file system
    path: str
    base_offset: int  # by the file's name
    size: int  # bytes that belong to the log; what is behind them is not looked at
    mtime_ms: int  # stands for the largest timestamp of a segment without timestamps
    index: str | None = None
    time_index: str | None = None
    txn_index: str | None = None
    side_root: str | None = None  # URI that the indexes are below; None: as root

    @property
    def beside(self) -> str:
        """URI that the indexes are below."""
        return self.side_root or self.root


@dataclass(frozen=True)
class PartitionListing:
    """What a partition's folder says of its log."""

    path: str
    topic: str | None  # by the folder's name; None: not that of a partition
    partition: int | None
    segments: tuple[ListedSegment, ...]  # by base offset
    log_start_offset: int | None  # by the checkpoint beside the folder
    leader_epochs: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]
    filesystem: Any  # that `path` is on


def list_partition(path_or_uri: str | Path, filesystem: Any = None) -> PartitionListing:
    """The files of a partition's folder; path_or_uri, filesystem: see `locations.locate`.

    Reads `leader-epoch-checkpoint` and, beside the folder, `log-start-offset-checkpoint`; one that cannot be parsed is
    a note. Raises FileNotFoundError where there is no such folder, LogFormatError "unreadable" for a `.log` that is no
    file, and what a `.log.swap` that has to be looked into is wrong with.
    """
    found, path = locate(path_or_uri, filesystem)
    path = path.rstrip("/")
    listed, _ = text_entries(found.get_file_info(pafs.FileSelector(path)))  # a file of Kafka's is ASCII
    _check_kinds(found, path, listed)
    entries = {info.base_name: info for info in listed if info.type == pafs.FileType.File}
    resolution = names.resolve_leftovers(
        ((name, int(info.size)) for name, info in entries.items()), lambda name: _next_offset(found, f"{path}/{name}")
    )
    parent, _, name = path.rpartition("/")
    folder = names.parse_partition_folder(name)
    notes = [f"{path}: {note}" for note in resolution.notes]
    segments = [
        ListedSegment(
            path, files[names.LOG].name, base, files[names.LOG].size,
            entries[files[names.LOG].name].mtime_ns // 1_000_000,
            *(files[kind].name if kind in files else None for kind in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)),
        )
        for base, files in resolution.segments.items()
    ]  # fmt: skip
    epochs: tuple[tuple[int, int], ...] = ()
    if names.LEADER_EPOCH_CHECKPOINT in resolution.side_files:
        full = f"{path}/{names.LEADER_EPOCH_CHECKPOINT}"
        try:
            epochs = tuple(checkpoints.read_leader_epochs(_read(found, full), full))
        except LogFormatError as error:
            notes.append(f"{error}; leader epochs not known")
    log_start = None
    full = f"{parent}/{names.LOG_START_OFFSET_CHECKPOINT}"
    if folder is not None and found.get_file_info(full).type == pafs.FileType.File:
        try:
            starts = checkpoints.read_offset_checkpoint(_read(found, full), full)
            log_start = starts.get((folder.topic, folder.partition))
        except LogFormatError as error:
            notes.append(f"{error}; as if it were not there")
    topic, partition = (folder.topic, folder.partition) if folder is not None else (None, None)
    return PartitionListing(path, topic, partition, tuple(segments), log_start, epochs, tuple(notes), found)


def _read(filesystem: Any, path: str) -> bytes:
    try:
        with open_input(filesystem, path) as file:
            return read_side_file(file, path)
    except OSError as error:
        raise unreadable(path, error) from error


def _next_offset(filesystem: Any, path: str) -> int:
    """Last offset + 1 of a `.log.swap`; its base where it is empty."""
    parsed = names.parse_segment_file(path.rpartition("/")[2])
    last = (parsed.base if parsed is not None else 0) - 1
    try:
        with open_input(filesystem, path) as file:
            for headers in read_headers(file, path, 0, file.size(), ChunkBuffer(), Tail()):
                last = int(headers.batches["last_offset"][-1])
    except OSError as error:
        raise unreadable(path, error) from error
    return last + 1


def _check_kinds(filesystem: Any, path: str, listed: Iterable[pafs.FileInfo]) -> None:
    """What is named like a `.log` must be a file: else a segment would be missing without a word."""
    kinds = {info.base_name: "a folder" for info in listed if info.type == pafs.FileType.Directory}
    kinds |= odd_entries(filesystem, path, listed)
    for name, kind in sorted(kinds.items()):
        file = names.parse_segment_file(name)
        if file is not None and file.kind == names.LOG and file.suffix not in (names.DELETED, names.CLEANED):
            raise LogFormatError("unreadable", f"{path}/{name}", 0, "a readable file", kind)
