"""The survivors of a split: the marks of its walk and the bits of all buckets, brought together in its order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.udfs.compact.scan.read_again import CHANGED_HINT
from lastkey.udfs.compact.split.block_kernels import batch_verdicts, in_order_of_walk, mark_kept
from lastkey.udfs.compact.split.key_files import read_slice
from lastkey.udfs.compact.split.settle import SettledBuckets
from lastkey.udfs.compact.split.walk_split import WALKED_CHUNK, WalkedSplit, digest_of
from lastkey.udfs.storage import Root


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
