"""The order of batches: offsets as the names require, leader epochs that rise, producers in order; and gaps.

A leader's log has no holes; a cleaner makes them, from the start of the log on. A hole is valid below the cleaner
checkpoint, or if a batch at its lower end or anywhere above it shows a cleaner's work; else a file is missing or short.
This is written apart from the cleaner's own rule (`udfs.compact.scan.scan_partition`), and tests compare the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import DELETE_HORIZON_MASK
from lastkey.logformat.side_files import checkpoints
from lastkey.logformat.side_files.producer_state import merge, no_producers, summarize
from lastkey.udfs.segments import SideFile
from lastkey.udfs.storage import open_root, read_file
from lastkey.udfs.verify.findings import CheckPlan, Findings
from lastkey.udfs.verify.walk import LogWalk


@dataclass
class Placed:
    """Check of a segment's offsets against its own name and that of the next segment."""

    path: str
    base_offset: int
    next_base: int | None

    def check(self, batches: np.ndarray, walk: LogWalk) -> None:
        """Add a row to `walk` for the first batch of a chunk that is outside."""
        first = np.where(batches["base_offset"] >= 0, batches["base_offset"], batches["last_offset"])
        for i in _some(first < self.base_offset):
            self._add(walk, "name", batches[i], f"offsets from {self.base_offset} on, as its name says", int(first[i]))
        if self.next_base is not None:
            expected = f"offsets below {self.next_base}, where the next segment begins"
            for i in _some(batches["last_offset"] >= self.next_base):
                self._add(walk, "overlap", batches[i], expected, int(batches["last_offset"][i]))

    def _add(self, walk: LogWalk, kind: str, batch: np.void, expected: str, found: int) -> None:
        base = int(batch["base_offset"])
        walk.add(
            LogFormatError(kind, self.path, int(batch["position"]), expected, str(found), base_offset=max(base, -1))
        )


def _some(wrong: np.ndarray) -> Iterator[int]:
    """Yield the first wrong row alone: if a name is wrong, every batch is."""
    yield from (int(i) for i in np.flatnonzero(wrong)[:1])


class Epochs:
    """Check of leader epochs, which no checksum covers: they do not fall along the log of one cluster, and are those
    that the leader-epoch-checkpoint names. Other epochs are a note, since a log restored into another cluster looks so.

    A generation's file is a copy of the archive's. If the archive's file names a batch's epoch and the copy does not,
    the copy is wrong, and that is a row.
    """

    def __init__(self, plan: CheckPlan, findings: Findings) -> None:
        self.findings, self.latest, self.listed = findings, -1, np.empty((0, 2), np.int64)
        self.of_archive = np.array(plan.archived_epochs, np.int64).reshape(-1, 2)
        self.copied = False  # the copy could be read, and no fault is found in it yet
        self.log_start = plan.log_start_offset or 0  # a broker's file forgets the epochs below it
        self.path = plan.leader_epochs.path if plan.leader_epochs is not None else ""
        if plan.leader_epochs is not None:
            findings.attempt(lambda: self._read(plan.leader_epochs), plan.leader_epochs.path)  # type: ignore[arg-type]

    def _read(self, file: SideFile) -> None:
        data = read_file(open_root(file.root), file.path)
        epochs = checkpoints.read_leader_epochs(data, file.path)
        self.listed = np.array(epochs, np.int64).reshape(-1, 2)
        lines = data.decode("utf-8", "replace").split("\n")[2:]
        if [tuple(map(int, line.split())) for line in lines if line.strip()] != [tuple(e) for e in epochs]:
            raise LogFormatError("side_file", file.path, 0, "epochs and offsets that rise", "some that fall or repeat")
        self.copied = len(self.of_archive) > 0

    @property
    def first(self) -> tuple[str, int] | None:
        """Path of the leader-epoch-checkpoint and start offset of its first epoch; None if it lists none."""
        return (self.path, int(self.listed[0, 1])) if len(self.listed) else None

    def check(self, path: str, batches: np.ndarray) -> None:
        """Add one note for a chunk, at the first batch that is not as expected."""
        epoch = batches["partition_leader_epoch"]
        current = batches["magic"] >= 2
        highest = np.maximum.accumulate(np.concatenate([[self.latest], epoch]))
        wrong = current & ((epoch < -1) | ((epoch >= 0) & (epoch < highest[:-1])))
        expected = highest[:-1].astype(np.int64)
        if len(self.listed):
            at = np.searchsorted(self.listed[:, 1], batches["base_offset"], "right") - 1
            known = self.listed[np.maximum(at, 0), 0]
            wrong |= current & (at >= 0) & (epoch != known) & (epoch != -1)
            expected = np.where(at >= 0, known, expected)
        for i in np.flatnonzero(wrong)[:1]:
            self.findings.notes.append(
                f"{path} at byte {int(batches['position'][i])}: leader epoch {int(epoch[i])}, expected "
                f"{int(expected[i])}: from another cluster, or damaged (no checksum covers it)"
            )
        self.latest = int(epoch[-1]) if len(epoch) and epoch[-1] >= 0 else int(highest[-1])
        if self.copied:
            self._check_copy(batches[current])

    def _check_copy(self, batches: np.ndarray) -> None:
        """Add a row for the first batch about which the archive's file has more data.

        Compares last offsets, because a log start may be within a batch, and the batch's epoch then begins there.
        """
        epoch, last = batches["partition_leader_epoch"], batches["last_offset"]
        listed_epochs = _epochs_at(self.listed, last)
        lost = (last >= self.log_start) & (_epochs_at(self.of_archive, last) == epoch) & (listed_epochs != epoch)
        for i in np.flatnonzero((epoch >= 0) & lost)[:1]:
            self.copied = False
            expected = f"leader epoch {int(epoch[i])} at offset {int(last[i])}, as its batch and the archive's file say"
            found = str(int(listed_epochs[i])) if listed_epochs[i] >= 0 else "none"
            self.findings.add(LogFormatError("side_file", self.path, 0, expected, found))


