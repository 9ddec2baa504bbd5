"""The batches of the result: for each range of offsets the best batch of any copy.

    rows of each copy in the winning lineage, window by window: if all copies have the same, those of one copy; else
      -> drop batches that another copy shows to be displaced
      -> batches with the same first and last offset: one of them, by the first of these that differs:
           its leader epoch is that of the chain          (the checksum does not cover the epoch)
           more records                                   (a cleaner may have removed some from the others)
           no delete horizon                              (a cleaner rewrote the others)
           the copy with the most sound batches           (whole byte ranges come from one file)
      -> overlapping batches with other offsets: the one that more copies have, that joins its neighbours, ...

Order and offsets are those of the log: a batch is copied as it is or not at all. Taking one batch from a compacted copy
and the next batch from another copy is safe. No cleaner removes the last record of a key. So every copy that holds its
batch has the record, and no key loses its last value. A range from a less compacted copy may hold older values of a key
whose tombstone a cleaner has removed; the same holds for a marker and the data of its transaction. `aborted.py` finds
data whose ABORT marker is lost.

Two sound batches of one leader epoch at the same offsets are a contradiction if no cleaner can have made one from the
other. They cannot belong to one log, and no rule selects one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.layout import BATCH, CODEC_MASK, DELETE_HORIZON_MASK
from lastkey.logformat.listing import Segment
from lastkey.udfs.merge.copies import LosingRange
from lastkey.udfs.merge.lineage import Chain
from lastkey.udfs.merge.survey import epoch_runs

CANDIDATE: Final = np.dtype([("batch", BATCH), ("copy", "i4"), ("stream", "i4"), ("row", "i8"), ("epoch_fits", "?")])
# Fields that equal batches share at any offsets
_BODY: Final = ("crc", "size", "records_count", "producer_id", "base_sequence", "max_timestamp")
_EQUAL: Final = ("base_offset", "last_offset", "crc", "size", "records_count", "partition_leader_epoch")
_SAME: Final = ("producer_id", "producer_epoch", "base_sequence")  # a cleaner changes none of these
_KEPT_BITS: Final = 0xFF & ~(CODEC_MASK | DELETE_HORIZON_MASK)
_MOST_CONFLICTS: Final = 100


@dataclass(frozen=True)
class Stream:
    """Batches of one copy whose offsets rise."""

    copy: int  # its number
    rows: np.ndarray  # BATCH[n]
    until: int = NO_END  # batches from here on are not in the winning lineage
    lacks: tuple[tuple[int, int], ...] = ()  # offsets first..until-1 that the copy lacks
    segments: tuple[Segment, ...] = ()  # segments of the copy
    first_rows: Sequence[int] = ()  # number of the first row of each segment, and of all rows

    def lacks_offset(self, offset: int) -> bool:
        """Return whether damage or a missing file may have removed this offset from the copy."""
        return any(first <= offset < until for first, until in self.lacks)

    def find(self, offset: int) -> int:
        """Return the number of the first row whose batch begins at or after an offset."""
        return _find(self.rows, offset)


def _find(rows: np.ndarray, offset: int) -> int:
    return bisect_left(range(len(rows)), offset, key=lambda i: int(rows["base_offset"][i]))


@dataclass(frozen=True)
class Conflict:
    """Two sound batches of one leader epoch that contradict each other."""

    first: int
    last: int
    leader_epoch: int
    copies: tuple[int, int]


@dataclass
class ChoiceFindings:
    """Findings of a choice in addition to the batches."""

    conflicts: list[Conflict] = field(default_factory=list)
    displaced: dict[int, list[int]] = field(default_factory=dict)  # copy -> first offsets of the first few


def choose(
    streams: Sequence[Stream], chain: Chain, ranks: Sequence[int], window: int, found: ChoiceFindings
) -> Iterator[np.ndarray]:
    """Yield the chosen batches, CANDIDATE[n], in the order of offsets. ranks: of each copy, 0 is the first choice."""
    streams = _without_moved_ends(streams, found)
    cursors = [_Cursor(number, stream, window) for number, stream in enumerate(streams)]
    order = np.array(ranks, np.int64)
    while sum(cursor.fill() for cursor in cursors):  # each loads its rows
        border = min((int(c.rows["base_offset"][-1]) for c in cursors if c.has_more), default=NO_END)
        taken, border = _whole(cursors, border)
        if not taken:
            for cursor in cursors:
                cursor.window *= 2
            continue
        best = min((c for c in cursors if c.count(border)), key=lambda c: order[c.stream.copy])
        agreed = all(c.agrees(best, border) for c in cursors)
        parts = [cursor.take(border, is_read=not agreed or cursor is best) for cursor in cursors]
        rows = np.concatenate([part for part in parts if len(part)]) if not agreed else parts[best.number]
        epochs = chain.epochs_at(rows["batch"]["base_offset"])
        stored = rows["batch"]["partition_leader_epoch"]
        rows["epoch_fits"] = (stored == epochs) | (stored == -1) | ((epochs < 0) & (stored >= 0))
        yield rows if agreed and rows["epoch_fits"].all() else _best(rows, order, streams, found)


class _Cursor:
    """Place in a stream, with the rows that follow it."""

    def __init__(self, number: int, stream: Stream, window: int) -> None:
        self.number, self.stream, self.window = number, stream, window
        self.at = 0  # row
        self.rows = np.empty(0, BATCH)
        self.has_more = False

    def fill(self) -> bool:
        """Load a window of rows; return whether there are any."""
        part = np.asarray(self.stream.rows[self.at : self.at + self.window])
        self.rows = part[: _find(part, self.stream.until)]
        self.has_more = len(self.rows) == len(part) and self.at + len(part) < len(self.stream.rows)
        return len(self.rows) > 0

    def count(self, border: int) -> int:
        """Return how many rows begin below an offset."""
        return _find(self.rows, border)

    def agrees(self, other: _Cursor, border: int) -> bool:
        """Return whether the rows below an offset are those of another stream; True also if there are none."""
        n = self.count(border)
        if self is other or n == 0:
            return True
        return n == other.count(border) and all(
            np.array_equal(self.rows[name][:n], other.rows[name][:n]) for name in _EQUAL
        )

    def take(self, border: int, *, is_read: bool) -> np.ndarray:
        """Move past the rows that begin below an offset; return them as candidates if they are to be read."""
        n = self.count(border)
        out = np.empty(n if is_read else 0, CANDIDATE)
        if is_read:
            out["batch"], out["copy"], out["stream"] = self.rows[:n], self.stream.copy, self.number
            out["row"] = np.arange(self.at, self.at + n)
        self.at += n
        return out


def _whole(cursors: Sequence[_Cursor], border: int) -> tuple[bool, int]:
    """Lower a border until no batch reaches over it; return whether any batch is below, and the border."""
    while True:
        last = [cursor.rows[n - 1] for cursor in cursors if (n := cursor.count(border))]
        reach = [int(row["base_offset"]) for row in last if row["last_offset"] >= border]
        if not reach:
            return bool(last), border
        border = min(reach)


def _best(rows: np.ndarray, ranks: NDArray[np.int64], streams: Sequence[Stream], found: ChoiceFindings) -> np.ndarray:
    rows = _without_displaced(rows, streams, found)
    batch = rows["batch"]
    horizon = (batch["attributes"] & DELETE_HORIZON_MASK) != 0
    keys = (ranks[rows["copy"]], horizon, -batch["records_count"].astype(np.int64), ~rows["epoch_fits"])
    rows = rows[np.lexsort((*keys, batch["last_offset"], batch["base_offset"]))]
    batch = rows["batch"]
    firsts, lasts = (np.ascontiguousarray(batch[name]) for name in ("base_offset", "last_offset"))
    is_new = np.concatenate([[True], (firsts[1:] != firsts[:-1]) | (lasts[1:] != lasts[:-1])])
    heads = np.flatnonzero(is_new)
    group = np.cumsum(is_new) - 1
    _compare(rows, heads, group, found)
    n_copies = np.bincount(group, minlength=len(heads))
    best = rows[heads]
    reach = np.maximum.accumulate(lasts[heads])
    crossing = np.concatenate([[False], firsts[heads][1:] <= reach[:-1]])
    if crossing.any():
        best = best[_without_overlaps(best, n_copies, crossing, found)]
    return best


def _compare(rows: np.ndarray, heads: NDArray[np.int64], group: NDArray[np.int64], found: ChoiceFindings) -> None:
    """Compare each batch with the chosen one at the same offsets, and add contradictions."""
    batch, best = rows["batch"], rows["batch"][heads[group]]
    other = np.ones(len(rows), np.bool_)
    other[heads] = False
    equal = (batch["crc"] == best["crc"]) & (batch["size"] == best["size"])
    alike = (batch["attributes"] & _KEPT_BITS) == (best["attributes"] & _KEPT_BITS)
    for name in _SAME:
        alike &= batch[name] == best[name]
    emptied = (batch["records_count"] == 0) | (best["records_count"] == 0)  # an emptied marker has lost its type
    alike &= emptied | (batch["control_type"] == best["control_type"])
    spans = batch["last_offset"] - batch["base_offset"] + 1
    thin = (batch["records_count"] < spans) & (best["records_count"] < spans)
    cleaned = (batch["records_count"] != best["records_count"]) | thin | (batch["magic"] != best["magic"])
    cleaned |= ((batch["attributes"] | best["attributes"]) & DELETE_HORIZON_MASK) != 0  # two may have two horizons
    cleaned |= (batch["attributes"] & CODEC_MASK) != (best["attributes"] & CODEC_MASK)
    # a copy whose batch has an epoch outside of the chain was already rejected
    wrong = other & ~equal & ~(alike & cleaned) & rows["epoch_fits"] & rows["epoch_fits"][heads[group]]
    for i in np.flatnonzero(wrong)[: _MOST_CONFLICTS - len(found.conflicts)]:
        of = (int(rows["copy"][heads[group[i]]]), int(rows["copy"][i]))
        b = batch[i]
        found.conflicts.append(
            Conflict(int(b["base_offset"]), int(b["last_offset"]), int(b["partition_leader_epoch"]), of)
        )


def _without_moved_ends(streams: Sequence[Stream], found: ChoiceFindings) -> list[Stream]:
    """Return the streams without last batches that another copy has at a lower offset: a flipped bit can move the last
    batch of a log anywhere above its place.
    """
    out = []
    for stream in streams:
        last = stream.rows[-1] if len(stream.rows) else None
        end = int(stream.rows["last_offset"][-2]) + 1 if len(stream.rows) > 1 else 0
        if last is not None and last["base_offset"] > end and not stream.lacks_offset(end):
            for other in streams:
                at = other.find(end)
                if other.copy != stream.copy and at < len(other.rows) and _is_moved(last, other, at):
                    found.displaced.setdefault(stream.copy, []).append(int(last["base_offset"]))
                    stream = replace(stream, rows=stream.rows[:-1])  # noqa: PLW2901
                    break
        out.append(stream)
    return out


def _is_moved(last: np.void, other: Stream, at: int) -> bool:
    """Return whether another copy has the same batch below, and does not lack this one's offset."""
    batch = other.rows[at]
    same = all(batch[name] == last[name] for name in _BODY) and bool(
        batch["last_offset"] - batch["base_offset"] == last["last_offset"] - last["base_offset"]
    )
    return (
        same and bool(batch["base_offset"] < last["base_offset"]) and not other.lacks_offset(int(last["base_offset"]))
    )


