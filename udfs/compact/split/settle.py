"""The decision about each record that left its split: key hashes of all splits come together by bucket.

A task takes some buckets, and walks their cells from the last split to the first. So the first record of a key is its
last one, and the task drops every further one. Only dirty records enter the table; clean ones are looked up. The task
writes a bit for each entry, in the order of the blocks. By `compaction.strategy` a first pass over the cells finds the
highest version of each key. Spark's window may decide instead, over the entries as rows (`rows_of`, `write_bits`): the
place of a row is the number of its entry among all, so that of two records of a key the later one has the higher place.
`Survivors` brings the marks of a walk and the bits of all buckets together in the order of the split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import CHANGED_HINT, LogFormatError
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.udfs.compact.clean.key_kernels import SLOT, rehash
from lastkey.udfs.compact.clean.winner_kernels import WINNER
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split.block_kernels import (
    batch_verdicts,
    checksum_cells,
    in_order_of_walk,
    mark_kept,
    settle_cells,
    settle_versions,
)
from lastkey.udfs.compact.split.walk_split import (
    WALKED_CHUNK,
    EntryBlock,
    KeyFile,
    Slice,
    WalkedSplit,
    check,
    digest_of,
    read_slice,
)
from lastkey.udfs.storage import Root, open_root, opened

_LEAST_SLOTS: Final = 16


@dataclass(frozen=True)
class Buckets:
    """The buckets that one task settles."""

    first: int
    stop: int


@dataclass(frozen=True)
class SettledBuckets:
    """Bits of some buckets: `bits[split]` are those of its blocks, each block packed by itself."""

    buckets: Buckets
    bits: dict[int, Slice]
    peak_memory_bytes: int = 0


def slots_for(entries: np.ndarray) -> np.ndarray:
    """Return int64[n], the slots of tables for so many entries (int64[n]): powers of two, at most two thirds of them
    used.
    """
    needed = np.maximum(entries + entries // 2 + 1, _LEAST_SLOTS)
    slots: np.ndarray = 1 << np.ceil(np.log2(needed)).astype(np.int64)
    return slots


def share_out(
    splits: Sequence[WalkedSplit], n_buckets: int, task_memory_bytes: int, cores: int, slot: np.dtype[np.void] = SLOT
) -> list[Buckets]:
    """Return groups of consecutive buckets whose tables fit half of a task's memory if every entry is a key; some for
    each core.

    slot: of the tables (`slot_of`). Raises LogFormatError if a single bucket's table does not fit: more than 256
    buckets do not exist.
    """
    table_bytes = slots_for(_entries(splits, n_buckets)) * slot.itemsize
    limit = task_memory_bytes // 2  # growing tables need the other half
    if table_bytes.max() > limit:
        raise LogFormatError(
            "memory",
            "task.memory.bytes",
            0,
            f"{2 * int(table_bytes.max())} bytes or more, to hold the table of keys",
            f"{task_memory_bytes}",
        )
    most = min(limit, max(-(-int(table_bytes.sum()) // cores), int(table_bytes.max())))
    out, first, held = [], 0, 0
    for bucket, size in enumerate(table_bytes.tolist()):
        if bucket > first and held + size > most:
            out.append(Buckets(first, bucket))
            first, held = bucket, 0
        held += size
    return [*out, Buckets(first, n_buckets)]


def _entries(splits: Sequence[WalkedSplit], n_buckets: int) -> np.ndarray:
    """Return int64[buckets]: entries of each bucket."""
    return sum((block.counts for split in splits for block in split.blocks), np.zeros(n_buckets, np.int64))


def settle(
    plan: PartitionPlan, splits: Sequence[WalkedSplit], buckets: Buckets, n_buckets: int, name: str
) -> SettledBuckets:
    """Settle some buckets over all splits.

    name: of the file that is written, for this try alone.
    """
    root = open_root(plan.run.store_uri)
    mine = slice(buckets.first, buckets.stop)
    used = np.zeros(buckets.stop - buckets.first, np.int64)
    of_splits = [np.sum([used, *(b.dirty[mine] for b in split.blocks)], axis=0) for split in splits]
    most = np.max([used, *of_splits], axis=0)  # about as many keys, for a split's entries differ
    table, slots = _with_room(np.zeros(0, slot_of(plan)), np.zeros_like(used), most)
    bits: dict[int, Slice] = {}
    by_offset, last_first = plan.policy.settings.by_offset, sorted(splits, key=lambda s: -s.number)
    with KeyFile(plan, name) as key_file:
        for is_first, is_last in [(True, True)] if by_offset else [(True, False), (False, True)]:  # passes
            number = 0
            for split in last_first:
                packed = [np.empty(0, np.uint8)]
                for block in split.blocks:
                    entries, counts, dirty = read_cells(root, block, buckets), block.counts[mine], block.dirty[mine]
                    stays = np.empty(len(entries), np.bool_)
                    if is_first:
                        table, slots = _with_room(table, slots, used + dirty)
                    starts, masks = np.cumsum(slots) - slots, slots - 1
                    if by_offset:
                        settle_cells(entries, counts, dirty, table, starts, masks, used, stays)
                    else:
                        settle_versions(entries, counts, number, table, starts, masks, used, stays)
                    number += len(entries)
                    packed.append(np.packbits(stays))
                if is_last:
                    bits[split.number] = key_file.write(np.concatenate(packed))
    return SettledBuckets(buckets, bits)


def slot_of(plan: PartitionPlan) -> np.dtype[np.void]:
    """Return the kind of the slots in which a task settles keys."""
    return SLOT if plan.policy.settings.by_offset else WINNER


def _with_room(table: np.ndarray, slots: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (table, slots: int64[buckets], each bucket's part of it), with room for so many keys of each bucket.

    The table grows with the keys that are met, not with the entries: most entries repeat a key.
    """
    needed = np.maximum(slots, slots_for(keys))
    if (needed == slots).all():
        return table, slots
    larger = np.zeros(int(needed.sum()), table.dtype)
    for old, new in zip(np.split(table, slots.cumsum()[:-1]), np.split(larger, needed.cumsum()[:-1]), strict=True):
        rehash(old, new)
    return larger, needed


