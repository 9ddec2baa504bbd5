"""Batches whose base offset does not fit: the kernel against its slow twin, and cases that a person can judge."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from lastkey.udfs.merge.order_kernels import drop_displaced
from tests.reference.displaced import kept_batches


def kept(ranges: list[tuple[int, int]], floor: int = 0) -> list[tuple[int, int]]:
    base, last = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    out = np.empty(len(ranges), np.bool_)
    drop_displaced(base, last, floor, out, np.empty(len(ranges), np.int64))
    return [one for one, stays in zip(ranges, out, strict=True) if stays]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 4), (5, 9), (10, 14)], [(0, 4), (5, 9), (10, 14)]),
        ([(0, 4), (500, 504), (10, 14), (15, 19)], [(0, 4), (10, 14), (15, 19)]),  # a bit was set
        ([(0, 4), (5, 9), (2, 6), (15, 19)], [(0, 4), (5, 9), (15, 19)]),  # a bit was cleared
        ([(500, 504), (5, 9), (10, 14)], [(5, 9), (10, 14)]),
        ([(500, 504), (5, 9)], [(5, 9)]),  # nothing else tells: most flipped bits make an offset larger
        ([(0, 4), (900, 904), (20, 24), (30, 34)], [(0, 4), (20, 24), (30, 34)]),  # a compacted log
        ([(0, 4), (20, 24), (30, 34), (12, 16), (40, 44)], [(0, 4), (20, 24), (30, 34), (40, 44)]),
    ],
)
def test_inconsistent_batch_is_removed(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert kept(ranges) == expected


def test_order_kernel_equals_its_twin() -> None:
    rng = random.Random(5)
    for _ in range(500):
        ranges, at = [], rng.randrange(5)
        for _ in range(rng.randint(1, 12)):
            at += rng.choice((0, 0, 0, 3))
            span = rng.randrange(4)
            moved = 1 << rng.randrange(10) if rng.random() < 0.2 else 0
            ranges.append((at ^ moved, (at ^ moved) + span))
            at += span + 1
        floor = rng.choice((0, ranges[0][0]))
        kept_ranges = kept(ranges, floor)
        assert kept_ranges == kept_batches(ranges, floor)
        assert all(a[1] < b[0] for a, b in pairwise(kept_ranges))
