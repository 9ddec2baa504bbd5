"""The folders of runs below segments/, as they lie there: what a store holds, whatever its tables say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from pyarrow import fs as pafs

from jobs.errors import UsageError
from jobs.store.manifests import whole_run
from jobs.store.paths import PARTITIONS, parse_run_folder, partition_folder
from jobs.topics import Key
from logformat import names
from logformat.locations import text_entries
from udfs.storage import Root, folder_identity


@dataclass(frozen=True)
class RunFolder:
    """One run's folder of one partition."""

    key: Key
    generation: int
    run_id: str
    path: str  # below the store
    files: tuple[pafs.FileInfo, ...]
    whole: bool = True  # nothing else is in it; else it is left alone
    made_ms: float = 0.0  # of the folder itself, on a disk

    @property
    def newest_ms(self) -> float:
        """Time of its newest file, or, where it has none, its own."""
        return max((info.mtime_ns / 1e6 for info in self.files), default=self.made_ms)


def run_folders(store: Root, notes: list[str]) -> Iterator[RunFolder]:
    """Every run's folder below segments/; what else lies there is noted."""
    for partition in _entries(store, PARTITIONS, notes):
        parsed = names.parse_partition_folder(partition.base_name)
        path = f"{PARTITIONS}/{partition.base_name}"
        if partition.type != pafs.FileType.Directory or parsed is None or parsed.mark:
            notes.append(f"{path}: not a partition's folder; left alone")
            continue
        for entry in _entries(store, path, notes):
            made = parse_run_folder(entry.base_name)
            below = f"{path}/{entry.base_name}"
            if entry.type != pafs.FileType.Directory or made is None:
                notes.append(f"{below}: not a run's folder; left alone")
                continue
            n_notes = len(notes)
            listed = _entries(store, below, notes)
            files = tuple(info for info in listed if info.type == pafs.FileType.File)
            if len(files) < len(listed):
                notes.append(f"{below}: holds folders; left alone")
            key, whole = (parsed.topic, parsed.partition), len(notes) == n_notes
            yield RunFolder(key, *made, below, files, whole, (entry.mtime_ns or 0) / 1e6)


def each_once(store: Root, folders: Iterable[RunFolder], notes: list[str]) -> list[RunFolder]:
    """The folders, of which those that links or mounts lead to under two names are not whole, and noted: what is
    deleted under one of them is gone under the other.
    """
    found = list(folders)
    which = [_identity(store, folder.path) for folder in found]
    times = Counter(one for one in which if one is not None)
    out = []
    for folder, one in zip(found, which, strict=True):
        shared = one is not None and times[one] > 1
        if shared:
            notes.append(f"{folder.path}: has another name in the store too; left alone")
        out.append(replace(folder, whole=False) if shared else folder)
    return out


def _identity(store: Root, path: str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):  # a run has taken its folder away meanwhile
        return folder_identity(store, path)
    return None


def folders_of(store: Root, topic: str, partition: int) -> list[tuple[str, tuple[int, str]]]:
    """The runs' folders of one partition: path below the store, and (generation, run id)."""
    path = partition_folder(topic, partition)
    named = [(str(entry.base_name), parse_run_folder(entry.base_name)) for entry in _entries(store, path, [])]
    return [(f"{path}/{name}", made) for name, made in named if made is not None]


def _entries(store: Root, path: str, notes: list[str]) -> list[pafs.FileInfo]:
    listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(path), allow_not_found=True))
    found, others = text_entries(listed)
    if others:
        notes.append(f"{path}: {others} names that are no UTF-8; left alone")
    return sorted(found, key=lambda info: str(info.base_name))


def check_not_lost(store: Root, begins: Mapping[Key, int]) -> None:
    """Of a store without tables: that no folder shows that there were some. UsageError: a second generation is only
    made of a first one that was committed, and a run that began anew beside it would let vacuum take them all. A
    complete first one may be of a run that died; that can begin anew while the archive has all of it.

    begins: the first offset of the partitions that the archive has.
    """
    for folder in run_folders(store, []):
        what = f"of generation {folder.generation}"
        if folder.generation == 1:
            begin = begins.get(folder.key, 0)
            made = whole_run(store, folder.path) if begin else None
            if made is None or begin <= made.log_start_offset:
                continue
            what = f"complete and begins at offset {made.log_start_offset}, the archive at {begin}"
        raise UsageError(
            message=f"{store.uri}: expected the tables of this store in state, for {folder.path} is {what}, "
            "found none; bring them back, or make them again with rebuild-state"
        )
