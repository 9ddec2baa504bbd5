"""What is in a partition, and what cleaning it now would make of it: one task, nothing is written.

The log is scanned as a compaction scans it, and then read once from its end to its start. What would be cleaned goes
through `clean_batches` itself, told that nothing is to be written: so live and dead are what `compact --dry-run` says,
by construction. What lies above the first uncleanable offset, and topics that are not compacted, are only counted; a
key that is written there again supersedes nothing yet, as for the cleaner.

Memory: 32 bytes a slot of the key table, of which two thirds at most are taken and which doubles as it fills, up to
half of the task's memory; 512 KiB to begin with. A chunk and its decompressed batches, as everywhere. Results are
small: about 300 bytes a segment, and at most 1,024 buckets of time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import Chunk, ChunkBuffer, Tail
from logformat.batches.columns import Place, record_batches
from logformat.batches.headers import read_headers
from logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES
from logformat.schemas import RECORDS as RECORD_COLUMNS
from logformat.schemas import select
from udfs.attempt import attempt
from udfs.compact.analyse import Analysis, analyse
from udfs.compact.clean_batches import Tally, clean_chunk
from udfs.compact.cleaner import Rules
from udfs.compact.decide_kernels import COUNTER_NAMES
from udfs.compact.gaps import check_gaps
from udfs.compact.plan import NotDue, PartitionPlan
from udfs.compact.rebuild_kernels import COPIED
from udfs.compact.scan_partition import (
    check_checkpoints,
    check_tails,
    scan_all,
    scan_identity,
    source_of,
    until_high_watermark,
)
from udfs.compact.scan_segment import SegmentScan, chunk_buffer
from udfs.compact.sources import Source, chunk_at
from udfs.problem import Problem, SetAside
from udfs.report import measure_kernels as sums_of
from udfs.report.measure_kernels import LAST_TIME, N_AGES, N_SUMS, NOTHING, add_times, add_up, count_keys
from udfs.report.partition_profile import Codec, HotKey, PartitionProfile, SegmentProfile, TimeBuckets, shown_key
from udfs.segments import LastBatch
from udfs.storage import opened

HOT_KEYS: Final = 20
_FIRST_SLOTS: Final = 1 << 14


@dataclass(frozen=True)
class ProfilePlan:
    """What a task is told."""

    plan: PartitionPlan  # as for a compaction; force is not looked at
    compacted: bool  # False: everything is alive


class KeyCounts:
    """Records of every key: open addressing over key hashes, doubled as keys come."""

    BYTES_PER_SLOT = 32

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used = max_bytes, 0
        self.columns = self._empty(_FIRST_SLOTS)

    @staticmethod
    def _empty(slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        low, high = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        return low, high, np.zeros(slots, np.int64), np.zeros(slots, np.int64)

    def count(self, run: Run, first_dirty_offset: int, end: int, is_last: np.ndarray, path: str) -> None:
        """`count_keys` of a run, with larger tables where they are needed; SetAside where they would be too large."""
        left = len(run.spans)
        while left:
            self.used, left = count_keys(
                run.batches,
                run.bodies,
                run.wanted,
                run.spans,
                first_dirty_offset,
                end,
                *self.columns,
                self.used,
                is_last,
                left,
            )
            if left:
                self._grow(path)

    def _grow(self, path: str) -> None:
        held = len(self.columns[0])
        if 3 * held * self.BYTES_PER_SLOT > self.max_bytes:  # this table, and one of twice its slots
            raise SetAside(
                Problem(
                    "keys",
                    path,
                    0,
                    f"keys that fit {self.max_bytes} bytes",
                    f"{self.used} keys, and more to come",
                    hint="a larger task.memory.bytes, twice these bytes: counts of keys are exact, so all are held",
                )
            )
        columns = self._empty(2 * held)
        sums_of.move_keys(*self.columns, *columns)
        self.columns = columns

    def hottest(self, n: int) -> list[tuple[int, int]]:
        """(records, offset of one of them) of the keys with the most, most first; the later offset first of equals."""
        counts, examples = np.abs(self.columns[2]), self.columns[3]
        taken = np.flatnonzero(counts)
        if len(taken) > n:
            least = np.partition(counts[taken], len(taken) - n)[len(taken) - n]
            taken = taken[counts[taken] >= least]
        order = taken[np.lexsort((-examples[taken], -counts[taken]))][:n]
        return list(zip(counts[order].tolist(), examples[order].tolist(), strict=True))


def profile_partition(given: ProfilePlan) -> PartitionProfile:
    """Profile one partition. Whatever stops it becomes `problem`."""
    start = time.perf_counter()
    plan = given.plan
    size = sum(s.listed.size for s in plan.segments)
    profile = attempt(f"{plan.topic}-{plan.partition}", lambda: _profile(plan, given.compacted))
    if isinstance(profile, Problem):
        profile = PartitionProfile(plan.topic, plan.partition, given.compacted, size, profile)
    return replace(profile, seconds=time.perf_counter() - start)


def _profile(plan: PartitionPlan, compacted: bool) -> PartitionProfile:
    buffer = chunk_buffer(plan)
    notes: list[str] = []
    scans = scan_all(plan, buffer)
    analysis = None
    if compacted:
        analysis, out = _as_the_cleaner_sees_it(plan, scans, scan_identity(plan, buffer))
    else:
        kept = until_high_watermark(plan, scans, notes)
        check_tails(plan, kept, notes)
        end = max(kept[-1].base_offset, kept[-1].last_offset + 1)
        check_checkpoints(plan, end)
        check_gaps(plan, kept, end, notes)
        out = PartitionProfile(plan.topic, plan.partition, False, 0, notes=tuple(notes))
    scans = list(until_high_watermark(plan, scans, []))
    sources = [source_of(plan, number, scan) for number, scan in enumerate(scans)]
    walk = _Walk(plan, sources, analysis, buffer)
    segments = tuple(reversed([walk.segment(i) for i in reversed(range(len(sources)))]))
    counters = sum((t.counters for t in walk.tallies), Tally().counters)
    return replace(
        out,
        size_bytes=sum(s.size for s in scans),
        segments=segments,
        log_start_offset=plan.log_start_offset,
        log_end_offset=max(scans[-1].base_offset, scans[-1].last_offset + 1),
        bytes_after_is_estimate=walk.estimated,
        counters=dict(zip(COUNTER_NAMES, counters.tolist(), strict=True)) if analysis else {},
        distinct_keys=walk.keys.used,
        hot_keys=walk.hot_keys(),
        times=walk.times.trimmed(),
    )


def _as_the_cleaner_sees_it(
    plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch
) -> tuple[Analysis | None, PartitionProfile]:
    """What would be cleaned, whether it is due or not; None: nothing may be."""
    asked = replace(plan, dry_run=True, force=False)
    try:
        due = bool(analyse(asked, scans, identity).sources)
    except NotDue:
        due = False
    null_keys = "keep" if plan.settings.null_keys == "fail" else plan.settings.null_keys
    settings = replace(plan.settings, min_cleanable_dirty_ratio=-1.0, min_dirty_bytes=0, null_keys=null_keys)
    try:
        analysis = analyse(replace(asked, settings=settings), scans, identity)
    except NotDue as reason:
        r = reason.result
        profile = PartitionProfile(plan.topic, plan.partition, compacted=True, size_bytes=0, notes=r.notes)
        return None, replace(
            profile,
            first_dirty_offset=r.first_dirty_before,
            first_uncleanable_offset=r.first_dirty_before,
            dirty_ratio=r.dirty_ratio,
            clean_bytes=r.clean_bytes,
            dirty_bytes=r.dirty_bytes,
        )
    found = analysis.cleanable
    profile = PartitionProfile(plan.topic, plan.partition, compacted=True, size_bytes=0, notes=analysis.notes)
    return analysis, replace(
        profile,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=found.first_uncleanable_offset,
        dirty_ratio=found.ratio,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.cleanable_bytes,
        due=due,
    )


class _Walk:
    """The walk from the end of the log to its start."""

    def __init__(
        self, plan: PartitionPlan, sources: Sequence[Source], analysis: Analysis | None, buffer: ChunkBuffer
    ) -> None:
        self.plan, self.sources, self.analysis, self.buffer = plan, list(sources), analysis, buffer
        self.cleaned = len(analysis.sources) - len(analysis.untouched) if analysis else 0  # segments from the first on
        self.first_dirty = analysis.cleanable.first_dirty_offset if analysis else 0
        self.end = analysis.cleanable.first_uncleanable_offset if analysis else 0
        self.keys = KeyCounts(plan.limits.task_memory_bytes // 2)
        self.times = TimeBuckets()
        self.tallies: list[Tally] = []
        self.estimated = False
        self.loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
        self.chunks: list[tuple[int, int]] = []  # (source, chunk) in the order of the walk ...
        self.last_offsets: list[int] = []  # ... and the last offset of each
        # of all batches before each source
        maxima = [self._largest(i) for i in range(len(self.sources))]
        self.largest_before = np.maximum.accumulate([-1, *maxima])[:-1].tolist()
        self._is_last = np.empty(0, np.bool_)

    def segment(self, number: int) -> SegmentProfile:
        """Profile one source; the later ones have been."""
        source, scan = self.sources[number], self.sources[number].scan
        cleaned = number < self.cleaned
        sums, ages, codecs = np.zeros(N_SUMS, np.int64), np.zeros(N_AGES, np.int64), np.zeros((3, 8), np.int64)
        sums[sums_of.MIN_TIME], sums[sums_of.MAX_TIME] = NOTHING, -1
        tally, after = Tally(), 0
        before = self._largest_before_chunks(number)
        with opened(source.root, source.path) as file:
            for i in reversed(range(len(scan.chunks))):
                chunk = chunk_at(file, source.path, scan.chunks[i], self.buffer)
                self.chunks.append((number, i))
                self.last_offsets.append(int(chunk.batches["last_offset"][-1]))
                largest = np.maximum.accumulate(np.append(before[i], _usable(chunk.batches["max_timestamp"])))[:-1]
                see = _See(self, largest, sums, ages, codecs)
                if cleaned and self.analysis is not None:
                    after += self._clean(chunk, source, self.analysis.rules, tally, see)
                else:
                    self._count(chunk, source, see)
        self.tallies.append(tally)
        counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
        aborted, records = counters["dropped_aborted"], int(sums[sums_of.RECORDS])
        dead = counters["dropped_superseded"] + counters["dropped_tombstones"] + counters["dropped_null_key"] + aborted
        some_time = int(sums[sums_of.MAX_TIME]) >= 0
        return SegmentProfile(
            base_offset=scan.base_offset,
            size_bytes=scan.size,
            batches=scan.n_batches,
            records=records + aborted,
            cleaned=cleaned,
            live_records=records + aborted - dead,
            live_bytes=int(sums[sums_of.LIVE_BYTES]),
            dead_records=dead,
            dead_bytes=int(sums[sums_of.DEAD_BYTES]),
            superseded=counters["dropped_superseded"],
            aborted=aborted,
            expired_tombstones=counters["dropped_tombstones"],
            bytes_after=after if cleaned else scan.size,
            tombstones=int(sums[sums_of.TOMBSTONES]),
            tombstones_with_horizon=int(sums[sums_of.TOMBSTONES_WITH_HORIZON]),
            tombstone_ages=tuple(ages.tolist()),
            null_keys=int(sums[sums_of.NULL_KEYS]),
            control_records=int(sums[sums_of.CONTROL_RECORDS]),
            out_of_order=int(sums[sums_of.OUT_OF_ORDER]),
            largest_lag_ms=int(sums[sums_of.LARGEST_LAG]),
            without_time=int(sums[sums_of.NO_TIME]),
            min_timestamp_ms=int(sums[sums_of.MIN_TIME]) if some_time else None,
            max_timestamp_ms=int(sums[sums_of.MAX_TIME]) if some_time else None,
            codecs={name: Codec(*codecs[:, i].tolist()) for i, name in enumerate(CODEC_NAMES) if codecs[0, i]},
        )

    def _largest(self, number: int) -> int:
        """Largest usable timestamp of a source's batches: a second look at its headers where its largest is not."""
        largest = self.sources[number].scan.max_timestamp
        return largest if largest <= LAST_TIME else int(self._largest_of_chunks(number).max())

    def _largest_before_chunks(self, number: int) -> list[int]:
        """Largest timestamp of all batches before each chunk of a source: a second look at the headers where a segment
        has several chunks, since what came before is not known to who comes from the end.
        """
        before = int(self.largest_before[number])
        if len(self.sources[number].scan.chunks) < 2:
            return [before]
        return [int(largest) for largest in np.maximum.accumulate([before, *self._largest_of_chunks(number)])]

    def _largest_of_chunks(self, number: int) -> np.ndarray:
        source, scan = self.sources[number], self.sources[number].scan
        starts = np.array([chunk.position for chunk in scan.chunks])
        largest = np.full(len(starts), -1, np.int64)
        with opened(source.root, source.path) as file:
            for part in read_headers(file, source.path, scan.start_position, scan.end_position, self.buffer, Tail()):
                at = np.searchsorted(starts, part.batches["position"], "right") - 1
                np.maximum.at(largest, at, _usable(part.batches["max_timestamp"]))
        return largest

    def _clean(self, chunk: Chunk, source: Source, rules: Rules, tally: Tally, see: _See) -> int:
        legacy = source.mtime_ms > rules.legacy_horizon_ms
        size = 0
        for piece in clean_chunk(
            chunk, source.path, self.loader, rules, legacy, self._mark, tally, backwards=True, see=see.decided
        ):
            size += piece.size
            self.estimated |= piece.estimated
        return size

    def _count(self, chunk: Chunk, source: Source, see: _See) -> None:
        wanted = np.ones(len(chunk.batches), np.bool_)
        for run in self.loader.runs(
            chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=True, before=chunk.before
        ):
            self._mark(run, np.empty(len(run.spans), np.bool_))
            see.run(run, np.ones(len(run.spans), np.bool_), np.full(len(run.batches), COPIED, np.int8))

    def _mark(self, run: Run, is_last: np.ndarray) -> None:
        self.keys.count(run, self.first_dirty, self.end, is_last, f"{self.plan.topic}-{self.plan.partition}")
        self._is_last = is_last

    def hot_keys(self) -> tuple[HotKey, ...]:
        """The keys with the most records, each read again from where its last record lies."""
        return tuple(
            HotKey(n, hashlib.sha256(key).hexdigest()[:16], shown_key(key))
            for n, key in ((n, self._key_at(offset)) for n, offset in self.keys.hottest(HOT_KEYS))
        )

    def _key_at(self, offset: int) -> bytes:
        at = int(np.searchsorted(np.array(self.last_offsets[::-1]), offset))
        number, i = self.chunks[len(self.chunks) - 1 - at]
        source = self.sources[number]
        with opened(source.root, source.path) as file:
            chunk = chunk_at(file, source.path, source.scan.chunks[i], self.buffer)
        wanted = np.zeros(len(chunk.batches), np.bool_)
        wanted[np.searchsorted(chunk.batches["last_offset"], offset)] = True
        columns = select(RECORD_COLUMNS, ["key"])
        found = [
            rows.column(0)[0].as_py()
            for run in self.loader.runs(chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=False)
            for rows in record_batches(run, columns, Place(None, None), start_offset=offset, end_offset=offset + 1)
            if rows.num_rows
        ]
        return bytes(found[0])


