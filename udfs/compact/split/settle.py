"""The decision about each record that left its split: key hashes of all splits come together by bucket.

A task takes some buckets, and walks their cells from the last split to the first. So the first record of a key is its
last one, and the task drops every further one. Only dirty records enter the table; clean ones are looked up. The task
writes a bit for each entry, in the order of the blocks. By `compaction.strategy` a first pass over the cells finds the
highest version of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.udfs.compact.clean.slot_kernels import SLOT, rehash
from lastkey.udfs.compact.clean.winner_kernels import WINNER
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split.block_kernels import checksum_cells, settle_cells, settle_versions
from lastkey.udfs.compact.split.key_files import KeyFile, Slice, check
from lastkey.udfs.compact.split.walk_split import Block, WalkedSplit
from lastkey.udfs.problem import Problem, SetAside
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

    slot: of the tables (`slot_of`). Raises SetAside if a single bucket's table does not fit: more than 256 buckets do
    not exist.
    """
    table_bytes = slots_for(_entries(splits, n_buckets)) * slot.itemsize
    limit = task_memory_bytes // 2  # growing tables need the other half
    if table_bytes.max() > limit:
        raise SetAside(
            Problem(
                "memory",
                "task.memory.bytes",
                0,
                f"{2 * int(table_bytes.max())} bytes or more, to hold the table of keys",
                f"{task_memory_bytes}",
            )
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


def read_cells(root: Root, block: Block, buckets: Buckets) -> np.ndarray:
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
