"""The copies' batches that belong to the log, by leader epochs: the highest epoch chain wins, as a follower truncates.

Each batch carries the epoch of the leader that wrote it, and `leader-epoch-checkpoint` lists where each epoch began. A
follower asks the leader for the end of its own last epoch (OffsetsForLeaderEpoch) and truncates its log there. If the
leader has no such epoch, it answers with the largest epoch below. Then the follower asks again with its own largest
epoch that is not above that epoch. So both end with a common beginning. Sources: KIP-101 (replication by leader epoch
instead of high watermark), KIP-279 (the second question), Kafka's LeaderEpochFileCache.endOffsetFor and
AbstractFetcherThread.getOffsetTruncationState (4.3.0).

Here the copy with the highest last epoch is the leader; of several the one whose epochs most batches of all copies
show, then the one whose log ends last. Two differences from Kafka. Batches of the leader's own last epoch count in
every copy: only one broker led in that epoch, and its copy may have lost its end. If the leader's checkpoint is lost,
an epoch that its batches lack does not exclude a copy: a cleaner or damage may have removed the epoch from the leader.

The checksum of a batch does not cover its leader epoch. An epoch that only one batch of all copies has, and no
checkpoint, is taken for damage; so is one that falls below an epoch before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.side_files.checkpoints import EpochEntry

_PIECE: Final = 1 << 16  # batches that are looked at together
_MOST_RUNS: Final = 4096  # maximum of runs of equal epochs that are compared with each other
_WRONG_SHARE: Final = 10  # a checkpoint that contradicts more than one in so many batches is not this log's


class EpochRun(NamedTuple):
    """Consecutive batches of one leader epoch in a copy."""

    epoch: int
    first: int  # offsets
    last: int
    batches: int


@dataclass(frozen=True)
class Chain:
    """Leader epochs of a log with their start offsets, both rising."""

    entries: tuple[EpochEntry, ...] = ()
    is_complete: bool = False  # from a checkpoint; else from batches alone, and an epoch may be missing

    @property
    def last_epoch(self) -> int:
        """The last epoch; -1: no epoch is known."""
        return self.entries[-1][0] if self.entries else -1

    def epochs_at(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the epoch of each offset; -1: not known."""
        if not self.entries:
            return np.full(len(offsets), -1, np.int64)
        epochs, starts = (np.array(column, np.int64) for column in zip(*self.entries, strict=True))
        at = np.searchsorted(starts, offsets, "right") - 1
        return np.where(at >= 0, epochs[at], -1)

    def epoch_end(self, epoch: int) -> int:
        """Return where the first epoch above this one begins; NO_END: there is none."""
        return next((start for later, start in self.entries if later > epoch), NO_END)

    def largest_up_to(self, epoch: int) -> int:
        """Return the largest epoch that is not above this one; -1: there is none."""
        return max((one for one, _ in self.entries if one <= epoch), default=-1)


def confirmed_epochs(runs: Iterable[Sequence[EpochRun]], files: Iterable[Sequence[EpochEntry] | None]) -> set[int]:
    """Return the epochs that some checkpoint names, or more than one batch of all copies has."""
    counts: dict[int, int] = {}
    for run in (run for of in runs for run in of):
        counts[run.epoch] = counts.get(run.epoch, 0) + run.batches
    named = {epoch for of in files for epoch, _ in of or ()}
    return named | {epoch for epoch, n in counts.items() if n > 1 and epoch >= 0}


def build_chain(runs: Sequence[EpochRun], file: Sequence[EpochEntry] | None, confirmed: set[int]) -> Chain:
    """Return a copy's chain. file: entries of its checkpoint; None: the checkpoint is missing or not trusted."""
    rising = _rising([run for run in runs if run.epoch in confirmed])
    if file is None:
        return Chain(_starts(rising))
    last = file[-1][0] if file else -1
    end = file[-1][1] if file else 0
    later = [entry for entry in _starts(rising) if entry[0] > last and entry[1] >= end]
    return Chain((*file, *later), True)


def _starts(runs: Sequence[EpochRun]) -> tuple[EpochEntry, ...]:
    found: dict[int, int] = {}
    for run in runs:
        found.setdefault(run.epoch, run.first)
    return tuple(found.items())


