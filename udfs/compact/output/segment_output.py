"""The segments that a group of sources becomes: one, or several if rebuilt batches outgrow a `.log`. A `.log` is
written as a stream and read back. It is moved into the generation's folder if a task wrote it in a folder of its own.

Survivors of a group come in two ways, with the same bytes out. In one task, `clean_batches.clean_backwards` decides
with the key table while it reads from the end, and its pieces wait in a `piece_stack.PieceStack`. In several tasks,
`clean_batches.clean_forwards` gets the survivors from outside.

A rebuilt batch can be larger than its source, and each message of magic 0 or 1 becomes a batch. So a group of sources
can need more than `RunContext.max_log_bytes`. The next batch then begins another segment, as in a broker that rolls:
the new base is the offset after the last batch. That base divides the offsets of the group, and the entries of its
transaction index: each entry is in the segment of its ABORT marker. No decision is made again, because the
analysis has settled all transactions before. (The cleaners of Kafka 4.3 and 4.4 fail here, KAFKA-20036. Kafka's first
repair filtered the batches at the border twice, and its second look took aborted records for committed ones.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Final

import google_crc32c
import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.checksum_kernels import extend_by_batches
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_NAMES, MAX_SEGMENT_BYTES, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files import transaction_index
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, least_timestamp
from lastkey.udfs.compact.clean.rebuild_kernels import digest_records
from lastkey.udfs.compact.plan import CleanSettings, PartitionPlan
from lastkey.udfs.compact.scan.facts_files import scan_written, write_facts
from lastkey.udfs.read_back import check_written
from lastkey.udfs.segments import OF_YIELD, can_begin_at, side_checksums, written_kinds
from lastkey.udfs.steps import step
from lastkey.udfs.storage import (
    Root,
    file_size,
    flushing,
    make_folder,
    make_private,
    open_output,
    open_root,
    opened,
    put_file,
    read_file,
)

_NONE: Final = np.empty(0, OUT_BATCH)
_MOVERS: Final = 8  # segments to move at once: in a bucket each is copied and read back
_SHIFTED: Final = {"index": OFFSET_INDEX_ENTRY, "timeindex": TIME_INDEX_ENTRY}  # their offsets are relative to the base


def make_generation_folder(plan: PartitionPlan) -> Root:
    """Make the generation's folder; return the store."""
    return make_folder(open_root(plan.run.store_uri), plan.run.folder)


def write_side_files(store: Root, folder: str, files: Mapping[str, bytes]) -> dict[str, int]:
    """Write files of a generation beside its logs; return their CRC-32C by name. They are flushed with their folder."""
    for name, data in files.items():
        put_file(store, f"{folder}/{name}", data)
    return {name: int(google_crc32c.value(data)) for name, data in files.items()}


def write_indexes(
    store: Root, folder: str, base_offset: int, offset_index: bytes, time_index: bytes, txn_index: bytes
) -> dict[str, int]:
    """Write `.index` and `.timeindex`, and `.txnindex` unless empty, as Kafka does; return their CRC-32C by name."""
    files = {"index": offset_index, "timeindex": time_index} | ({"txnindex": txn_index} if txn_index else {})
    named = {segment_file(base_offset, kind): data for kind, data in files.items()}
    return write_side_files(store, folder, named)


def join_empty_groups(plan: PartitionPlan, segments: Sequence[Segment]) -> list[Segment]:
    """Join empty segments to the next ones, as `udfs.compact.passes` does, and place all. Independent tasks return the
    segments in order; an empty segment that cannot be joined becomes an empty file.
    """
    out: list[Segment] = []
    held: Segment | None = None
    for segment in reversed(segments):
        if held is not None and not segment.size_bytes and can_begin_at(held.last_offset, segment.base_offset):
            held = replace(held, base_offset=segment.base_offset)  # `place_one` renames its files
            continue
        if held is not None:
            out.append(held)
        held = segment
    if held is not None:
        out.append(held)
    return place(plan, out[::-1])


def place(plan: PartitionPlan, segments: Sequence[Segment]) -> list[Segment]:
    """Move the segments that tasks wrote into the generation's folder; return all segments, in order."""
    with ThreadPoolExecutor(_MOVERS) as pool:
        return list(pool.map(lambda segment: place_one(plan, segment) if segment.cleaned else segment, segments))


