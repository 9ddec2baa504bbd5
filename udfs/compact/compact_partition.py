"""The whole compaction of one partition in one task: scan, decide, rewrite, read back.

The steps run in an order that survives a crash: read and check all input; decide; write new segments with their side
files into a folder that no table names; read back; flush. The driver makes the folder visible (`jobs.store.writing`).
The task reads each input byte twice (headers and checksums; records) and decompresses it once (by version twice, in
rounds once more for each round); it writes each output byte once and reads it once.

If the keys do not fit the task's memory, there is a round for each range of key hashes, as Kafka's cleaner goes over a
log again when its map is full, but no key is missed. A round walks the log with a table of the keys of its range, and
spills the offsets of the survivors to a temporary file. The last pass writes the segments by these offsets. The number
of keys in each round determines the range of the next one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer, read_exactly
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally
from lastkey.udfs.compact.clean.deciders import (
    KeyTable,
    Survivors,
    TooManyKeys,
    Winners,
    Within,
    batches_to_read,
    check_versions,
    find_winners,
    key_runs,
    last_offset_decider,
)
from lastkey.udfs.compact.clean.key_kernels import collect_survivors
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.output.generation import make_result, remove_folder, write_generation
from lastkey.udfs.compact.passes import (
    Cleaned,
    Clock,
    KeysLost,
    clean_by_yield,
    clean_everything,
    clean_groups,
    remove_records,
    with_what_is_old,
)
from lastkey.udfs.compact.plan import MOST_RANGES, Extent, PartitionPlan, PartitionResult, chunk_buffer
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import if_nothing_expires, scan_all, scan_identity
from lastkey.udfs.problem import Problem, attempt, peak_memory
from lastkey.udfs.steps import step

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
        survivors = _SpilledSurvivors(plan, analysis, rounds, file)
        verdicts_of = survivors.verdicts if analysis.rules.oldest_ms < 0 else None
        of = Pass(survivors.mark, plan.loader(None), buffer, tally, verdicts_of)
        segments = clean_groups(plan, analysis, analysis.groups, lambda _: analysis.rules, of, clock)
        survivors.check()
        return segments, tried


class _SpilledSurvivors:
    """The decider of the last pass: the survivors of all rounds, those of one group in memory."""

    def __init__(self, plan: PartitionPlan, analysis: Analysis, rounds: Sequence[_Spilled], file: IO[bytes]) -> None:
        self._plan, self._rounds, self._file = plan, rounds, file
        self._bases = [analysis.group(numbers).base_offset for numbers in analysis.groups]
        self._group, self._survivors = -1, Survivors(plan, _NONE, _NONE)

    def mark(self, run: Run, may_stay: np.ndarray) -> None:
        self._group_survivors(run.batches).mark(run, may_stay)

    def verdicts(self, batches: np.ndarray, decided: np.ndarray, rewritten: np.ndarray) -> np.ndarray:
        return self._group_survivors(batches).verdicts(batches, decided, rewritten)

    def _group_survivors(self, batches: np.ndarray) -> Survivors:
        """Return the survivors of the group that these batches belong to. Request all batches of a group before the
        next group.
        """
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
    """Return the run with null keys for records outside a range of keys: [first, stop) of the hashes' upper bits."""
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


def compact_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact one partition. Return every error as a result, except OSError for a full disk."""
    clock = Clock()
    done = attempt(plan.name, lambda: _compact_if_due(plan, clock))
    if isinstance(done, Problem):
        result = PartitionResult(plan.input.topic, plan.input.partition, "uncleanable", problem=done)
    else:
        result = done
    if result.status == "uncleanable":
        remove_folder(plan)
    step("partition done")
    work = replace(result.work, seconds=clock.seconds, peak_memory_bytes=peak_memory())
    return replace(result, work=work)


def _compact_if_due(plan: PartitionPlan, clock: Clock) -> PartitionResult:
    try:
        return _compact(plan, plan.extent, clock)
    except (KeysLost, TooManyKeys):  # in a run by yield: everything is cleaned instead
        remove_folder(plan)
        return _compact(plan, Extent.WHOLE, clock)


def _compact(plan: PartitionPlan, extent: Extent, clock: Clock) -> PartitionResult:
    buffer = chunk_buffer(plan)
    with clock.phase("scan"):
        if (nothing := if_nothing_expires(plan, buffer)) is not None:
            return nothing
        scans, identity = scan_all(plan, buffer, extent), scan_identity(plan, buffer)
        analysis = analyse(plan, scans, identity, extent)
        if isinstance(analysis, Analysis):
            analysis = with_what_is_old(plan, analysis, scans, identity, buffer)
    if isinstance(analysis, PartitionResult):
        return analysis
    step("segments scanned")
    tally, rounds = Tally(), 1
    with clock.phase("clean"):
        if analysis.affected:
            done = remove_records(plan, analysis, tally, buffer)
            if isinstance(done, PartitionResult):
                return done
            analysis, segments = done
            unchanged = 0 if plan.policy.erasing is None else sum(analysis.sources[n].size for n in analysis.untouched)
            cleaned = Cleaned(analysis, segments, bytes_read=unchanged)
        elif extent is Extent.PARTIAL and analysis.cleans:
            cleaned = clean_by_yield(plan, analysis, tally, buffer, clock)
        else:
            try:
                segments = clean_everything(plan, analysis, tally, buffer, clock)
            except TooManyKeys:
                remove_folder(plan)
                tally = Tally()
                segments, rounds = clean_in_rounds(plan, analysis, tally, buffer, clock)
            cleaned = Cleaned(analysis, segments)
    check_null_keys(plan, tally)
    analysis = cleaned.analysis
    with clock.phase("write"):
        generation = write_generation(plan, analysis, cleaned.segments, cleaned.keys)
    result = make_result(plan, analysis, generation, tally)
    work = replace(
        result.work,
        bytes_read=result.work.bytes_read + cleaned.bytes_read,
        bytes_written=result.work.bytes_written + cleaned.bytes_written,
        rounds=rounds,
    )
    return replace(
        result,
        work=work,
        schedule=cleaned.schedule,
        erased_offsets=() if tally.erased is None else tuple(map(tuple, tally.erased[:MOST_RANGES].tolist())),
    )


def check_null_keys(plan: PartitionPlan, tally: Tally) -> None:
    """Raise LogFormatError if the partition holds records without key and the setting null_keys is "fail"."""
    n_null_keys = tally["null_keys"]
    if n_null_keys and plan.policy.settings.null_keys == "fail":
        raise LogFormatError(
            "null_key",
            plan.name,
            NO_POSITION,
            "a key in every record",
            f"{n_null_keys} records without one",
            hint="compaction would drop them: --set null.keys=keep or drop, or leave this topic out",
        )
