"""Exact optimum of a schedule when all deaths are known: the judge of udfs/yields/schedule.py.

A history is alive: float64[n, nights + 1], the live bytes of n segments when each night's deaths have happened, and
born: int64[n], the night at which each was written (nothing of it counts before). plan: bool[n, nights + 1], True where
a segment is rewritten that night, after its deaths. A rewrite reads all that lies there, `reads` times, and writes what
is alive, `writes` times; each dead byte that still lies there at the end of a night costs `price`. Without a budget and
without merging segments do not concern each other, so the optimum of each is the optimum of all.
"""

from __future__ import annotations

import itertools

import numpy as np


def cost_of(
    alive: np.ndarray, born: np.ndarray, plan: np.ndarray, price: float, reads: int, writes: int = 1
) -> np.ndarray:
    """Return float64[n]: I/O of the rewrites and price of the dead bytes of each segment."""
    io, dead = bytes_of(alive, born, plan, reads, writes)
    return io + price * dead


def bytes_of(
    alive: np.ndarray, born: np.ndarray, plan: np.ndarray, reads: int, writes: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return float64[n] twice: bytes read and written, and dead bytes summed over the nights."""
    rows = np.arange(len(alive))
    there = alive[rows, born].copy()
    io, dead = np.zeros(len(alive)), np.zeros(len(alive))
    for night in range(1, alive.shape[1]):
        lives, now = night > born, alive[:, night]
        rewritten = plan[:, night] & lives
        io += np.where(rewritten, reads * there + writes * now, 0.0)
        there = np.where(rewritten, now, there)
        dead += np.where(lives, there - now, 0.0)
    return io, dead


def optimum(
    alive: np.ndarray, born: np.ndarray, price: float, reads: int, begun: np.ndarray | None = None, writes: int = 1
) -> np.ndarray:
    """Return the plan that costs least, by dynamic programming from the last night back.

    begun: bool[n, k], the first k nights of a plan; the best way to go on from there is looked for.
    """
    plan = np.zeros(alive.shape, bool)
    fixed = 0
    if begun is not None:
        fixed = begun.shape[1]
        plan[:, :fixed] = begun
    for i, (lives, first) in enumerate(zip(alive, born, strict=True)):
        n = len(lives)
        start = int(np.flatnonzero(plan[i])[-1]) if plan[i].any() else int(first)
        best, then = np.zeros(n), np.full(n, n)
        for s in range(n - 2, start - 1, -1):
            kept = price * np.append(0.0, np.cumsum(lives[s] - lives[s + 1 :]))  # until s + 1, ..., n: never
            nights = np.arange(s + 1, n)
            costs = kept + np.append(reads * lives[s] + writes * lives[nights] + best[nights], 0.0)
            costs[: max(fixed - s - 1, 0)] = np.inf
            then[s] = s + 1 + int(np.argmin(costs))
            best[s] = costs.min()
        at = then[start]
        while at < n:
            plan[i, at] = True
            at = then[at]
    return plan


def optimum_by_trial(alive: np.ndarray, born: np.ndarray, price: float, reads: int) -> np.ndarray:
    """Return float64[n], the least cost of each segment, by trying every plan."""
    nights = alive.shape[1] - 1
    tried = np.array(list(itertools.product((False, True), repeat=nights)))
    plans = np.concatenate([np.zeros((len(tried), 1), bool), tried], axis=1)
    return np.array(
        [
            cost_of(np.broadcast_to(each, plans.shape), np.full(len(plans), first), plans, price, reads).min()
            for each, first in zip(alive, born, strict=True)
        ]
    )
