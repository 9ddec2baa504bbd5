"""Contents of an archive: its partitions, their files, and the values of the small text files beside them. No log is
opened.

An archive is a log directory of a broker, or a folder of such directories: every folder that is named and filled like a
partition's counts, up to `_MAX_DEPTH` folders below the root. Where a folder holds segments of tiered storage, the
archive is listed again as a view that shows them as log directories; `Archive.root` is then that view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyarrow import fs as pafs

from lastkey.jobs.archive.broker_lock import is_locked
from lastkey.jobs.archive.join import duplicate, note_beginnings, one_log
from lastkey.jobs.errors import MissingPathError
from lastkey.jobs.topics import EVERY_TOPIC, FOLDERS_OF, TopicFilter
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION, LogFormatError, unreadable
from lastkey.logformat.listing import Segment, list_partition_files
from lastkey.logformat.side_files import checkpoints
from lastkey.logformat.storage.locations import TIERED, text_entries
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import SideFile, Traces
from lastkey.udfs.storage import (
    Root,
    copies_left_out,
    folder_identity,
    holds_segments,
    is_link,
    no_files,
    notes_on_copies,
    open_root,
    read_file,
)

T = TypeVar("T")
_BESIDE = (
    names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.HIGH_WATERMARK_CHECKPOINT,
    names.META_PROPERTIES, names.LOCK,
)  # fmt: skip
_NO_EPOCHS_BYTES = len("0\n0\n")  # most bytes of a leader-epoch-checkpoint without entries; other files have more
_NO_HIGH_WATERMARK = "it gives the high watermark: restore it from a copy, or delete it if all of the log counts"
_MAX_DEPTH = 3  # folders between the root and a partition's, such as a disk and a log directory


@dataclass
class ArchivedPartition:
    """Files and checkpoints of one partition's folder."""

    topic: str
    partition: int
    root: str  # URI that all paths are relative to
    path: str
    mark: str = ""  # suffix of the folder's name: names.FOLDER_MARKS
    segments: list[Segment] = field(default_factory=list)  # by base offset
    snapshots: dict[int, str] = field(default_factory=dict)  # offset -> path
    orphans: dict[int, str] = field(default_factory=dict)  # base offset -> path of an index without its .log
    side_files: dict[str, str] = field(default_factory=dict)  # name -> path
    topic_id: str | None = None  # as Kafka writes it, 22 characters
    cluster_id: str | None = None
    leader_epochs: tuple[tuple[int, int], ...] | None = None
    cleaner_checkpoint: int | None = None
    log_start_checkpoint: int | None = None
    high_watermark: int | None = None
    high_watermark_problem: Problem | None = None  # problem of a checkpoint that exists and cannot be read
    unread: Problem | None = None  # an unreadable file beside the log; a damaged file has only a note
    held_by_broker: bool = False
    not_read: list[str] = field(default_factory=list)  # paths in the folder whose content is not part of this listing
    notes: list[str] = field(default_factory=list)
    problem: Problem | None = None

    @property
    def key(self) -> tuple[str, int]:
        """(topic, partition)."""
        return self.topic, self.partition

    @property
    def has_log(self) -> bool:
        """True if there is a log, or a problem in its place."""
        return bool(self.segments) or self.problem is not None

    @property
    def begins_elsewhere(self) -> bool:
        """True if the beginning of the log is in remote storage. Kafka writes a log start of 0 into its checkpoint for
        topics with tiered storage alone (KAFKA.md, "Log directory").
        """
        return self.log_start_checkpoint == 0 and bool(self.segments) and self.segments[0].base_offset > 0

    @property
    def traces(self) -> Traces:
        """Traces that distinguish a gap from a hole that a cleaner made."""
        epochs = self.side_files.get(names.LEADER_EPOCH_CHECKPOINT)
        return Traces(
            self.cleaner_checkpoint or 0,
            self.log_start_checkpoint or 0,
            tuple(sorted(self.orphans.items())),
            tuple(sorted(self.snapshots.items())),
            (self.leader_epochs[0][1], epochs) if self.leader_epochs and epochs is not None else None,
            self.begins_elsewhere,
        )

    def located(self, files: Mapping[int, str]) -> Iterator[SideFile]:
        """Yield each of these files of its folder (offset -> path) in the form that tasks take."""
        return (SideFile(self.root, path, offset) for offset, path in files.items())