def _without_displaced(rows: np.ndarray, streams: Sequence[Stream], found: ChoiceFindings) -> np.ndarray:
    """Return the candidates without those whose base offset another copy shows to be wrong.

    The same bytes are at offset x in one copy and at y in another. The first copy has no such batch at y, and the
    second copy has none at x. Neither copy lacks the other copy's offset by damage or a missing file; or the second has
    another batch at x, and the first has none at y. So one of the two base offsets is damaged. The batch stays that
    joins more of its neighbours; of equals, the one whose copy has a batch at both offsets.
    """
    batch = rows["batch"]
    delta = batch["last_offset"] - batch["base_offset"]
    order = np.lexsort((batch["base_offset"], delta, *(batch[name] for name in _BODY)))
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in (delta, *(batch[name] for name in _BODY)):
        same &= column[order[1:]] == column[order[:-1]]
    moved = same & (batch["base_offset"][order[1:]] != batch["base_offset"][order[:-1]])
    if not moved.any():
        return rows
    number = np.concatenate([[0], np.cumsum(~same)])  # class of each row in `order`
    kept = np.ones(len(rows), np.bool_)
    borders = np.searchsorted(number, np.unique(number[1:][moved])[:_MOST_CLASSES])
    for start in borders.tolist():
        until = int(np.searchsorted(number, number[start], "right"))
        for i in _displaced(rows, order[start:until], streams):
            found.displaced.setdefault(int(rows["copy"][i]), []).append(int(batch["base_offset"][i]))
            kept[i] = False
    return rows[kept]


