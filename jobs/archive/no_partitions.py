"""A folder without partitions: the error, which names the program whose files the folder holds.

The folder is searched for files of other programs that hold records of Kafka topics, by names and first bytes. Sources:
Redpanda, `model/record.h`; Confluent, `TierObjectStoreUtils.keyPath`; itadventurer/kafka-backup, "Kafka Backup:
Architecture"; osodevops/kafka-backup, `segment_key`; Confluent's S3 sink connector, "Object names".
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.errors import MissingPathError
from lastkey.jobs.topics import FOLDERS_OF
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.storage import Root, opened

_MOST_LISTINGS: Final = 64
_MOST_BELOW: Final = 8  # folders of one folder that are searched
_FIRST_BYTES: Final = 64
_NAMED: Final = 5  # marked folders
_LIVE: Final = (
    "read them through a cluster: restore the backup with its own program, then archive the broker's log directory"
)


@dataclass(frozen=True)
class ForeignLayout:
    """Files of another program."""

    owner: str
    path: re.Pattern[str]  # the end of a file's path
    begins: Callable[[re.Match[str], bytes], bool]  # (match of the path, first bytes of the file)
    advice: str


def _is_redpanda_batch(path: re.Match[str], first: bytes) -> bool:
    """Header checksum u4, size u4, base offset i8, all little-endian; Kafka's headers are big-endian."""
    size, base = int.from_bytes(first[4:8], "little"), int.from_bytes(first[8:16], "little")
    return len(first) >= 61 and size >= 61 and base == int(path["base"])


def _is_kafka_batch(path: re.Match[str], first: bytes) -> bool:
    return len(first) >= 17 and int.from_bytes(first[:8], "big") >= int(path["base"]) and first[16] <= 2


FOREIGN: Final = (
    ForeignLayout(
        "Redpanda's segments",
        re.compile(r"(?P<topic>[^/]+)/(?P<partition>\d+)_\d+/(?P<base>\d+)-\d+-v1\.log"),
        _is_redpanda_batch,
        "their batches have headers of another format: copy the topics to a Kafka cluster, with MirrorMaker for "
        "example, and archive that cluster's log directory",
    ),
    ForeignLayout(
        "segments of Confluent's tiered storage",
        re.compile(r"0/[\w-]{22}/(?P<topic_id>[\w-]{22})/(?P<partition>\d+)/(?P<base>\d{20})_\d+_v\d+\.segment"),
        _is_kafka_batch,
        "the objects hold Kafka's batches, but the path names a topic id and no topic: copy each object to "
        "<topic>-<partition>/<20 digits>.log of a new folder, and give that folder",
    ),
    ForeignLayout(
        "a logical backup by kafka-backup (itadventurer)",
        re.compile(r"(?P<topic>[^/]+)/segment_partition_(?P<partition>\d+)_from_offset_(?P<base>\d+)_records"),
        lambda _, first: first[:1] in (b"", b"\x01"),
        _LIVE,
    ),
    ForeignLayout(
        "a logical backup by kafka-backup (osodevops)",
        re.compile(r"topics/(?P<topic>[^/]+)/partition=(?P<partition>\d+)/segment-(?P<base>\d+)\.bin(\.\w+)?"),
        lambda *_: True,
        _LIVE,
    ),
    ForeignLayout(
        "objects of a Kafka Connect sink",
        re.compile(r"(?P<topic>[^/]+)/(?:[^/]+/)+(?P=topic)\+(?P<partition>\d+)\+(?P<base>\d+)\.[\w.]+"),
        lambda *_: True,
        "they hold converted records, not Kafka's batches: produce them to a cluster with the matching source "
        "connector, and archive the broker's log directory",
    ),
)


def check_holds_partitions(archive: Archive) -> None:
    """Raise MissingPathError if the archive has no folder of a partition: an unmounted disk or a wrong folder is not an
    intact archive. Do nothing if a folder could not be listed: that is a problem of its own.
    """
    if archive.topics or archive.unreadable:
        return
    marked = [path for path in archive.not_read if _mark(path)]
    foreign = _find_foreign(archive.root) if not marked else None
    found = "none"
    if marked:
        counts = Counter(map(_mark, marked))
        more = f" and {len(marked) - _NAMED:,} more" if len(marked) > _NAMED else ""
        kinds = ", ".join(f"{counts[mark]:,} -{mark}" for mark in FOLDERS_OF if counts[mark])
        found = f"only folders that a broker marked ({kinds}): {', '.join(marked[:_NAMED])}{more}"
    elif foreign is not None:
        found = f"{foreign[0].owner}: {foreign[1]}"
    error = MissingPathError(path=archive.root.uri, expected="folders <topic>-<partition> of an archive", found=found)
    if marked:
        error.add_note(
            "a folder marked -stray or -future may hold the only copy of a partition; --folders "
            f"{','.join(FOLDERS_OF[mark] for mark in FOLDERS_OF if counts[mark])} reads it under its name without id "
            "and mark"
        )
    if foreign is not None:
        error.add_note(foreign[0].advice)
    if names.parse_partition_folder(archive.root.uri.rstrip("/").rpartition("/")[2]) is not None:
        error.add_note("this is a partition's folder: give the folder above it")
    raise error


def _mark(path: str) -> str:
    """Return the mark of a partition's folder, such as "stray"; "" if it has none."""
    parsed = names.parse_partition_folder(path.rpartition("/")[2])
    return parsed.mark if parsed is not None else ""


def _find_foreign(root: Root) -> tuple[ForeignLayout, str] | None:
    """Return the layout of another program below a root, and the path of one of its files; None if none is known.

    Lists at most 64 folders, in breadth first order, and opens only files whose paths match.
    """
    folders, listings = deque([""]), 0
    while folders and listings < _MOST_LISTINGS:
        folder, listings = folders.popleft(), listings + 1
        try:
            listed, _ = text_entries(root.filesystem.get_file_info(pafs.FileSelector(root.full(folder))))
        except OSError:
            continue
        entries = sorted(listed, key=lambda e: e.base_name)
        for name in (e.base_name for e in entries if e.type == pafs.FileType.File):
            path = f"{folder}/{name}" if folder else name
            if (found := _layout(root, path)) is not None:
                return found, path
        below = [e.base_name for e in entries if e.type == pafs.FileType.Directory]
        folders += [f"{folder}/{name}" if folder else name for name in below[:_MOST_BELOW]]
    return None


def _layout(root: Root, path: str) -> ForeignLayout | None:
    """Return the layout that a file belongs to, by its path and its first bytes."""
    whole = f"{root.full('')}/{path}"
    for layout in FOREIGN:
        match = re.search(rf"(?:^|/){layout.path.pattern}$", whole)
        if match is not None and layout.begins(match, _first_bytes(root, path)):
            return layout
    return None


def _first_bytes(root: Root, path: str) -> bytes:
    try:
        with opened(root, path) as file:
            return bytes(file.read(_FIRST_BYTES))
    except (OSError, LogFormatError):
        return b""
