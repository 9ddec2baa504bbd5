"""Schedules by yield: when a run is worth its reading, and which segments are worth their rewrite.

The model. To rewrite a segment costs its bytes, `reads` times, and its live bytes, `writes` times. A dead byte that is
kept costs `price` a run. Records die at the hazard of their age (yield_table.py), so the cost of one live byte for the
rest of its life, from age a, just rewritten, is the least over all ages b of the next rewrite:

    life(a) = min over b of  price * (dead bytes at a+1, ..., b-1)  +  reads  +  alive(a, b) * (writes + life(b))

This is solved from the oldest age down; beyond the table the hazard is constant and each cycle is like the one before.
Each new byte costs life(0) in the end, so to pay the least for each life is to pay the least for each run. A segment of
L live and D dead bytes of age a is rewritten now if that costs less than the best later run:

    gain = min over b of  (price * D * (b - a) + L * wait(a, b))  -  L * (writes + life(a)),    wait: that without reads

Hot records die soon after they were written. While they do, life(a) is large and waiting is cheap, so the segment
waits; then it holds many dead and few that will die, and is rewritten; later it hardly changes and is left alone. At
equal age and size more dead bytes always gain more, and nothing dead gains nothing. SCHEDULE.md has the measurements.

Nothing here reads a file. Segments are arrays, one element a segment, oldest first. Ages and prices count runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.udfs.yields.yield_table import OLDEST, Yields, bin_of, hazards, survival_curve

KEPT, MUST, YIELD, MERGED = range(4)  # reasons, int8
REASONS: Final = ("kept", "must", "yield", "merged")

HORIZON: Final = 512  # runs that a plan looks ahead; whoever waits so long waits
EVERY: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # runs' worth of new records that one run by yield may take at once
FAN_IN: Final = 8  # small neighbours that become one: each byte is merged once for every factor of 8 that it grows
FILTER_BYTES: Final = 2.0  # of a key filter, for each record
FACTS_SHARE: Final = 0.005  # bytes of a segment's facts, for each of its own
READS_OF_NEW: Final = 2  # scan and clean
HASH_BYTES: Final = 16.0  # of a key file, for each distinct new key


@dataclass(frozen=True)
class Segments:
    """Cleaned segments of a partition, oldest first; arrays of one element a segment."""

    size_bytes: np.ndarray  # int64
    records: np.ndarray  # int64
    dead_records: np.ndarray  # float64: how many of them newer records supersede, by the filters
    age: np.ndarray  # float64: runs since its records were first cleaned, their mean; OLDEST: nobody knows
    must: np.ndarray  # bool: rewritten whatever it yields
    unread_bytes: np.ndarray  # float64: of the key files of earlier runs that were not applied to it yet

    def dead_bytes(self) -> np.ndarray:
        """Return float64[n]; records count as equally long."""
        return np.asarray(self.size_bytes * np.clip(self.dead_records / np.maximum(self.records, 1), 0.0, 1.0))


@dataclass(frozen=True)
class Policy:
    """Prices and limits of a schedule."""

    price: float = 0.1  # bytes of I/O that a dead byte kept for one run is worth; more: less space, more I/O
    min_yield: float = 0.0  # smallest dead share of a segment that is rewritten for its yield
    io_budget_bytes: int | None = None  # read and written for rewrites in one run; None: no limit. `must` ignores it
    segment_bytes: int = 2**30  # size up to which segments become one
    reads: int = 1  # times that a rewritten byte is read
    writes: int = 2  # times that a live one is written, or read back
    reads_of_all: int = 2  # as `reads`, in a run that rewrites the whole log: scan and clean

    def affords_all(self, size_bytes: float) -> bool:
        """Return whether the budget allows to rewrite a whole log of this size."""
        return self.io_budget_bytes is None or self.cost_of_all(size_bytes) <= self.io_budget_bytes

    def cost_of_all(self, size_bytes: float) -> float:
        """Return the bytes that a run moves at most which rewrites a whole log of this size."""
        return (self.reads_of_all + self.writes) * size_bytes


@dataclass(frozen=True)
class Pace:
    """Decision about a run as a whole, taken before anything is read."""

    due: bool
    rewrite_all: bool  # the whole log, as the broker does; filters are not consulted
    every: int  # runs' worth of new records that one run takes at once


@dataclass(frozen=True)
class Schedule:
    """Segments that a run rewrites."""

    reason: np.ndarray  # int8[n]: KEPT, MUST, YIELD or MERGED
    output: np.ndarray  # int64[n]: rewritten segments with the same number become one; -1: kept
    gain: np.ndarray  # float64[n]: what a rewrite now saves against the best later run, in bytes


def pace(segments: Segments, yields: Yields, policy: Policy, *, new_bytes: int, waiting: int = 1) -> Pace:
    """Return whether to run now, and how: by yield, or as the broker does.

    new_bytes: the usual number in one run; waiting: runs' worth of new records that lie there.
    Compares the cost a run of both ways, for every number of runs' worth that one run may take at once. Where all
    records die alike there is nothing to choose from, filters are in vain, and the broker's way is the cheaper one.
    """
    if not yields.new_records:
        return Pace(True, False, 1)  # the first run learns
    by_yield, of_all = (
        _cost_by_yield(segments, yields, policy, new_bytes),
        _cost_of_all(segments, yields, policy, new_bytes),
    )
    if not policy.affords_all(float(segments.size_bytes.sum())):
        of_all = np.full_like(of_all, np.inf)
    rewrite_all = bool(of_all.min() < by_yield.min())
    costs = of_all if rewrite_all else by_yield
    best = int(np.argmin(costs))
    every = best + 1 if rewrite_all else EVERY[best]
    return Pace(waiting >= every, rewrite_all, every)


def choose(segments: Segments, yields: Yields, policy: Policy, *, every: int = 1) -> Schedule:
    """Return the segments that a run by yield rewrites; every: as `pace` said."""
    dead = segments.dead_bytes()
    live = segments.size_bytes - dead
    cost = policy.reads * segments.size_bytes + policy.writes * live
    hazard = hazards(yields)
    gain = _gain(dead, live, bin_of(segments.age), _Lives(_Survival(hazard), policy, every))
    reason = np.where(segments.must, MUST, KEPT).astype(np.int8)
    most = (policy.reads + policy.writes) * segments.size_bytes  # if what is dead should be short records
    left = np.inf if policy.io_budget_bytes is None else policy.io_budget_bytes - float(most[segments.must].sum())
    worth = (gain > 0) & (dead > 0) & (dead >= policy.min_yield * segments.size_bytes) & ~segments.must
    order = np.flatnonzero(worth)
    order = order[np.argsort(-gain[order] / np.maximum(cost[order], 1), kind="stable")]
    order = order[most[order] <= left]  # else one that never fits would keep all others waiting
    taken = order[np.cumsum(most[order]) <= left]  # the best ratio first; the first that does not fit ends it
    growth = policy.price * live[taken] * hazard[bin_of(segments.age[taken])]
    lost = gain[taken] ** 2 / (2 * np.maximum(growth, 1e-9))
    taken = taken[_worth_their_keys(lost, segments.unread_bytes[taken], segments.unread_bytes[segments.must])]
    reason[taken] = YIELD
    merged = _small_neighbours(live, reason, policy.segment_bytes)
    if float(most[merged].sum()) <= left - float(most[taken].sum()):
        reason[merged] = MERGED
    return Schedule(reason, _outputs(live, reason != KEPT, policy.segment_bytes), gain)


def wish_of(segments: Segments, yields: Yields, policy: Policy) -> tuple[float, float, float]:
    """Return the gain of what a run would rewrite without a budget, the bytes that it could move at most, and the most
    of these for one segment.
    """
    chosen = choose(segments, yields, replace(policy, io_budget_bytes=None))
    taken = chosen.reason != KEPT
    most = (policy.reads + policy.writes) * segments.size_bytes[taken]
    return float(chosen.gain[taken].sum()), float(most.sum()), float(most.max(initial=0))


class _Survival:
    """Shares of the live bytes of each age that are alive after 1, ..., HORIZON runs, and dead bytes summed over these
    runs: float64[AGES, HORIZON].
    """

    def __init__(self, hazard: np.ndarray) -> None:
        rows = np.minimum(np.arange(OLDEST + 1)[:, None] + np.arange(HORIZON), OLDEST)
        self.alive = np.cumprod((1 - hazard)[rows], axis=1)
        self.dead = np.cumsum(1 - self.alive, axis=1)


class _Lives:
    """Costs of a live byte by its age, where rewrites are `step`, 2 `step`, ... runs apart.

    waits: int64[m], runs until the next rewrite; wait: float64[AGES, m], cost of waiting so long and then writing and
    living on, without the reads; life: float64[AGES], from a rewrite now on.
    """

    def __init__(self, survival: _Survival, policy: Policy, step: int) -> None:
        self.price, self.writes, self.waits = policy.price, policy.writes, np.arange(step, HORIZON + 1, step)
        ages, alive, dead = np.arange(OLDEST + 1), survival.alive, survival.dead
        kept = self.price * np.where(self.waits > 1, dead[:, self.waits - 2], 0.0)  # after 1, ..., wait - 1 runs
        alive = alive[:, self.waits - 1]
        # of the oldest age each cycle is like the one before: life = kept + reads + alive * (writes + life)
        oldest = np.min((kept[OLDEST] + policy.reads + self.writes * alive[OLDEST]) / (1 - alive[OLDEST]))
        self.life = np.full(len(ages), oldest)
        for age in range(OLDEST - 1, -1, -1):
            later = self.life[np.minimum(age + self.waits, OLDEST)]
            self.life[age] = np.min(kept[age] + alive[age] * (self.writes + later)) + policy.reads
        self.wait = kept + alive * (self.writes + self.life[np.minimum(ages[:, None] + self.waits, OLDEST)])


def _gain(dead: np.ndarray, live: np.ndarray, row: np.ndarray, lives: _Lives) -> np.ndarray:
    """Return float64[n]: the cost of the best later rewrite less that of one now; the reads are the same."""
    later = lives.price * dead[:, None] * lives.waits + live[:, None] * lives.wait[row]
    return np.asarray(later.min(axis=1, initial=np.inf) - live * (lives.writes + lives.life[row]))


def _worth_their_keys(lost: np.ndarray, unread: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Return int64[k], the segments that have waited long enough for others that need the same key files.

    A run reads a key file once for all its segments, so those that need old ones had better go together. They go when
    what they lost by waiting exceeds what the files cost, as stocks are ordered in lots; those that need older files
    have to pay for these. A gain that
    grows by g a run and has reached G has lost G**2 / 2 g on its way. read: bytes of those that must be rewritten now.
    """
    order = np.argsort(unread, kind="stable")
    paid = np.cumsum(lost[order]) - np.maximum(unread[order] - read.max(initial=0.0), 0.0)
    return order[: int(np.argmax(np.append(0.0, paid)))]


