"""A split walked backwards with the key table: which of its records leave it, and their key hashes by bucket.

A record leaves its split where no later record of its key lies in it. What is written, into one file:
  blocks   of about a million key hashes, 16 bytes each, sorted by bucket and within it in the order of the walk: a
           bucket's hashes in a block are a cell
  marks    a bit a record: whether it leaves; a bit a batch: whether it holds neither tombstones nor records without
           key; both in the order of the log, those of each chunk packed for themselves
  buckets  a byte for each record that leaves, in the order of the walk
Where the table would outgrow the task's memory it is emptied, and a key leaves twice: the one that is met first counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.layout import CONTROL_MASK
from logformat.primitives.crc32c import crc32c_extend
from udfs.compact.block_kernels import checksum_cells, collect_leaving, sort_by_bucket
from udfs.compact.cleaner import Rules, batch_retention
from udfs.compact.key_files import KeyFile, Slice
from udfs.compact.key_table import KeyTable
from udfs.compact.plan import PartitionPlan
from udfs.compact.scan_segment import chunk_buffer
from udfs.compact.sources import Source, chunk_at
from udfs.compact.splits import Split
from udfs.storage import opened

ENTRY_BYTES: Final = 16
MAX_BUCKETS: Final = 256  # a bucket is a byte
_BLOCK: Final = 1 << 20  # entries
_A_BUCKET: Final = 1 << 17  # records, so that its table stays in the processor's cache


@dataclass(frozen=True)
class Block:
    """Where a block of entries lies; its cells follow each other."""

    path: str
    position: int
    counts: np.ndarray  # int64[buckets]: entries
    dirty: np.ndarray  # int64[buckets]: so many of them, the first ones, are of dirty records
    checksums: np.ndarray  # uint32[buckets]: CRC-32C of each cell


# What was walked of a chunk: records and batches that can be the last of a key, the records of them that leave, and a
# digest of all its batches
WALKED_CHUNK = np.dtype([("records", "i8"), ("batches", "i8"), ("entries", "i8"), ("digest", "u4")])


@dataclass(frozen=True)
class WalkedSplit:
    """What a walk left behind, for those that settle and rewrite."""

    number: int
    blocks: tuple[Block, ...]
    leaves: Slice
    plain: Slice
    buckets: Slice
    chunks: np.ndarray  # WALKED_CHUNK[m], in the order of the log
    peak_memory_bytes: int = 0

    @property
    def n_entries(self) -> int:
        """Records that leave."""
        return int(self.chunks["entries"].sum())


def buckets_for(n_records: int) -> int:
    """How many buckets: a power of two, 4 to 256."""
    return int(min(max(1 << (n_records // _A_BUCKET).bit_length(), 4), MAX_BUCKETS))


@dataclass
class _Collected:
    """In the order of the walk."""

    leaves: list[np.ndarray] = field(default_factory=list)  # bool[records] of the chunk at hand, a run each
    plain: list[np.ndarray] = field(default_factory=list)  # bool[batches], the same
    buckets: list[np.ndarray] = field(default_factory=list)
    waiting: list[tuple[np.ndarray, np.ndarray, int]] = field(default_factory=list)  # entries, buckets, dirty ones
    n_waiting: int = 0
    n_entries: int = 0


def walk_split(
    plan: PartitionPlan,
    sources: Sequence[Source],
    split: Split,
    rules: Rules,
    first_dirty_offset: int,
    n_buckets: int,
    name: str,
) -> WalkedSplit:
    """Walk a split; `sources` are those of its parts; `name`: of the file that is written, for this try alone."""
    buffer = chunk_buffer(plan)
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
    table = KeyTable(plan.limits.task_memory_bytes // 2)
    out, blocks, walked = _Collected(), [], []
    leaves, plain = [np.empty(0, np.uint8)], [np.empty(0, np.uint8)]  # packed, by chunk
    with KeyFile(plan, name) as key_file:
        for source, part in zip(reversed(sources), reversed(split.parts), strict=True):
            with opened(source.root, source.path) as file:
                for scanned in reversed(source.scan.chunks[part.first : part.stop]):
                    chunk = chunk_at(file, source.path, scanned, buffer)
                    wanted, entries = entering(chunk.batches, rules), out.n_entries
                    for run in loader.runs(
                        chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=True,
                        before=chunk.before,
                    ):  # fmt: skip
                        _collect(out, run, table, first_dirty_offset, rules.oldest_ms, n_buckets)
                        if out.n_waiting >= _BLOCK:
                            blocks.append(_write_block(key_file, out, n_buckets))
                    entries, digest = out.n_entries - entries, digest_of(chunk.batches)
                    walked.append((_pack(out.leaves, leaves), _pack(out.plain, plain), entries, digest))
        if out.n_waiting:
            blocks.append(_write_block(key_file, out, n_buckets))
        buckets = np.concatenate([np.empty(0, np.uint8), *out.buckets])
        return WalkedSplit(
            number=split.number,
            blocks=tuple(blocks),
            leaves=key_file.write(np.concatenate(leaves[::-1])),
            plain=key_file.write(np.concatenate(plain[::-1])),
            buckets=key_file.write(buckets),
            chunks=np.array(walked[::-1], WALKED_CHUNK),
        )


def entering(batches: np.ndarray, rules: Rules) -> np.ndarray:
    """bool[n] of BATCH[n]: those whose records may be the last of their key: no control batches, no aborted ones."""
    _, drop = batch_retention(
        batches, rules.discardable(batches), rules.producers, rules.first_uncleanable_offset, rules.now_ms
    )
    wanted: np.ndarray = ~drop & ((batches["attributes"] & CONTROL_MASK) == 0)
    return wanted


def digest_of(batches: np.ndarray) -> int:
    """CRC-32C over the checksums and offsets of a chunk's batches."""
    words = np.stack([batches["crc"].astype(np.int64), batches["last_offset"]])
    return crc32c_extend(0, words.reshape(-1).view(np.uint8))


