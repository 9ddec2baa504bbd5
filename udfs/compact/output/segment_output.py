"""One new segment: a `.log` written in a stream, read back, and its manifest row."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.checksum_kernels import extend_by_batches
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, Tail, read_chunks
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.names import segment_file
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH
from lastkey.udfs.compact.clean.rebuild_kernels import digest_records
from lastkey.udfs.compact.plan import CleanSettings
from lastkey.udfs.compact.scan.analyse import Group
from lastkey.udfs.compact.verdicts import NO_TIMESTAMP
from lastkey.udfs.segments import OutputSegment
from lastkey.udfs.storage import Root, make_private, open_output, opened


class SegmentOutput:
    """Writer of one `.log` as a stream; it collects the data of the segment's indexes and manifest row."""

    def __init__(self, root: Root, folder: str, base_offset: int, settings: CleanSettings) -> None:
        self.root, self.folder, self.base_offset = root, folder, base_offset
        self.path = f"{folder}/{segment_file(base_offset, 'log')}"
        make_private(root, self.path)
        self._stream = open_output(root, self.path)
        self._indexes = IndexBuilder(base_offset, settings.index_interval_bytes, settings.segment_index_bytes)
        self._rows = [np.empty(0, OUT_BATCH)]
        self.size = 0
        self.checksum = 0

    def append(self, rows: np.ndarray, data: np.ndarray) -> None:
        """Write bytes; `rows` (OUT_BATCH) are the batches that begin in them."""
        if len(rows):
            self._indexes.append(rows["last_offset"], rows["size"], rows["max_timestamp"])
            self._rows.append(rows)
        self._stream.write(data.data)
        self.checksum = extended(self.checksum, rows, data)
        self.size += len(data)

    def close(self) -> tuple[np.ndarray, bytes, bytes]:
        """Return (all rows, offset index, time index)."""
        self._stream.close()
        offset_index, time_index = self._indexes.finish()
        return np.concatenate(self._rows), offset_index, time_index


def extended(checksum: int, rows: np.ndarray, data: np.ndarray) -> int:
    """Return a CRC-32C that goes on over these bytes, by those of their batches if all of each is there."""
    if rows["size"].sum() == len(data):
        return extend_by_batches(checksum, data, rows["size"])
    return crc32c_extend(checksum, data)  # a part of a piece that was read again


class ReadBack:
    """Comparison of a written `.log` with what was meant to be written: checksums, headers, order, rebuilt records."""

    def __init__(self, path: str, rows: np.ndarray, max_batch_bytes: int) -> None:
        """rows: OUT_BATCH[n] in order."""
        self._path, self._rows = path, rows
        self._loader = BodyLoader(max_batch_bytes=max_batch_bytes)
        self._seen, self._crc, self._digest = 0, 0, 0

    def check_size(self, found: int | None) -> None:
        """Compare the file's bytes. Raises LogFormatError kind "readback"."""
        size = int(self._rows["size"].sum())
        if found != size:
            raise LogFormatError("readback", self._path, 0, f"{size} bytes", f"{found}")

    def see(self, chunk: Chunk) -> None:
        """Compare the next chunk. Raises LogFormatError kind "readback"."""
        got = chunk.batches
        want = self._rows[self._seen : self._seen + len(got)]
        same = len(want) == len(got)
        for ours, theirs in (
            ("size", "size"), ("base_offset", "base_offset"), ("last_offset", "last_offset"),
            ("max_timestamp", "max_timestamp"), ("n_records", "records_count"),
        ):  # fmt: skip
            same = same and bool((want[ours] == got[theirs]).all())
        if not same:
            raise LogFormatError(
                "readback", self._path, chunk.position, "the batches that were written", "other batches"
            )
        self._crc = extend_by_batches(self._crc, chunk.raw, got["size"])
        wanted = np.ascontiguousarray(want["rebuilt"])  # kernels are compiled, and loaded, for each layout of an array
        for run in self._loader.runs(chunk.raw, chunk.position, got, wanted, self._path, backwards=False):
            every, rows = np.ones(len(run.spans), np.bool_), np.empty(len(run.spans), np.int32)
            self._digest += int(
                digest_records(run.raw, run.scratch, run.batches, run.bodies, run.spans, every, run.wanted, rows)
            )
        self._seen += len(got)

    def check(self, checksum: int) -> int:
        """Compare the whole; return the digest of the rebuilt records. Raises LogFormatError kind "readback"."""
        if self._seen != len(self._rows) or self._crc != checksum:
            expected = f"{len(self._rows)} batches, checksum {checksum:#010x}"
            raise LogFormatError("readback", self._path, 0, expected, f"{self._seen}, {self._crc:#010x}")
        return self._digest


def read_whole(root: Root, path: str, buffer: ChunkBuffer, back: ReadBack) -> None:
    """Read a written `.log` back, chunk by chunk."""
    tail = Tail()
    with opened(root, path) as file:
        size = file.size()
        back.check_size(size)
        for chunk in read_chunks(file, path, 0, size, buffer, tail):
            back.see(chunk)


def least_timestamp(rows: np.ndarray) -> int:
    """Return the smallest timestamp in OUT_BATCH[n]: ms, NO_TIMESTAMP, or UNKNOWN_TIMESTAMP if one is unknown."""
    return int(rows["min_timestamp"].min()) if len(rows) else NO_TIMESTAMP


def manifest_row(
    group: Group,
    path: str,
    rows: np.ndarray,
    checksum: int,
    index_bytes: tuple[int, int, int],
    side_files: Mapping[str, int] | None = None,
) -> OutputSegment:
    """Return the manifest's row of a cleaned segment, without its sources (`generation`).

    rows: OUT_BATCH[n]; index_bytes: sizes of offset, time and transaction index; side_files: their CRC-32C by name.
    """
    return OutputSegment(
        base_offset=group.base_offset,
        root="store",
        path=path,
        size_bytes=int(rows["size"].sum()),
        next_offset=group.next_offset,
        last_offset=int(rows["last_offset"][-1]) if len(rows) else -1,
        batches=len(rows),
        records=int(rows["n_records"].sum()),
        tombstones=int(rows["tombstones"].sum()),
        max_timestamp_ms=int(rows["max_timestamp"].max(initial=-1)),
        min_timestamp_ms=least_timestamp(rows),
        mtime_ms=group.mtime_ms,
        codecs=",".join(CODEC_NAMES[c] for c in np.unique(rows["codec"])),
        magics=",".join(map(str, np.unique(rows["magic"]))),
        checksum=checksum,
        source_bytes=0,
        source_records=0,
        cleaned=True,
        offset_index_bytes=index_bytes[0],
        time_index_bytes=index_bytes[1],
        txn_index_bytes=index_bytes[2],
        side_files=json.dumps(side_files) if side_files is not None else None,
    )
