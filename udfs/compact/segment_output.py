"""A group of segments and what survives of it -> one new segment with its indexes, read back.

Two ways in, the same bytes out: `clean_backwards` decides with the key table while it reads from the end (one split),
`clean_forwards` is told the surviving offsets (several splits). Pieces of a backward walk wait on a stack, in memory up
to a limit and then in an unnamed temporary file; whole copied runs wait as references and are read again. What is read
again is held against a checksum of what was seen before: nothing is signed, or copied, that was not checked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from logformat.batches.bodies import BodyLoader
from logformat.batches.chunks import NO_END, Chunk, ChunkBuffer, Tail, read_chunks, read_exactly
from logformat.batches.span_kernels import digest_records
from logformat.batches.walk_kernels import walk_batches
from logformat.errors import LogFormatError
from logformat.layout import CODEC_NAMES, MAX_RELATIVE_OFFSET
from logformat.names import segment_file
from logformat.primitives.crc32c import crc32c_extend
from logformat.side_files.index_builder import IndexBuilder
from udfs.compact.clean_batches import OUT_BATCH, MarkLast, Piece, Rules, Tally, clean_chunk
from udfs.compact.plan import CleanSettings, OutputSegment
from udfs.compact.scan_segment import CHANGED_HINT, ScannedChunk, SegmentScan, read_again
from udfs.storage import Root, flush, opened

_COPY_BYTES = 4 << 20
_SPILL = "the temporary file of pending output"


@dataclass(frozen=True)
class Source:
    """A scanned segment with the file system it lies on."""

    root: Root
    path: str
    scan: SegmentScan
    mtime_ms: int


class _Waiting(NamedTuple):
    """A piece on the stack. Its bytes are `data`, or lie in the spill file from `place` on, or (-1) in its source."""

    source: int
    rows: np.ndarray  # OUT_BATCH[m]
    data: np.ndarray | None
    place: int
    position: int  # in its source
    size: int
    checksum: int  # CRC-32C of bytes that are read again


class PieceStack:
    """Pieces of one output segment, pushed last first and read first to last."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.digest = 0
        self._pieces: list[_Waiting] = []
        self._spill: Any = None

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def last_offset(self) -> int:
        """Of the last surviving batch; -1 where nothing survives."""
        return int(self._pieces[0].rows["last_offset"][-1]) if self._pieces else -1

    def push(self, source: int, piece: Piece, chunk: Chunk) -> None:
        """Put a piece of `chunk` of source number `source` before all that are there."""
        self.digest = (self.digest + piece.digest) & (2**64 - 1)
        data, place, checksum = piece.data, -1, 0
        if data is not None and self.held_bytes + piece.size > self.max_bytes:
            if self._spill is None:
                self._spill = tempfile.TemporaryFile(prefix="lastkey-")  # noqa: SIM115 - lives as long as the stack
            place = self._spill.seek(0, os.SEEK_END)
            self._spill.write(data.data)
            checksum, data = crc32c_extend(0, data), None
        elif data is not None:
            self.held_bytes += piece.size
        elif piece.position >= 0:
            start = piece.position - chunk.position
            checksum = crc32c_extend(0, chunk.raw[start : start + piece.size])
        self._pieces.append(_Waiting(source, piece.rows, data, place, piece.position, piece.size, checksum))

    def rows(self) -> np.ndarray:
        """OUT_BATCH[n] of all pieces, in the order of the log."""
        if not self._pieces:
            return np.empty(0, OUT_BATCH)
        return np.concatenate([piece.rows for piece in reversed(self._pieces)])

    def drain(self, sources: list[Source]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(OUT_BATCH rows, bytes) in the order of the log; rows come with the first bytes of their piece.

        Raises LogFormatError behind the last bytes of a piece that are not those that were pushed.
        """
        none = np.empty(0, OUT_BATCH)
        with self._spill or nullcontext(), ExitStack() as files:
            opened_at, file = -1, None
            while self._pieces:
                piece = self._pieces.pop()
                if piece.data is not None:
                    self.held_bytes -= piece.size
                    yield piece.rows, piece.data
                    continue
                rows, checksum = piece.rows, 0
                for start in range(0, piece.size, _COPY_BYTES):
                    part = np.empty(min(_COPY_BYTES, piece.size - start), np.uint8)
                    if piece.place >= 0:
                        read_exactly(self._spill, _SPILL, piece.place + start, part)
                    else:
                        one = sources[piece.source]
                        if piece.source != opened_at:
                            files.close()  # a group may have thousands of sources
                            file = files.enter_context(opened(one.root, one.path))
                            opened_at = piece.source
                        read_exactly(file, one.path, piece.position + start, part)
                    checksum = crc32c_extend(checksum, part)
                    yield rows, part
                    rows = none
                if checksum != piece.checksum:
                    raise _not_as_pushed(piece, sources, checksum)


def _not_as_pushed(piece: _Waiting, sources: list[Source], found: int) -> LogFormatError:
    kind, path, position = "readback", _SPILL, piece.place
    if piece.place < 0:
        kind, path, position = "changed", sources[piece.source].path, piece.position
    return LogFormatError(
        kind, path, position, f"{piece.size} bytes with CRC-32C {piece.checksum:#010x}, as before", f"{found:#010x}",
        hint=CHANGED_HINT,
    )  # fmt: skip


@dataclass
class Group:
    """Segments that become one: what is known of the result before it is written."""

    base_offset: int
    next_offset: int
    mtime_ms: int
    source_bytes: int
    source_records: int
    stack: PieceStack

    def can_begin_at(self, base_offset: int) -> bool:
        """Whether the group may take an earlier base: its offsets must stay in the range of the indexes."""
        return not len(self.stack) or self.stack.last_offset - base_offset <= MAX_RELATIVE_OFFSET

    def take_base_of(self, empty: Group) -> None:
        """Stand for an empty group before this one too."""
        self.base_offset = empty.base_offset
        self.source_bytes += empty.source_bytes
        self.source_records += empty.source_records


class SegmentOutput:
    """Writes one `.log` in a stream and collects what its indexes and its manifest row need."""

    def __init__(self, root: Root, folder: str, base_offset: int, settings: CleanSettings) -> None:
        self.root, self.folder, self.base_offset = root, folder, base_offset
        self.path = f"{folder}/{segment_file(base_offset, 'log')}"
        self._stream = root.filesystem.open_output_stream(root.full(self.path), compression=None)
        self._indexes = IndexBuilder(base_offset, settings.index_interval_bytes, settings.segment_index_bytes)
        self._rows: list[np.ndarray] = []
        self.size = 0
        self.checksum = 0

    def append(self, rows: np.ndarray, data: np.ndarray) -> None:
        """Write bytes; `rows` (OUT_BATCH) are the batches that begin in them."""
        if len(rows):
            self._indexes.append(rows["last_offset"], rows["size"], rows["max_timestamp"])
            self._rows.append(rows)
        self._stream.write(data.data)
        self.checksum = crc32c_extend(self.checksum, data)
        self.size += len(data)

    def close(self) -> tuple[np.ndarray, bytes, bytes]:
        """Flush the log; (all rows, offset index, time index). The data is on disk before its indexes are written."""
        self._stream.close()
        flush(self.root, self.path)
        offset_index, time_index = self._indexes.finish()
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, OUT_BATCH)
        return rows, offset_index, time_index


def chunk_at(file: Any, path: str, scanned: ScannedChunk, buffer: ChunkBuffer) -> Chunk:
    """A chunk that a scan saw, read again: the same bytes, or LogFormatError kind "changed"."""
    if scanned.size > len(buffer.raw):
        buffer.grow_raw(scanned.size, path, scanned.position, -1)
    while scanned.batches > len(buffer.rows):
        buffer.grow_rows()
    raw = buffer.raw[: scanned.size]
    read_again(file, path, scanned, raw)
    walk_batches(raw, scanned.size, scanned.position, -1, NO_END, False, buffer.rows)  # as the scan did
    return Chunk(scanned.position, raw, buffer.rows[: scanned.batches], scanned.offset_before)


def clean_backwards(
    source: int,
    sources: list[Source],
    stack: PieceStack,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
) -> None:
    """Clean one source segment from its end and push what survives."""
    one = sources[source]
    keep_legacy = one.mtime_ms > rules.legacy_horizon_ms
    with opened(one.root, one.path) as file:
        for scanned in reversed(one.scan.chunks):
            chunk = chunk_at(file, one.path, scanned, buffer)
            for piece in clean_chunk(chunk, one.path, loader, rules, keep_legacy, mark_last, tally, backwards=True):
                stack.push(source, piece, chunk)


def clean_forwards(
    one: Source,
    rules: Rules,
    loader: BodyLoader,
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Clean one source segment from its start; (piece, its bytes)."""
    keep_legacy = one.mtime_ms > rules.legacy_horizon_ms
    with opened(one.root, one.path) as file:
        for scanned in one.scan.chunks:
            chunk = chunk_at(file, one.path, scanned, buffer)
            for piece in clean_chunk(chunk, one.path, loader, rules, keep_legacy, mark_last, tally, backwards=False):
                if piece.data is not None:
                    yield piece, piece.data
                elif piece.position >= 0:
                    start = piece.position - chunk.position
                    yield piece, chunk.raw[start : start + piece.size]
                else:
                    yield piece, np.empty(0, np.uint8)


def read_back(
    root: Root, path: str, rows: np.ndarray, checksum: int, digest: int, max_batch_bytes: int, buffer: ChunkBuffer
) -> None:
    """Read a written `.log` and hold it against what was meant: checksums, headers, order, and the rebuilt records.

    rows: OUT_BATCH[n] in order. Raises LogFormatError kind "readback".
    """
    loader = BodyLoader(max_batch_bytes=max_batch_bytes)
    size = int(rows["size"].sum())
    seen, crc, found_digest = 0, 0, 0
    tail = Tail()
    with opened(root, path) as file:
        if file.size() != size:
            raise LogFormatError("readback", path, 0, f"{size} bytes", f"{file.size()}")
        for chunk in read_chunks(file, path, 0, size, buffer, tail):
            want = rows[seen : seen + len(chunk.batches)]
            got = chunk.batches
            same = len(want) == len(got)
            for ours, theirs in (
                ("size", "size"), ("base_offset", "base_offset"), ("last_offset", "last_offset"),
                ("max_timestamp", "max_timestamp"), ("n_records", "records_count"),
            ):  # fmt: skip
                same = same and bool((want[ours] == got[theirs]).all())
            if not same:
                raise LogFormatError("readback", path, chunk.position, "the batches that were written", "others")
            crc = crc32c_extend(crc, chunk.raw)
            for run in loader.runs(chunk.raw, chunk.position, got, want["rebuilt"], path, backwards=False):
                all_records = np.ones(len(run.spans), np.bool_)
                found_digest += int(
                    digest_records(run.raw, run.scratch, run.batches, run.bodies, run.spans, all_records, run.wanted)
                )
            seen += len(got)
    if seen != len(rows) or crc != checksum or found_digest & (2**64 - 1) != digest:
        raise LogFormatError(
            "readback", path, 0, f"{len(rows)} batches, checksum {checksum:#010x}, records {digest:#018x}",
            f"{seen}, {crc:#010x}, {found_digest & (2**64 - 1):#018x}",
        )  # fmt: skip


def manifest_row(
    group: Group, path: str, rows: np.ndarray, checksum: int, index_bytes: tuple[int, int, int]
) -> OutputSegment:
    """The manifest's row of a cleaned segment; rows: OUT_BATCH[n]; index_bytes: offset, time, transaction index."""
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
        max_timestamp_ms=int(rows["max_timestamp"].max()) if len(rows) else -1,
        mtime_ms=group.mtime_ms,
        codecs=",".join(CODEC_NAMES[c] for c in np.unique(rows["codec"])),
        checksum=checksum,
        source_bytes=group.source_bytes,
        source_records=group.source_records,
        cleaned=True,
        offset_index_bytes=index_bytes[0],
        time_index_bytes=index_bytes[1],
        txn_index_bytes=index_bytes[2],
    )
