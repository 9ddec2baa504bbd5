"""Splits of a large partition: consecutive chunks, as a scan checked them, for one task each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from lastkey.udfs.segments import SegmentScan

_LEAST_BYTES: Final = 64 << 20  # do not make a split smaller only to keep a core busy


@dataclass(frozen=True)
class Part:
    """Consecutive chunks of one segment."""

    number: int  # number of the segment in the plan
    group: int  # number of the segment group
    first: int  # chunks [first, stop) of its scan
    stop: int


Split = tuple[Part, ...]  # in the order of the log


def make_splits(
    scans: Sequence[SegmentScan], groups: Sequence[range], split_bytes: int, cores: int
) -> tuple[Split, ...]:
    """Cut the groups' segments at borders of chunks into splits of one size: of at most about `split_bytes`, and enough
    for all cores.
    """
    of_chunk = [
        (number, group, chunk)
        for group, numbers in enumerate(groups)
        for number in numbers
        for chunk in range(len(scans[number].chunks))
    ]
    sizes = np.array([scans[number].chunks[chunk].size for number, _, chunk in of_chunk], np.int64)
    n_bytes = int(sizes.sum())
    for_all = min(cores, max(n_bytes // _LEAST_BYTES, 1))
    n_splits = min(-(-max(n_bytes // split_bytes, 1) // for_all) * for_all, len(of_chunk))
    split_of = (np.cumsum(sizes) - sizes // 2) * n_splits // max(n_bytes, 1)  # by the middle of each chunk
    borders = [0, *(np.flatnonzero(np.diff(split_of)) + 1).tolist(), len(of_chunk)]
    return tuple(_parts(of_chunk[start:stop]) for start, stop in pairwise(borders) if start < stop)


def _parts(chunks: Sequence[tuple[int, int, int]]) -> Split:
    """Return the parts that consist of these (segment, group, chunk of it), in order."""
    out: list[Part] = []
    for number, group, chunk in chunks:
        if out and out[-1].number == number:
            out[-1] = Part(number, group, out[-1].first, chunk + 1)
        else:
            out.append(Part(number, group, chunk, chunk + 1))
    return tuple(out)
