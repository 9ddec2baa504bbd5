"""The profile of a partition: its content, and the result of cleaning it now. One task, without output files.

The log is scanned as a compaction scans it, and then read once from its end to its start. `clean_batches` itself
processes the cleanable part, without a writer, so live and dead equal those of `compact --dry-run` by construction.
Records above the first uncleanable offset, and those of topics that are not compacted, are only counted; a key that is
written there again supersedes no record yet, as for the cleaner.

Memory: 32 bytes a slot of the key table. At most two thirds of its slots are used; it begins with 512 KiB and doubles
as it fills, up to half of the task's memory. A chunk and its decompressed batches come on top, as everywhere. Results
are small: about 300 bytes a segment, and at most 1,024 buckets of time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES
from lastkey.logformat.schemas import RECORDS as RECORD_COLUMNS
from lastkey.logformat.schemas import select
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally, clean_chunk
from lastkey.udfs.compact.clean.deciders import grown
from lastkey.udfs.compact.cleaner import CleanableRange, Rules, summarize_expired
from lastkey.udfs.compact.compact_partition import clean_all
from lastkey.udfs.compact.passes import Clock
from lastkey.udfs.compact.plan import CleanPolicy, Extent, PartitionPlan, PartitionResult
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.due import collect_times, expired
from lastkey.udfs.compact.scan.scan_partition import (
    check_checkpoints,
    check_gaps,
    check_tails,
    scan_all,
    scan_identity,
    until_high_watermark,
)
from lastkey.udfs.compact.scan.scan_segment import chunk_at, chunks_again
from lastkey.udfs.compact.verdicts import COPIED, COUNTER_NAMES
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.report import measure_kernels as kernels
from lastkey.udfs.report.codec_sizes import CodecSample
from lastkey.udfs.report.partition_profile import (
    Codec,
    HotKey,
    PartitionProfile,
    SegmentProfile,
    TimeBuckets,
    shown_key,
)
from lastkey.udfs.segments import Expired, LastBatch, SegmentScan

_FIRST_SLOTS: Final = 1 << 14


class KeyCounts:
    """Counts of every key's records: open addressing over key hashes, doubled as keys come."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used = max_bytes, 0
        self.slots = np.zeros(_FIRST_SLOTS, kernels.KEY_COUNT)

    def count(self, run: Run, dirty: tuple[int, int], is_last: np.ndarray, path: str) -> None:
        """Count a run with `count_keys`, in larger tables as needed. Raises LogFormatError if too large ones are."""
        left = len(run.spans)
        while left:
            self.used, left = kernels.count_keys(run, dirty, self.slots, self.used, is_last, left)
            if left:
                self._grow(path)

    def _grow(self, path: str) -> None:
        larger = grown(self.slots, self.max_bytes)
        if larger is None:
            raise LogFormatError(
                "keys",
                path,
                NO_POSITION,
                f"keys that fit {self.max_bytes} bytes",
                f"{self.used} keys, and more to come",
                hint="raise task.memory.bytes, of which keys get half: their counts are exact, so all are held",
            )
        self.slots = larger

    def hottest(self, n: int) -> list[tuple[int, int]]:
        """Return (records, highest offset) of the n keys with the most records, most first; of equals the later offset
        first.
        """
        counts, examples = np.abs(self.slots["count"]), self.slots["example"]
        taken = np.flatnonzero(counts)
        if len(taken) > n:
            least = np.partition(counts[taken], len(taken) - n)[len(taken) - n]
            taken = taken[counts[taken] >= least]
        order = taken[np.lexsort((-examples[taken], -counts[taken]))][:n]
        return list(zip(counts[order].tolist(), examples[order].tolist(), strict=True))


HOT_KEYS: Final = 20


