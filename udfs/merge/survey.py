"""One pass over each copy: its sound batches as rows of BATCH, and the offsets that it lacks.

The rows are in a temporary file that is mapped into memory. So the memory of a pass does not depend on the number of
batches. A row counts under these conditions: the checksum of its batch fits; its offsets rise, and are between the base
offsets of its segment and the next one. Rows at or above the base of the next segment are kept apart (`overlapping`):
two segments hold the same offsets, and the other one may be damaged there.

A copy lacks the offsets of damaged bytes. It also lacks the offsets between two segments, except in two cases: its
cleaner checkpoint is above them, or a batch at or above them shows a cleaner's work (`udfs.holes` has the rule).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.batches.salvage import Damage, salvage
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, CONTROL_MASK, DELETE_HORIZON_MASK
from lastkey.logformat.listing import Segment
from lastkey.udfs.merge.copies import CopyFacts, Lack, LogCopy, MergeSettings
from lastkey.udfs.merge.lineage import EpochRun
from lastkey.udfs.merge.order_kernels import drop_displaced
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root, opened

_PIECE = 1 << 16  # rows that are looked at together


class Rows:
    """Rows of BATCH in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def append(self, rows: np.ndarray) -> None:
        """Add rows after the others."""
        self._file.write(np.ascontiguousarray(rows).data)
        self._n += len(rows)

    def read(self, first: int = 0) -> np.ndarray:
        """Return the rows from `first` on, BATCH[n], mapped for reading and writing."""
        self._file.flush()
        if first == self._n:
            return np.empty(0, BATCH)
        return np.memmap(self._file, BATCH, "r+", first * BATCH.itemsize, (self._n - first,))

    def close(self) -> None:
        """Close the file. Parts that were read remain mapped."""
        self._file.close()

    def cut(self, n: int) -> None:
        """Remove all rows after the first `n`."""
        self._file.flush()
        self._file.truncate(n * BATCH.itemsize)
        self._file.seek(n * BATCH.itemsize)
        self._n = n


@dataclass
class Survey:
    """Sound batches of a copy, and the offsets that it lacks."""

    copy: LogCopy
    facts: CopyFacts  # for the report
    rows: np.ndarray  # BATCH[n], offsets rise
    segment_rows: list[int]  # number of the first row of each segment, and of all rows
    overlapping: np.ndarray  # BATCH[m], offsets rise: at or above the base of the next segment
    overlapping_rows: list[int]
    runs: list[EpochRun] = field(default_factory=list)
    begin: int = 0  # first offset that the copy's files stand for
    end: int = 0  # after the last one


def survey(copy: LogCopy, facts: CopyFacts, settings: MergeSettings) -> Survey:
    """Read all segments of a copy. Damage and unreadable files become what the copy lacks; raises no error for them."""
    with closing(Rows()) as rows, closing(Rows()) as beyond:
        return _survey(copy, facts, settings, rows, beyond)


def _survey(copy: LogCopy, facts: CopyFacts, settings: MergeSettings, rows: Rows, beyond: Rows) -> Survey:
    buffer = ChunkBuffer(settings.chunk_bytes, settings.max_batch_bytes)
    out = Survey(copy, facts, np.empty(0, BATCH), [0], np.empty(0, BATCH), [0])
    lacks: list[Lack] = []
    for number, segment in enumerate(copy.segments):
        following = copy.segments[number + 1].base_offset if number + 1 < len(copy.segments) else None
        lacks += _survey_segment(out, segment, following, buffer, rows, beyond)
        out.segment_rows.append(len(rows))
        out.overlapping_rows.append(len(beyond))
    out.rows, out.overlapping = rows.read(), _rising(beyond, out)
    facts.batches = len(out.rows) + len(out.overlapping)
    if copy.segments:
        last = int(out.rows["last_offset"][-1]) + 1 if len(out.rows) else 0
        out.begin, out.end = copy.segments[0].base_offset, max(last, copy.segments[-1].base_offset)
    facts.first_offset, facts.next_offset = out.begin, out.end
    out.runs = list(epoch_runs(out.rows))
    thinned = _last_thinned(out)
    lawful = max(copy.cleaned_until, thinned)  # a cleaner made the holes below it
    facts.lacks = [one for one in lacks if one.until > one.first and (one.reason != "missing" or one.until > lawful)]
    return out


def _survey_segment(
    out: Survey, segment: Segment, following: int | None, buffer: ChunkBuffer, rows: Rows, beyond: Rows
) -> Iterator[Lack]:
    """Add a segment's rows, and yield the offsets that it lacks, in it and after it."""
    base, first = segment.base_offset, len(rows)
    damages: list[tuple[int, Problem]] = []  # position, what is wrong
    end = 2**63 - 1 if following is None else following
    root = open_root(segment.root)
    try:
        with opened(root, segment.path) as file:
            for found in salvage(file, segment.path, segment.size_bytes, (base, end), buffer):
                if isinstance(found, Damage):
                    damages.append((found.position, Problem.of(found.error)))
                    out.facts.damaged_bytes += found.end - found.position
                else:
                    legacy = found["base_offset"] < 0
                    found["base_offset"][legacy] = found["last_offset"][legacy]
                    rows.append(found)
    except LogFormatError as error:
        damages.append((max(error.position, 0), Problem.of(error)))
    written = rows.read(first)
    kept = _check_order(written, base, end, segment.path, damages, beyond)
    if not kept.all():
        out.facts.damaged_bytes += int(written["size"][~kept].sum()) if damages else 0
        _keep(rows, first, written, kept)
    del written  # its file may be shorter than the map now
    sound = rows.read(first)
    yield from _missing_offsets(sound, base, following, sorted(damages, key=lambda one: one[0]))