@dataclass
class _LogDirectory:
    cleaner: dict[tuple[str, int], int] | None = None
    log_start: dict[tuple[str, int], int] | None = None
    high_watermark: dict[tuple[str, int], int] | None = None
    high_watermark_problem: Problem | None = None
    unread: Problem | None = None
    cluster_id: str | None = None
    held_by_broker: bool = False


class _TieredError(Exception):
    """Error of a folder that holds remote segments: the archive must be listed as a view of them."""


@dataclass(frozen=True)
class _Link:
    path: str  # path of the folder that holds the link
    name: str
    depth: int
    files: frozenset[str]  # beside it


@dataclass
class Archive:
    """Listing of an archive: its partitions, and what was left out and why."""

    root: Root
    partitions: dict[tuple[str, int], ArchivedPartition] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)  # paths outside of partitions that may hold records of a log
    topics: set[str] = field(default_factory=set)  # all that have a folder, asked for or not
    not_wanted: set[str] = field(default_factory=set)  # the topics of these that were not asked for
    unreadable: list[Problem] = field(default_factory=list)  # problems of folders, each also in a note
    without_segments: list[ArchivedPartition] = field(default_factory=list)  # folders without a .log or an index
    folders: set[str] = field(default_factory=set)  # all that were searched for partitions
    seen: dict[tuple[int, int], str] = field(default_factory=dict)  # (device, inode) of real folders -> path
    links: list[_Link] = field(default_factory=list)  # to folders; followed after all real folders
    directories: dict[str, _LogDirectory] = field(default_factory=dict)  # log directories by path
    marks: frozenset[str] = frozenset()  # marks of folders that are read though a broker marked them


def listed(uri: str, topics: TopicFilter = EVERY_TOPIC) -> Archive:
    """Call `list_archive` for a path or URI that a user gave. Raise MissingPathError if no folder is there."""
    try:
        return list_archive(open_root(uri), topics.takes, topics.marks)
    except FileNotFoundError:
        raise MissingPathError(path=uri, expected="a folder with Kafka log directories", found="none") from None


def archive_root(uri: str) -> Root:
    """Return the root of an archive: a view if it has tiered storage. Raise FileNotFoundError if it is missing."""
    return list_archive(open_root(uri), lambda _: False).root


def list_archive(root: Root, wanted: Callable[[str], bool], marks: Collection[str] = ()) -> Archive:
    """List the partitions of the topics that are `wanted`, in marked folders too (marks: of names.FOLDER_MARKS).
    Raise FileNotFoundError for a missing root, AccessError for a missing bucket.
    """
    archive = Archive(root, marks=frozenset(marks))
    if root.filesystem.get_file_info(root.full("")).type != pafs.FileType.Directory:
        raise FileNotFoundError(root.uri)
    try:
        with ThreadPoolExecutor(16) as pool:
            _walk(archive, "", 0, wanted, pool)
            while archive.links:  # after all real folders, so that those keep their own names
                archive.links.sort(key=lambda link: (link.depth, link.path, link.name))
                _walk_link(archive, archive.links.pop(0), wanted, pool)
        note_beginnings(archive.partitions.values())
    except _TieredError as found:
        archive = list_archive(root.as_tiered(), wanted, marks)
        archive.notes.insert(0, f"{found}: segments of tiered storage; the archive is read as {archive.root.uri}")
    for left in archive.without_segments:  # a folder without a log is harmless where another one holds the partition
        if left.key not in archive.partitions and (problem := _missing_log(left)) is not None:
            archive.partitions[left.key] = replace(left, problem=problem, notes=[])
    uploaded = [one.path for one in archive.partitions.values() if names.UPLOADED in one.side_files]
    if uploaded:
        more = f" and {len(uploaded) - 1:,} more" if len(uploaded) > 1 else ""
        hint = "" if archive.root.uri.startswith(TIERED) else f"; if segments overlap, give {TIERED}{root.uri}"
        archive.notes.insert(
            0,
            f"{uploaded[0]}{more}: uploaded by Pinterest's tiered storage ({names.UPLOADED}), without producer "
            f"snapshots, transaction indexes and leader epochs{hint}",
        )
    return archive


