"""The backward walk of a split with the key table: it finds the records that leave, and their key hashes by bucket.

A record leaves its split if no later record of its key lies in it. The walk writes one file:
  blocks   of about a million key hashes, 16 bytes each, sorted by bucket and within it in the order of the walk; a
           bucket's hashes in a block are a cell. By `compaction.strategy` each hash has its record's version behind it
  marks    a bit a record: whether it leaves; a bit a batch: whether it is plain (`collect_leaving`); both in the
           order of the log, packed chunk by chunk
  buckets  a byte for each record that leaves, in the order of the walk
  thinned  of some chunks, before all of these, the headers of the batches and the records that leave, uncompressed: the
           rewrite neither reads nor decompresses these chunks again
By `compaction.strategy`, one leaves unless a later record of its key has a version as high. If the table would outgrow
the task's memory, it is emptied, and a key may leave twice: the first one met counts.

A chunk is thinned where the records that leave are at most half of the decompressed records and no more than the
chunk's bytes, and the rewrite can ask for nothing else of the chunk: its batches have magic 2, each loses a record, so
that none is copied as it is, and no record lacks a key or is undecided. Any other chunk is read again.

Tasks of a partition exchange these files: written once, read in slices. They lie in the store beside the generation's
folder, because executors share nothing else, and are deleted when the partition is done; so are the folders in which
new segments wait. `vacuum` deletes those of a killed run. A dry run has them in a temporary folder. A reader checks
each slice against the CRC-32C of the bytes that were written: a bit lost here would be a lost record.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
from pyarrow import fs as pafs

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, read_exactly
from lastkey.logformat.batches.span_kernels import BODY
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, CONTROL_MASK
from lastkey.logformat.primitives.codec import Scratch
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.read_ahead import will_read
from lastkey.udfs.compact.clean.deciders import KeyTable, Winners, versions_of
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.cleaner import Rules, begin_at, key_candidates
from lastkey.udfs.compact.plan import PartitionPlan, chunk_buffer
from lastkey.udfs.compact.scan.scan_segment import chunks_again
from lastkey.udfs.compact.split.block_kernels import checksum_cells, collect_leaving, sort_by_bucket, thin_bodies
from lastkey.udfs.compact.split.splits import Split
from lastkey.udfs.segments import ScannedChunk, SegmentScan
from lastkey.udfs.storage import Root, make_folder, make_private, open_output, open_root, opened

# Suffix of the folder, in the place of a task's random number and larger than any of those
_KEYS: Final = 9999999999999999999


@dataclass(frozen=True)
class Slice:
    """Bytes in a written file, and their CRC-32C."""

    path: str
    position: int
    size: int
    checksum: int


class KeyFile:
    """Writer of one key file."""

    def __init__(self, plan: PartitionPlan, name: str) -> None:
        """Create the file. name: unique, also among the tries of one task."""
        folder = key_folder(plan)
        root = make_folder(open_root(plan.run.store_uri), folder)
        self.path = f"{folder}/{name}"
        make_private(root, self.path)
        self._stream: Any = open_output(root, self.path)
        self.size = 0

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, raw: np.ndarray) -> None:
        """Write uint8[] that the caller makes part of a slice."""
        self._stream.write(raw.data)
        self.size += len(raw)

    def write(self, data: np.ndarray) -> Slice:
        """Write an array's bytes; return them as a slice."""
        raw, start = data.reshape(-1).view(np.uint8), self.size
        self.append(raw)
        return Slice(self.path, start, len(raw), crc32c_extend(0, raw))


def read_slice(root: Root, part: Slice) -> np.ndarray:
    """Return a slice's bytes: uint8[]. Raises LogFormatError kind "readback" if they are not the written ones."""
    raw = np.empty(part.size, np.uint8)
    with opened(root, part.path) as file:
        read_exactly(file, part.path, part.position, raw)
    check(part, crc32c_extend(0, raw))
    return raw


def check(part: Slice, found: int) -> None:
    """Raise LogFormatError kind "readback" unless a slice's bytes have its checksum."""
    if found != part.checksum:
        raise LogFormatError(
            "readback",
            part.path,
            part.position,
            f"{part.size} bytes with CRC-32C {part.checksum:#010x}, as they were written",
            f"{found:#010x}",
        )


@contextmanager
def store_of_keys(plan: PartitionPlan) -> Iterator[PartitionPlan]:
    """Yield the plan; of a dry run, with a temporary folder in place of the store."""
    if not plan.run.dry_run:
        yield plan
        return
    with tempfile.TemporaryDirectory(prefix="lastkey-keys-") as folder:
        yield replace(plan, run=replace(plan.run, store_uri=folder))