class Walk:
    """Walk from the end of the log to its start."""

    def __init__(
        self, plan: PartitionPlan, sources: Sequence[SegmentScan], analysis: Analysis | None, reader: LogReader
    ) -> None:
        self.plan, self.sources, self.analysis, self.reader = plan, list(sources), analysis, reader
        self.cleaned = len(analysis.sources) - len(analysis.untouched) if analysis else 0  # segments from the first on
        found = analysis.cleanable if analysis else CleanableRange(0, 0, 0, 0)
        self.dirty = found.first_dirty_offset, found.first_uncleanable_offset
        self.keys = KeyCounts(plan.run.limits.task_memory_bytes // 2)
        self.times = TimeBuckets()
        n_batches = sum(source.segment.batches for source in sources)
        self.codecs = CodecSample(n_batches, sum(source.size for source in sources), plan.policy.settings.levels)
        self.tallies: list[Tally] = []
        self.estimated = False
        self.chunks: list[tuple[int, int]] = []  # (source, chunk) in the order of the walk ...
        self.last_offsets: list[int] = []  # ... and the last offset of each
        # sums over all batches before each source
        maxima = [self._largest(i) for i in range(len(self.sources))]
        self.largest_before = np.maximum.accumulate([-1, *maxima])[:-1].tolist()

    def segment(self, number: int) -> SegmentProfile:
        """Profile one source, after all later ones."""
        source = self.sources[number]
        cleaned = number < self.cleaned
        sums, ages, codecs = _new_sums(), np.zeros(kernels.N_AGES, np.int64), np.zeros((3, 8), np.int64)
        tally, after = Tally(), 0
        before = self._largest_before_chunks(number)
        with source.open_log() as file:
            for i, chunk in zip(
                reversed(range(len(source.chunks))),
                chunks_again(file, source.path, source.chunks[::-1], self.reader.buffer),
                strict=True,
            ):
                self.chunks.append((number, i))
                self.last_offsets.append(int(chunk.batches["last_offset"][-1]))
                largest = np.maximum.accumulate(np.append(before[i], _usable(chunk.batches["max_timestamp"])))[:-1]
                see = _See(self, largest, sums, ages, codecs)
                if cleaned and self.analysis is not None:
                    after += self._clean(chunk, source, self.analysis.rules, tally, see)
                else:
                    self._count(chunk, source, see)
        self.tallies.append(tally)
        counters = tally.by_name()
        aborted, records = counters["dropped_aborted"], int(sums[kernels.RECORDS])
        dead = counters["dropped_superseded"] + counters["dropped_tombstones"] + counters["dropped_null_key"] + aborted
        some_time = int(sums[kernels.MAX_TIME]) >= 0
        return SegmentProfile(
            base_offset=source.first_offset,
            size_bytes=source.size,
            batches=source.segment.batches,
            records=records + aborted,
            cleaned=cleaned,
            live_records=records + aborted - dead,
            live_bytes=int(sums[kernels.LIVE_BYTES]),
            dead_records=dead,
            dead_bytes=int(sums[kernels.DEAD_BYTES]),
            superseded=counters["dropped_superseded"],
            aborted=aborted,
            expired_tombstones=counters["dropped_tombstones"],
            bytes_after=after if cleaned else source.size,
            tombstones=int(sums[kernels.TOMBSTONES]),
            tombstones_with_horizon=int(sums[kernels.TOMBSTONES_WITH_HORIZON]),
            tombstone_ages=tuple(ages.tolist()),
            null_keys=int(sums[kernels.NULL_KEYS]),
            control_records=int(sums[kernels.CONTROL_RECORDS]),
            out_of_order=int(sums[kernels.OUT_OF_ORDER]),
            max_lag_ms=int(sums[kernels.LARGEST_LAG]),
            without_timestamp=int(sums[kernels.NO_TIME]),
            min_timestamp_ms=int(sums[kernels.MIN_TIME]) if some_time else None,
            max_timestamp_ms=int(sums[kernels.MAX_TIME]) if some_time else None,
            codecs={name: Codec(*codecs[:, i].tolist()) for i, name in enumerate(CODEC_NAMES) if codecs[0, i]},
        )

    def _largest(self, number: int) -> int:
        """Return the largest usable timestamp of a source's batches; reads the headers again if its largest one is
        unusable.
        """
        largest = self.sources[number].segment.max_timestamp_ms
        return largest if largest <= kernels.LAST_TIME else int(self._largest_of_chunks(number).max())

    def _largest_before_chunks(self, number: int) -> list[int]:
        """Return the largest timestamp of all batches before each chunk of a source.

        Reads the headers again if a segment has several chunks, because a walk from the end has not seen what comes
        before.
        """
        before = int(self.largest_before[number])
        if len(self.sources[number].chunks) < 2:
            return [before]
        return [int(largest) for largest in np.maximum.accumulate([before, *self._largest_of_chunks(number)])]

    def _largest_of_chunks(self, number: int) -> np.ndarray:
        source = self.sources[number]
        starts = np.array([chunk.position for chunk in source.chunks])
        largest = np.full(len(starts), -1, np.int64)
        log = LogFile(source.open_log, source.path, source.end_position)
        for part in self.reader.headers(log, source.start_position):
            at = np.searchsorted(starts, part.batches["position"], "right") - 1
            np.maximum.at(largest, at, _usable(part.batches["max_timestamp"]))
        return largest

    def _clean(self, chunk: Chunk, source: SegmentScan, rules: Rules, tally: Tally, see: _See) -> int:
        legacy = source.mtime_ms > rules.legacy_horizon_ms
        size = 0

        def decided(run: Run, is_last: np.ndarray, kept: np.ndarray, cleaned: np.ndarray) -> None:
            see.run(run, is_last, kept, cleaned["outcome"].astype(np.int8))

        of = Pass(self._mark, self.reader.loader, self.reader.buffer, tally, see=decided)
        for piece in clean_chunk(of, chunk, rules, legacy, backwards=True):
            size += piece.size
            self.estimated |= piece.estimated
        return size

    def _count(self, chunk: Chunk, source: SegmentScan, see: _See) -> None:
        for run in self.reader.runs(chunk, backwards=True):
            is_last, every = np.empty(len(run.spans), np.bool_), np.ones(len(run.spans), np.bool_)
            self._mark(run, is_last)
            see.run(run, is_last, every, np.full(len(run.batches), COPIED, np.int8))

    def _mark(self, run: Run, is_last: np.ndarray) -> None:
        self.keys.count(run, self.dirty, is_last, self.plan.name)

    def hot_keys(self) -> tuple[HotKey, ...]:
        """Return the keys with the most records, each read again from its last record."""
        return tuple(
            HotKey(n, hashlib.sha256(key).hexdigest()[:16], shown_key(key))
            for n, key in ((n, self._key_at(offset)) for n, offset in self.keys.hottest(HOT_KEYS))
        )

    def _key_at(self, offset: int) -> bytes:
        at = int(np.searchsorted(np.array(self.last_offsets[::-1]), offset))
        number, i = self.chunks[len(self.chunks) - 1 - at]
        source = self.sources[number]
        with source.open_log() as file:
            chunk = chunk_at(file, source.path, source.chunks[i], self.reader.buffer)
        wanted = np.zeros(len(chunk.batches), np.bool_)
        wanted[np.searchsorted(chunk.batches["last_offset"], offset)] = True
        columns = select(RECORD_COLUMNS, ["key"])
        keys = [
            rows.column(0)[0].as_py()
            for run in self.reader.runs(chunk, wanted)
            for rows in record_batches(
                run, columns, TopicPartition(None, None), start_offset=offset, end_offset=offset + 1
            )
            if rows.num_rows
        ]
        return bytes(keys[0])


def _new_sums() -> np.ndarray:
    sums = np.zeros(kernels.N_SUMS, np.int64)
    sums[kernels.MIN_TIME], sums[kernels.MAX_TIME] = kernels.NOTHING, -1
    return sums


def _usable(times: np.ndarray) -> np.ndarray:
    """Return the largest timestamps of batches, -1 for those after the year 9999: one would make all later records
    late.
    """
    return np.where(times > kernels.LAST_TIME, -1, times)


@dataclass(frozen=True)
class _See:
    """Sums to which the records of one chunk are added."""

    walk: Walk
    largest_before: np.ndarray  # int64[batches of the chunk]
    sums: np.ndarray
    ages: np.ndarray
    codecs: np.ndarray

    def run(self, run: Run, is_last: np.ndarray, kept: np.ndarray, outcome: np.ndarray) -> None:
        """Add a run."""
        walk = self.walk
        mine = _new_sums()
        largest_before = self.largest_before[run.first : run.first + len(run.batches)]
        decisions = kernels.RunDecisions(is_last, kept, outcome, largest_before)
        kernels.add_up(run, decisions, walk.plan.run.now_ms, mine, self.ages)
        low, high = int(mine[kernels.MIN_TIME]), int(mine[kernels.MAX_TIME])
        if high >= 0:
            walk.times.cover(low, high)
            times = walk.times
            kernels.add_times(run, times.first, times.width_ms, times.counts)
        total = self.sums
        for at, join in ((kernels.MIN_TIME, min), (kernels.MAX_TIME, max), (kernels.LARGEST_LAG, max)):
            mine[at] = join(mine[at], total[at]) - total[at]
        total += mine
        walk.codecs.add(run)
        opened_ones = run.batches[run.wanted]
        codec = (opened_ones["attributes"] & CODEC_MASK).astype(np.int64)
        plain = (run.bodies["end"] - run.bodies["start"])[run.wanted] + BATCH_OVERHEAD
        for row, values in enumerate((np.ones(len(codec), np.int64), opened_ones["size"], plain)):
            np.add.at(self.codecs[row], codec, values)


@dataclass(frozen=True)
class ProfilePlan:
    """Plan of one profile."""

    plan: PartitionPlan  # plan of a dry run
    compacted: bool  # False: all records are live


def profile_partition(given: ProfilePlan) -> PartitionProfile:
    """Profile one partition. A failure becomes `problem`."""
    start = time.perf_counter()
    plan = given.plan
    size = sum(s.size_bytes for s in plan.input.segments)
    profile = attempt(plan.name, lambda: _profile(plan, given.compacted))
    if isinstance(profile, Problem):
        profile = PartitionProfile(plan.input.topic, plan.input.partition, given.compacted, size, profile)
    return replace(profile, seconds=time.perf_counter() - start)


def _profile(plan: PartitionPlan, compacted: bool) -> PartitionProfile:
    limits, most = plan.run.limits, plan.policy.settings.max_decompressed_batch_bytes
    reader = LogReader(limits.chunk_bytes, most, secret=plan.run.secret)
    buffer = reader.buffer
    notes: list[str] = []
    scans = scan_all(plan, buffer)
    analysis = None
    if compacted:
        analysis, out = _as_the_cleaner_sees_it(plan, scans, scan_identity(plan, buffer))
        if not plan.policy.settings.by_offset:
            by = plan.policy.settings.compaction_strategy
            note = f"{plan.name}: dead records are counted by offset, not by {by}"
            out = replace(out, notes=(*out.notes, note))
    else:
        kept = until_high_watermark(plan, scans, notes)
        check_tails(plan, kept, notes)
        end = max(kept[-1].first_offset, kept[-1].last_offset + 1)
        check_checkpoints(plan, end)
        check_gaps(plan, kept, end, notes)
        out = PartitionProfile(plan.input.topic, plan.input.partition, False, 0, notes=tuple(notes))
    all_scans, scans = scans, list(until_high_watermark(plan, scans, []))
    walk = Walk(plan, scans, analysis, reader)
    segments = tuple(reversed([walk.segment(i) for i in reversed(range(len(scans)))]))
    counters = sum((t.counters for t in walk.tallies), Tally().counters)
    size, tally = sum(s.size for s in scans), Tally()
    gain = _gain(plan, all_scans, tally, buffer) if not compacted else size - sum(s.bytes_after for s in segments)
    if isinstance(gain, Problem):
        out = replace(out, notes=(*out.notes, f"what a compaction would save is unknown: {gain}"))
    elif gain > 0 and plan.policy.settings.null_keys == "fail" and (keyless := sum(s.null_keys for s in segments)):
        note = f"{keyless:,} records without a key count as kept; compact needs --set null.keys=keep or drop for them"
        out = replace(out, notes=(*out.notes, note))
    return replace(
        out,
        size_bytes=size,
        bytes_if_compacted=None if isinstance(gain, Problem) else size - gain,
        segments=segments,
        log_start_offset=plan.input.log_start_offset,
        log_end_offset=max(scans[-1].first_offset, scans[-1].last_offset + 1),
        expiring=_expiring(plan, scans),
        bytes_after_is_estimate=walk.estimated or tally.recompressed_bytes > 0,
        counters=dict(zip(COUNTER_NAMES, counters.tolist(), strict=True)) if analysis else {},
        distinct_keys=walk.keys.used,
        hot_keys=walk.hot_keys(),
        times=walk.times.trimmed(),
        codec_bytes=walk.codecs.estimates(size),
    )


def _gain(plan: PartitionPlan, scans: Sequence[SegmentScan], tally: Tally, buffer: ChunkBuffer) -> int | Problem:
    """Return the bytes that a compaction would save if cleanup.policy asked for one, or the problem that stops it.

    Reads the log once more, because `Walk` counts by the policy. The key table is half as large as that of `Walk`, and
    so large enough.
    """
    keys = "keep" if plan.policy.settings.null_keys == "fail" else plan.policy.settings.null_keys
    settings = replace(plan.policy.settings, compacts=True, null_keys=keys)
    compacting = PartitionPlan(plan.input, CleanPolicy(settings), plan.run)

    def work() -> int:
        analysis, _ = _as_the_cleaner_sees_it(compacting, scans, scan_identity(plan, buffer))
        if analysis is None:
            return 0
        cleaned = clean_all(compacting, analysis, buffer, Clock())
        tally.recompressed_bytes += cleaned.tally.recompressed_bytes
        return sum(analysis.sources[n].size for n in analysis.replaced) - sum(s.size_bytes for s in cleaned.segments)

    return attempt(f"{plan.name}, as if compacted", work)


def _expiring(plan: PartitionPlan, sources: Sequence[SegmentScan]) -> tuple[Expired, ...]:
    """Return the segments that retention would delete, by headers alone, before any cleaning."""
    facts = collect_times(sources)
    by_rule = expired(plan, facts, sealed=False)
    ends = [*(s.first_offset for s in sources[1:]), 0]  # the last one stays
    rows = [(s.first_offset, end, s.segment.records, s.size) for s, end in zip(sources, ends, strict=True)]
    return summarize_expired(by_rule, rows[: sum(by_rule.values())], facts.bytes_above)


def _as_the_cleaner_sees_it(
    plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch
) -> tuple[Analysis | None, PartitionProfile]:
    """Return an analysis of what would be cleaned, due or not (None: no offset may be), and the cleaner's figures."""
    compaction = replace(plan.policy.settings, retention_ms=-1, retention_bytes=-1)
    null_keys = "keep" if plan.policy.settings.null_keys == "fail" else plan.policy.settings.null_keys
    at_once = replace(compaction, min_cleanable_dirty_ratio=-1.0, min_dirty_bytes=0, null_keys=null_keys)
    asked, now = (PartitionPlan(plan.input, CleanPolicy(settings), plan.run) for settings in (compaction, at_once))
    due = isinstance(analyse(asked, scans, identity, Extent.WHOLE), Analysis)
    analysis = analyse(now, scans, identity, Extent.WHOLE)
    found, nothing = analysis.cleanable, isinstance(analysis, PartitionResult)
    profile = PartitionProfile(
        plan.input.topic,
        plan.input.partition,
        compacted=True,
        size_bytes=0,
        notes=analysis.notes,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=found.first_dirty_offset if nothing else found.first_uncleanable_offset,
        dirty_ratio=found.ratio,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.cleanable_bytes,
        due=due and not nothing,
    )
    return (None if isinstance(analysis, PartitionResult) else analysis), profile