def list_folder(root: Root, folder: str) -> Archive:
    """List the single partition of a folder directly below the root, with its values in the checkpoints of the log
    directory.

    The archive is empty if the folder holds no log or is not named like a partition's. A missing folder is a problem.
    """
    archive = Archive(root)
    parsed = names.parse_partition_folder(folder)
    if parsed is None or parsed.mark:
        return archive
    beside = root.filesystem.get_file_info([root.full(name) for name in _BESIDE])
    directory = _read_directory(archive, "", {e.base_name for e in beside if e.type == pafs.FileType.File})
    found = _read_partition(root, parsed, folder, directory)
    if found.has_log:
        archive.partitions[found.key] = found
        note_beginnings(archive.partitions.values())
    return archive


def listed_again(archive: Archive, archived: ArchivedPartition) -> ArchivedPartition:
    """List a partition's folder again, with the checkpoints beside it as listed before. The caller holds Kafka's lock,
    so no code here may open `.lock`. A broker may have written to the folder before the lock was taken.
    """
    parent, _, folder = archived.path.rpartition("/")
    parsed = names.parse_partition_folder(folder)
    if parsed is None or archived.problem is not None:
        return archived
    again = _read_partition(archive.root, parsed, archived.path, archive.directories[parent])
    return again if again.has_log else archived


def _list(root: Root, path: str) -> tuple[list[pafs.FileInfo], int]:
    """Return a folder's entries, and how many of its names are not UTF-8: Kafka's own names are ASCII."""
    return text_entries(root.filesystem.get_file_info(pafs.FileSelector(root.full(path))))


def _is_new(archive: Archive, path: str) -> bool:
    """Return whether a real folder was not listed before. A folder with several names is listed once."""
    try:
        identity = folder_identity(archive.root, path)
    except OSError:
        return True  # reading the folder reports the error
    if identity is None:
        return True
    first = archive.seen.setdefault(identity, path)
    if first != path:
        archive.notes.append(f"{path}: the same folder as {first or archive.root.uri}; counted once")
    return first == path