def read_cells(root: Root, block: EntryBlock, buckets: Buckets) -> np.ndarray:
    """Return u8[n, block.columns]: the entries of some buckets of a block, checked."""
    counts = block.counts[buckets.first : buckets.stop]
    before = int(block.counts[: buckets.first].sum()) * block.entry_bytes
    raw = np.empty(int(counts.sum()) * block.entry_bytes, np.uint8)
    whole = Slice(block.path, block.position + before, len(raw), 0)
    with opened(root, block.path) as file:
        read_exactly(file, block.path, whole.position, raw)
    found = np.empty(len(counts), np.uint32)
    checksum_cells(raw, counts * block.entry_bytes, found)
    wrong = np.flatnonzero(found != block.checksums[buckets.first : buckets.stop])
    if len(wrong):
        expected = int(block.checksums[buckets.first + wrong[0]])
        check(replace(whole, checksum=expected), int(found[wrong[0]]))
    return raw.view(np.uint64).reshape(-1, block.columns)


class Survivors:
    """Marks for the records of a split, or of consecutive chunks of it, in the order in which they are met again.

    Memory: a bit a record, and a byte for each record that left the split; byte-per-record arrays cover one chunk.
    """

    def __init__(
        self, root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets], path: str, chunks: slice = slice(None)
    ) -> None:
        """Read the marks. path: the log that errors name; chunks: those of the split that will be met."""
        before, self._walked, self._path = split.chunks[: chunks.start or 0], split.chunks[chunks], path
        self._leaves = read_slice(root, split.leaves)[sum(map(_packed, before["records"].tolist())) :]
        self._plain = read_slice(root, split.plain)[sum(map(_packed, before["batches"].tolist())) :]
        self._stays = _stays(root, split, settled)[int(before["entries"].sum()) :]
        self._n_met = 0  # chunks met, with the current one
        self._met = np.zeros(1, WALKED_CHUNK)  # counts and digest of the current chunk
        self._leaves_here = self._survives = np.empty(0, np.bool_)  # of its records: whether each leaves; and survives
        self._verdicts = np.empty(0, np.int8)  # of its batches

    def batch_verdicts(self, batches: np.ndarray, decided: np.ndarray) -> np.ndarray:
        """Return int8[n], the verdicts on BATCH[n], the next chunk, that are certain before its records are read.

        decided: bool[n], batches whose records all go, or all stay, in any case.
        """
        self._check()
        candidates = ~decided & ((batches["attributes"] & CONTROL_MASK) == 0)
        met = self._met[0]
        met["records"], met["batches"], met["digest"] = 0, candidates.sum(), digest_of(batches)
        plain = self._next_chunk()
        self._verdicts = np.zeros(len(batches), np.int8)
        if met["batches"] == len(plain) and (batches["magic"][candidates] == 2).all():
            batch_verdicts(batches, candidates, self._survives, 0, plain, self._verdicts)
        return self._verdicts

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the surviving records of a run of that chunk."""
        verdicts, at = self._verdicts[run.first : run.first + len(run.batches)], int(self._met["records"][0])
        at = mark_kept(run.batches, run.bodies, run.wanted, verdicts, self._leaves_here, self._survives, at, is_last)
        if at < 0:
            raise self._changed("others")
        self._met["records"] = at

    def check_end(self) -> None:
        """Raise LogFormatError kind "changed" unless the batches and records were those of the walk."""
        self._check()
        if self._n_met != len(self._walked):
            raise self._changed(f"only {self._n_met} of {len(self._walked)} chunks")

    def _next_chunk(self) -> np.ndarray:
        """Load the marks of the next chunk; return bool[batches], whether each is plain."""
        if self._n_met == len(self._walked):
            raise self._changed("more of them")
        walked = self._walked[self._n_met]
        self._n_met += 1
        n, n_batches, n_entries = int(walked["records"]), int(walked["batches"]), int(walked["entries"])
        leaves = self._leaves_here = np.unpackbits(self._leaves, count=n).view(np.bool_)
        self._survives = leaves.copy()
        self._survives[leaves] = self._stays[:n_entries]
        plain = np.unpackbits(self._plain, count=n_batches).view(np.bool_)
        self._leaves, self._plain = self._leaves[_packed(n) :], self._plain[_packed(n_batches) :]
        self._stays = self._stays[n_entries:]
        return plain

    def _check(self) -> None:
        """Raise LogFormatError kind "changed" unless the current chunk is the one that was walked."""
        if self._n_met:
            expected, met = self._walked[self._n_met - 1], self._met[0]
            if any(met[column] != expected[column] for column in ("records", "batches", "digest")):
                raise self._changed(_said(met))

    def _changed(self, found: str) -> LogFormatError:
        walked = self._walked[max(self._n_met - 1, 0)]
        return LogFormatError(
            "changed",
            self._path,
            0,
            f"{_said(walked)}, as when their keys were read",
            found,
            hint=CHANGED_HINT,
        )


def _said(chunk: np.void) -> str:
    return f"{chunk['records']} records in {chunk['batches']} batches, digest {chunk['digest']:#010x}"


def _packed(bits: int) -> int:
    """Return the bytes that so many bits need."""
    return -(-bits // 8)


def _stays(root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets]) -> np.ndarray:
    """Return bool[n_entries] in the order of the log: whether each record that left its split stays."""
    buckets = read_slice(root, split.buckets)
    packed = [(s.buckets, read_slice(root, s.bits[split.number])) for s in settled if split.blocks]
    at = [0] * len(packed)
    stays = np.empty(split.n_entries, np.bool_)
    start = 0
    for block in split.blocks:
        parts = []
        for i, (of, raw) in enumerate(packed):
            n = int(block.counts[of.first : of.stop].sum())
            size = _packed(n)
            parts.append(np.unpackbits(raw[at[i] : at[i] + size], count=n))
            at[i] += size
        end = start + int(block.counts.sum())
        bits = np.concatenate(parts).view(np.bool_)
        in_order_of_walk(buckets[start:end], np.cumsum(block.counts) - block.counts, bits, stays[start:end])
        start = end
    return stays[::-1]


# The hash's halves are signed here; version: 0 if offsets decide; dirty: whether the record supersedes others
ROWS = "key_low long, key_high long, version long, dirty boolean, split int, place long"


def places_end(walked: Sequence[WalkedSplit]) -> np.ndarray:
    """Return int64[splits]: the first place behind each split's."""
    return np.cumsum([walk.n_entries for walk in walked])


