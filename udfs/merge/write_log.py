"""Writes chosen batches as segments: byte ranges of the copies' files, one after another.

A segment ends at the end of a segment of the preferred copy. It also ends before a batch that was the first of its
segment in another copy. It also ends before a batch that would make it larger than any segment of the copies and
`segment.bytes`. So an undamaged copy keeps its files, byte for byte.

A segment is planned as ranges and written as a whole, so that several can be written at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH_HEADER, MAX_RELATIVE_OFFSET, MAX_SEGMENT_BYTES, field_offset
from lastkey.logformat.listing import Segment
from lastkey.logformat.storage.io_counts import WRITTEN, spend
from lastkey.logformat.storage.regular_files import RegularFile
from lastkey.udfs.merge.choose import Stream
from lastkey.udfs.storage import Root, open_file, open_output, open_root, set_time

_EPOCH = field_offset(BATCH_HEADER, "partition_leader_epoch")
_PIECE = 8 << 20
_MOST_RANGES = 1 << 14  # ranges of a segment that are kept in memory


class SegmentPlanner:
    """Planner of one partition's segments."""

    def __init__(
        self,
        output: Root,
        folder: str,
        streams: Sequence[Stream],
        primary: int,
        segment_bytes: int,
        planned: Callable[[NewSegment, int | None], None],
    ) -> None:
        """Begin. planned: called with each whole segment, and the base offset of the next one, None for the last."""
        self.planned = planned
        self.output, self.folder, self.streams = output, folder, streams
        own = next(stream.segments for stream in streams if stream.copy == primary)
        self.bases = np.array([segment.base_offset for segment in own], np.int64)
        listed = [segment.size_bytes for stream in streams for segment in stream.segments]
        self.most_bytes = min(max(segment_bytes, *listed), MAX_SEGMENT_BYTES)
        self.new_bases: list[int] = []
        self._firsts = [np.array(stream.first_rows, np.int64) for stream in streams]
        self._end = -1  # last offset so far
        self._segment: NewSegment | None = None

    def add(self, rows: np.ndarray, epochs: np.ndarray) -> None:
        """Append chosen batches, CANDIDATE[n]. epochs: int64[n], the leader epoch to write; -1: as it is."""
        batch = rows["batch"]
        place = np.searchsorted(self.bases, batch["base_offset"], "right")
        begins = np.zeros(len(rows), np.bool_)
        ends = np.concatenate([[self._end], batch["last_offset"][:-1]])  # end of the batch before
        for number, firsts in enumerate(self._firsts):
            mine = np.flatnonzero((rows["stream"] == number) & np.isin(rows["row"], firsts))
            own = [segment.base_offset for segment in self.streams[number].segments]
            begins[mine] = np.array(own)[np.searchsorted(firsts, rows["row"][mine], "right") - 1] > ends[mine]
        before = np.searchsorted(self.bases, self._end, "right") if self._end >= 0 else -1
        forced = begins | (place != np.concatenate([[before], place[:-1]]))
        starts = np.flatnonzero(forced).tolist()
        for first, until in zip([0, *starts], [*starts, len(rows)], strict=True):
            if first < until:
                self._add_part(rows, epochs, first, until, bool(forced[first]))

    def _add_part(self, rows: np.ndarray, epochs: np.ndarray, first: int, until: int, is_border: bool) -> None:
        """Add rows that belong together, to another segment where they do not fit."""
        batch = rows["batch"]
        while first < until:
            if self._segment is None or is_border:
                self._segment = self._begin(self._base_offset(rows[first]))
            new = self._segment
            sizes = new.size_bytes + np.cumsum(batch["size"][first:until])
            fits = sizes <= self.most_bytes
            fits &= batch["last_offset"][first:until] - new.base_offset <= MAX_RELATIVE_OFFSET
            n = int(fits.argmin()) if not fits.all() else until - first
            if n == 0 and new.size_bytes:
                is_border = True
                continue
            n = max(n, 1)
            self._append(new, rows[first : first + n], epochs[first : first + n])
            first, is_border = first + n, True

    def _base_offset(self, row: np.void) -> int:
        """Return the base offset of the segment that begins with this batch."""
        firsts = self._firsts[row["stream"]]
        own = self.streams[row["stream"]].segments
        at = int(np.searchsorted(firsts, row["row"], "right")) - 1
        base = int(row["batch"]["base_offset"])
        bases = [int(self.bases[i]) for i in [int(np.searchsorted(self.bases, base, "right")) - 1] if i >= 0]
        bases += [own[at].base_offset] if firsts[at] == row["row"] else []
        return max((each for each in bases if self._end < each <= base), default=base)

    def _begin(self, base_offset: int) -> NewSegment:
        done, self._segment = self._segment, None  # its thread closes it
        if done is not None:
            self.planned(done, base_offset)
        self.new_bases.append(base_offset)
        return NewSegment(self.output, self.folder, base_offset)

    def _append(self, new: NewSegment, rows: np.ndarray, epochs: np.ndarray) -> None:
        batch, segment = rows["batch"], np.empty(len(rows), np.int64)
        for number in np.unique(rows["stream"]).tolist():
            mine = rows["stream"] == number
            segment[mine] = np.searchsorted(self._firsts[number], rows["row"][mine], "right") - 1
        ends = batch["position"] + batch["size"]
        breaks = (rows["stream"][1:] != rows["stream"][:-1]) | (segment[1:] != segment[:-1])
        breaks |= batch["position"][1:] != ends[:-1]
        breaks |= (epochs[1:] >= 0) | (epochs[:-1] >= 0)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for a, b in zip(starts, [*starts[1:], len(rows)], strict=True):
            of = self.streams[int(rows["stream"][a])].segments[int(segment[a])]
            start, end = int(batch["position"][a]), int(ends[b - 1])
            new.append(of, start, end - start, int(epochs[a]))
        self._end = int(batch["last_offset"][-1])

    def finish(self, end: int) -> list[int]:
        """End the log at this offset; return the base offsets. The last segment is empty if no batch ends there."""
        if end > self._end + 1 or self._segment is None:
            self._segment = self._begin(end)
        last, self._segment = self._segment, None
        self.planned(last, None)
        return self.new_bases

    def close(self) -> None:
        """Close the files of a segment that was not handed over, after an error."""
        if self._segment is not None:
            self._segment.close()