_MOST_CLASSES: Final = 10_000  # maximum of classes with equal bytes at several offsets in one window


def _displaced(rows: np.ndarray, members: NDArray[np.int64], streams: Sequence[Stream]) -> Iterator[int]:
    """Yield the rows of equal batches whose offset is wrong."""
    holders: dict[int, dict[int, int]] = {}  # offset -> copy -> row
    for i in members.tolist():
        holders.setdefault(int(rows["batch"]["base_offset"][i]), {})[int(rows["copy"][i])] = i
    for x, of_x in holders.items():
        if len(of_x) != 1:
            continue
        copy, row = next(iter(of_x.items()))
        for y, of_y in holders.items():
            sound = [i for i in of_y.values() if not streams[rows["stream"][i]].lacks_offset(x)]
            if y == x or copy in of_y or not sound:
                continue
            is_taken = not _has_other_at(rows, row, y) and any(_has_other_at(rows, i, x) for i in sound)
            if streams[rows["stream"][row]].lacks_offset(y) and not is_taken:
                continue
            if (_joins(rows, row), int(not is_taken)) < (max(_joins(rows, i) for i in sound), len(sound)):
                yield row
                break


def _has_other_at(rows: np.ndarray, i: int, offset: int) -> bool:
    """Return whether the copy of a row has another batch at an offset. One with fewer records may be the same batch,
    which a cleaner rewrote.
    """
    own, batch = rows["batch"][rows["copy"] == rows["copy"][i]], rows["batch"][i]
    there = (own["base_offset"] <= offset) & (offset <= own["last_offset"])
    other = (own["base_offset"] != batch["base_offset"]) & (own["records_count"] >= batch["records_count"])
    return bool((there & other).any())