def _usable(times: np.ndarray) -> np.ndarray:
    """Largest timestamps of batches; -1 where it is after the year 9999: one such record would make all others late."""
    return np.where(times > LAST_TIME, -1, times)


@dataclass(frozen=True)
class _See:
    """Where the records of one chunk are added up."""

    walk: _Walk
    largest_before: np.ndarray  # int64[batches of the chunk]
    sums: np.ndarray
    ages: np.ndarray
    codecs: np.ndarray

    def decided(self, run: Run, kept: np.ndarray, cleaned: np.ndarray) -> None:
        """As `clean_batches.See`."""
        self.run(run, kept, cleaned["outcome"].astype(np.int8))

    def run(self, run: Run, kept: np.ndarray, outcome: np.ndarray) -> None:
        """Add a run."""
        walk = self.walk
        mine = np.zeros(N_SUMS, np.int64)
        mine[sums_of.MIN_TIME], mine[sums_of.MAX_TIME] = NOTHING, -1
        add_up(
            run.batches,
            run.bodies,
            run.wanted,
            run.spans,
            walk._is_last,
            kept,
            outcome,
            self.largest_before[run.first : run.first + len(run.batches)],
            walk.plan.now_ms,
            mine,
            self.ages,
        )
        low, high = int(mine[sums_of.MIN_TIME]), int(mine[sums_of.MAX_TIME])
        if high >= 0:
            walk.times.cover(low, high)
            times = walk.times
            add_times(run.batches, run.bodies, run.wanted, run.spans, times.first, times.width_ms, times.counts)
        total = self.sums
        for at, join in ((sums_of.MIN_TIME, min), (sums_of.MAX_TIME, max), (sums_of.LARGEST_LAG, max)):
            mine[at] = join(mine[at], total[at]) - total[at]
        total += mine
        opened_ones = run.batches[run.wanted]
        codec = (opened_ones["attributes"] & CODEC_MASK).astype(np.int64)
        plain = (run.bodies["end"] - run.bodies["start"])[run.wanted] + BATCH_OVERHEAD
        for row, values in enumerate((np.ones(len(codec), np.int64), opened_ones["size"], plain)):
            np.add.at(self.codecs[row], codec, values)