def _rising(runs: list[EpochRun]) -> list[EpochRun]:
    """Return runs whose epochs never fall, with as many batches as possible."""
    if all(a.epoch <= b.epoch for a, b in pairwise(runs)):
        return runs
    runs = runs[:_MOST_RUNS]
    best: list[tuple[int, int]] = []  # batches up to and with this run, the run before it
    for i, run in enumerate(runs):
        before = max((j for j in range(i) if runs[j].epoch <= run.epoch), key=lambda j: best[j][0], default=-1)
        best.append((run.batches + (best[before][0] if before >= 0 else 0), before))
    kept, at = [], max(range(len(runs)), key=lambda i: best[i][0])
    while at >= 0:
        kept.append(runs[at])
        at = best[at][1]
    return kept[::-1]


def is_of_another_log(rows: np.ndarray, file: Sequence[EpochEntry]) -> bool:
    """Return whether too many batches, BATCH[n], contradict a checkpoint. Epochs above its last one do not: it may be
    older.
    """
    right, wrong = _judged(rows, Chain(tuple(file)))
    return wrong * _WRONG_SHARE > right + wrong and wrong > min(1, right + wrong - 1)


def support(chain: Chain, copies: Iterable[np.ndarray]) -> int:
    """Return how many batches of all copies, BATCH[n] each, agree with a chain."""
    return sum(right - wrong for right, wrong in (_judged(rows, chain) for rows in copies))


def _judged(rows: np.ndarray, chain: Chain) -> tuple[int, int]:
    """Return how many batches agree with a chain, and how many contradict it."""
    right = wrong = 0
    last, begins = chain.entries[-1] if chain.entries else (-1, 0)
    for start in range(0, len(rows), _PIECE):
        part = rows[start : start + _PIECE]
        stored, bases = part["partition_leader_epoch"], np.ascontiguousarray(part["base_offset"])
        expected = chain.epochs_at(bases)
        judged = (stored >= 0) & (expected >= 0) & ~((stored > last) & (bases >= begins))
        right += int((judged & (stored == expected)).sum())
        wrong += int((judged & (stored != expected)).sum())
    return right, wrong


def truncation_offset(follower: Chain, leader: Chain) -> int:
    """Return the offset from which on a follower's batches are not the leader's log; NO_END: all of them are."""
    if not follower.entries or not leader.entries:
        return NO_END
    epoch, end = follower.last_epoch, NO_END
    while True:
        answer = leader.largest_up_to(epoch)
        if answer == leader.last_epoch and answer == epoch:
            return end
        if answer < 0:  # the leader's chain begins later
            return min(end, leader.entries[0][1])
        if answer == epoch or not leader.is_complete:
            return min(end, leader.epoch_end(epoch))
        end = min(end, leader.epoch_end(answer))
        epoch = follower.largest_up_to(answer)
        if epoch < 0:
            return min(end, follower.entries[0][1])
        end = min(end, follower.epoch_end(epoch))


def united(leader: Chain, follower: Chain, until: int) -> Chain:
    """Return the leader's chain with what a follower knows of the log below `until`. If the leader has a checkpoint,
    only what is older than that counts.
    """
    known = NO_END if not leader.is_complete or not leader.entries else leader.entries[0][1]
    starts = dict(leader.entries)
    for epoch, start in follower.entries:
        if start < min(until, known) and epoch <= leader.last_epoch:
            starts[epoch] = min(start, starts.get(epoch, start))
    entries: list[EpochEntry] = []
    for entry in sorted(starts.items(), reverse=True):
        if not entries or entry[1] < entries[-1][1]:
            entries.append(entry)
    return Chain(tuple(entries[::-1]), leader.is_complete)


@dataclass(frozen=True)
class Lineage:
    """The winning chain, and for each copy the offset from which on its batches are not in it."""

    chain: Chain
    truncation: tuple[int, ...]
    chains: tuple[Chain, ...]


def decide(chains: Sequence[Chain], ends: Sequence[int], copies: Sequence[np.ndarray]) -> Lineage:
    """Return the winning lineage of copies with these chains, log ends and batches, BATCH[n] each."""
    shown = [support(chain, copies) if len(set(chains)) > 1 else 0 for chain in chains]
    order = sorted(range(len(chains)), key=lambda i: (-chains[i].last_epoch, -shown[i], -ends[i], i))
    truncation = [NO_END] * len(chains)
    winner = Chain()
    for number, i in enumerate(order):
        if number == 0:
            winner = chains[i]
            continue
        truncation[i] = truncation_offset(chains[i], winner)
        both = united(winner, chains[i], truncation[i])
        if both == winner or support(both, copies) >= support(winner, copies):  # a checkpoint may be damaged
            winner = both
    return Lineage(winner, tuple(truncation), tuple(chains))
