"""Ranges of offsets, [first, until) each, as lists: joined, and without others."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[tuple[int, int]]  # rising, apart


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, those that touch or overlap as one, without empty ones."""
    out: Ranges = []
    for first, until in sorted(ranges):
        if first < until and out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(until, out[-1][1]))
        elif first < until:
            out.append((first, until))
    return out


def without(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    """Return the offsets that are in the first ranges and in none of the others."""
    left = joined(ranges)
    for first, until in joined(others):
        cut = [piece for begin, end in left for piece in ((begin, min(end, first)), (max(begin, until), end))]
        left = [(begin, end) for begin, end in cut if begin < end]
    return left
