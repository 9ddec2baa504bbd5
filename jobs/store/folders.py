"""Folders of runs below segments/, as listed, independent of the store's tables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyarrow import fs as pafs

from lastkey.jobs.errors import LINKED_FOLDER, UsageError
from lastkey.jobs.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    ERASED_KEYS,
    PARTITIONS,
    TABLES,
    parse_run_folder,
    partition_folder,
    table_folder,
)
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.storage import Root, is_link, links_in

_LINK: Final = "a symbolic link; left alone, as its files may be another store's"
Run = tuple[Key, int, str]  # partition, generation, run id


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run of one partition."""

    key: Key
    generation: int
    run_id: str
    path: str  # below the store
    files: tuple[pafs.FileInfo, ...]
    whole: bool = True  # False: it has foreign content; vacuum leaves it
    made_ms: float = 0.0  # time of the folder itself, on a disk

    @property
    def run(self) -> Run:
        """Partition, generation and run id, from the folder's path."""
        return self.key, self.generation, self.run_id

    @property
    def names(self) -> set[str]:
        """Names of the files in it."""
        return {str(info.base_name) for info in self.files}

    @property
    def newest_ms(self) -> float:
        """Time of its newest file; of the folder itself if it has none."""
        return max((info.mtime_ns / 1e6 for info in self.files), default=self.made_ms)


def run_folders(store: Root, notes: list[str]) -> Iterator[RunFolder]:
    """Yield every run's folder below segments/, and note all other entries there. A folder is not whole below a
    symbolic link, or with one in it: its files may be another store's.
    """
    linked, partition_links = is_link(store, PARTITIONS), links_in(store, PARTITIONS)
    notes += [f"{PARTITIONS}: {_LINK}"] if linked else []
    for partition in _entries(store, PARTITIONS, notes):
        parsed = names.parse_partition_folder(partition.base_name)
        path = f"{PARTITIONS}/{partition.base_name}"
        if partition.type != pafs.FileType.Directory or parsed is None or parsed.mark:
            notes.append(f"{path}: not a partition's folder; left alone")
            continue
        is_linked = partition.base_name in partition_links
        notes += [f"{path}: {_LINK}"] if is_linked else []
        run_links = links_in(store, path)
        for entry in _entries(store, path, notes):
            generation_and_run = parse_run_folder(entry.base_name)
            below = f"{path}/{entry.base_name}"
            if entry.type != pafs.FileType.Directory or generation_and_run is None:
                notes.append(f"{below}: not a run's folder; left alone")
                continue
            n_notes = len(notes)
            notes += [f"{below}: {_LINK}"] if entry.base_name in run_links else []
            listed = _entries(store, below, notes)
            files = tuple(info for info in listed if info.type == pafs.FileType.File)
            if len(files) < len(listed):
                notes.append(f"{below}: holds folders; left alone")
            if links := links_in(store, below):
                notes.append(f"{below}/{min(links)}: {_LINK}")
            key, whole = (parsed.topic, parsed.partition), not (linked or is_linked) and len(notes) == n_notes
            yield RunFolder(key, *generation_and_run, below, files, whole, (entry.mtime_ns or 0) / 1e6)


def list_run_folders(store: Root, topic: str, partition: int) -> list[tuple[str, tuple[int, str]]]:
    """Return the runs' folders of one partition: path below the store, and (generation, run id)."""
    path = partition_folder(topic, partition)
    named = [(str(entry.base_name), parse_run_folder(entry.base_name)) for entry in _entries(store, path, [])]
    return [(f"{path}/{name}", made) for name, made in named if made is not None]


def _entries(store: Root, path: str, notes: list[str]) -> list[pafs.FileInfo]:
    listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(path), allow_not_found=True))
    entries, others = text_entries(listed)
    if others:
        notes.append(f"{path}: {others} names that are not UTF-8; left alone")
    return sorted(entries, key=lambda info: str(info.base_name))


def check_no_links(root: Root) -> None:
    """Raise LINKED_FOLDER if a folder of a store or anything in its folders of tables and erasures is a symbolic
    link.
    """
    own = {name for name in links_in(root, "") if name in ("state", PARTITIONS, ERASED_KEYS)}
    for folder in ("state", *map(table_folder, TABLES), ERASED_KEYS):
        own |= {f"{folder}/{name}" for name in links_in(root, folder)}
    if own:
        raise LINKED_FOLDER(path=f"{root.uri}/{min(own)}")


def check_not_inside(what: str, root: Root, path: str = "") -> None:
    """Raise UsageError if a local output is in a store, or in a folder with a partition's logs, under any name of the
    folder. Only their owners write there. what: the user's word for the place.
    """
    if not root.is_local:
        return
    for folder in Path(os.path.realpath(root.full(path))).parents:
        if (is_store := os.path.isdir(folder / table_folder(CHECKPOINTS))) or _holds_logs(folder):  # noqa: PTH112
            raise _inside(what, root.full(path), "the store" if is_store else "the partition", folder)


def check_no_archive(root: Root) -> None:
    """Raise UsageError if partitions are where a new store is to begin."""
    if not root.is_local or not os.path.isdir(root.base):  # noqa: PTH112
        return
    for folder in sorted(Path(root.base).iterdir()):
        if _holds_logs(folder):
            raise _inside("the store", f"{root.base}/state", "the archive of", folder)


def _holds_logs(folder: Path) -> bool:
    if names.parse_partition_folder(folder.name) is None:
        return False
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = (names.parse_segment_file(entry.name) for entry in entries)
        return any(file is not None and file.kind == names.LOG for file in found)
    return False


def _inside(what: str, path: str, owner: str, folder: Path) -> UsageError:
    return UsageError(
        message=f"{what} {path} lies in {owner} {folder}: nothing was written; {what} needs a place outside of it"
    )


def check_not_lost(store: Root) -> None:
    """Raise UsageError if a store without tables has a folder that was committed: then its tables were lost. A folder
    of generation 2 or higher counts too, as it needs a committed parent.
    """
    for folder in run_folders(store, []):
        if folder.generation > 1 or COMMITTED in folder.names:
            why = "was committed" if COMMITTED in folder.names else f"is of generation {folder.generation}"
            raise UsageError(
                message=f"{store.uri}: expected this store's tables in state, because {folder.path} {why}, "
                "found none; restore them from a copy, or run rebuild-state"
            )
