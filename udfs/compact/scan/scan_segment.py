"""A segment's batches, without its records: one pass that checks every byte's checksum and remembers little.

A scan's memory is bounded by the segment's chunks, producers and transactional batches, never by its batches. Segments
can be scanned in any order, and in parallel. A second read of a chunk must match the checksum of the scan, and a side
file must match the checksum in its manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.checksum_kernels import extend_by_batches
from lastkey.logformat.batches.chunks import (
    NO_END,
    Chunk,
    ChunkBuffer,
    LogRange,
    Tail,
    check_offsets,
    overlap,
    read_chunks,
    read_exactly,
)
from lastkey.logformat.batches.walk_kernels import MORE, REACHED_END, walk_batches
from lastkey.logformat.errors import CHANGED_HINT, LogFormatError
from lastkey.logformat.layout import (
    BATCH,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_MASK,
    LOG_OVERHEAD,
    MAX_MAGIC,
    MIN_LEGACY_SIZE,
    TRANSACTIONAL_MASK,
)
from lastkey.logformat.listing import NamedBytes, Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files.checkpoints import assign_batches
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerSummary, merge, no_producers, summarize
from lastkey.logformat.storage.regular_files import will_read
from lastkey.udfs.compact.plan import CleanSettings
from lastkey.udfs.compact.scan import scan_kernels as k
from lastkey.udfs.compact.scan.scan_kernels import SMALLEST_BATCH
from lastkey.udfs.holes import NOT_KNOWN, thinned_offset
from lastkey.udfs.problem import Problem, another_log
from lastkey.udfs.segments import TXN_BATCH, LastBatch, ScannedChunk, SegmentScan
from lastkey.udfs.storage import open_root, opened

_HEAD: Final = struct.Struct(">qi4xbB")  # base offset, length, magic; attributes of magic 0 and 1


@dataclass
class _Collected:
    n_batches: int = 0
    n_records: int = 0
    last_offset: int = -1  # before the first batch: the offset before it, or NOT_KNOWN
    max_timestamp: int = -1
    first_timestamp: int = -1
    codecs: int = 0  # bits
    magics: int = 0  # bits
    checksum: int = 0
    thinned_offset: int = -1
    chunks: list[ScannedChunk] = field(default_factory=list)
    transactional: list[np.ndarray] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    last_batch: LastBatch = LastBatch()
    marked_batch: LastBatch = LastBatch()
    producers: ProducerSummary = field(default_factory=no_producers)


def transactional_batches(batches: np.ndarray) -> np.ndarray:
    """Return the rows of BATCH[n] that matter to transactions, as TXN_BATCH[m]."""
    attributes = batches["attributes"]
    rows = batches[(attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) != 0]
    out = np.empty(len(rows), TXN_BATCH)
    for name in TXN_BATCH.names or ():
        if name != "control":
            out[name] = rows[name]
    out["control"] = (rows["attributes"] & CONTROL_MASK) != 0
    return out


def scan_segment(
    segment: Segment,
    settings: CleanSettings,
    buffer: ChunkBuffer,
    *,
    next_base_offset: int | None = None,
    end_offset: int = NO_END,
    mark: int | None = None,
    see: Callable[[Chunk], None] | None = None,
) -> SegmentScan:
    """Scan one segment up to its listed size, or up to the first batch that reaches `end_offset`.

    next_base_offset: base of the next segment, which no offset of this one may reach; mark: remember the last batch
    before this offset; see: is called with every chunk. Raises LogFormatError for anything that Kafka would not have
    written. Also raises it if the segment lacks the bytes that the last generation names, or holds more of its offsets.
    """
    base, listed = segment.first_offset, segment
    out = _Collected(last_offset=base - 1 if not segment.from_offset else NOT_KNOWN)
    indexes = IndexBuilder(base, settings.index_interval_bytes, settings.segment_index_bytes, listed.path)
    tail, named = Tail(), segment.named
    named_crc = 0 if named is None or not named.size else -1
    with opened(open_root(listed.root), listed.path) as file:
        if file.size() < listed.size_bytes:
            raise LogFormatError("changed", listed.path, file.size(), f"{listed.size_bytes} bytes, as listed", "fewer")
        start = _cut(file, segment, buffer) if segment.from_offset else 0
        tail.position = start
        wanted = LogRange(start, listed.size_bytes, end_offset=end_offset)
        for chunk in read_chunks(file, listed.path, wanted, buffer, tail):
            batches = chunk.batches
            check_offsets(listed.path, base, next_base_offset, batches)
            indexes.append(batches["last_offset"], batches["size"], batches["max_timestamp"])
            offset_before = max(chunk.before, base - 1)
            facts = np.empty(len(k.FACTS), np.int64)
            k.collect_facts(batches, offset_before, facts)
            if facts[k.N_PRODUCING]:
                out.producers = merge(out.producers, summarize(batches, listed.path), listed.path)
            before, out.checksum = out.checksum, extend_by_batches(out.checksum, chunk.raw, batches["size"])
            if named is not None:
                _check_no_more(listed.path, named, batches)
                if chunk.position < named.size <= chunk.position + len(chunk.raw):
                    named_crc = crc32c_extend(before, chunk.raw[: named.size - chunk.position])
            records = int(facts[k.MOST_RECORDS])
            scanned = ScannedChunk(
                chunk.position, len(chunk.raw), len(batches), offset_before, before, out.checksum, records
            )
            out.chunks.append(scanned)
            _collect(out, batches, facts, mark)
            if see is not None:
                see(chunk)
        if tail.reached_end_offset and next_base_offset is not None and tail.reached_by >= next_base_offset:
            raise overlap(listed.path, next_base_offset, tail.position, tail.reached_by)  # a damaged offset, not an end
        if named is not None and named_crc != named.checksum:
            found = "fewer bytes" if named_crc < 0 else f"{named_crc:#010x}"
            expected = f"CRC-32C {named.checksum:#010x} of all bytes before"
            raise _another_copy(listed.path, named.size, expected, found).as_error()
        above_base = _above(file, listed.path, listed.size_bytes, tail) if tail.reached_end_offset else -1
    return _as_scan(segment, start, tail, out, indexes, above_base)


def _as_scan(
    segment: Segment, start: int, tail: Tail, out: _Collected, indexes: IndexBuilder, above_base: int
) -> SegmentScan:
    offset_index, time_index = indexes.finish()
    return SegmentScan(
        segment=replace(
            segment,
            batches=out.n_batches,
            records=out.n_records,
            last_offset=out.last_offset if out.n_batches else -1,
            max_timestamp_ms=out.max_timestamp,
            codecs=",".join(name for i, name in enumerate(CODEC_NAMES) if out.codecs >> i & 1),
            magics=",".join(str(i) for i in range(MAX_MAGIC + 1) if out.magics >> i & 1),
            checksum=out.checksum,
        ),
        start_position=start,
        end_position=tail.position,
        torn_bytes=tail.torn_bytes,
        reached_end_offset=tail.reached_end_offset,
        first_timestamp=out.first_timestamp,
        chunks=tuple(out.chunks),
        transactional=np.concatenate(out.transactional) if out.transactional else np.empty(0, TXN_BATCH),
        producers=out.producers,
        epochs=tuple(out.epochs),
        last_batch=out.last_batch,
        marked_batch=out.marked_batch,
        offset_index=offset_index,
        time_index=time_index,
        thinned_offset=out.thinned_offset,
        above_base=above_base,
        wrapped_records=sum(chunk.records for chunk in out.chunks) - out.n_records,
    )


def _check_no_more(path: str, named: NamedBytes, batches: np.ndarray) -> None:
    """Raise LogFormatError if batches after the bytes that a generation names hold offsets that it covers."""
    first = np.where(batches["base_offset"] < 0, batches["last_offset"], batches["base_offset"])
    more = np.flatnonzero((batches["position"] >= named.size) & (first < named.until))
    if len(more):
        n = int(more[0])
        expected = f"no offset below {named.until} from here on"
        raise _another_copy(path, int(batches["position"][n]), expected, f"a batch at {first[n]}").as_error()


def _another_copy(path: str, position: int, expected: str, found: str) -> Problem:
    expected = f"{expected}, as in the last generation, from which keys were erased"
    hint = "another copy may hold what was erased: --reset with --hmac-key reads the archive again without it"
    return Problem("changed", path, position, expected, found, state="diverged", hint=hint)


def _above(file: Any, path: str, size: int, tail: Tail) -> int:
    """Return the base offset of the batch that reached the end offset; -1 if its header does not show it. size: bytes
    of the file.

    No checksum covers that offset, so a whole batch after it must have higher offsets, or one of the two is damaged.
    Raises LogFormatError kind "offsets" if it does not.
    """
    head = np.empty(_HEAD.size, np.uint8)
    read_exactly(file, path, tail.position, head)
    base, length, magic, attributes = _HEAD.unpack_from(head.data)
    after = tail.position + LOG_OVERHEAD + length
    if after + _HEAD.size <= size:
        read_exactly(file, path, after, head)
        behind, length, kind, _ = _HEAD.unpack_from(head.data)
        whole = length >= MIN_LEGACY_SIZE and 0 <= kind <= MAX_MAGIC and after + LOG_OVERHEAD + length <= size
        if whole and behind <= tail.reached_by:
            expected = f"a last offset below {behind}, where the next batch begins"
            raise LogFormatError("offsets", path, tail.position, expected, f"{tail.reached_by}", base_offset=base)
    return base if magic >= 2 or not attributes & CODEC_MASK else -1


def _cut(file: Any, segment: Segment, buffer: ChunkBuffer) -> int:
    """Return the position of the first batch that reaches `from_offset`. Raises LogFormatError if that batch begins
    earlier, because then this is not the log that the last generation was made of.
    """
    tail, listed = Tail(), segment
    below = LogRange(0, listed.size_bytes, end_offset=segment.from_offset)
    for _ in read_chunks(file, listed.path, below, buffer, tail, check_crc=False):
        pass
    first = np.empty(min(8, listed.size_bytes - tail.position), np.uint8)
    read_exactly(file, listed.path, tail.position, first)
    base = int.from_bytes(first.tobytes(), "big")
    if tail.reached_end_offset and base < segment.from_offset:
        expected = f"a batch that begins at offset {segment.from_offset}, where the last generation ends, or later"
        found = f"one that begins at {base} and ends above that"
        raise another_log(listed.path, expected, found, tail.position, base).as_error()
    return tail.position


def _collect(out: _Collected, batches: np.ndarray, facts: np.ndarray, mark: int | None) -> None:
    if out.n_batches == 0:
        out.first_timestamp = int(batches["max_timestamp"][0])
    out.n_batches += len(batches)
    out.n_records += int(facts[k.N_RECORDS])
    out.thinned_offset = max(out.thinned_offset, thinned_offset(batches, out.last_offset))
    out.last_offset = int(batches["last_offset"][-1])
    out.max_timestamp = max(out.max_timestamp, int(facts[k.MAX_TIMESTAMP]))
    out.codecs |= int(facts[k.CODECS])
    out.magics |= int(facts[k.MAGICS])
    if facts[k.N_TRANSACTIONAL]:
        out.transactional.append(transactional_batches(batches))
    if facts[k.EPOCH] > (out.epochs[-1][0] if out.epochs else -1):
        out.epochs = assign_batches(out.epochs, batches["partition_leader_epoch"], batches["base_offset"])
    out.last_batch = _identity(batches[-1])
    if mark is not None:
        before = int(np.searchsorted(batches["last_offset"], mark))
        if before:
            out.marked_batch = _identity(batches[before - 1])


def _identity(batch: np.void) -> LastBatch:
    offset = batch["base_offset"] if batch["magic"] >= 2 else batch["last_offset"]
    return LastBatch(int(offset), int(batch["partition_leader_epoch"]), int(batch["crc"]))


def chunks_again(file: Any, path: str, chunks: Sequence[ScannedChunk], buffer: ChunkBuffer) -> Iterator[Chunk]:
    """Read scanned chunks again, in the order given, as `chunk_at` does; in an object store the next ones meanwhile."""
    for i, one in enumerate(chunks):
        chunk = chunk_at(file, path, one, buffer)
        will_read(file, ((chunks[k].position, chunks[k].size) for k in range(i + 1, len(chunks))))
        yield chunk


def chunk_at(file: Any, path: str, scanned: ScannedChunk, buffer: ChunkBuffer) -> Chunk:
    """Read a scanned chunk again. Raises LogFormatError kind "changed" if its bytes differ."""
    if scanned.size > len(buffer.raw):
        buffer.grow_raw(scanned.size, path, scanned.position, -1)
    while scanned.batches > len(buffer.rows):
        buffer.grow_rows()
    raw = buffer.raw[: scanned.size]
    read_again(file, path, scanned, raw)
    walk_batches(raw, scanned.size, scanned.position, -1, NO_END, False, buffer.rows)  # as the scan did
    return Chunk(scanned.position, raw, buffer.rows[: scanned.batches], scanned.offset_before, path=path)


def read_again(file: Any, path: str, chunk: ScannedChunk, out: np.ndarray) -> None:
    """Fill `out` (uint8[chunk.size]) with a scanned chunk. Raises LogFormatError kind "changed" if its bytes differ."""
    read_exactly(file, path, chunk.position, out)
    found = crc32c_extend(chunk.before, out)
    if found != chunk.checksum:
        expected = f"CRC-32C {chunk.checksum:#010x} up to byte {chunk.position + chunk.size}, as first read"
        again, position = f"{found:#010x} when read again", _first_bad(out, chunk.position)
        raise LogFormatError("changed", path, position, expected, again, hint=CHANGED_HINT)


def _first_bad(raw: np.ndarray, position: int) -> int:
    """Return the position of the first malformed batch in `raw`; that of `raw` itself if each batch, taken alone, is
    well formed.
    """
    rows = np.empty(len(raw) // SMALLEST_BATCH + 1, BATCH)
    _, consumed, status, _, _ = walk_batches(raw, len(raw), position, -1, NO_END, True, rows)
    return position + (consumed if status not in (MORE, REACHED_END) else 0)