def place_one(plan: PartitionPlan, segment: Segment) -> Segment:
    """Move the segment's files into the generation's folder, under the name of its base. Of several tasks none writes
    there, so a late retry cannot touch them.
    """
    if plan.run.dry_run:
        return segment
    path = f"{plan.run.folder}/{segment_file(segment.base_offset, 'log')}"
    if segment.path == path:
        return segment
    store = make_generation_folder(plan)
    if not segment.size_bytes:
        make_private(store, path)
        put_file(store, path, b"")
        checksums = write_indexes(store, plan.run.folder, segment.base_offset, b"", b"", b"")
        return replace(segment, path=path, side_files=json.dumps(checksums))
    written, placed = segment.path.removesuffix(".log"), path.removesuffix(".log")
    written_base = int(written.rpartition("/")[2])
    shift = written_base - segment.base_offset
    side_sums, checksums = side_checksums([segment.side_files]), {}
    for kind in written_kinds(segment):
        if shift and kind in OF_YIELD:  # they hold relative offsets, and cost only time if they are missing
            continue
        old, new = f"{written}.{kind}", f"{placed}.{kind}"
        if shift and kind in _SHIFTED:
            data = _shifted(store, old, shift, _SHIFTED[kind])
            checksums |= write_side_files(store, plan.run.folder, {segment_file(segment.base_offset, kind): data})
            continue
        if kind not in ("log", *OF_YIELD):
            checksums[segment_file(segment.base_offset, kind)] = side_sums[segment_file(written_base, kind)]
        if store.is_local:
            store.filesystem.move(store.full(old), store.full(new))  # the very file that was read back
        else:
            store.filesystem.copy_file(store.full(old), store.full(new))
    if not store.is_local:
        check_written(store, path, segment.size_bytes, segment.checksum)
    if written.rpartition("/")[0] == plan.run.folder:  # one task wrote it there, under another base
        for kind in written_kinds(segment):
            with suppress(FileNotFoundError):
                store.filesystem.delete_file(store.full(f"{written}.{kind}"))
    facts_bytes = 0 if shift else segment.facts_bytes
    return replace(segment, path=path, side_files=json.dumps(checksums), facts_bytes=facts_bytes)


def _shifted(store: Root, path: str, shift: int, entry: np.dtype[np.void]) -> bytes:
    """Return an index with all offsets increased by `shift`, because its base moved down by as much."""
    entries = np.frombuffer(read_file(store, path, MAX_SEGMENT_BYTES), entry).copy()
    entries["relative_offset"] += shift
    return entries.tobytes()


class SegmentOutput:
    """Writer of one `.log` as a stream; it collects the data of the segment's indexes and manifest row."""

    def __init__(self, root: Root, folder: str, base_offset: int, settings: CleanSettings) -> None:
        self.root, self.folder, self.base_offset = root, folder, base_offset
        self.path = f"{folder}/{segment_file(base_offset, 'log')}"
        make_private(root, self.path)
        self._stream = open_output(root, self.path)
        self._indexes = IndexBuilder(base_offset, settings.index_interval_bytes, settings.segment_index_bytes)
        self._rows = [_NONE]
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
    """Return a CRC-32C extended by these bytes, by those of their batches if all of each is there."""
    if rows["size"].sum() == len(data):
        return extend_by_batches(checksum, data, rows["size"])
    return crc32c_extend(checksum, data)  # a part of a piece that was read again


class ReadBack:
    """Comparison of a written `.log` with its intended content: checksums, headers, order, rebuilt records."""

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
        for run in self._loader.runs(chunk, wanted):
            every, rows = np.ones(len(run.spans), np.bool_), np.empty(len(run.spans), np.int32)
            self._digest += int(digest_records(run, every, rows))
        self._seen += len(got)

    def check(self, checksum: int) -> int:
        """Compare the whole; return the digest of the rebuilt records. Raises LogFormatError kind "readback"."""
        if self._seen != len(self._rows) or self._crc != checksum:
            expected = f"{len(self._rows)} batches, checksum {checksum:#010x}"
            raise LogFormatError("readback", self._path, 0, expected, f"{self._seen}, {self._crc:#010x}")
        return self._digest


def read_whole(root: Root, path: str, buffer: ChunkBuffer, back: ReadBack) -> None:
    """Read a written `.log` back, chunk by chunk."""
    with opened(root, path) as file:
        size = file.size()
        back.check_size(size)
        for chunk in read_chunks(file, path, LogRange(0, size), buffer, Tail()):
            back.see(chunk)


def written_segment(
    segment: Segment,
    path: str = "",
    rows: np.ndarray = _NONE,
    checksum: int = 0,
    index_bytes: tuple[int, int, int] = (0, 0, 0),
    side_files: Mapping[str, int] | None = None,
) -> Segment:
    """Return the manifest's row of a cleaned segment, without its sources (`generation`).

    rows: OUT_BATCH[n]; index_bytes: sizes of offset, time and transaction index; side_files: their CRC-32C by name.
    """
    return replace(
        segment,
        path=path,
        size_bytes=int(rows["size"].sum()),
        last_offset=int(rows["last_offset"][-1]) if len(rows) else -1,
        batches=len(rows),
        records=int(rows["n_records"].sum()),
        tombstones=int(rows["tombstones"].sum()),
        max_timestamp_ms=int(rows["max_timestamp"].max(initial=-1)),
        min_timestamp_ms=least_timestamp(rows),
        codecs=",".join(CODEC_NAMES[c] for c in np.unique(rows["codec"])),
        magics=",".join(map(str, np.unique(rows["magic"]))),
        checksum=checksum,
        cleaned=True,
        offset_index_bytes=index_bytes[0],
        time_index_bytes=index_bytes[1],
        txn_index_bytes=index_bytes[2],
        side_files=json.dumps(side_files) if side_files is not None else None,
    )