def _walk(archive: Archive, path: str, depth: int, wanted: Callable[[str], bool], pool: ThreadPoolExecutor) -> None:
    """Add the partitions below a folder that is no partition's; keep links to folders for later."""
    if not _is_new(archive, path):
        return
    try:
        listed, others = _list(archive.root, path)
        odd = no_files(archive.root, path, listed)
    except OSError as error:
        damage = unreadable(path or archive.root.uri, error, NO_POSITION)
        archive.unreadable.append(Problem.of(damage))
        archive.notes.append(f"{damage}; left out")
        return
    if others:  # perhaps folders that hold partitions
        _leave_out(archive, path, f"{others:,} names that are not UTF-8")
    for name, kind in odd.items():
        _leave_out(archive, _below(path, name), kind)
    entries = sorted(listed, key=lambda e: e.base_name)
    files = frozenset(e.base_name for e in entries if e.type == pafs.FileType.File)
    if holds_segments(archive.root, path, files):
        raise _TieredError(path or archive.root.uri)
    if any(names.parse_segment_file(name) is not None for name in files):
        _leave_out(archive, path, "files of a log, in a folder that is not named like a partition's")
    else:
        archive.not_read += [_below(path, name) for name in sorted(files) if not names.is_directory_file(name)]
    archive.folders.add(path)
    here: list[str] = []
    for folder in (e.base_name for e in entries if e.type == pafs.FileType.Directory):
        below = _below(path, folder)
        parsed = names.parse_partition_folder(folder)
        if parsed is not None and parsed.topic != names.CLUSTER_METADATA:
            if parsed.mark and parsed.mark not in archive.marks:
                _leave_out(archive, below, f"a folder marked -{parsed.mark} (--folders {FOLDERS_OF[parsed.mark]})")
                continue
            archive.topics.add(parsed.topic)
            if not wanted(parsed.topic):
                archive.not_wanted.add(parsed.topic)
            elif f"{folder}{names.PART}" in files:
                _leave_out(archive, below, f"unfinished, as {folder}{names.PART} beside it says")
            elif is_link(archive.root, below):
                archive.links.append(_Link(path, folder, depth, files))
            else:
                here.append(folder)
        elif parsed is None and folder.endswith(names.UNFINISHED):
            _leave_out(archive, below, "an unfinished folder, by its name")
        elif parsed is not None:
            archive.not_read.append(below)
        elif folder == names.REMOTE_INDEX_CACHE and _holds_cached_indexes(archive.root, below):
            continue
        elif depth >= _MAX_DEPTH:
            _leave_out(archive, below, "not a partition's folder")
        elif is_link(archive.root, below):
            archive.links.append(_Link(path, folder, depth, files))
        else:
            _walk(archive, below, depth + 1, wanted, pool)
    _partitions(archive, path, here, files, pool)


def _leave_out(archive: Archive, path: str, what: str) -> None:
    """Note an entry that no job reads although it may contain records of a log."""
    archive.not_read.append(path or archive.root.uri)
    archive.notes.append(f"{path or archive.root.uri}: {what}; left out")


def _holds_cached_indexes(root: Root, path: str) -> bool:
    """Return whether a folder holds only copies of remote segments' indexes."""
    try:
        listed, others = _list(root, path)
        odd = no_files(root, path, listed)
    except OSError:
        return False
    files = (e.type == pafs.FileType.File and names.is_cached_index(e.base_name) for e in listed)
    return not others and not odd and all(files)


def _walk_link(archive: Archive, link: _Link, wanted: Callable[[str], bool], pool: ThreadPoolExecutor) -> None:
    """List the target of a link to a folder under the path of the link."""
    if names.parse_partition_folder(link.name) is None:
        _walk(archive, _below(link.path, link.name), link.depth + 1, wanted, pool)
    else:
        _partitions(archive, link.path, [link.name], link.files, pool)


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _partitions(
    archive: Archive, path: str, folders: Sequence[str], files: frozenset[str], pool: ThreadPoolExecutor
) -> None:
    """Read the partitions in these folders of a log directory, which holds these `files`."""
    here = [folder for folder in folders if _is_new(archive, _below(path, folder))]
    if not here:
        return
    directory = archive.directories.get(path)
    if directory is None:
        directory = archive.directories[path] = _read_directory(archive, path, files)

    def read(folder: str) -> ArchivedPartition | None:
        parsed = names.parse_partition_folder(folder)
        return None if parsed is None else _read_partition(archive.root, parsed, _below(path, folder), directory)

    for partition in pool.map(read, here):
        if partition is None:
            continue
        if not partition.has_log:
            archive.notes += partition.notes
            archive.not_read += partition.not_read
            archive.without_segments.append(partition)
            continue
        other = archive.partitions.get(partition.key)
        if other is None:
            archive.partitions[partition.key] = partition
        elif partition.mark or other.mark:  # one of them may be older, or the log of another topic of this name
            archive.partitions[partition.key] = duplicate(other, partition)
        else:
            archive.partitions[partition.key] = one_log(archive.root, other, partition)