def _pack(of_runs: list[np.ndarray], packed: list[np.ndarray]) -> int:
    """Move a chunk's marks, bool[] of each run in the order of the walk, into `packed`; how many they are."""
    marks = np.concatenate([np.empty(0, np.bool_), *of_runs])
    of_runs.clear()
    packed.append(np.packbits(marks[::-1]))
    return len(marks)


def _collect(
    out: _Collected, run: Run, table: KeyTable, first_dirty_offset: int, oldest_ms: int, n_buckets: int
) -> None:
    n = len(run.spans)
    is_last = np.empty(n, np.bool_)
    left = n
    while left := table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, left):
        table.clear()
    leaves, plain = np.empty(n, np.bool_), np.empty(int(run.wanted.sum()), np.bool_)
    entries, buckets = np.empty((n, 2), np.uint64), np.empty(n, np.uint8)
    found, dirty, _ = collect_leaving(
        run.batches, run.bodies, run.wanted, run.spans, is_last, first_dirty_offset, oldest_ms,
        64 - n_buckets.bit_length() + 1, leaves, plain, entries, buckets,
    )  # fmt: skip
    out.leaves.append(leaves)
    out.plain.append(plain)
    out.buckets.append(buckets[:found].copy())
    out.waiting.append((entries[:found].copy(), out.buckets[-1], dirty))
    out.n_waiting += found
    out.n_entries += found


def _write_block(key_file: KeyFile, out: _Collected, n_buckets: int) -> Block:
    """Write the entries that wait, by bucket."""
    entries = np.concatenate([e for e, _, _ in out.waiting])
    buckets = np.concatenate([b for _, b, _ in out.waiting])
    dirty = np.concatenate([b[:n] for _, b, n in out.waiting])
    counts = np.bincount(buckets, minlength=n_buckets)
    by_bucket = np.empty_like(entries)
    sort_by_bucket(entries, buckets, np.cumsum(counts) - counts, by_bucket)
    checksums = np.empty(n_buckets, np.uint32)
    checksum_cells(by_bucket.reshape(-1).view(np.uint8), counts * ENTRY_BYTES, checksums)
    written = key_file.write(by_bucket)
    out.waiting.clear()
    out.n_waiting = 0
    return Block(written.path, written.position, counts, np.bincount(dirty, minlength=n_buckets), checksums)