def key_folder(plan: PartitionPlan) -> str:
    """Return the folder of the partition's key files, relative to the store."""
    return f"{plan.run.folder}.{_KEYS}"


def in_own_folder(plan: PartitionPlan) -> PartitionPlan:
    """Return the plan with a folder of its own, beside the generation's, where a new segment waits. No other task
    writes there, nor another try of the same task: a late retry must not write into a committed folder.
    """
    return replace(plan, run=replace(plan.run, folder=f"{plan.run.folder}.{secrets.randbelow(_KEYS)}"))


def remove_key_files(plan: PartitionPlan) -> None:
    """Delete all folders named after the generation's folder, with a suffix; `vacuum` deletes what this cannot."""
    store = open_root(plan.run.store_uri)
    above, _, name = plan.run.folder.rpartition("/")
    with suppress(OSError):
        for info in store.filesystem.get_file_info(pafs.FileSelector(store.full(above), allow_not_found=True)):
            if info.type == pafs.FileType.Directory and info.base_name.startswith(f"{name}."):
                store.filesystem.delete_dir(info.path)


_HEADS: Final = BATCH.itemsize + BODY.itemsize  # bytes of a batch beside its records


@dataclass(frozen=True)
class ThinnedRun:
    """Consecutive batches in a walk's file: their records, BATCH[n] and BODY[n], whose places are within the records.

    The checksum is that of the records where they were copied from.
    """

    n_batches: int
    data: Slice


