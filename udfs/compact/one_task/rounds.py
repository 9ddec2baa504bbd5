"""Compaction of a partition whose keys do not fit a task's memory, in one task: a round for each range of key hashes,
as Kafka's cleaner goes over a log again when its map is full, but no key is missed.

A round walks the log with a table of the keys of its range, and spills the offsets of the survivors to a temporary
file. The last pass writes the segments by these offsets. Each round shows how many keys there are, and so how many the
next one can take.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer, read_exactly
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally
from lastkey.udfs.compact.clean.deciders import (
    KeyTable,
    TooManyKeys,
    Winners,
    Within,
    check_versions,
    find_winners,
    key_runs,
    last_offset_decider,
)
from lastkey.udfs.compact.clean.survivor_kernels import collect_survivors
from lastkey.udfs.compact.clean.survivors import Survivors, batches_to_read
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.one_task.passes import Clock, clean_groups
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis

_ALL: Final = 1 << 32  # values of the upper 32 bits of a hash's second half
_ROOM: Final = 0.9  # share of a table that a round plans to use
_NONE: Final = np.empty(0, np.int64)
_SPILL: Final = "the temporary file of survivors"


class _Place(NamedTuple):
    """Offsets in the temporary file."""

    position: int
    n_bytes: int
    checksum: int  # CRC-32C


@dataclass
class _Spilled:
    """Survivors of a round, by group."""

    n_keys: int = 0
    highest: int = NO_VERSION  # version of a record
    places: dict[int, list[_Place]] = field(default_factory=dict)
    to_read: dict[int, list[np.ndarray]] = field(default_factory=dict)  # as of `batches_to_read`


def clean_in_rounds(
    plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer, clock: Clock
) -> tuple[list[Segment], int]:
    """Clean all groups; return the new segments in order, and the number of rounds."""
    kind = KeyTable if plan.policy.settings.by_offset else Winners
    room = _ROOM * kind.room(plan.run.limits.task_memory_bytes // 2)
    n_records = sum(analysis.sources[n].most_records for numbers in analysis.groups for n in numbers)
    first, tried, width = 0, 0, max(int(_ALL * room / max(n_records, 1)), 1)
    rounds: list[_Spilled] = []
    with tempfile.TemporaryFile(prefix="lastkey-") as file:
        while first < _ALL:
            stop, tried = min(first + width, _ALL), tried + 1
            try:
                rounds.append(_round(plan, analysis, partial(_within, first, stop), buffer, file))
            except TooManyKeys:
                width = max((stop - first) // 2, 1)
                continue
            if len(rounds) > 1:
                rounds[-1].to_read.clear()  # the first round has the same
            first, width = stop, max(int((stop - first) * room / max(rounds[-1].n_keys, 1)), 1)
        check_versions(plan, max(one.highest for one in rounds), any(one.n_keys for one in rounds))
        found = _Found(plan, analysis, rounds, file)
        verdicts_of = found.verdicts if analysis.rules.oldest_ms < 0 else None
        of = Pass(found.mark, plan.loader(None), buffer, tally, verdicts_of)
        segments = clean_groups(plan, analysis, analysis.groups, lambda _: analysis.rules, of, clock)
        found.check()
        return segments, tried


class _Found:
    """The decider of the last pass: the survivors of all rounds, those of one group in memory."""

    def __init__(self, plan: PartitionPlan, analysis: Analysis, rounds: Sequence[_Spilled], file: IO[bytes]) -> None:
        self._plan, self._rounds, self._file = plan, rounds, file
        self._bases = [analysis.group(numbers).base_offset for numbers in analysis.groups]
        self._group, self._survivors = -1, Survivors(plan, _NONE, _NONE)

    def mark(self, run: Run, may_stay: np.ndarray) -> None:
        self._of(run.batches).mark(run, may_stay)

    def verdicts(self, batches: np.ndarray, decided: np.ndarray) -> np.ndarray:
        return self._of(batches).verdicts(batches, decided)

    def _of(self, batches: np.ndarray) -> Survivors:
        """Return the survivors of the group of these batches; all of a group's are asked for together."""
        group = int(np.searchsorted(self._bases, batches["last_offset"][0], side="right")) - 1
        if group != self._group:
            self._survivors.check()
            places = [place for one in self._rounds for place in one.places[group]]
            to_read = np.concatenate([_NONE, *self._rounds[0].to_read[group]])
            self._group, self._survivors = group, Survivors(self._plan, _read(self._file, places), to_read)
        return self._survivors

    def check(self) -> None:
        """Check the last group, as every other one is checked before the next."""
        self._survivors.check()


def _round(plan: PartitionPlan, analysis: Analysis, within: Within, buffer: ChunkBuffer, file: IO[bytes]) -> _Spilled:
    """Spill the offsets of the survivors in a range of keys. Raises TooManyKeys."""
    out = _Spilled()
    if plan.policy.settings.by_offset:
        key_table = KeyTable(plan.run.limits.task_memory_bytes // 2)
        table: KeyTable | Winners = key_table
        mark = last_offset_decider(key_table, analysis.cleanable.first_dirty_offset)
    else:
        sources = (analysis.sources[number] for numbers in analysis.groups for number in numbers)
        winners, out.highest = find_winners(plan, sources, analysis.rules, buffer, within)
        table, mark = winners, winners.mark
    for group, numbers in reversed(list(enumerate(analysis.groups))):
        places, to_read = out.places.setdefault(group, []), out.to_read.setdefault(group, [])
        for number in reversed(numbers):
            for run in key_runs(plan, analysis.sources[number], analysis.rules, buffer, backwards=True):
                part, n = within(run), len(run.spans)
                may_stay, keys, offsets = np.empty(n, np.bool_), np.empty((n, 2), np.uint64), np.empty(n, np.int64)
                mark(part, may_stay)
                offsets = offsets[: collect_survivors(part, may_stay, keys, offsets)]
                raw = offsets.view(np.uint8)
                places.append(_Place(file.seek(0, os.SEEK_END), len(raw), crc32c_extend(0, raw)))
                file.write(raw.data)
                to_read.append(batches_to_read(run))
    out.n_keys = table.used
    return out


def _within(first: int, stop: int, run: Run) -> Run:
    """Return the run as if the records outside a range of keys had none: [first, stop) of the hashes' upper bits."""
    part = run.spans["key_high"] >> np.uint64(32)
    spans = run.spans.copy()
    spans["null_key"] |= (part < np.uint64(first)) | (part >= np.uint64(stop))
    return run._replace(spans=spans)


def _read(file: IO[bytes], places: Sequence[_Place]) -> np.ndarray:
    """Return int64[n], ascending, the spilled offsets at these places. Raises LogFormatError kind "readback" if bytes
    differ from the written ones.
    """
    out = np.empty(sum(place.n_bytes for place in places) // _NONE.itemsize, np.int64)
    raw, at = out.view(np.uint8), 0
    for position, n_bytes, checksum in places:
        part = raw[at : at + n_bytes]
        read_exactly(file, _SPILL, position, part)
        found = crc32c_extend(0, part)
        if found != checksum:
            expected = f"{n_bytes} bytes with CRC-32C {checksum:#010x}, as they were written"
            raise LogFormatError("readback", _SPILL, position, expected, f"{found:#010x}")
        at += n_bytes
    out.sort()
    return out
