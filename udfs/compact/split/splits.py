"""Splits of a large partition: consecutive chunks, as a scan checked them, for one task each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lastkey.udfs.segments import SegmentScan

LEAST_BYTES: Final = 64 << 20  # do not make a split smaller only to keep a core busy
_BYTES_A_RECORD: Final = 32  # in task.memory.bytes: marks, buckets and bits of a split's records, with room to spare
_UNEVEN: Final = 1.2  # a split with more than this times its share of the records, and a chunk, is cut again
_NEAR: Final = 8  # cut at a border of groups if it is nearer than a split's size / this


@dataclass(frozen=True)
class Part:
    """Consecutive chunks of one segment."""

    number: int  # number of the segment in the plan
    group: int  # number of the segment group
    first: int  # chunks [first, stop) of its scan
    stop: int


@dataclass(frozen=True)
class Split:
    """Parts in the order of the log."""

    number: int
    parts: tuple[Part, ...]
    before: int = 0  # chunks of the whole split before these parts

    @property
    def chunks(self) -> slice:
        """Chunks of the whole split that these parts hold."""
        return slice(self.before, self.before + sum(part.stop - part.first for part in self.parts))


def cut_between_groups(split: Split, scans: Mapping[int, SegmentScan], least_bytes: int) -> list[Split]:
    """Cut a split into pieces of at least so many bytes, except the last one; no segment group lies in two pieces."""
    out: list[Split] = []
    parts: list[Part] = []
    before = held = 0
    for part, following in zip(split.parts, [*split.parts[1:], None], strict=True):
        parts.append(part)
        held += bytes_of(part, scans)
        if following is None or (held >= least_bytes and following.group != part.group):
            out.append(Split(split.number, tuple(parts), before))
            before, held, parts = out[-1].chunks.stop, 0, []
    return out


def bytes_of(part: Part, scans: Mapping[int, SegmentScan]) -> int:
    """Return the bytes of a part's chunks."""
    return sum(chunk.size for chunk in scans[part.number].chunks[part.first : part.stop])


def number_of_splits(
    scans: Sequence[SegmentScan], groups: Sequence[range], split_bytes: int, task_memory_bytes: int, cores: int
) -> int:
    """Return how many splits the groups' segments need: by bytes, by records, and so that no core idles."""
    members = [scans[i] for numbers in groups for i in numbers]
    n_bytes, n_records = sum(s.size for s in members), sum(s.most_records for s in members)
    needed = max(-(-n_bytes // split_bytes), -(-n_records * _BYTES_A_RECORD // task_memory_bytes), 1)
    for_all = min(cores, max(n_bytes // LEAST_BYTES, 1))
    return -(-needed // for_all) * for_all


def make_splits(scans: Sequence[SegmentScan], groups: Sequence[range], n_splits: int) -> list[Split]:
    """Cut the groups' segments into about so many splits of one size, at borders of chunks, and at the end of a group
    if one is near: a group in several splits is written in pieces, which must be joined. Cut a split again if it has
    far more records than others, because a task has memory for its share of them.
    """
    of_chunk = [
        (number, group, chunk)
        for group, numbers in enumerate(groups)
        for number in numbers
        for chunk in range(len(scans[number].chunks))
    ]
    if n_splits >= len(of_chunk):
        return [Split(i, _parts([chunk])) for i, chunk in enumerate(of_chunk)]
    chunks = [scans[number].chunks[chunk] for number, _, chunk in of_chunk]
    sizes = np.array([chunk.size for chunk in chunks], np.int64)
    records = np.array([chunk.records for chunk in chunks], np.int64)
    group_of = np.array([group for _, group, _ in of_chunk], np.int64)
    ends = np.cumsum(sizes)
    share = ends[-1] / n_splits
    cuts = np.searchsorted(ends, np.arange(1, n_splits) * share - sizes.min() / 2) + 1  # chunks before each cut
    borders = np.flatnonzero(np.diff(group_of)) + 1
    if len(borders):
        nearest = borders[np.abs(ends[borders - 1][None, :] - ends[cuts - 1][:, None]).argmin(axis=1)]
        cuts = np.where(np.abs(ends[nearest - 1] - ends[cuts - 1]) * _NEAR <= share, nearest, cuts)
    by_bytes = np.unique(np.append(cuts[cuts < len(ends)], len(ends)))
    by_records = _between(by_bytes, records, _UNEVEN * int(records.sum()) / n_splits)
    stops = sorted({*by_bytes.tolist(), *by_records})
    return [
        Split(i, _parts(of_chunk[start:stop]))
        for i, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True))
    ]


def _between(stops: np.ndarray, records: np.ndarray, most: float) -> list[int]:
    """Return more cuts (chunks before each) within stops that hold more records than `most` plus those of one chunk.
    After these cuts no split has more than `most`, unless a single chunk has.
    """
    ends = np.cumsum(records)
    held = np.diff(ends[stops - 1], prepend=0)
    cuts: list[int] = []
    for i in np.flatnonzero(held > most + records.max()):
        at = int(stops[i - 1]) if i else 0
        while ends[stops[i] - 1] - (before := ends[at] - records[at]) > most and at + 1 < stops[i]:
            at = max(int(np.searchsorted(ends, before + most, "right")), at + 1)
            cuts.append(at)
    return cuts


def _parts(chunks: Sequence[tuple[int, int, int]]) -> tuple[Part, ...]:
    """Return the parts that consist of these (segment, group, chunk of it), in order."""
    out: list[Part] = []
    for number, group, chunk in chunks:
        if out and out[-1].number == number:
            out[-1] = Part(number, group, out[-1].first, chunk + 1)
        else:
            out.append(Part(number, group, chunk, chunk + 1))
    return tuple(out)
