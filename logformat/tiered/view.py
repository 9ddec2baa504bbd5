"""A file system that shows tiered storage as a plain log directory. It only reads.

Inside each folder X of remote segments it shows one folder `<topic>-<partition>` with the files that a broker had:

| shown | is |
|---|---|
| `X/<topic>-<partition>/<20 digits>.log`, `.index`, ... | objects of the copy that counts (`choice`) |
| `X/<topic>-<partition>/<20 digits>.snapshot` | the snapshot of the copy that *ends* before this offset |
| `X/<topic>-<partition>/leader-epoch-checkpoint` | that of the newest leader |
| `X/<topic>-<partition>/partition.metadata` | made of the topic id in X's name |
| `X/<topic>-<partition>.<segment id>-stray/<20 digits>.log` | a copy of which not all counts; in recursive listings |

A folder that Pinterest's uploader wrote (`<topic>-<partition>` with `offset.wm` in it) shows its files in this form
under its own path. The path of a file therefore names the folder that holds its object. All other files are shown as
they are. A copy with only a valid part is shown without its offset and time indexes, because these also describe the
invalid part; readers rebuild them like any missing index. Its transaction index has only the entries of the part that
counts.

The contents of copies are read once for each process and cached, because objects never change. A listing always lists
the objects again; opening a file does so if the cache does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import checkpoints, transaction_index
from lastkey.logformat.storage.locations import text_entries
from lastkey.logformat.storage.regular_files import open_input
from lastkey.logformat.storage.seekable import SeekableFile
from lastkey.logformat.tiered.choice import ChosenCopies, CopyRange, choose
from lastkey.logformat.tiered.contents import Contents
from lastkey.logformat.tiered.objects import (
    EPOCHS,
    RemotePartition,
    UploadedCopy,
    group_copies,
    holds_segments,
    remote_partition,
)

_CACHE: Final[dict[tuple[str, str], _Folder]] = {}  # (URI, path) -> folder, for a process


@dataclass(frozen=True)
class _Shown:
    """A file of a partition's folder: a kind of file of a copy, or bytes made here."""

    size: int
    mtime_ns: int
    contents: Contents | None = None
    kind: str = ""
    content: bytes = b""
    position: int = 0  # position of its first byte in the copy's file


class _Folder:
    """A folder of remote segments, as listed."""

    def __init__(self, partition: RemotePartition, contents: list[Contents], *, plain: bool = False) -> None:
        """plain: it is a log directory's, and shown as it is. contents: of one file system."""
        self.partition, self.contents, self.plain = partition, contents, plain

    @cached_property
    def choice(self) -> ChosenCopies:
        return choose(self.contents)

    @cached_property
    def shown(self) -> dict[str, _Shown]:
        """Files of the partition's folder by name."""
        out: dict[str, _Shown] = {}

        def show(name: str, contents: Contents, kind: str) -> None:
            if kind in contents.sizes:
                info = contents.copy.objects.get(kind) or next(iter(contents.copy.objects.values()))
                out[name] = _Shown(contents.sizes[kind], info.mtime_ns, contents, kind)

        for piece in self.choice.pieces:
            contents = piece.extent.contents
            log = replace(_shown_log(contents), size=piece.size, position=piece.position)
            out[names.segment_file(piece.begin, names.LOG)] = log
            for kind in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX) if not piece.cut else ():
                show(names.segment_file(piece.begin, kind), contents, kind)
            if piece.cut and (aborts := _aborts(piece)):
                made = _Shown(len(aborts), log.mtime_ns, content=aborts)
                out[names.segment_file(piece.begin, names.TXN_INDEX)] = made
            if piece.stop > piece.extent.last:
                show(names.segment_file(piece.stop, names.SNAPSHOT), contents, names.SNAPSHOT)
        for contents in self.choice.orphans:
            show(names.segment_file(contents.copy.start, names.INDEX), contents, names.INDEX)
        if not self.partition.topic_id:
            out[names.UPLOADED] = _Shown(0, 0)
            return out
        if self.choice.lineage is not None:
            show(names.LEADER_EPOCH_CHECKPOINT, self.choice.lineage.contents, EPOCHS)
        metadata = checkpoints.write_partition_metadata(
            checkpoints.parse_uuid(self.partition.topic_id, "a folder's name")
        )
        out[names.PARTITION_METADATA] = _Shown(len(metadata), 0, content=metadata)
        return out


