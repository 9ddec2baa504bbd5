"""Writes chosen batches as segments: byte ranges of the copies' files, one after another.

A segment ends at the end of a segment of the preferred copy. It also ends before a batch that was the first of its
segment in another copy. It also ends before a batch that would make it larger than any segment of the copies and
`segment.bytes`. So an undamaged copy keeps its files, byte for byte.
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


class LogWriter:
    """Writer of one partition's segments."""

    def __init__(
        self,
        output: Root,
        folder: str,
        streams: Sequence[Stream],
        primary: int,
        segment_bytes: int,
        wrote: Callable[[Segment, int | None], None],
    ) -> None:
        """Begin. wrote: called with each whole segment, and the base offset of the next one, None for the last."""
        self.wrote = wrote
        self.output, self.folder, self.streams = output, folder, streams
        own = next(stream.segments for stream in streams if stream.copy == primary)
        self.bases = np.array([segment.base_offset for segment in own], np.int64)
        listed = [segment.size_bytes for stream in streams for segment in stream.segments]
        self.most_bytes = min(max(segment_bytes, *listed), MAX_SEGMENT_BYTES)
        self.written: list[Segment] = []
        self._firsts = [np.array(stream.first_rows, np.int64) for stream in streams]
        self._end = -1  # last offset written
        self._base = self._size = self._mtime_ms = 0
        self._out: _Output | None = None

    def write(self, rows: np.ndarray, epochs: np.ndarray) -> None:
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
                self._write_part(rows, epochs, first, until, bool(forced[first]))

    def _write_part(self, rows: np.ndarray, epochs: np.ndarray, first: int, until: int, is_border: bool) -> None:
        """Write rows that belong together, in another segment where they do not fit."""
        batch = rows["batch"]
        while first < until:
            if self._out is None or is_border:
                self._roll(rows[first])
            sizes = self._size + np.cumsum(batch["size"][first:until])
            fits = (sizes <= self.most_bytes) & (batch["last_offset"][first:until] - self._base <= MAX_RELATIVE_OFFSET)
            n = int(fits.argmin()) if not fits.all() else until - first
            if n == 0 and self._size:
                is_border = True
                continue
            n = max(n, 1)
            self._copy(rows[first : first + n], epochs[first : first + n])
            first, is_border = first + n, True

    def _roll(self, row: np.void) -> None:
        self.finish()
        firsts = self._firsts[row["stream"]]
        own = self.streams[row["stream"]].segments
        at = int(np.searchsorted(firsts, row["row"], "right")) - 1
        base = int(row["batch"]["base_offset"])
        names_of = [int(self.bases[i]) for i in [int(np.searchsorted(self.bases, base, "right")) - 1] if i >= 0]
        names_of += [own[at].base_offset] if firsts[at] == row["row"] else []
        self._base = max((name for name in names_of if self._end < name <= base), default=base)
        self._open()

    def _open(self) -> None:
        if self.written:
            self.wrote(self.written[-1], self._base)
        self._size = self._mtime_ms = 0
        self._out = _Output(self.output, f"{self.folder}/{names.segment_file(self._base, names.LOG)}")

    def _copy(self, rows: np.ndarray, epochs: np.ndarray) -> None:
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
            self._out.copy(of, start, end - start, int(epochs[a]))  # type: ignore[union-attr]  # _roll opened it
            self._mtime_ms = max(self._mtime_ms, of.mtime_ms)
        self._size += int(batch["size"].sum())
        self._end = int(batch["last_offset"][-1])

    def finish(self) -> None:
        """Close the segment that is being written."""
        if self._out is None:
            return
        self._out.close()
        path, self._out = self._out.path, None
        if self._mtime_ms:
            set_time(self.output, path, self._mtime_ms * 1_000_000)
        self.written.append(Segment(self.output.uri, path, self._base, self._size, self._mtime_ms))

    def finish_log(self, end: int) -> list[Segment]:
        """Close the log, which ends at this offset; return its segments. The last is empty if no batch ends there."""
        self.finish()
        if end > self._end + 1 or not self.written:
            self._base = end
            self._open()
            self.finish()
        self.wrote(self.written[-1], None)
        return self.written

    def close(self) -> None:
        """Close the files, also after an error."""
        if self._out is not None:
            self._out.close()


class _Output:
    """A `.log` that byte ranges of other files are appended to; on a disk by copy_file_range(2)."""

    def __init__(self, root: Root, path: str) -> None:
        self.root, self.path = root, path
        self._sources: dict[tuple[str, str], Any] = {}
        self._open = ExitStack()
        self._stream: Any = None
        self._descriptor = -1
        if root.is_local:
            self._descriptor = os.open(root.full(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        else:
            self._stream = self._open.enter_context(open_output(root, path))

    def copy(self, segment: Segment, start: int, size: int, epoch: int) -> None:
        """Append bytes of a segment's log. epoch: the leader epoch of the one batch there; -1: as it is."""
        key = segment.root, segment.path
        if key not in self._sources:
            root = open_root(segment.root)
            self._sources[key] = self._open.enter_context(open_file(root, segment.path))
        file = self._sources[key]
        if epoch < 0 and self._descriptor >= 0 and isinstance(file, RegularFile):
            self._copy_range(file, segment.path, start, size)
            return
        for data in _pieces(file, segment.path, start, size):
            piece = bytearray(data)
            if epoch >= 0:
                piece[_EPOCH : _EPOCH + 4] = epoch.to_bytes(4, "big")
                epoch = -1
            self._append(piece)

    def _copy_range(self, file: Any, path: str, start: int, size: int) -> None:
        while size:
            try:
                n = os.copy_file_range(file.fileno(), self._descriptor, min(size, 64 << 20), start)
            except OSError:  # across file systems, or on one that cannot
                for data in _pieces(file, path, start, size):
                    self._append(data)
                return
            if n == 0:
                raise LogFormatError("changed", path, start, f"{size} more bytes", "end of file")
            spend(n)
            spend(n, WRITTEN)
            start, size = start + n, size - n

    def _append(self, data: bytes | bytearray) -> None:
        if self._stream is not None:
            self._stream.write(data)
            return
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        spend(len(data), WRITTEN)

    def close(self) -> None:
        """Close all files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._open.close()


def _pieces(file: Any, path: str, start: int, size: int) -> Iterator[bytes]:
    file.seek(start)
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            raise LogFormatError("changed", path, start, f"{size} more bytes", "end of file")
        spend(len(data))
        yield data
        start, size = start + len(data), size - len(data)