class NewSegment:
    """A segment that byte ranges of other files are appended to; on a disk by copy_file_range(2).

    `append` keeps a range in memory, or copies all so far if there are too many; `write` copies the rest.
    """

    def __init__(self, root: Root, folder: str, base_offset: int) -> None:
        self.root, self.path = root, f"{folder}/{names.segment_file(base_offset, names.LOG)}"
        self.base_offset, self.size_bytes, self.mtime_ms = base_offset, 0, 0
        self._ranges: list[tuple[Segment, int, int, int]] = []
        self._sources: dict[tuple[str, str], Any] = {}
        self._files = ExitStack()
        self._stream: Any = None
        self._descriptor = -1

    def append(self, segment: Segment, start: int, size: int, epoch: int) -> None:
        """Append bytes of a segment's log. epoch: the leader epoch of the one batch there; -1: as it is."""
        self._ranges.append((segment, start, size, epoch))
        self.size_bytes += size
        self.mtime_ms = max(self.mtime_ms, segment.mtime_ms)
        if len(self._ranges) == _MOST_RANGES:
            self._copy()

    def write(self) -> Segment:
        """Write what has been appended, and close the files."""
        with self._files:
            self._copy()
        if self.mtime_ms:
            set_time(self.root, self.path, self.mtime_ms * 1_000_000)
        return Segment(self.root.uri, self.path, self.base_offset, self.size_bytes, self.mtime_ms)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _copy(self) -> None:
        if self._stream is None and self._descriptor < 0:
            self._create()
        for segment, start, size, epoch in self._ranges:
            self._copy_part(segment, start, size, epoch)
        self._ranges.clear()

    def _create(self) -> None:
        if not self.root.is_local:
            self._stream = self._files.enter_context(open_output(self.root, self.path))
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self.root.full(self.path), flags, 0o644)
        self._files.callback(os.close, self._descriptor)

    def _copy_part(self, segment: Segment, start: int, size: int, epoch: int) -> None:
        key = segment.root, segment.path
        if key not in self._sources:
            self._sources[key] = self._files.enter_context(open_file(open_root(segment.root), segment.path))
        file = self._sources[key]
        if epoch < 0 and self._descriptor >= 0 and isinstance(file, RegularFile):
            self._copy_range(file, segment.path, start, size)
            return
        for data in _pieces(file, segment.path, start, size):
            piece = bytearray(data)
            if epoch >= 0:
                piece[_EPOCH : _EPOCH + 4] = epoch.to_bytes(4, "big")
                epoch = -1
            self._write(piece)

    def _copy_range(self, file: Any, path: str, start: int, size: int) -> None:
        while size:
            try:
                n = os.copy_file_range(file.fileno(), self._descriptor, min(size, 64 << 20), start)
            except OSError:  # across file systems, or on one that cannot
                for data in _pieces(file, path, start, size):
                    self._write(data)
                return
            if n == 0:
                raise LogFormatError("changed", path, start, f"{size} more bytes", "end of file")
            spend(n)
            spend(n, WRITTEN)
            start, size = start + n, size - n

    def _write(self, data: bytes | bytearray) -> None:
        if self._stream is not None:
            self._stream.write(data)
            return
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        spend(len(data), WRITTEN)


def _pieces(file: Any, path: str, start: int, size: int) -> Iterator[bytes]:
    file.seek(start)
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            raise LogFormatError("changed", path, start, f"{size} more bytes", "end of file")
        spend(len(data))
        yield data
        start, size = start + len(data), size - len(data)
