"""Kernels that group rows by key, and match the records of two sides."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from lastkey.logformat.jit import inline, kernel

UNSORTED: Final = -1
_FEW: Final = 64  # rows that are put in order by insertion
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_29: Final = np.uint64(29)


class KeyedRows(NamedTuple):
    """Rows to group: columns of n rows."""

    unit: np.ndarray  # int64; rows of a group have the same unit, high and low
    high: np.ndarray  # int64
    low: np.ndarray  # int64, spread evenly
    side: np.ndarray  # bool; in a group those with False come first, on each side by the next columns
    time: np.ndarray  # int64
    partition: np.ndarray  # int32
    offset: np.ndarray  # int64


@inline
def _is_before(rows: KeyedRows, a: Any, b: Any) -> bool:
    if rows.time[a] != rows.time[b]:
        return bool(rows.time[a] < rows.time[b])
    if rows.partition[a] != rows.partition[b]:
        return bool(rows.partition[a] < rows.partition[b])
    return bool(rows.offset[a] < rows.offset[b])


@kernel
def group_rows(
    rows: KeyedRows, placed: np.ndarray, slots: np.ndarray, of: np.ndarray, bounds: np.ndarray, order: np.ndarray
) -> int:
    """Write the order of the rows by group and side into order: int64[n]. Return the number of groups, or UNSORTED if
    more than _FEW rows of a group and side are not in order.

    placed: int64[n], the rows as they come; slots: int32[2^k], at least 2n, all 0; of: int64[n], memory;
    bounds: int64[2n + 2], all 0; gets where each group's rows of each side begin, and where the last ones end.
    """
    n, mask, groups = placed.shape[0], np.uint64(slots.shape[0] - 1), np.int64(0)
    for i in range(n):
        row = placed[i]
        slot = np.int64((np.uint64(rows.low[row]) ^ (np.uint64(rows.unit[row]) * _MIX)) & mask)
        while True:
            known = np.int64(slots[slot]) - 1
            if known < 0:
                slots[slot] = row + 1
                of[row] = groups
                groups += 1
                break
            if (
                rows.low[known] == rows.low[row]
                and rows.high[known] == rows.high[row]
                and rows.unit[known] == rows.unit[row]
            ):
                of[row] = of[known]
                break
            slot = np.int64(np.uint64(slot + 1) & mask)
        bounds[2 * of[row] + rows.side[row] + 2] += 1
    for i in range(3, 2 * groups + 2):
        bounds[i] += bounds[i - 1]
    for i in range(n):
        row = placed[i]
        part = 2 * of[row] + rows.side[row] + 1
        order[bounds[part]] = row
        bounds[part] += 1
    for part in range(2 * groups):
        for i in range(bounds[part] + 1, bounds[part + 1]):
            row, at = order[i], i
            while at > bounds[part] and _is_before(rows, row, order[at - 1]):
                if bounds[part + 1] - bounds[part] > _FEW:
                    return UNSORTED
                order[at] = order[at - 1]
                at -= 1
            order[at] = row
    return int(groups)


class Links(NamedTuple):
    """Equal records of n rows in groups: int64[n] each, by place in the order of the groups."""

    first: np.ndarray  # the first of its equal records
    n_a: np.ndarray  # equal records of A
    n_b: np.ndarray
    occurrence: np.ndarray  # among the equal records of its side, from 0
    copy: np.ndarray  # its copy on the other side; -1: none
    waiting: np.ndarray  # memory: of a first one, the next record of A without a copy
    last: np.ndarray  # memory: of a first one, the last record of A
    later: np.ndarray  # memory: the next equal record of A


@kernel
def match_records(
    order: np.ndarray,
    starts: np.ndarray,
    side: np.ndarray,
    digest: np.ndarray,
    time: np.ndarray,
    slots: np.ndarray,
    links: Links,
) -> None:
    """Match records of A and B that are equal, by occurrence, in each group of `group_rows`.

    order, starts: int64[n], int64[groups], of the groups; side: bool[n], B; digest, time: int64[n], equal for equal
    records; slots: int32[2^k], at least twice the rows of the largest group.
    """
    n, n_groups = order.shape[0], starts.shape[0]
    for group in range(n_groups):
        begin, end = starts[group], starts[group + 1] if group + 1 < n_groups else n
        size = 1
        while size < 2 * (end - begin):
            size *= 2
        mask = np.uint64(size - 1)
        slots[:size] = 0
        for i in range(begin, end):
            row = order[i]
            mixed = (np.uint64(digest[row]) ^ np.uint64(time[row])) * _MIX
            slot = np.int64((mixed ^ (mixed >> _29)) & mask)
            while True:
                first = begin + np.int64(slots[slot]) - 1
                if first < begin:
                    first = np.int64(i)
                    slots[slot] = i - begin + 1
                    links.n_a[i], links.n_b[i], links.waiting[i] = 0, 0, -1
                    break
                if digest[order[first]] == digest[row] and time[order[first]] == time[row]:
                    break
                slot = np.int64(np.uint64(slot + 1) & mask)
            links.first[i], links.copy[i], links.later[i] = first, -1, -1
            if side[row]:
                links.occurrence[i] = links.n_b[first]
                links.n_b[first] += 1
                copy = links.waiting[first]
                if copy >= 0:
                    links.copy[i], links.copy[copy] = copy, i
                    links.waiting[first] = links.later[copy]
                continue
            links.occurrence[i] = links.n_a[first]
            if links.n_a[first] == 0:
                links.waiting[first] = i
            else:
                links.later[links.last[first]] = i
            links.last[first] = i
            links.n_a[first] += 1
        for i in range(begin, end):
            links.n_a[i], links.n_b[i] = links.n_a[links.first[i]], links.n_b[links.first[i]]
