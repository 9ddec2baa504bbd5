"""Which files of a partition's folder a search needs: listed once, leftovers of a swap resolved, nothing opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs as pafs

from logformat import names
from logformat.batches.chunks import ChunkBuffer, Tail
from logformat.batches.headers import read_headers
from logformat.errors import LogFormatError
from logformat.locations import locate, text_entries
from logformat.regular_files import odd_entries, opened
from logformat.side_files import checkpoints
from logformat.side_files.small_files import read_small_file


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
    filesystem, path = locate(path_or_uri, filesystem)
    path = path.rstrip("/")
    found = files_of(filesystem, path, path)
    parent, _, name = path.rpartition("/")
    folder = names.parse_partition_folder(name)
    notes = [f"{path}: {note}" for note in found.resolution.notes]
    epochs: tuple[tuple[int, int], ...] = ()
    if names.LEADER_EPOCH_CHECKPOINT in found.resolution.side_files:
        full = f"{path}/{names.LEADER_EPOCH_CHECKPOINT}"
        try:
            epochs = tuple(checkpoints.read_leader_epochs(read_small_file(filesystem, full), full))
        except LogFormatError as error:
            notes.append(f"{error}; leader epochs not known")
    log_start = None
    full = f"{parent}/{names.LOG_START_OFFSET_CHECKPOINT}"
    if folder is not None and filesystem.get_file_info(full).type == pafs.FileType.File:
        try:
            starts = checkpoints.read_offset_checkpoint(read_small_file(filesystem, full), full)
            log_start = starts.get((folder.topic, folder.partition))
        except LogFormatError as error:
            notes.append(f"{error}; as if it were not there")
    topic, partition = (folder.topic, folder.partition) if folder is not None else (None, None)
    return PartitionListing(
        path, topic, partition, tuple(found.segments(path, "")), log_start, epochs, tuple(notes), filesystem
    )


class FolderFiles(NamedTuple):
    """What a partition's folder holds."""

    resolution: names.Resolution
    entries: dict[str, pafs.FileInfo]  # files by name
    odd: dict[str, str]  # name -> what it is, of what is neither a file nor a folder
    folders: tuple[str, ...]  # a broker makes none here

    def segments(self, root: str, folder: str) -> Iterator[ListedSegment]:
        """By base offset; folder: the path below `root` that goes before the names, empty or with its slash."""
        beside = (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
        for base, files in self.resolution.segments.items():
            log = files[names.LOG]
            paths = (f"{folder}{files[kind].name}" if kind in files else None for kind in beside)
            mtime_ms = self.entries[log.name].mtime_ns // 1_000_000
            yield ListedSegment(root, f"{folder}{log.name}", base, log.size, mtime_ms, *paths)


def files_of(filesystem: Any, path: str, shown: str) -> FolderFiles:
    """List a partition's folder; shown: its path as it stands in messages. Only a `.log.swap` that counts is opened.

    What is named like a `.log` must be a file: a folder, a pipe, or a link to nothing would be a segment that is
    missing without a word. Raises LogFormatError "unreadable" for one that is none, FileNotFoundError, OSError.
    """
    listed, _ = text_entries(filesystem.get_file_info(pafs.FileSelector(path)))  # a file of Kafka's is ASCII
    odd = odd_entries(filesystem, path, listed)
    folders = tuple(sorted(info.base_name for info in listed if info.type == pafs.FileType.Directory))
    kinds = dict.fromkeys(folders, "a folder") | odd
    for name, kind in sorted(kinds.items()):
        file = names.parse_segment_file(name)
        if file is not None and file.kind == names.LOG and file.suffix not in (names.DELETED, names.CLEANED):
            raise LogFormatError("unreadable", f"{shown}/{name}", 0, "a readable file", kind)
    entries = {info.base_name: info for info in listed if info.type == pafs.FileType.File}
    resolution = names.resolve_leftovers(
        ((name, int(info.size)) for name, info in entries.items()),
        lambda name: _next_offset(filesystem, f"{path}/{name}", f"{shown}/{name}"),
    )
    return FolderFiles(resolution, entries, odd, folders)


def _next_offset(filesystem: Any, path: str, shown: str) -> int:
    """Last offset + 1 of a `.log.swap`; its base where it is empty."""
    parsed = names.parse_segment_file(path.rpartition("/")[2])
    last = (parsed.base if parsed is not None else 0) - 1
    with opened(filesystem, path, shown) as file:
        for headers in read_headers(file, shown, 0, file.size(), ChunkBuffer(), Tail()):
            last = int(headers.batches["last_offset"][-1])
    return last + 1
