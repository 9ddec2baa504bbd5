"""The files of a partition's folder, listed once, with leftovers of a swap resolved, and `Segment`.

No log is opened except a `.log.swap` that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.storage.locations import text_entries
from lastkey.logformat.storage.regular_files import LogFile, odd_entries, open_regular


class NamedBytes(NamedTuple):
    """Bytes of an archived `.log` that a generation names: all of it that holds offsets below `until`."""

    size: int  # 0: no generation names any
    checksum: int  # CRC-32C of the first `size` bytes
    until: int


@dataclass(frozen=True)
class ListedSegment:
    """Files of one segment, as a listing finds them."""

    root: str  # URI that `path` is below; or store, archive
    path: str  # path of the `.log`
    base_offset: int  # by the file's name
    size_bytes: int  # bytes of the `.log` that belong to it: an archived active segment may grow later
    mtime_ms: int  # used as the largest timestamp of a segment without timestamps
    # the paths of the indexes beside it; None where there is no such file
    index: str | None = None
    time_index: str | None = None
    txn_index: str | None = None
    side_root: str | None = None  # URI that the indexes are below; None: `root`


@dataclass(frozen=True)
class Segment(ListedSegment):
    """One segment of a log. A listing knows its files, and a scan adds facts about its batches. A run that writes a
    generation adds the other columns of the manifest (`jobs.store.rows.SEGMENT_COLUMNS`).

    It holds only plain values, because it crosses between processes, and they suffice to find the files again.
    """

    # planned
    from_offset: int = 0  # the generation already has the batches below
    named: NamedBytes | None = None  # set if keys were erased here: the .log must have these bytes, and no more
    # scanned
    next_offset: int = -1  # end of the range that this segment covers
    last_offset: int = -1  # -1 when empty
    batches: int = -1  # -1: not scanned
    records: int = -1  # a wrapper of magic 0, 1 counts as one
    tombstones: int = -1  # -1: not counted
    max_timestamp_ms: int = -1  # -1: none
    min_timestamp_ms: int = -1  # smallest timestamp of its data records that have one; 2**63 - 1: none has; -1: unknown
    codecs: str = ""  # comma list
    magics: str | None = None  # comma list: message formats of its batches; None: not known
    checksum: int = 0  # CRC-32C of the first size_bytes of the .log
    # written
    cleaned: bool = False  # the run that made the generation wrote this segment
    source_bytes: int = 0  # size of the group before this cleaning
    source_records: int = 0
    txn_index_bytes: int = 0
    offset_index_bytes: int = 0
    time_index_bytes: int = 0
    side_files: str | None = None  # JSON {name: CRC-32C}: indexes, snapshot; last row: others of the generation
    deduplicated_through: int = -1  # no key has a newer record below this offset; -1: that of the run which cleaned all
    superseded: int = 0  # records that newer ones have superseded since it was written, as filters estimate
    expected_dead: int = -1  # removals from its sources that the filters expected; -1: not counted
    facts_bytes: int = 0  # size of the files beside it that runs by yield read
    key_files: str | None = None  # JSON [[first, until, path, keys, CRC-32C], ...]: hashes of the keys from `first` on

    @property
    def first_offset(self) -> int:
        """The lowest offset that counts."""
        return max(self.base_offset, self.from_offset)

    @property
    def has_facts(self) -> bool:
        """True if the facts of its batches are known: of a scanned segment, and of one with a row in a manifest."""
        return self.batches >= 0

    @property
    def dead_records(self) -> int:
        """Number of removed records of its sources."""
        return self.source_records - self.records

    @property
    def dead_bytes(self) -> int:
        """Number of removed bytes of its sources."""
        return self.source_bytes - self.size_bytes

    @property
    def beside(self) -> str:
        """URI that the indexes are below."""
        return self.side_root or self.root


class FolderFiles(NamedTuple):
    """The contents of a partition's folder."""

    resolution: names.Resolution
    entries: dict[str, pafs.FileInfo]  # files by name
    odd: dict[str, str]  # name -> kind of each entry that is neither a file nor a folder
    folders: tuple[str, ...]  # a broker makes none in here
    n_not_text: int  # entries whose names are not UTF-8

    def segments(self, root: str, folder: str) -> Iterator[Segment]:
        """Yield the segments by base offset; `folder` is their path below `root`, empty or ending in a slash."""
        beside = (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
        for base, files in self.resolution.segments.items():
            log = files[names.LOG]
            index, times, txns = (f"{folder}{files[kind].name}" if kind in files else None for kind in beside)
            mtime_ms = self.entries[log.name].mtime_ns // 1_000_000
            yield Segment(root, f"{folder}{log.name}", base, log.size, mtime_ms, index, times, txns)


def list_partition_files(filesystem: Any, path: str, shown: str) -> FolderFiles:
    """List a partition's folder, which messages call `shown`. Open only a `.log.swap` that counts.

    Raise LogFormatError kind "unreadable" if an entry named like a `.log` is a folder, a pipe or a link without a
    target: otherwise its segment would be missing without a note. Raise FileNotFoundError or OSError if the folder
    cannot be listed.
    """
    listed, n_not_text = text_entries(filesystem.get_file_info(pafs.FileSelector(path)))  # Kafka's names are ASCII
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
    return FolderFiles(resolution, entries, odd, folders, n_not_text)


def _next_offset(filesystem: Any, path: str, shown: str) -> int:
    """Return the last offset + 1 of a `.log.swap`, or its base offset if it is empty."""
    parsed = names.parse_segment_file(path.rpartition("/")[2])
    last = (parsed.base if parsed is not None else 0) - 1
    for chunk in LogReader().headers(LogFile(lambda: open_regular(filesystem, path, shown), shown)):
        last = chunk.last_offset
    return last + 1