def _read_directory(archive: Archive, path: str, files: Collection[str]) -> _LogDirectory:
    out = _LogDirectory()

    def read(name: str, parse: Callable[[bytes, str], T], then: str = "ignored") -> T | None:
        found, error = (
            _read_small(archive.root, _below(path, name), parse, then, archive) if name in files else (None, None)
        )
        if error is not None and name == names.HIGH_WATERMARK_CHECKPOINT:
            out.high_watermark_problem = replace(Problem.of(error), hint=_NO_HIGH_WATERMARK)
        out.unread = out.unread or _unread(error)
        return found

    out.cleaner = read(names.CLEANER_OFFSET_CHECKPOINT, checkpoints.read_offset_checkpoint)
    out.log_start = read(names.LOG_START_OFFSET_CHECKPOINT, checkpoints.read_offset_checkpoint)
    out.high_watermark = read(names.HIGH_WATERMARK_CHECKPOINT, checkpoints.read_offset_checkpoint)
    if properties := read(names.META_PROPERTIES, checkpoints.read_meta_properties, "cluster id unknown"):
        out.cluster_id = properties.cluster_id or None
    if names.LOCK in files and archive.root.place.is_local:
        out.held_by_broker = is_locked(archive.root.full(_below(path, names.LOCK)))
        if out.held_by_broker:
            archive.notes.append(
                f"{path or archive.root.uri}: a running broker holds it; read up to the high watermark"
            )
    return out


def _read_small(
    root: Root, path: str, parse: Callable[[bytes, str], T], then: str, of: Archive | ArchivedPartition
) -> tuple[T | None, LogFormatError | None]:
    """Return a parsed small file; or the error, with a note on it and what then happens."""
    try:
        return parse(read_file(root, path), path), None
    except LogFormatError as error:
        of.notes.append(f"{error}; {then}")
        of.not_read.append(path)
        return None, error


def _unread(error: LogFormatError | None) -> Problem | None:
    """Return the problem of a side file that may become readable; None if the file is damaged, and will stay so."""
    return Problem.of(error) if error is not None and error.kind == "unreadable" else None


def _read_partition(
    root: Root, parsed: names.PartitionFolder, path: str, directory: _LogDirectory
) -> ArchivedPartition:
    out = ArchivedPartition(parsed.topic, parsed.partition, root.uri, path, parsed.mark)
    if parsed.mark:  # the checkpoints are those of the folder without the mark: its high watermark would hide records
        directory = _LogDirectory(cluster_id=directory.cluster_id, held_by_broker=directory.held_by_broker)
        note = f"{path}: read as partition {parsed.topic}-{parsed.partition}, without the checkpoints beside it"
        is_cut = len(path.rpartition("/")[2]) >= names.MAX_NAME and parsed.mark != names.FUTURE
        out.notes.append(f"{note}; the broker may have cut the topic's name to fit" if is_cut else note)
    try:
        _fill(root, out)
    except OSError as error:
        out.problem = Problem.of(unreadable(path, error, NO_POSITION))
    except LogFormatError as error:
        out.problem = Problem.of(error)
    out.high_watermark = (directory.high_watermark or {}).get(out.key)
    if out.problem is None and not out.segments:
        if not out.orphans:
            return out
        base, orphan = next(iter(out.orphans.items()))
        found = f"no .log in the whole folder: offsets from {base} on are missing"
        out.problem = Problem(
            "gap", orphan, 0, "the .log of this index", found, state="gap", hint="bring the files back"
        )
    key = out.key
    out.cluster_id = directory.cluster_id
    out.held_by_broker = directory.held_by_broker
    out.cleaner_checkpoint = (directory.cleaner or {}).get(key)
    out.log_start_checkpoint = (directory.log_start or {}).get(key)
    out.high_watermark_problem = directory.high_watermark_problem
    out.unread = out.unread or directory.unread
    if directory.held_by_broker and out.high_watermark is None:
        out.high_watermark = 0
        out.notes.append(
            f"{path}: a running broker holds it and no checkpoint gives its high watermark; nothing is read"
        )
    return out