def _joins(rows: np.ndarray, i: int) -> int:
    """Return how many batches of a row's own copy end where it begins, or begin where it ends."""
    own = rows["batch"][rows["copy"] == rows["copy"][i]]
    batch = rows["batch"][i]
    before = bool((own["last_offset"] == batch["base_offset"] - 1).any()) or batch["base_offset"] == 0
    return int(before) + int((own["base_offset"] == batch["last_offset"] + 1).any())


def _without_overlaps(
    best: np.ndarray, n_copies: NDArray[np.int64], crossing: NDArray[np.bool_], found: ChoiceFindings
) -> NDArray[np.int64]:
    """Return the numbers of the rows that stay where batches with different offsets overlap."""
    batch = best["batch"]
    cluster = np.cumsum(~crossing) - 1
    kept = np.ones(len(best), np.bool_)
    for one in np.unique(cluster[crossing]):
        members = np.flatnonzero(cluster == one)
        order = sorted(
            members.tolist(),
            key=lambda i: (
                not best["epoch_fits"][i],
                -int(n_copies[i]),
                -_joined(batch, i),
                -int(batch["records_count"][i]),
                int(batch["base_offset"][i]),
            ),
        )
        stay: list[int] = []
        for i in order:
            against = [j for j in stay if _overlap(batch, i, j)]
            if not against:
                stay.append(i)
                continue
            kept[i] = False
            j = against[0]
            joined = _joined(batch, i)  # 2: a part of another log, not one batch whose offset is damaged
            is_displaced = (joined < 2 and n_copies[i] < n_copies[j]) or joined == 0 < _joined(batch, j)
            if best["epoch_fits"][i] and not is_displaced and len(found.conflicts) < _MOST_CONFLICTS:
                b, of = batch[i], (int(best["copy"][j]), int(best["copy"][i]))
                found.conflicts.append(
                    Conflict(int(b["base_offset"]), int(b["last_offset"]), int(b["partition_leader_epoch"]), of)
                )
            else:
                found.displaced.setdefault(int(best["copy"][i]), []).append(int(batch["base_offset"][i]))
    return np.flatnonzero(kept)


def _overlap(batch: np.ndarray, i: int, j: int) -> bool:
    return bool(
        batch["base_offset"][i] <= batch["last_offset"][j] and batch["base_offset"][j] <= batch["last_offset"][i]
    )


def _joined(batch: np.ndarray, i: int) -> int:
    """Return how many of the other batches end where this one begins, or begin where it ends."""
    around = batch[max(i - 8, 0) : i + 9]
    before = bool((around["last_offset"] == batch["base_offset"][i] - 1).any())
    return int(before) + int((around["base_offset"] == batch["last_offset"][i] + 1).any())


def losing_ranges(stream: Stream) -> list[LosingRange]:
    """Return the batches of a stream that are not in the winning lineage, by leader epoch."""
    if stream.until == NO_END:
        return []
    lost = stream.rows[stream.find(stream.until) :]
    return [LosingRange(run.first, run.last, run.batches, run.epoch) for run in epoch_runs(lost)]