def _check_order(
    rows: np.ndarray, base: int, end: int, path: str, damages: list[tuple[int, Problem]], beyond: Rows
) -> NDArray[np.bool_]:
    """Return which rows are in order and belong to the segment; add the others to the damages or to `beyond`."""
    kept = np.ones(len(rows), np.bool_)
    if not len(rows):
        return kept
    firsts, lasts = (np.ascontiguousarray(rows[name]) for name in ("base_offset", "last_offset"))
    behind = lasts >= end
    if (firsts[1:] > lasts[:-1]).all() and firsts[0] >= base and not behind.any():
        return kept
    joined = np.concatenate([[False], firsts[1:] == lasts[:-1] + 1]) | np.concatenate(
        [firsts[1:] == lasts[:-1] + 1, [False]]
    )
    overlapping = behind & joined
    inside = np.flatnonzero(~behind)
    in_order = np.empty(len(inside), np.bool_)
    drop_displaced(firsts[inside], lasts[inside], base, in_order, np.empty(len(inside), np.int64))
    kept[behind] = False
    kept[inside[~in_order]] = False
    beyond.append(rows[overlapping])
    for i in np.flatnonzero(~kept & ~overlapping)[:_MOST_NAMED]:
        found = f"offsets {firsts[i]} to {lasts[i]}, which do not fit those around them"
        error = LogFormatError("offsets", path, int(rows["position"][i]), "offsets that rise", found)
        damages.append((int(rows["position"][i]), Problem.of(error)))
    return kept


_MOST_NAMED = 1000


def _keep(rows: Rows, first: int, written: np.ndarray, kept: NDArray[np.bool_]) -> None:
    """Keep only these of the rows from `first` on."""
    with closing(Rows()) as again:
        for start in range(0, len(written), _PIECE):
            again.append(written[start : start + _PIECE][kept[start : start + _PIECE]])
        rows.cut(first)
        sound = again.read()
        for start in range(0, len(sound), _PIECE):
            rows.append(sound[start : start + _PIECE])


def _missing_offsets(
    rows: np.ndarray, base: int, following: int | None, damages: Sequence[tuple[int, Problem]]
) -> Iterator[Lack]:
    """Yield the offsets that damage has taken, and those after the segment's last batch."""
    positions, end = rows["position"], 2**63 - 1 if following is None else following
    until = end
    for position, problem in damages:
        at = int(np.searchsorted(positions, position))
        first = int(rows["last_offset"][at - 1]) + 1 if at else base
        until = int(rows["base_offset"][at]) if at < len(rows) else end
        yield Lack(first, until, "unreadable" if problem.kind == "unreadable" else "damaged", problem)
    last = int(rows["last_offset"][-1]) + 1 if len(rows) else base
    if following is not None and last < following and not (damages and until == end):
        yield Lack(last, following, "missing")


def _rising(spool: Rows, out: Survey) -> np.ndarray:
    """Return rows of several overlapping segments whose offsets rise."""
    rows = spool.read()
    if len(rows) < 2 or (rows["base_offset"][1:] > rows["last_offset"][:-1]).all():
        return rows
    kept = np.empty(len(rows), np.bool_)
    firsts, lasts = (np.ascontiguousarray(rows[name]) for name in ("base_offset", "last_offset"))
    drop_displaced(firsts, lasts, 0, kept, np.empty(len(rows), np.int64))
    n = int((~kept).sum())
    out.facts.notes.append(
        f"{out.copy.place}: more than two segments hold the same offsets; {n:,} of their batches left out"
    )
    counts = np.concatenate([[0], np.cumsum(kept)])
    out.overlapping_rows = [int(counts[row]) for row in out.overlapping_rows]
    return np.asarray(rows[kept])


def epoch_runs(rows: np.ndarray) -> Iterator[EpochRun]:
    """Yield the runs of equal leader epochs of BATCH[n]; batches without an epoch are left out."""
    run: EpochRun | None = None
    for start in range(0, len(rows), _PIECE):
        part = rows[start : start + _PIECE]
        epochs = np.ascontiguousarray(part["partition_leader_epoch"])
        borders = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(part)]
        for a, b in pairwise(borders):
            epoch, last = int(epochs[a]), int(part["last_offset"][b - 1])
            if run is not None and run.epoch == epoch:
                run = run._replace(last=last, batches=run.batches + b - a)
                continue
            if run is not None and run.epoch >= 0:
                yield run
            run = EpochRun(epoch, int(part["base_offset"][a]), last, b - a)
    if run is not None and run.epoch >= 0:
        yield run


def _last_thinned(out: Survey) -> int:
    """Return the end of the last batch that shows a cleaner's work; 0: none does."""
    found = 0
    for number, first in enumerate(out.segment_rows[:-1]):
        until = out.segment_rows[number + 1]
        for start in range(first, until, _PIECE):
            part = out.rows[max(start - 1, first) : min(start + _PIECE, until)]
            found = max(found, _thinned(part))
    return found


def _thinned(part: np.ndarray) -> int:
    records, spans = part["records_count"], part["last_offset"] - part["base_offset"] + 1
    thin = ((records >= 0) & (records < spans)) | ((part["attributes"] & DELETE_HORIZON_MASK) != 0)
    thin &= (part["magic"] >= 2) | ((part["attributes"] & CONTROL_MASK) == 0)
    adjacent = part["position"][1:] == part["position"][:-1] + part["size"][:-1]
    thin[1:] |= adjacent & (part["base_offset"][1:] > part["last_offset"][:-1] + 1) & (part["magic"][1:] >= 2)
    rows = np.flatnonzero(thin)
    return int(part["last_offset"][rows[-1]]) + 1 if len(rows) else 0