def _missing_log(left: ArchivedPartition) -> Problem | None:
    """Return the problem of a folder without a `.log` that held one; None for the folder of a new replica. A broker
    makes the first `.log`, whose name has the offset where an empty log begins, before all other files except a
    `leader-epoch-checkpoint` without entries. If it loads the folder, it begins a new log at offset 0.
    """
    if left.high_watermark:
        expected = f"segments up to offset {left.high_watermark}, as {names.HIGH_WATERMARK_CHECKPOINT} says"
    elif left.side_files or left.snapshots:
        files = sorted([*left.side_files.values(), *left.snapshots.values()])
        expected = f"a .log beside {files[0].rpartition('/')[2]}"
    else:
        return None
    hint = "bring the files back, files of 0 bytes too; remove the folder if the partition is given up"
    return Problem("gap", left.path, NO_POSITION, expected, "none", state="gap", hint=hint)


def _fill(root: Root, out: ArchivedPartition) -> None:
    files = list_partition_files(root.filesystem, root.full(out.path), out.path)
    resolution = files.resolution
    odd = dict.fromkeys(files.folders, "a folder") | files.odd
    unread = [*odd, *(name for name in resolution.ignored if not names.is_unfinished_side_file(name))]
    out.not_read = [f"{out.path}/{name}" for name in sorted(unread)]
    out.not_read += [f"{out.path}: {files.n_not_text:,} names that are not UTF-8"] if files.n_not_text else []
    if not resolution.segments and not resolution.orphans:
        others = sorted([*odd, *resolution.ignored, *(file.name for file in resolution.snapshots.values())])
        if others:  # perhaps a log under other names, or in a folder of its own
            more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
            out.notes.append(f"{out.path}: no log in it; {others[0]}{more} left out")
        sizes = resolution.side_files
        out.side_files = {name: f"{out.path}/{name}" for name in sizes if sizes[name] > _NO_EPOCHS_BYTES}
        out.snapshots = {offset: f"{out.path}/{file.name}" for offset, file in resolution.snapshots.items()}
        return
    out.notes += [f"{out.path}/{name}: {kind}; ignored" for name, kind in odd.items()]
    out.notes.extend(f"{out.path}/{name}: {why}" for name, why in resolution.ignored.items())
    out.notes.extend(f"{out.path}: {note}" for note in (*resolution.notes, *notes_on_copies(root, out.path)))
    out.not_read.extend(copies_left_out(root, out.path))
    out.segments.extend(files.segments(root.uri, f"{out.path}/"))
    out.orphans = {base: f"{out.path}/{file.name}" for base, file in resolution.orphans.items()}
    out.snapshots = {offset: f"{out.path}/{file.name}" for offset, file in resolution.snapshots.items()}
    out.side_files = {name: f"{out.path}/{name}" for name in resolution.side_files}
    if path := out.side_files.get(names.PARTITION_METADATA):
        topic_id, error = _read_small(root, path, checkpoints.read_partition_metadata, "topic id unknown", out)
        out.topic_id, out.unread = None if topic_id is None else checkpoints.format_uuid(topic_id), _unread(error)
    if path := out.side_files.get(names.LEADER_EPOCH_CHECKPOINT):
        try:
            out.leader_epochs = tuple(checkpoints.read_leader_epochs(read_file(root, path), path))
        except LogFormatError as error:
            out.unread = out.unread or _unread(error)
            then = "rebuilt from the log" if out.unread is None else "leader epochs unknown"
            out.notes.append(f"{error}; {then}")
            out.not_read.append(path)