_SMALL: Final = 8 << 20


def batches_that_fit(sizes: np.ndarray, room: int) -> int:
    """Return the number of leading batches that fit into `room` bytes. sizes: int64[n]."""
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))


class GroupOutput:
    """Writer of a group's survivors as a stream. A group without survivors leaves no file, nor does a dry run."""

    def __init__(self, plan: PartitionPlan, folder: str, group: Segment, kept_aborts: np.ndarray) -> None:
        """folder: where it writes, below the store; kept_aborts: transaction_index.ENTRY[k] of the log."""
        self._plan, self._folder, self._kept_aborts = plan, folder, kept_aborts
        self._groups = [group]  # group of each segment
        self._rows: list[list[np.ndarray]] = [[]]  # OUT_BATCH[n] of each segment
        self._outputs: list[SegmentOutput] = []
        self._later = _NONE  # batches after those of the current segment
        self._size = 0  # size of the current segment, with `_due`
        self._due = 0  # bytes of its batches that have not come yet

    def append(self, rows: np.ndarray, data: np.ndarray) -> None:
        """Write bytes. rows: OUT_BATCH[n], batches that begin in these bytes or in those of the next calls, whose rows
        are empty then.
        """
        later = rows if len(rows) else self._later
        while True:
            now = later[:0]
            if not self._due and len(later):
                n = batches_that_fit(later["size"], self._plan.run.max_log_bytes - self._size)
                if not n and self._size:
                    self._roll()
                    continue
                now, later = later[: max(n, 1)], later[max(n, 1) :]
                self._due = int(now["size"].sum())
                self._size += self._due
            part, data = data[: self._due], data[self._due :]
            if len(now) or len(part):
                self._write(now, part)
            self._due -= self._due if self._plan.run.dry_run else len(part)
            if self._due or not len(later):
                break
        self._later = later

    def finish(self, digest: int, buffer: ChunkBuffer) -> list[Segment]:
        """Close the segments, write their indexes, and read them back. digest: of the rebuilt records of all."""
        if not self._outputs:
            parts = zip(self._groups, self._rows, strict=True)
            return [written_segment(group, rows=np.concatenate([_NONE, *rows])) for group, rows in parts]
        segments, digest_read = [], 0
        for output, group in zip(self._outputs, self._groups, strict=True):
            segment, of_segment = self._finish(output, group, buffer)
            segments.append(segment)
            digest_read = (digest_read + of_segment) & (2**64 - 1)
        if digest_read != digest:
            raise LogFormatError("readback", segments[0].path, 0, f"records {digest:#018x}", f"{digest_read:#018x}")
        return segments

    def _write(self, rows: np.ndarray, data: np.ndarray) -> None:
        if len(rows):
            self._rows[-1].append(rows)
        if self._plan.run.dry_run:
            return
        if len(self._outputs) < len(self._groups):
            base, store = self._groups[-1].base_offset, make_folder(open_root(self._plan.run.store_uri), self._folder)
            self._outputs.append(SegmentOutput(store, self._folder, base, self._plan.policy.settings))
        self._outputs[-1].append(rows, data)

    def _roll(self) -> None:
        base, group = int(self._rows[-1][-1]["last_offset"][-1]) + 1, self._groups[-1]
        self._groups[-1:] = [replace(group, next_offset=base), replace(group, base_offset=base)]
        self._rows.append([])
        self._size = 0

    def _finish(self, output: SegmentOutput, group: Segment, buffer: ChunkBuffer) -> tuple[Segment, int]:
        """Close a written segment, write its indexes, and read it back; by yield, keep the facts that this shows.
        Return the manifest's row, and the digest of the rebuilt records.
        """
        plan, store, aborts = self._plan, output.root, self._kept_aborts
        rows, offset_index, time_index = output.close()
        step("log written")
        inside = (aborts["last_offset"] >= group.base_offset) & (aborts["last_offset"] < group.next_offset)
        txn_index = transaction_index.write(aborts[inside])
        checksums = write_indexes(store, self._folder, group.base_offset, offset_index, time_index, txn_index)
        back = ReadBack(output.path, rows, plan.policy.settings.max_decompressed_batch_bytes)
        sizes = (len(offset_index), len(time_index), len(txn_index))
        row = written_segment(group, output.path, rows, output.checksum, sizes, checksums)
        # Flush a large log while it is read back, so that the task does not flush all logs at its end. A small log is
        # flushed with its folder.
        with flushing(store, output.path) if output.size > _SMALL else nullcontext():
            if not plan.policy.by_yield:
                read_whole(store, output.path, buffer, back)
                step("read back")
                return row, back.check(output.checksum)
            back.check_size(file_size(store, output.path))
            scan, hashes = scan_written(plan, row, buffer, back.see)
            digest = back.check(output.checksum)
            return replace(row, facts_bytes=write_facts(plan, row, scan, hashes)), digest