def _small_neighbours(live: np.ndarray, reason: np.ndarray, segment_bytes: int) -> np.ndarray:
    """Return int64[k], kept segments that become one with their neighbours: at least FAN_IN small ones in a row.

    Small is judged by limits of 1 / FAN_IN, 1 / FAN_IN**2, ... of a segment, the lowest first, and what is merged grows
    past its limit: so a byte is merged at most once for each of them.
    """
    limit = float(segment_bytes)
    limits = []
    while len(live) and limit > max(float(live.min()), 1.0):
        limit /= FAN_IN
        limits.append(limit)
    for limit in reversed(limits):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], live < limit, [False])).astype(np.int8)))
        begin, end = edges[::2], edges[1::2]
        total = np.append(0.0, np.cumsum(live))
        many = (end - begin >= FAN_IN) & (total[end] - total[begin] >= limit)
        if many.any():
            depth = np.zeros(len(live) + 1, np.int64)
            depth[begin[many]], depth[end[many]] = 1, -1
            return np.flatnonzero((np.cumsum(depth)[:-1] > 0) & (reason == KEPT))
    return np.zeros(0, np.int64)


def _outputs(live: np.ndarray, chosen: np.ndarray, segment_bytes: int) -> np.ndarray:
    """Return int64[n]: neighbours that are rewritten share a number as long as they fit into one segment; -1: kept."""
    output = np.full(len(live), -1, np.int64)
    number, filled, before = -1, 0.0, -2
    for i in np.flatnonzero(chosen).tolist():  # few: segments, not records
        if i != before + 1 or filled + live[i] > segment_bytes:
            number, filled = number + 1, 0.0
        output[i], filled, before = number, filled + live[i], i
    return output


