"""Partitions that a user selects by names: archives, log directories, partitions' folders, files, globs of them.

Only names, sizes and the small text files are read here; no log is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, list_archive, list_folder
from lastkey.jobs.data_source.options import Selection
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION, PlaceError
from lastkey.logformat.listing import Segment
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.data_source.find_pieces import first_offset
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, exists, folder_identity, normal_uri, open_root

_OF_FILE_SYSTEM: Final = "lost+found"  # a folder of many disks that only root can list; it holds no log
_NO_LOGS: Final = frozenset((*names.PARTITION_SIDE_FILES, *names.OFFSET_CHECKPOINTS))
_WILD: Final = re.compile(r"[*?[]")


def find_partitions(paths: Sequence[str], selection: Selection, *, may_be_none: bool = False) -> list[SourcePartition]:
    """Return the wanted partitions by topic and number. Raise MissingPathError for a missing path, UsageError for an
    impossible URI, and, unless `may_be_none`, for a selection that matches no partition.
    """
    partitions: dict[object, SourcePartition] = {}
    left_out: set[str] = set()
    files: dict[object, dict[str, Segment]] = {}
    for uri in _each_once(paths):
        root = _root(uri)
        kind = root.filesystem.get_file_info(root.base).type
        if kind == pafs.FileType.NotFound:
            raise MissingPathError(path=uri, expected="an archive, a partition's folder or a .log", found="nothing")
        if kind == pafs.FileType.File:
            parent, _, name = uri.rpartition("/")
            folder = _root(parent)
            single = files.setdefault(folder_identity(folder, "") or parent, {})
            single.setdefault(name, _single(folder, name))
            continue
        if kind != pafs.FileType.Directory:
            raise MissingPathError(path=uri, expected="a file or a folder", found="something else")
        archive = _listed(root, selection)
        left_out |= archive.not_wanted
        for problem in archive.unreadable:
            if problem.path.rpartition("/")[2] == _OF_FILE_SYSTEM:
                continue
            partitions[uri, problem.path] = SourcePartition(None, None, problem=problem)
        for archived in archive.partitions.values():
            _add(partitions, source_partition(archived, archive.root))
    for single in files.values():
        ordered = sorted(single.values(), key=lambda segment: segment.base_offset)
        parsed = names.parse_partition_folder(ordered[0].root.rpartition("/")[2])
        topic, number = (parsed.topic, parsed.partition) if parsed is not None else (None, None)
        _add(partitions, SourcePartition(topic, number, tuple(ordered)))
    wanted = [
        p for p in partitions.values() if (p.topic is None and p.problem) or selection.partition(p.topic, p.partition)
    ]
    if not may_be_none and all(p.topic is not None for p in wanted):  # an unreadable folder may belong to any topic
        known_topics = {p.topic for p in partitions.values() if p.topic is not None} | left_out
        if not known_topics:
            expected = "folders or .log files of Kafka's logs"
            raise MissingPathError(path=", ".join(paths), expected=expected, found="none")
        selection.check(known_topics, ", ".join(paths), some=bool(wanted))
    return sorted(wanted, key=lambda p: (p.topic or "", p.partition or 0))


def _root(uri: str) -> Root:
    try:
        return open_root(uri)
    except PlaceError as error:
        raise UsageError(message=str(error)) from error


def _each_once(paths: Iterable[str]) -> list[str]:
    """Return the URIs that these paths stand for, without wildcards, each once and in order."""
    return list(dict.fromkeys(uri for path in paths for uri in _expand(normal_uri(path))))


def _expand(uri: str) -> list[str]:
    """Return the URIs that match a pattern: *, ? and [...] within names. Only files that are named like a log match."""
    wild = _WILD.search(uri)
    if wild is None:
        return [uri]
    prefix, _, rest = uri[: wild.start()].rpartition("/")
    literal = _root(prefix or "/")
    if literal.filesystem.get_file_info(literal.full(rest + uri[wild.start() :])).type != pafs.FileType.NotFound:
        return [uri]  # this name only looks like a pattern
    parts = (rest + uri[wild.start() :]).split("/")
    root, folders = literal, [""]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        below = []
        for folder in folders:
            selector = pafs.FileSelector(root.full(folder.rstrip("/")) or "/", allow_not_found=True)
            entries, _ = text_entries(root.filesystem.get_file_info(selector))  # a pattern matches no other names
            for entry in sorted(entries, key=lambda entry: entry.base_name):
                is_folder = entry.type == pafs.FileType.Directory
                if fnmatchcase(entry.base_name, part) and (is_folder or (last and _is_log(entry.base_name))):
                    below.append(f"{folder}{entry.base_name}{'' if last else '/'}")
        folders = below
    if not folders:
        raise MissingPathError(path=uri, expected="a pattern that matches something", found="nothing")
    return [f"{prefix}/{path}" for path in folders]


def _is_log(name: str) -> bool:
    file = names.parse_segment_file(name)
    return file is not None and file.kind == names.LOG and not file.suffix


def _listed(root: Root, selection: Selection) -> Archive:
    parent, _, name = root.uri.rpartition("/")
    if names.parse_partition_folder(name) is not None:
        archive = list_folder(_root(parent or "/"), name)
        if archive.partitions:
            return archive
    return list_archive(root, selection.topic, selection.topics.marks)


def _add(partitions: dict[object, SourcePartition], partition: SourcePartition) -> None:
    """Add a partition. If it is there already from another folder, record a problem."""
    key = (partition.topic, partition.partition) if partition.topic is not None else len(partitions)
    other = partitions.get(key)
    if other is not None:
        here, there = (_place(one) for one in (partition, other))
        if here == there or _same_folder(here, there):
            return
        problem = Problem(
            "duplicate", here, NO_POSITION, "one folder for each partition", f"the same partition in {there}"
        )
        partition = replace(partition, problem=problem)
    partitions[key] = partition


def _place(partition: SourcePartition) -> str:
    if not partition.segments:
        return partition.problem.path if partition.problem is not None else partition.name
    first = partition.segments[0]
    return f"{first.root}/{first.path}".rpartition("/")[0]


def _same_folder(here: str, other: str) -> bool:
    """Return whether two names lead to one local folder."""
    try:
        identities = {folder_identity(_root(place), "") for place in (here, other)}
    except (OSError, UsageError):
        return False
    return len(identities) == 1 and None not in identities


def source_partition(archived: ArchivedPartition, root: Root) -> SourcePartition:
    """Return an archived partition as one to read."""
    return SourcePartition(
        archived.topic,
        archived.partition,
        tuple(archived.segments),
        archived.log_start_checkpoint,
        archived.high_watermark if archived.held_by_broker else None,
        root.uri,
        tuple(sorted(archived.snapshots.items())),
        archived.side_files.get(names.LEADER_EPOCH_CHECKPOINT),
        archived.leader_epochs or (),
        traces=archived.traces,
        problem=archived.problem,
    )


def _single(root: Root, name: str) -> Segment:
    """Return one log file of any name, with the indexes beside it."""
    info = root.filesystem.get_file_info(root.full(name))
    parsed = names.parse_segment_file(name)
    if (parsed is not None and parsed.kind != names.LOG) or name in _NO_LOGS:
        raise MissingPathError(path=f"{root.uri}/{name}", expected="a .log, or a folder", found="a file beside a log")
    if parsed is None:
        return Segment(root.uri, name, first_offset(root, name), int(info.size), info.mtime_ns // 1_000_000)
    beside = {
        kind: there if exists(root, there) else None
        for kind in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
        for there in (names.segment_file(parsed.base, kind),)
    }
    return Segment(
        root.uri,
        name,
        parsed.base,
        int(info.size),
        info.mtime_ns // 1_000_000,
        beside[names.INDEX],
        beside[names.TIME_INDEX],
        beside[names.TXN_INDEX],
    )
