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
from udfs.compact.walk_split import WALKED_CHUNK, WalkedSplit, digest_of
from udfs.storage import Root


class Survivors:
    """Handed out to the records of a split, or of consecutive chunks of it, as they are met again, first to last.

    It holds a bit a record, and a byte for each record that left the split: what is a byte a record is one chunk's.
    """

    def __init__(
        self, root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets], path: str, chunks: slice = slice(None)
    ) -> None:
        """path: what a problem is said to be of; chunks: those of the split that will be met."""
        before, self._walked, self._path = split.chunks[: chunks.start or 0], split.chunks[chunks], path
        self._leaves = read_slice(root, split.leaves)[sum(map(_packed, before["records"].tolist())) :]
        self._plain = read_slice(root, split.plain)[sum(map(_packed, before["batches"].tolist())) :]
        self._stays = _stays(root, split, settled)[int(before["entries"].sum()) :]
        self._n_met = 0  # chunks, with the one at hand
        self._met = np.zeros(1, WALKED_CHUNK)  # what was met of it
        self._survives = np.empty(0, np.bool_)  # its records
        self._fates = np.empty(0, np.int8)  # its batches

    def fates(self, batches: np.ndarray, drop: np.ndarray) -> np.ndarray:
        """int8[n]: what is known of BATCH[n], the next chunk, before its records are read. drop: bool[n]."""
        self._check()
        entering = ~drop & ((batches["attributes"] & CONTROL_MASK) == 0)
        met = self._met[0]
        met["records"], met["batches"], met["digest"] = 0, entering.sum(), digest_of(batches)
        plain = self._next_chunk()
        self._fates = np.zeros(len(batches), np.int8)
        if met["batches"] == len(plain) and (batches["magic"][entering] == 2).all():
            fates_of_batches(batches, entering, self._survives, 0, plain, self._fates)
        return self._fates

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the surviving records of a run of that chunk."""
        fates, at = self._fates[run.first : run.first + len(run.batches)], int(self._met["records"][0])
        at = hand_out(run.batches, run.bodies, run.wanted, fates, self._survives, at, is_last)
        if at < 0:
            raise self._changed("more")
        self._met["records"] = at

    def check_end(self) -> None:
        """That these were the batches and records that were walked; else LogFormatError kind "changed"."""
        self._check()
        if self._n_met != len(self._walked):
            raise self._changed(f"{self._n_met} chunks of {len(self._walked)}")

    def _next_chunk(self) -> np.ndarray:
        """Take the marks of the next chunk; bool[batches], those that are plain."""
        if self._n_met == len(self._walked):
            raise self._changed("more")
        walked = self._walked[self._n_met]
        self._n_met += 1
        n, n_batches, n_entries = int(walked["records"]), int(walked["batches"]), int(walked["entries"])
        leaves = np.unpackbits(self._leaves, count=n).view(np.bool_)
        self._survives = leaves.copy()
        self._survives[leaves] = self._stays[:n_entries]
        plain = np.unpackbits(self._plain, count=n_batches).view(np.bool_)
        self._leaves, self._plain = self._leaves[_packed(n) :], self._plain[_packed(n_batches) :]
        self._stays = self._stays[n_entries:]
        return plain

    def _check(self) -> None:
        """That the chunk at hand was the one that was walked."""
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
            f"the {_said(walked)}, whose keys were read",
            found,
            hint=CHANGED_HINT,
        )


def _said(chunk: np.void) -> str:
    return f"{chunk['records']} records in {chunk['batches']} batches, digest {chunk['digest']:#010x}"


def _packed(bits: int) -> int:
    """Bytes of so many bits."""
    return -(-bits // 8)


def _stays(root: Root, split: WalkedSplit, settled: Sequence[SettledBuckets]) -> np.ndarray:
    """bool[n_entries] in the order of the log."""
    buckets = read_slice(root, split.buckets)
    packed = [(s.buckets, read_slice(root, s.bits[split.number])) for s in settled]
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