def _new_bytes_kept(yields: Yields, new_bytes: int, n: int) -> np.ndarray:
    """Return float64[n]: what is left of 1, 2, ..., n runs' worth of new bytes when one run takes them at once."""
    share = yields.new_survivors / yields.new_records if yields.new_records else 1.0
    return np.asarray(np.cumsum(new_bytes * share * survival_curve(hazards(yields), n - 1)))


def _cost_by_yield(segments: Segments, yields: Yields, policy: Policy, new_bytes: int) -> np.ndarray:
    """Return float64[len(EVERY)], the cost a run's worth, where EVERY[i] runs' worth are taken at once."""
    hazard, row = hazards(yields), bin_of(segments.age)
    live = segments.size_bytes - segments.dead_bytes()
    kept = _new_bytes_kept(yields, new_bytes, EVERY[-1])
    superseded = np.append(0.0, new_bytes * np.arange(1, EVERY[-1]) - kept[:-1])  # in new data that waits, run by run
    length = segments.size_bytes.sum() / max(segments.records.sum(), 1) or 1.0
    filters = (segments.size_bytes.sum() + kept) * (FILTER_BYTES / length + FACTS_SHARE)
    costs, survival = np.empty(len(EVERY)), _Survival(hazard)
    for i, every in enumerate(EVERY):
        life = _Lives(survival, policy, every).life
        later = life[np.minimum(np.arange(OLDEST + 1) + 1, OLDEST)]
        flow = np.maximum(life - (1 - hazard) * later, 0.0)  # what a live byte costs in the run after this age
        of_run = kept[every - 1] * (policy.writes + 2 * HASH_BYTES / length) + filters[every - 1]
        waste = policy.price * superseded[:every].sum()
        costs[i] = (of_run + waste) / every + READS_OF_NEW * new_bytes + live @ flow[row] + kept[0] * flow[0]
    return costs


def _cost_of_all(segments: Segments, yields: Yields, policy: Policy, new_bytes: int) -> np.ndarray:
    """Return float64[HORIZON], the cost a run's worth, where the log is rewritten after every 1, 2, ... runs' worth."""
    hazard, row = hazards(yields), bin_of(segments.age)
    live = segments.size_bytes - segments.dead_bytes()
    by_age = np.bincount(row, live, OLDEST + 1)
    ages = np.flatnonzero(by_age)
    old = np.zeros(HORIZON + 1)
    for age in ages:
        old += by_age[age] * survival_curve(hazard, HORIZON, int(age))
    runs = np.arange(1, HORIZON + 1)
    kept = _new_bytes_kept(yields, new_bytes, HORIZON)
    dead = new_bytes * runs - kept + old[0] - old[1:]  # that lie there when so many runs' worth wait
    waste = policy.price * np.cumsum(np.append(0.0, dead[:-1]))
    moved = policy.reads_of_all * old[0] + policy.writes * (old[1:] + kept)
    return np.asarray((moved + waste) / runs + READS_OF_NEW * new_bytes)
