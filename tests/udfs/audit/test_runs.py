"""Ranges of hashes, and rows in groups."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lastkey.udfs.audit.group_kernels import KeyedRows
from lastkey.udfs.audit.runs import Groups, first_valid, grouped, last_valid, ranges, sorted_groups, sums


@pytest.mark.parametrize(("rows", "most"), [(0, 9), (1, 9), (10, 9), (1000, 9), (10**9, 9)])
def test_ranges_cover_all_bins(rows: int, most: int) -> None:
    bin_ranges = ranges(rows, most)
    assert -(-rows // most) <= len(bin_ranges) or len(bin_ranges) == 1 << 16
    assert len(bin_ranges) <= max(2 * -(-rows // most), 1)
    assert (bin_ranges[0][0], bin_ranges[-1][1]) == (-(1 << 15), 1 << 15)
    assert all(a[1] == b[0] and a[0] < a[1] for a, b in itertools.pairwise(bin_ranges))


@pytest.mark.parametrize(("rows", "workers", "n"), [(45, 2, 6), (45, 4, 8), (45, 9, 6), (50, 3, 9), (9, 2, 1)])
def test_each_worker_has_as_many_ranges(rows: int, workers: int, n: int) -> None:
    sizes = [stop - first for first, stop in ranges(rows, 9, workers)]
    assert (len(sizes), sum(sizes)) == (n, 1 << 16) and max(sizes) - min(sizes) <= 1 << 9


@pytest.mark.parametrize("n_hashes", [300, 6, 1], ids=["good hashes", "poor hashes", "none"])
@pytest.mark.parametrize("few", [True, False], ids=["small groups", "large groups"])
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_exact_despite_hash_collisions(seed: int, few: bool, n_hashes: int) -> None:
    """A group's rows are in order, A's first, also where many are out of order; slots may be shared by all groups."""
    rng = random.Random(seed)
    n, n_units = (300, 60) if few else (2000, 3)
    unit, low = ([rng.randrange(most) for _ in range(n)] for most in (n_units, n_hashes))
    high = [rng.randrange(4) - 2 for _ in range(n)]
    side = [rng.random() < 0.5 for _ in range(n)]
    places = [[rng.randrange(most) for _ in range(n)] for most in (3, 2, 10**9)]
    columns = [np.array(column, np.int64) for column in (unit, high, low, *places)]
    rows = KeyedRows(*columns[:3], np.array(side), columns[3], columns[4].astype(np.int32), columns[5])
    sorted_rows, slow = sorted_groups(rows), dict[tuple[int, ...], list[int]]()
    keys = list(zip(unit, high, low, strict=True))
    for row in sorted(range(n), key=lambda row: (side[row], *(place[row] for place in places))):
        slow.setdefault(keys[row], []).append(row)
    groups = [sorted_rows.order[a:b].tolist() for a, b in zip(sorted_rows.starts, sorted_rows.ends, strict=True)]
    assert sorted(groups) == sorted(slow.values())
    assert [sorted_rows.of[a] for a in sorted_rows.starts] == list(range(len(sorted_rows.starts)))
    plain = grouped(*columns[:3])
    assert all(np.all(np.diff(plain.order[a:b]) > 0) for a, b in zip(plain.starts, plain.ends, strict=True))


def test_group_reductions_return_first_last_and_sum() -> None:
    groups = Groups(np.arange(5), np.array([0, 2]))
    valid = np.array([False, False, True, False, True])
    assert (first_valid(groups, valid).tolist(), last_valid(groups, valid).tolist()) == ([-1, 2], [-1, 4])
    assert sums(groups, valid).tolist() == [0, 2]
    none = grouped(*np.zeros((3, 0), np.int64))
    assert [len(of(none, np.zeros(0, np.bool_))) for of in (first_valid, last_valid, sums)] == [0, 0, 0]
