"""Ranges of hashes, and rows in groups."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lastkey.udfs.audit.runs import Groups, first_valid, grouped, last_valid, mixed, ranges, sums


@pytest.mark.parametrize(("rows", "most"), [(0, 9), (1, 9), (10, 9), (1000, 9), (10**9, 9)])
def test_ranges_cover_all_bins(rows: int, most: int) -> None:
    found = ranges(rows, most)
    assert -(-rows // most) <= len(found) or len(found) == 1 << 16
    assert len(found) <= max(2 * -(-rows // most), 1)
    assert (found[0][0], found[-1][1]) == (-(1 << 15), 1 << 15)
    assert all(a[1] == b[0] and a[0] < a[1] for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("kept_bits", [64, 58, 3], ids=["good hashes", "poor hashes", "nearly none"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_are_exact_whatever_the_hashes(seed: int, kept_bits: int) -> None:
    """Rows of different groups may have the same upper bits of their hashes: most have, if few bits are kept."""
    rng = random.Random(seed)
    first = np.array([rng.randrange(6) for _ in range(300)], np.int64)
    second = np.array([rng.randrange(4) for _ in range(300)], np.int32)
    hashes = mixed(first, second) & ~np.uint64((1 << (64 - kept_bits)) - 1)
    found = grouped(hashes, first, second)
    slow: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        slow.setdefault(key, []).append(row)
    rows = [found.order[a:b].tolist() for a, b in zip(found.starts, found.ends, strict=True)]
    assert sorted(rows) == sorted(slow.values())
    assert [found.of[a] for a in found.starts] == list(range(len(found.starts)))


def test_reductions() -> None:
    groups = Groups(np.arange(5), np.array([0, 2]))
    valid = np.array([False, False, True, False, True])
    assert (first_valid(groups, valid).tolist(), last_valid(groups, valid).tolist()) == ([-1, 2], [-1, 4])
    assert sums(groups, valid).tolist() == [0, 2]
    none = grouped(np.zeros(0, np.uint64), np.zeros(0, np.int64))
    assert [len(of(none, np.zeros(0, np.bool_))) for of in (first_valid, last_valid, sums)] == [0, 0, 0]
