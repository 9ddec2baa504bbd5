"""Files of __cluster_metadata, in the order in which they are read: the newest snapshot, then the log after it.

  snapshot  <end offset>-<epoch>.checkpoint: the whole state up to an offset; ends with a footer
  segments  <base offset>.log: every record; they are never compacted, so offsets leave out none

Every checksum, the snapshot's footer and the unbroken row of offsets are checked: a file that is damaged, cut or
missing is a LogFormatError, never another state. That holds for an incomplete batch at the end too: a damaged length
looks the same, and would hide all that follows. A log that is cut between batches is that of an earlier moment. These
files do not show which records the quorum has committed: the last records of a log may be truncated later.

Source: Snapshots, RecordsSnapshotReader and MetadataLoader of Kafka 4.3.0.

`newer_changes` checks whether a file of policies is still up to date. The offset alone does not show this, since a
controller writes a record twice a second in any case. So the log is read from that offset on; without an offset, all of
it is read, by the records' times. Only records about topics and their settings count. Segments before the offset are
not read: a day of a quiet cluster is 12 MB.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.batches.segment import SegmentReader, open_segment
from lastkey.logformat.errors import NO_POSITION, LogFormatError, readable
from lastkey.logformat.messages.metadata_changes import MetadataChange, metadata_changes
from lastkey.logformat.messages.reader import MessageError, reader
from lastkey.udfs.cluster_metadata.image import BROKER, TOPIC, Image

FOLDER: Final = names.partition_folder(names.CLUSTER_METADATA, 0)
_HEADER, _FOOTER = 3, 4  # types of control records (ControlRecordType)
_SNAPSHOT: Final = re.compile(r"(?P<end>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_TYPE: Final = struct.Struct(">hh")  # key of a control record: version, type
_COLUMNS: Final = ("offset", "key", "value", "control", "timestamp_ms")


@dataclass(frozen=True)
class MetadataFile:
    """A snapshot or a segment. `base`: first offset of a segment; end of a snapshot, -1 if its name has none."""

    filesystem: Any
    path: str
    is_snapshot: bool
    base: int

    def open(self) -> SegmentReader:
        """Return the file as a log."""
        return open_segment(self.path, self.filesystem, sealed=True)


@dataclass
class Metadata:
    """State of a cluster, and up to where it was read."""

    image: Image = field(default_factory=Image)
    end_offset: int = -1  # first offset that is not in it; -1: not known
    time_ms: int = -1  # time of the last record
    notes: list[str] = field(default_factory=list)


def list_metadata(filesystem: Any, path: str) -> list[MetadataFile]:
    """Return snapshots and segments in a folder of __cluster_metadata, or in the one of that name in it, if any."""
    with readable(path, NO_POSITION):
        for folder in (path, f"{path}/{FOLDER}"):
            infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
            found = [metadata_file(filesystem, info.path) for info in infos if info.type == pafs.FileType.File]
            files = [file for file in found if file is not None]
            if files:
                return files
    return []


def metadata_file(filesystem: Any, path: str) -> MetadataFile | None:
    """Return a file that has the name of a snapshot or a segment; None for any other name."""
    name = path.rpartition("/")[2]
    snapshot, segment = _SNAPSHOT.fullmatch(name), names.parse_segment_file(name)
    if snapshot is not None:
        return MetadataFile(filesystem, path, True, int(snapshot["end"]))
    if segment is not None and segment.kind == names.LOG and not segment.suffix:
        return MetadataFile(filesystem, path, False, segment.base)
    return None


def read_metadata(files: Sequence[MetadataFile]) -> Metadata:
    """Return the state that snapshots and segments of one cluster lead to. Raise LogFormatError for any damage."""
    out, unknown = Metadata(), Counter[int]()
    snapshots = sorted((file for file in files if file.is_snapshot), key=lambda file: file.base)
    segments = sorted((file for file in files if not file.is_snapshot), key=lambda file: file.base)
    if snapshots:
        newest = snapshots[-1]
        out.image.apply(newest.path, _snapshot_changes(newest, out, unknown))
        out.end_offset = newest.base
    start = max(out.end_offset, 0)
    for file, next_base in _behind(segments, start):
        out.image.apply(file.path, _segment_changes(file, out, unknown, start, next_base))
    if out.image.open_records:
        out.notes.append(f"{out.image.open_records} records of a transaction that has not ended do not count")
    out.notes += [
        f"{n} records of type {kind}, which Kafka 4.4 does not have, were passed over" for kind, n in unknown.items()
    ]
    return out


def changes_from(files: Iterable[MetadataFile], offset: int, time_ms: int) -> tuple[int, list[MetadataChange]]:
    """Return the first offset of the segments, and their changes from an offset on, if it is known, else after a time.

    Segments before the offset are not read. Raise LogFormatError for damage in the others.
    """
    segments = sorted((file for file in files if not file.is_snapshot), key=lambda file: file.base)
    out, start = Metadata(), max(offset, segments[0].base if segments else 0)
    changes: list[MetadataChange] = []
    for file, next_base in _behind(segments, start):
        changes += _segment_changes(file, out, Counter(), start, next_base)
    return (segments[0].base if segments else -1), [c for c in changes if offset >= 0 or c.timestamp_ms > time_ms]


def _behind(segments: Sequence[MetadataFile], start: int) -> Iterator[tuple[MetadataFile, int | None]]:
    """Yield each segment that may hold offsets from `start` on, with the base of the next one; check the first."""
    for i, file in enumerate(segments):
        next_base = segments[i + 1].base if i + 1 < len(segments) else None
        if i == 0 and file.base > start:
            raise LogFormatError(
                "gap",
                file.path,
                0,
                f"offsets from {start} on, or a snapshot up to {file.base} or later",
                f"{file.base}",
            )
        if next_base == file.base:
            raise LogFormatError("duplicate", file.path, 0, "the log of one node", "two segments of this offset")
        if next_base is None or next_base > start:
            yield file, next_base


def _segment_changes(
    file: MetadataFile, out: Metadata, unknown: Counter[int], start: int, next_base: int | None
) -> Iterator[MetadataChange]:
    """Yield the changes from `start` on; check that offsets leave out none, up to the next segment."""
    segment = file.open()
    expected = file.base
    for batches in segment.iter_headers():
        expected = _check_follow(file, batches, expected)
        out.time_ms = max(out.time_ms, int(batches["max_timestamp"][-1]))
    if next_base is not None and expected != next_base:
        raise LogFormatError("gap", file.path, NO_POSITION, f"offsets up to {next_base - 1}", f"up to {expected - 1}")
    for records in segment.records(_COLUMNS, start_offset=start, end_offset=expected):
        yield from _changes(file, records, unknown)
    out.end_offset = max(out.end_offset, expected)


def _check_follow(file: MetadataFile, batches: NDArray[np.void], expected: int) -> int:
    """Return the offset after batches. Raise LogFormatError unless they begin at `expected` and leave out none."""
    follows = np.append(expected, batches["last_offset"][:-1] + 1)
    wrong = batches["base_offset"] != follows
    if wrong.any():
        row = int(np.argmax(wrong))
        position, found = int(batches["position"][row]), int(batches["base_offset"][row])
        raise LogFormatError("gap", file.path, position, f"a batch at offset {follows[row]}", f"one at offset {found}")
    return int(batches["last_offset"][-1]) + 1


def _snapshot_changes(file: MetadataFile, out: Metadata, unknown: Counter[int]) -> Iterator[MetadataChange]:
    """Yield all changes of a snapshot. Raise LogFormatError unless it begins with a header and ends with a footer."""
    segment = file.open()
    headers = segment.headers()
    kinds = headers["control_type"]
    if not len(headers) or kinds[0] != _HEADER or kinds[-1] != _FOOTER:
        found = "no batch" if not len(headers) else "none at the " + ("end" if kinds[0] == _HEADER else "beginning")
        raise LogFormatError("torn_tail", file.path, NO_POSITION, "a snapshot from its header to its footer", found)
    _check_follow(file, headers, int(headers["base_offset"][0]))
    for records in segment.records(_COLUMNS):
        out.time_ms = max(out.time_ms, _last_time(records))
        yield from _changes(file, records, unknown)


def _last_time(records: Any) -> int:
    """Return the time of the last record that a snapshot covers; -1 if its header is not in this batch."""
    key, value = records.column("key")[0].as_py(), records.column("value")[0].as_py()
    if not records.column("control")[0].as_py() or _TYPE.unpack(key)[1] != _HEADER:
        return -1
    try:
        text, _ = reader("SnapshotHeaderRecord", 0)(value, 0)
    except MessageError:
        return -1
    found = re.search(r'"lastContainedLogTimestamp":(-?\d+)', text)
    return int(found[1]) if found else -1


def _changes(file: MetadataFile, records: Any, unknown: Counter[int]) -> list[MetadataChange]:
    rows = np.flatnonzero(~np.asarray(records.column("control").to_numpy(zero_copy_only=False)))
    data = records.take(rows)
    values, offsets, times = (data.column(name) for name in ("value", "offset", "timestamp_ms"))
    return metadata_changes(file.path, values, offsets, times, unknown)


def newer_changes(filesystem: Any, folders: Iterable[str], offset: int, time_ms: int) -> str | None:
    """Return in words how the metadata in these folders continues after an offset (-1: not known) or a time.

    None if missing, or no topic or setting has changed.
    """
    for folder in folders:
        try:
            files = list_metadata(filesystem, f"{folder}/{FOLDER}")
            change = _newer(files, offset, time_ms)
        except LogFormatError as error:
            return f"it is not known whether they are up to date: {error}"
        if change is not None:
            return f"{folder}/{FOLDER} {change}"
    return None


def _newer(files: list[MetadataFile], offset: int, time_ms: int) -> str | None:
    first, changes = changes_from(files, offset, time_ms)
    ours = [change for change in changes if _matters(change)]
    if ours:
        n, least = len(ours), ours[0]
        what = "1 later change" if n == 1 else f"{n:,} later changes"
        return f"has {what} of topics or settings, from offset {least.offset} on"
    if first > offset >= 0:
        return f"begins at offset {first}: what changed between {offset} and there is not known"
    return None


def _matters(change: MetadataChange) -> bool:
    if change.kind == "Config":
        return change.fields["resourceType"] in (TOPIC, BROKER)
    return change.kind in ("Topic", "RemoveTopic")