class TieredFileSystem:
    """A file system, as far as our readers need one of pyarrow.fs, over another one. uri: of a place on that one."""

    type_name: Final = "tiered"

    def __init__(self, filesystem: Any, uri: str) -> None:
        self.filesystem, self._uri = filesystem, uri

    def get_file_info(self, asked: Any) -> Any:
        """Return the entries that a selector, a path or a list of paths asks for."""
        if isinstance(asked, pafs.FileSelector):
            return self._below(asked) if asked.recursive else self._entries(asked)
        return self._info(asked) if isinstance(asked, str) else [self._info(path) for path in asked]

    def open_input_file(self, path: str) -> Any:
        """Open a file for reading."""
        above, _, name = path.rpartition("/")
        if (at := _find_partition(above)) is None:
            return open_input(self.filesystem, path)
        if self._folder(at[0], at[1]).plain:
            return open_input(self.filesystem, path)
        entry = self._file(*at, name)
        if entry is None:
            raise FileNotFoundError(f"{path}: no such file among the remote segments")
        if entry.contents is None:
            return pa.BufferReader(entry.content)
        file = entry.contents.open(entry.kind)
        return file if not entry.position else pa.PythonFile(_From(file, entry.position), "r")

    def objects(self, path: str) -> list[str]:
        """Return the paths of the objects to delete with a file: all of its copy for a log, the log last; none for a
        file beside it.
        """
        at = _find_partition(path.rpartition("/")[0])
        if at is None or self._folder(at[0], at[1]).plain:
            return [path]
        entry = self._file(*at, path.rpartition("/")[2])
        if entry is None or entry.contents is None or entry.kind != names.LOG:
            return []
        objects = entry.contents.copy.objects
        return [objects[kind].path for kind in sorted(objects, key=lambda kind: (kind == names.LOG, kind))]

    def left_out(self, path: str) -> tuple[str, ...]:
        """Return the paths, without a kind, of the copies of segments that a partition's folder does not show whole."""
        if (at := _find_partition(path)) is None:
            return ()
        folder = self._folder(at[0], at[1])
        whole = {id(piece.extent.contents) for piece in folder.choice.pieces if not piece.cut}
        return tuple(contents.copy.name for contents in folder.contents if id(contents) not in whole)

    def notes(self, path: str) -> tuple[str, ...]:
        """Return the notes on a partition's folder: ignored copies, with the reasons."""
        at = _find_partition(path)
        return () if at is None else self._folder(at[0], at[1]).choice.notes

    def _file(self, folder: str, partition: RemotePartition, stray: str, name: str) -> _Shown | None:
        entry = _by_name(self._folder(folder, partition), stray, name)
        if entry is None:  # perhaps uploaded since
            entry = _by_name(self._folder(folder, partition, again=True), stray, name)
        return entry

    def _folder(self, folder: str, partition: RemotePartition, *, again: bool = False) -> _Folder:
        cached = _CACHE.get((self._uri, folder))
        if cached is not None and not all(c.filesystem.equals(self.filesystem) for c in cached.contents[:1]):
            cached = None  # another endpoint since
        if cached is not None and not again:
            return cached
        selector = pafs.FileSelector(folder, allow_not_found=not partition.topic_id)
        listed, _ = text_entries(self.filesystem.get_file_info(selector))
        if not partition.topic_id and all(info.base_name != names.UPLOADED for info in listed):
            _CACHE[self._uri, folder] = _Folder(partition, [], plain=True)
            return _CACHE[self._uri, folder]
        copies = group_copies(partition, (info for info in listed if info.type == pafs.FileType.File))
        before = {c.copy: c for c in cached.contents} if cached is not None else {}
        same = {copy: before[copy] for copy in copies if copy in before and _equal(before[copy].copy, copy)}
        folder_now = _Folder(partition, [same.get(copy) or Contents(self.filesystem, copy) for copy in copies])
        if cached is not None and len(same) == len(copies) == len(before):
            return cached
        _CACHE[self._uri, folder] = folder_now
        return folder_now

    def _entries(self, asked: pafs.FileSelector) -> list[pafs.FileInfo]:
        path = asked.base_dir.rstrip("/")
        at = _find_partition(path)
        folder = None if at is None else self._folder(at[0], at[1], again=True)
        if folder is not None and not folder.plain:
            return [_file_info(f"{path}/{name}", file) for name, file in sorted(folder.shown.items())]
        listed = self.filesystem.get_file_info(asked)
        partition = remote_partition(path)
        texts, _ = text_entries(listed)
        if partition is None or not holds_segments(path, (e.base_name for e in texts if e.type == pafs.FileType.File)):
            return list(listed)
        kept = [info for info in listed if not any(info is e for e in texts) or not _is_hidden(partition, info)]
        return [*kept, pafs.FileInfo(f"{path}/{partition.folder}", pafs.FileType.Directory)]

    def _below(self, asked: pafs.FileSelector) -> list[pafs.FileInfo]:
        out: list[pafs.FileInfo] = []
        todo = [asked.base_dir]
        while todo:
            path = todo.pop()
            try:
                listed = self._entries(pafs.FileSelector(path, allow_not_found=asked.allow_not_found))
            except LogFormatError:  # no choice can be made: every log is shown as a stray
                listed = []
            out += listed
            if (at := _find_partition(path)) is not None:
                known = self._folder(at[0], at[1])
                out += _strays(at[0], at[1], known.choice.left_out if listed else known.contents)
            todo += [info.path for info in text_entries(listed)[0] if info.type == pafs.FileType.Directory]
        return out

    def _info(self, path: str) -> pafs.FileInfo:
        path = path.rstrip("/") or path
        if (at := _find_partition(path)) is not None and not self._folder(at[0], at[1]).plain:
            kind = pafs.FileType.Directory if self._folder(at[0], at[1]).contents else pafs.FileType.NotFound
            return pafs.FileInfo(path, kind)
        if (at := _find_partition(path.rpartition("/")[0])) is not None and not self._folder(at[0], at[1]).plain:
            found = self._file(*at, path.rpartition("/")[2])
            return pafs.FileInfo(path, pafs.FileType.NotFound) if found is None else _file_info(path, found)
        return self.filesystem.get_file_info(path)


