"""Schedules by yield: the older segments that a run rewrites.

Other modules decide when a partition is due, by `min.cleanable.dirty.ratio` as for every run. In a due partition, a
segment is rewritten when newer records have superseded a share of its records that reaches `min_yield`. The segments
with the largest shares come first, while the budget lasts. Small neighbours become one. BENCHMARKS.md ("Runs by yield")
has the measurements.

This module reads no files. Segments are arrays, one element a segment, oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

KEPT, MUST, YIELD, MERGED = range(4)  # reasons, int8
REASONS: Final = ("kept", "must", "yield", "merged")

FAN_IN: Final = 8  # small neighbours that become one: each byte is merged once for every factor of 8 that it grows
READS: Final = 1  # times that a rewritten byte is read: the segment's facts spare the scan
READS_OF_ALL: Final = 2  # the same in a run that cleans the whole log: scan and clean
WRITES: Final = 2  # times that a live byte is written, or read back


@dataclass(frozen=True)
class Segments:
    """Cleaned segments of a partition, oldest first; arrays of one element a segment."""

    size_bytes: np.ndarray  # int64
    records: np.ndarray  # int64
    dead_records: np.ndarray  # int64: how many of them newer records supersede, by the filters
    must: np.ndarray  # bool: rewritten with any yield

    def dead_share(self) -> np.ndarray:
        """Return float64[n], of 0 to 1."""
        return np.asarray(np.clip(self.dead_records / np.maximum(self.records, 1), 0.0, 1.0))


@dataclass(frozen=True)
class ScheduleLimits:
    """Limits of a schedule."""

    min_yield: float = 0.2  # dead share from which a segment is rewritten
    io_budget_bytes: int | None = None  # read and written for rewrites in one run; None: no limit. `must` ignores it
    segment_bytes: int = 2**30  # size up to which segments become one

    def affords_all(self, size_bytes: int) -> bool:
        """Return whether the budget allows to rewrite a whole log of this size."""
        return self.io_budget_bytes is None or cost_of_all(size_bytes) <= self.io_budget_bytes


@dataclass(frozen=True)
class Schedule:
    """Segments that a run rewrites."""

    reason: np.ndarray  # int8[n]: KEPT, MUST, YIELD or MERGED
    output: np.ndarray  # int64[n]: rewritten segments with the same number become one; -1: kept


def cost_of_all(size_bytes: int) -> int:
    """Return the maximum of bytes that a rewrite of a whole log of this size moves."""
    return (READS_OF_ALL + WRITES) * size_bytes


def estimate_cost(size_bytes: np.ndarray) -> np.ndarray:
    """Return int64[n], the maximum of bytes that the rewrite of a segment moves: the dead records may be short."""
    return (READS + WRITES) * size_bytes


def choose(segments: Segments, policy: ScheduleLimits) -> Schedule:
    """Return the segments that a run by yield rewrites."""
    share, cost = segments.dead_share(), estimate_cost(segments.size_bytes)
    live = segments.size_bytes * (1 - share)
    reason = np.where(segments.must, MUST, KEPT).astype(np.int8)
    left = np.inf if policy.io_budget_bytes is None else policy.io_budget_bytes - int(cost[segments.must].sum())
    order = np.flatnonzero((share > 0) & (share >= policy.min_yield) & ~segments.must & (cost <= left))
    order = order[np.argsort(-share[order], kind="stable")]
    taken = order[np.cumsum(cost[order]) <= left]
    reason[taken] = YIELD
    merged = _small_neighbours(live, reason, policy.segment_bytes)
    if int(cost[merged].sum()) <= left - int(cost[taken].sum()):
        reason[merged] = MERGED
    return Schedule(reason, _outputs(live, reason != KEPT, policy.segment_bytes))


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
