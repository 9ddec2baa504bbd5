"""Which records of a split stay: the marks of its walk and the bits of all buckets, brought together in its order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logformat.batches.bodies import Run
from logformat.errors import LogFormatError
from logformat.layout import CONTROL_MASK
from udfs.compact.block_kernels import fates_of_batches, hand_out, in_order_of_walk
from udfs.compact.key_files import read_slice
from udfs.compact.scan_segment import CHANGED_HINT
from udfs.compact.settle import SettledBuckets
from udfs.compact.walk_split import WalkedSplit, digest_of
from udfs.storage import Root


class Survivors:
    """Handed out to the records of a split, or of consecutive chunks of it, as they are met again, first to last."""

    def __init__(
        self, root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets], path: str, chunks: slice = slice(None)
    ) -> None:
        """path: what a problem is said to be of; chunks: those of the split that will be met."""
        self._walked, self._path = split.chunks[chunks], path
        self._survives = _survives(root, split, settled)
        plain = np.unpackbits(read_slice(root, split.plain), count=split.n_batches)
        self._plain = np.ascontiguousarray(plain[::-1]).view(np.bool_)
        before = split.chunks[: chunks.start or 0]
        self._at = self._first = int(before["records"].sum())
        self._batch = self._first_batch = int(before["batches"].sum())
        self._digest = 0
        self._fates = np.empty(0, np.int8)

    def fates(self, batches: np.ndarray, drop: np.ndarray) -> np.ndarray:
        """int8[n]: what is known of BATCH[n], a chunk, before its records are read. drop: bool[n]."""
        self._digest = digest_of(self._digest, batches)
        entering = ~drop & ((batches["attributes"] & CONTROL_MASK) == 0)
        n = int(entering.sum())
        self._fates = np.zeros(len(batches), np.int8)
        if n <= len(self._plain) - self._batch and (batches["magic"][entering] == 2).all():
            fates_of_batches(
                batches, entering, self._survives, self._at, self._plain[self._batch : self._batch + n], self._fates
            )
        self._batch += n
        return self._fates

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the surviving records of a run of that chunk."""
        fates = self._fates[run.first : run.first + len(run.batches)]
        self._at = hand_out(run.batches, run.bodies, run.wanted, fates, self._survives, self._at, is_last)
        if self._at < 0:
            raise self._changed("more")

    def check_end(self) -> None:
        """That these were the batches and records that were walked; else LogFormatError kind "changed"."""
        found = (self._at - self._first, self._batch - self._first_batch, self._digest)
        if found != self._expected():
            raise self._changed(f"{found[0]} in {found[1]} batches, digest {found[2]:#018x}")

    def _expected(self) -> tuple[int, int, int]:
        """Records, batches, digest."""
        records, batches = int(self._walked["records"].sum()), int(self._walked["batches"].sum())
        return records, batches, int(self._walked["digest"].sum())  # which wraps, as the digest does

    def _changed(self, found: str) -> LogFormatError:
        records, batches, digest = self._expected()
        return LogFormatError(
            "changed",
            self._path,
            0,
            f"the {records} records in {batches} batches whose keys were read, digest {digest:#018x}",
            found,
            hint=CHANGED_HINT,
        )


def _survives(root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets]) -> np.ndarray:
    """bool[n_records] in the order of the log."""
    leaves = np.unpackbits(read_slice(root, split.leaves), count=split.n_records).view(np.bool_)
    buckets = read_slice(root, split.buckets)
    packed = [(s.buckets, read_slice(root, s.bits[split.number])) for s in settled]
    at = [0] * len(packed)
    stays = np.empty(split.n_entries, np.bool_)
    start = 0
    for block in split.blocks:
        parts = []
        for i, (of, raw) in enumerate(packed):
            n = int(block.counts[of.first : of.stop].sum())
            size = -(-n // 8)
            parts.append(np.unpackbits(raw[at[i] : at[i] + size], count=n))
            at[i] += size
        end = start + int(block.counts.sum())
        bits = np.concatenate(parts).view(np.bool_)
        in_order_of_walk(buckets[start:end], np.cumsum(block.counts) - block.counts, bits, stays[start:end])
        start = end
    survives = leaves.copy()
    survives[leaves] = stays
    return np.ascontiguousarray(survives[::-1])