def rows_of(plan: PartitionPlan, walked: Sequence[WalkedSplit], number: int) -> Iterator[pa.RecordBatch]:
    """Yield the ROWS of a split's entries, a batch for each block."""
    root, end = open_root(plan.run.store_uri), int(places_end(walked)[number])
    for block in walked[number].blocks:
        entries = read_cells(root, block, Buckets(0, len(block.counts)))
        n, starts = len(entries), np.cumsum(block.counts) - block.counts
        in_cell = np.arange(n) - np.repeat(starts, block.counts)
        columns = {
            "key_low": entries[:, 0].astype(np.int64),
            "key_high": entries[:, 1].astype(np.int64),
            "version": np.zeros(n, np.int64) if plan.policy.settings.by_offset else entries[:, 2].astype(np.int64),
            "dirty": in_cell < np.repeat(block.dirty, block.counts),
            "split": np.full(n, number, np.int32),
            "place": np.arange(end - 1, end - 1 - n, -1),
        }
        end -= n
        yield pa.RecordBatch.from_pydict(columns)


def write_bits(
    plan: PartitionPlan, walked: Sequence[WalkedSplit], decided: Iterable[pa.RecordBatch], name: str
) -> dict[int, Slice]:
    """Write the bits of the splits that come; all rows of a split come, in any order: (split, place, stays).

    name: of the file that is written, for this try alone. Raises ValueError if a row is missing.
    """
    ends, answers = places_end(walked), dict[int, np.ndarray]()
    for batch in decided:
        split, place, stays = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        for number in np.unique(split).tolist():
            if number not in answers:
                answers[number] = np.full(walked[number].n_entries, -1, np.int8)
            answers[number][ends[number] - 1 - place[split == number]] = stays[split == number]
    bits = {}
    with KeyFile(plan, name) as key_file:
        for number, answer in answers.items():
            if (answer < 0).any():
                raise ValueError(f"split {number}: {(answer < 0).sum()} of {len(answer)} keys without an answer")
            borders = np.cumsum([block.counts.sum() for block in walked[number].blocks])[:-1]
            packed = [np.packbits(part) for part in np.split(answer, borders)]
            bits[number] = key_file.write(np.concatenate(packed))
    return bits