class Thinner:
    """Writer of what a walk keeps of each chunk."""

    def __init__(self, rules: Rules, key_file: KeyFile) -> None:
        self._key_file, self._possible = key_file, not rules.dry_run
        self._undecided = rules.undecided
        self._keeps, self._room = False, 0
        self._kept: list[tuple[np.ndarray, np.ndarray, int]] = []  # records, heads, checksum

    def begin(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        batches = chunk.batches
        others = (batches["magic"] != 2) | (batches["attributes"] & CONTROL_MASK != 0)
        others |= begin_at(batches, self._undecided)
        self._kept.clear()
        self._room = len(chunk.raw) - _HEADS * len(batches)
        self._keeps = self._possible and self._room >= 0 and not others.any()

    def add(self, run: Run, leaves: np.ndarray) -> None:
        """Keep the records of a run that leave: bool[len(run.spans)], in the order of the walk. The last run of a chunk
        comes first.
        """
        if not self._keeps:
            return
        full = int((run.bodies["end"] - run.bodies["start"])[run.wanted].sum())
        records, bodies = np.empty(min(self._room, full // 2), np.uint8), np.zeros(len(run.bodies), BODY)
        size, checksum = thin_bodies(run.raw, run.scratch, run.bodies, run.wanted, run.spans, leaves, records, bodies)
        self._keeps = size >= 0
        if self._keeps:
            self._room -= size
            heads = np.concatenate([run.batches.view(np.uint8), bodies.view(np.uint8)])
            self._kept.append((records[:size], heads, crc32c_extend(checksum, heads)))

    def end(self) -> tuple[ThinnedRun, ...]:
        """Write what is kept of the chunk; return it in the order of the log. Empty: the chunk is to be read again."""
        return tuple(self._write(*kept) for kept in reversed(self._kept)) if self._keeps else ()

    def _write(self, records: np.ndarray, heads: np.ndarray, checksum: int) -> ThinnedRun:
        start = self._key_file.size
        self._key_file.append(records)
        self._key_file.append(heads)
        data = Slice(self._key_file.path, start, self._key_file.size - start, checksum)
        return ThinnedRun(len(heads) // _HEADS, data)


def chunks_or_thinned(
    log: Any,
    path: str,
    chunks: Sequence[ScannedChunk],
    buffer: ChunkBuffer,
    walked: Any,
    thinned: Sequence[tuple[ThinnedRun, ...]],
) -> Iterator[Chunk]:
    """Yield scanned chunks in the order of the log: what their walk has kept of them, or as `chunks_again` does.

    walked: the walk's file, open; thinned: of each chunk. Raises LogFormatError kind "readback" if kept bytes are not
    the written ones.
    """
    again = chunks_again(log, path, [one for one, runs in zip(chunks, thinned, strict=True) if not runs], buffer)
    memory, parts = Scratch(), [run.data for runs in thinned for run in runs]
    done = 0
    for scanned, runs in zip(chunks, thinned, strict=True):
        if not runs:
            yield next(again)
            continue
        memory.reserve(sum(run.data.size for run in runs))
        rows, bodies, at = [], [], 0
        for run in runs:
            raw = memory.array[at : at + run.data.size]
            read_exactly(walked, run.data.path, run.data.position, raw)
            done += 1
            will_read(walked, ((parts[k].position, parts[k].size) for k in range(done, len(parts))))
            check(run.data, crc32c_extend(0, raw))
            of_bodies = len(raw) - run.n_batches * BODY.itemsize
            rows.append(raw[of_bodies - run.n_batches * BATCH.itemsize : of_bodies].view(BATCH))
            bodies.append(raw[of_bodies:].copy().view(BODY))
            for place in ("start", "end"):
                bodies[-1][place] += at
            at += len(raw)
        yield Chunk(scanned.position, memory.array[:at], np.concatenate(rows), -1, np.concatenate(bodies), path)


MAX_BUCKETS: Final = 256  # a bucket is a byte
_BLOCK: Final = 1 << 20  # entries
_A_BUCKET: Final = 1 << 17  # records in a bucket, so that its table stays in the processor's cache


@dataclass(frozen=True)
class EntryBlock:
    """The place of a block of entries; its cells follow each other."""

    path: str
    position: int
    counts: np.ndarray  # int64[buckets]: entries
    dirty: np.ndarray  # int64[buckets]: how many of them, the first ones, are of dirty records
    checksums: np.ndarray  # uint32[buckets]: CRC-32C of each cell
    columns: int = 2  # u8 numbers of an entry: a hash's halves, and a version if there are versions

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry."""
        return 8 * self.columns


# A chunk as it was walked: the numbers of records and batches that can be the last of a key, and of records that leave;
# a digest of all its batches
WALKED_CHUNK = np.dtype([("records", "i8"), ("batches", "i8"), ("entries", "i8"), ("digest", "u4")])


@dataclass(frozen=True)
class WalkedSplit:
    """Result of a walk, for the tasks that settle and rewrite."""

    number: int
    blocks: tuple[EntryBlock, ...]
    leaves: Slice
    plain: Slice
    buckets: Slice
    chunks: np.ndarray  # WALKED_CHUNK[m], in the order of the log
    thinned: tuple[tuple[ThinnedRun, ...], ...] = ()  # of each chunk
    highest: int = NO_VERSION  # version of a record
    peak_memory_bytes: int = 0

    @property
    def n_entries(self) -> int:
        """Number of records that leave."""
        return int(self.chunks["entries"].sum())


def buckets_for(n_records: int) -> int:
    """Return the number of buckets: a power of two, 4 to 256."""
    return int(min(max(1 << (n_records // _A_BUCKET).bit_length(), 4), MAX_BUCKETS))


class Collected:
    """Entries of a walk, in its order, written to the key file by blocks."""

    def __init__(self, key_file: KeyFile, first_dirty_offset: int, oldest_ms: int, n_buckets: int) -> None:
        self.n_entries, self.highest = 0, NO_VERSION
        self._key_file, self._n_buckets = key_file, n_buckets
        self._first_dirty_offset, self._oldest_ms = first_dirty_offset, oldest_ms
        self._waiting: list[tuple[np.ndarray, np.ndarray, int]] = []  # entries, buckets, dirty ones
        self._n_waiting = 0
        self._blocks: list[EntryBlock] = []

    def collect(
        self, run: Run, wanted: np.ndarray, is_last: np.ndarray, versions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Collect the entries of a run; return (leaves, plain, buckets) of it, in the order of the walk.

        wanted: bool[batches], those of `key_candidates`; is_last: bool[records]; versions: int64[records of wanted
        batches], by `compaction.strategy`.
        """
        n = len(run.spans)
        leaves, plain = np.empty(n, np.bool_), np.empty(int(wanted.sum()), np.bool_)
        entries, buckets = np.empty((n, 2 if versions is None else 3), np.uint64), np.empty(n, np.uint8)
        found, dirty, _ = collect_leaving(
            run.batches, run.bodies, wanted, run.spans, is_last, self._first_dirty_offset, self._oldest_ms,
            64 - self._n_buckets.bit_length() + 1, leaves, plain, entries, buckets,
        )  # fmt: skip
        if versions is not None:
            entries[:found, 2] = versions[::-1][leaves].view(np.uint64)
            self.highest = max(self.highest, int(versions.max(initial=NO_VERSION)))
        buckets = buckets[:found].copy()
        self._waiting.append((entries[:found].copy(), buckets, dirty))
        self._n_waiting += found
        self.n_entries += found
        if self._n_waiting >= _BLOCK:
            self._write_block()
        return leaves, plain, buckets

    def finish(self) -> tuple[EntryBlock, ...]:
        """Return all blocks, the last of which is written now."""
        if self._n_waiting:
            self._write_block()
        return tuple(self._blocks)

    def _write_block(self) -> None:
        """Write the waiting entries, sorted by bucket."""
        entries = np.concatenate([e for e, _, _ in self._waiting])
        buckets = np.concatenate([b for _, b, _ in self._waiting])
        dirty = np.concatenate([b[:n] for _, b, n in self._waiting])
        counts = np.bincount(buckets, minlength=self._n_buckets)
        by_bucket = np.empty_like(entries)
        sort_by_bucket(entries, buckets, np.cumsum(counts) - counts, by_bucket)
        checksums, columns = np.empty(self._n_buckets, np.uint32), entries.shape[1]
        checksum_cells(by_bucket.reshape(-1).view(np.uint8), counts * columns * 8, checksums)
        written = self._key_file.write(by_bucket)
        self._waiting.clear()
        self._n_waiting = 0
        n_dirty = np.bincount(dirty, minlength=self._n_buckets)
        self._blocks.append(EntryBlock(written.path, written.position, counts, n_dirty, checksums, columns))


def walk_split(
    plan: PartitionPlan,
    sources: Sequence[SegmentScan],
    split: Split,
    rules: Rules,
    first_dirty_offset: int,
    n_buckets: int,
    name: str,
) -> WalkedSplit:
    """Walk a split backwards, and write its blocks, marks and buckets.

    sources: those of the split's parts; name: of the file that is written, for this try alone.
    """
    buffer = chunk_buffer(plan)
    loader = plan.loader(plan.run.secret, keys_only=plan.policy.settings.compaction_strategy != "header")
    by_offset, table_bytes = plan.policy.settings.by_offset, plan.run.limits.task_memory_bytes // 2
    table: KeyTable | Winners = KeyTable(table_bytes) if by_offset else Winners(table_bytes)
    first_dirty_offset = first_dirty_offset if by_offset else 0  # all versions compete
    walked, thinned, none = [], list[tuple[ThinnedRun, ...]](), np.empty(0, np.uint8)
    leaves, plain, buckets = list[np.ndarray](), list[np.ndarray](), [none]  # bool[] of a chunk's runs; all buckets
    all_leaves, all_plain = [none], [none]  # packed, by chunk
    with KeyFile(plan, name) as key_file:
        out, thinner = Collected(key_file, first_dirty_offset, rules.oldest_ms, n_buckets), Thinner(rules, key_file)
        for source, part in zip(reversed(sources), reversed(split.parts), strict=True):
            with source.open_log() as file:
                chunks = source.chunks[part.first : part.stop][::-1]
                for chunk in chunks_again(file, source.path, chunks, buffer):
                    wanted, entries = key_candidates(chunk.batches, rules), out.n_entries
                    thinner.begin(chunk)
                    for run in loader.runs(
                        chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=True,
                        before=chunk.before,
                    ):  # fmt: skip
                        of_run = _collect(out, run, table, plan, first_dirty_offset)
                        for marks, more in zip((leaves, plain, buckets), of_run, strict=True):
                            marks.append(more)
                        thinner.add(run, of_run[0])
                    thinned.append(thinner.end())
                    entries, digest = out.n_entries - entries, digest_of(chunk.batches)
                    walked.append((_pack(leaves, all_leaves), _pack(plain, all_plain), entries, digest))
        return WalkedSplit(
            number=split.number,
            blocks=out.finish(),
            leaves=key_file.write(np.concatenate(all_leaves[::-1])),
            plain=key_file.write(np.concatenate(all_plain[::-1])),
            buckets=key_file.write(np.concatenate(buckets)),
            chunks=np.array(walked[::-1], WALKED_CHUNK),
            thinned=tuple(thinned[::-1]),
            highest=out.highest,
        )


def digest_of(batches: np.ndarray) -> int:
    """Return CRC-32C over the checksums and offsets of a chunk's batches."""
    words = np.stack([batches["crc"].astype(np.int64), batches["last_offset"]])
    return crc32c_extend(0, words.reshape(-1).view(np.uint8))


def _pack(of_runs: list[np.ndarray], packed: list[np.ndarray]) -> int:
    """Move a chunk's marks, bool[] of each run in the order of the walk, into `packed`; return their number."""
    marks = np.concatenate([np.empty(0, np.bool_), *of_runs])
    of_runs.clear()
    packed.append(np.packbits(marks[::-1]))
    return len(marks)


def _collect(
    out: Collected, run: Run, table: KeyTable | Winners, plan: PartitionPlan, first_dirty_offset: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left = n = len(run.spans)
    is_last, versions = np.empty(n, np.bool_), None
    if isinstance(table, KeyTable):
        while left := table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, left):
            table.clear()
    else:
        versions = versions_of(run, plan)
        while left := table.enter(run, versions, is_last, left):
            table.clear()
    return out.collect(run, run.wanted, is_last, versions)
