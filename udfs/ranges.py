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
    out, cuts, at = Ranges(), joined(others), 0
    for start, end in joined(ranges):
        begin = start
        while at < len(cuts) and cuts[at][0] < end:
            first, until = cuts[at]
            out.append((begin, first))
            begin = max(begin, until)
            if until > end:  # it may cut the next range too
                break
            at += 1
        out.append((begin, end))
    return [(begin, end) for begin, end in out if begin < end]