class _From(SeekableFile):
    """A file from a position on."""

    def __init__(self, file: Any, origin: int) -> None:
        super().__init__(int(file.size()) - origin)
        self._file, self._origin = file, origin

    def fill(self, position: int, out: memoryview) -> int:
        self._file.seek(self._origin + position)
        return int(self._file.readinto(out))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _aborts(piece: CopyRange) -> bytes:
    """Return the transaction index of a copy that is cut: the aborts whose markers count."""
    contents = piece.extent.contents
    if names.TXN_INDEX not in contents.sizes:
        return b""
    path = f"{contents.copy.name}.{names.TXN_INDEX}"
    entries = transaction_index.read(contents.read(names.TXN_INDEX), path)
    return transaction_index.write(
        entries[(entries["last_offset"] >= piece.begin) & (entries["last_offset"] < piece.stop)]
    )


def _find_partition(path: str) -> tuple[str, RemotePartition, str] | None:
    """Return the folder of remote segments that contains a shown partition's folder, the partition, and the id of a
    stray segment.
    """
    folder, _, name = path.rpartition("/")
    partition = remote_partition(folder)
    if partition is None or not partition.topic_id:
        own = remote_partition(path)
        return None if own is None or own.topic_id else (path, own, "")
    if name == partition.folder:
        return folder, partition, ""
    parsed = names.parse_partition_folder(name)
    stray = parsed.mark_id if parsed is not None and parsed.mark == names.STRAY else ""
    return (folder, partition, stray) if stray and name == _stray_folder(partition, stray) else None


def _stray_folder(partition: RemotePartition, segment_id: str) -> str:
    return names.partition_folder(partition.topic, partition.partition, names.STRAY, segment_id)


def _strays(folder: str, partition: RemotePartition, copies: Iterable[Contents]) -> Iterator[pafs.FileInfo]:
    for contents in copies:
        if names.LOG not in contents.copy.objects or not contents.copy.segment_id:
            continue
        path = f"{folder}/{_stray_folder(partition, contents.copy.segment_id)}"
        name = names.segment_file(contents.copy.start, names.LOG)
        try:
            log = _shown_log(contents)
        except LogFormatError:  # error of its manifest: raised again when the file is opened
            log = _Shown(contents.copy.objects[names.LOG].size, 0, contents, names.LOG)
        yield _file_info(f"{path}/{name}", log)


def _shown_log(contents: Contents) -> _Shown:
    info = contents.copy.objects[names.LOG]
    return _Shown(contents.sizes[names.LOG], info.mtime_ns, contents, names.LOG)


def _by_name(folder: _Folder, stray: str, name: str) -> _Shown | None:
    """Return a file of a partition's folder; a log up to the end of its copy, as an older generation may need it."""
    if stray:
        logs = (c for c in folder.contents if c.copy.segment_id == stray and names.LOG in c.copy.objects)
        return next((_shown_log(c) for c in logs if name == names.segment_file(c.copy.start, names.LOG)), None)
    entry = folder.shown.get(name)
    if entry is None or entry.contents is None or entry.kind != names.LOG:
        return entry
    return replace(entry, size=entry.contents.sizes[names.LOG] - entry.position)


def _is_hidden(partition: RemotePartition, info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.File and bool(group_copies(partition, [info]))


def _equal(copy: UploadedCopy, other: UploadedCopy) -> bool:
    """Return whether two listings of a copy found the same objects."""
    return {k: (i.path, i.size, i.mtime_ns) for k, i in copy.objects.items()} == {
        k: (i.path, i.size, i.mtime_ns) for k, i in other.objects.items()
    }


def _file_info(path: str, shown: _Shown) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.File, mtime_ns=shown.mtime_ns, size=shown.size)