def _epochs_at(listed: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return int64[n]: the epoch of each offset by a leader-epoch-checkpoint; -1: it has none."""
    at = np.searchsorted(listed[:, 1], offsets, "right")
    return np.concatenate([[-1], listed[:, 0]])[at]


class Producers:
    """Check for batches that a broker refuses when it loads a log: unknown markers, batches that interrupt a
    transaction.
    """

    def __init__(self) -> None:
        self.before = no_producers()

    def check(self, batches: np.ndarray, walk: LogWalk) -> None:
        """Add a row to `walk` for what is wrong with the producers of a chunk."""
        try:
            self.before = merge(self.before, summarize(batches, walk.path), walk.path)
        except LogFormatError as error:
            walk.add(error)
            self.before = no_producers()


class Thinned:
    """Detector of a cleaner's work in a segment: fewer records than offsets, offsets left out, a delete horizon."""

    def __init__(self, base_offset: int) -> None:
        self.next_offset, self.last = base_offset, -1

    def see(self, batches: np.ndarray) -> None:
        """Look at the next BATCH[n]. Compressed magic 0 and 1 is no evidence: no header states where it begins."""
        first, last = batches["base_offset"], batches["last_offset"]
        expected = np.append(self.next_offset, last[:-1] + 1)
        horizon = (batches["magic"] >= 2) & (batches["attributes"] & DELETE_HORIZON_MASK != 0)
        worked = (first >= 0) & ((first > expected) | (batches["records_count"] <= last - first) | horizon)
        if worked.any():
            self.last = int(last[worked][-1])
        self.next_offset = int(last[-1]) + 1


def gap_problems(
    plan: CheckPlan, segments: Sequence[tuple[str, int, int, int, bool]], first_epoch: tuple[str, int] | None = None
) -> Iterator[LogFormatError | str]:
    """Yield each gap as an error, and what a cleaner did above its checkpoint as a note.

    segments: path, base offset, offset after the last batch, last offset at which a cleaner's work is seen (-1: none),
    and whether it could be read to its end; by base offset. first_epoch: the leader-epoch-checkpoint and the start
    offset of its first epoch. A log start checkpoint of 0: tiered storage holds all below the first segment.
    """
    log_start_offset, cleaned_until = plan.log_start_offset or 0, plan.cleaner_checkpoint or 0
    first, end = (segments[0][1], segments[-1][2]) if segments else (0, 0)
    bases = [base for _, base, _, _, _ in segments]
    ends = [0, *accumulate((after for _, _, after, _, _ in segments), max)]
    for orphan in plan.orphans:
        inside = orphan.offset < ends[bisect_right(bases, orphan.offset)]
        if not inside and not orphan.offset < first <= log_start_offset:
            where = "after the last segment" if orphan.offset >= end else "before one that is there"
            yield LogFormatError("gap", orphan.path, 0, "the .log of this index", f"none; its offsets lie {where}")
    if plan.log_start_offset == 0:
        first_epoch = None
    if first_epoch is not None and segments and max(first_epoch[1], log_start_offset) < first:
        yield LogFormatError(
            "gap",
            first_epoch[0],
            0,
            f"a segment at offset {first_epoch[1]}, where the first leader epoch begins",
            f"the first one at {first}",
            hint="a file is missing: a broker that deletes the beginning of a log moves its first leader epoch too; or "
            "remote storage has the beginning: put its folder into the archive",
        )
    cleaned = []
    thinned_above = list(accumulate((thinned for _, _, _, thinned, _ in reversed(segments)), max))[::-1]
    for i, (path, base, after, _, whole) in enumerate(segments[:-1]):
        low, high = max(base, after, log_start_offset, cleaned_until), segments[i + 1][1]
        if not whole or low >= high:
            continue
        if thinned_above[i + 1] < 0 and segments[i][3] < cleaned_until:
            yield LogFormatError(
                "gap",
                segments[i + 1][0],
                0,
                f"a segment that begins at offset {low}, where {path} ends",
                f"one that begins at {high}, and no sign that a cleaner removed the offsets between",
                hint="a file is missing, empty or short; or, if this topic was ever compacted, a cleaner removed whole "
                "batches at this border and its checkpoint is lost, which leaves the same bytes: then "
                f'gaps = "accept" below [topics."{plan.topic}"] in the settings file (--config) makes it a note',
            )
        else:
            cleaned.append(f"{low} to {high - 1}")
    if cleaned:
        more = f" and {len(cleaned) - 3} more ranges" if len(cleaned) > 3 else ""
        yield f"{plan.name}: no segment holds offsets {', '.join(cleaned[:3])}{more}: a cleaner removed them"
