"""One walk over a partition's log from its end to its start, and what it counts on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, Tail
from lastkey.logformat.batches.columns import Place, record_batches
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES
from lastkey.logformat.schemas import RECORDS as RECORD_COLUMNS
from lastkey.logformat.schemas import select
from lastkey.udfs.compact.clean.clean_batches import Tally, clean_chunk
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.scan_segment import chunk_at, chunks_again
from lastkey.udfs.compact.verdicts import COPIED, COUNTER_NAMES
from lastkey.udfs.report import measure_kernels as sums_of
from lastkey.udfs.report.key_counts import KeyCounts
from lastkey.udfs.report.measure_kernels import LAST_TIME, N_AGES, N_SUMS, NOTHING, add_times, add_up
from lastkey.udfs.report.partition_profile import Codec, HotKey, SegmentProfile, TimeBuckets, shown_key
from lastkey.udfs.segments import SegmentScan

HOT_KEYS: Final = 20


class Walk:
    """Walk from the end of the log to its start."""

    def __init__(
        self, plan: PartitionPlan, sources: Sequence[SegmentScan], analysis: Analysis | None, buffer: ChunkBuffer
    ) -> None:
        self.plan, self.sources, self.analysis, self.buffer = plan, list(sources), analysis, buffer
        self.cleaned = len(analysis.sources) - len(analysis.untouched) if analysis else 0  # segments from the first on
        self.first_dirty = analysis.cleanable.first_dirty_offset if analysis else 0
        self.end = analysis.cleanable.first_uncleanable_offset if analysis else 0
        self.keys = KeyCounts(plan.run.limits.task_memory_bytes // 2)
        self.times = TimeBuckets()
        self.tallies: list[Tally] = []
        self.estimated = False
        self.loader = BodyLoader(
            max_batch_bytes=plan.policy.settings.max_decompressed_batch_bytes, secret=plan.run.secret
        )
        self.chunks: list[tuple[int, int]] = []  # (source, chunk) in the order of the walk ...
        self.last_offsets: list[int] = []  # ... and the last offset of each
        # of all batches before each source
        maxima = [self._largest(i) for i in range(len(self.sources))]
        self.largest_before = np.maximum.accumulate([-1, *maxima])[:-1].tolist()
        self._is_last = np.empty(0, np.bool_)

    def segment(self, number: int) -> SegmentProfile:
        """Profile one source, after all later ones."""
        source = self.sources[number]
        cleaned = number < self.cleaned
        sums, ages, codecs = np.zeros(N_SUMS, np.int64), np.zeros(N_AGES, np.int64), np.zeros((3, 8), np.int64)
        sums[sums_of.MIN_TIME], sums[sums_of.MAX_TIME] = NOTHING, -1
        tally, after = Tally(), 0
        before = self._largest_before_chunks(number)
        with source.open_log() as file:
            for i, chunk in zip(
                reversed(range(len(source.chunks))),
                chunks_again(file, source.path, source.chunks[::-1], self.buffer),
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
        counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
        aborted, records = counters["dropped_aborted"], int(sums[sums_of.RECORDS])
        dead = counters["dropped_superseded"] + counters["dropped_tombstones"] + counters["dropped_null_key"] + aborted
        some_time = int(sums[sums_of.MAX_TIME]) >= 0
        return SegmentProfile(
            base_offset=source.base_offset,
            size_bytes=source.size,
            batches=source.n_batches,
            records=records + aborted,
            cleaned=cleaned,
            live_records=records + aborted - dead,
            live_bytes=int(sums[sums_of.LIVE_BYTES]),
            dead_records=dead,
            dead_bytes=int(sums[sums_of.DEAD_BYTES]),
            superseded=counters["dropped_superseded"],
            aborted=aborted,
            expired_tombstones=counters["dropped_tombstones"],
            bytes_after=after if cleaned else source.size,
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
        """Return the largest usable timestamp of a source's batches; reads the headers again if its largest one is
        unusable.
        """
        largest = self.sources[number].max_timestamp
        return largest if largest <= LAST_TIME else int(self._largest_of_chunks(number).max())

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
        with source.open_log() as file:
            for part in read_headers(
                file, source.path, source.start_position, source.end_position, self.buffer, Tail()
            ):
                at = np.searchsorted(starts, part.batches["position"], "right") - 1
                np.maximum.at(largest, at, _usable(part.batches["max_timestamp"]))
        return largest

    def _clean(self, chunk: Chunk, source: SegmentScan, rules: Rules, tally: Tally, see: _See) -> int:
        legacy = source.mtime_ms > rules.legacy_horizon_ms
        size = 0
        for piece in clean_chunk(
            chunk, source.path, self.loader, rules, legacy, self._mark, tally, backwards=True, see=see.decided
        ):
            size += piece.size
            self.estimated |= piece.estimated
        return size

    def _count(self, chunk: Chunk, source: SegmentScan, see: _See) -> None:
        wanted = np.ones(len(chunk.batches), np.bool_)
        for run in self.loader.runs(
            chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=True, before=chunk.before
        ):
            self._mark(run, np.empty(len(run.spans), np.bool_))
            see.run(run, np.ones(len(run.spans), np.bool_), np.full(len(run.batches), COPIED, np.int8))

    def _mark(self, run: Run, is_last: np.ndarray) -> None:
        self.keys.count(
            run, self.first_dirty, self.end, is_last, f"{self.plan.input.topic}-{self.plan.input.partition}"
        )
        self._is_last = is_last

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
            chunk = chunk_at(file, source.path, source.chunks[i], self.buffer)
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
    """Return the largest timestamps of batches, -1 for those after the year 9999: one would make all later records
    late.
    """
    return np.where(times > LAST_TIME, -1, times)


@dataclass(frozen=True)
class _See:
    """Sums to which the records of one chunk are added."""

    walk: Walk
    largest_before: np.ndarray  # int64[batches of the chunk]
    sums: np.ndarray
    ages: np.ndarray
    codecs: np.ndarray

    def decided(self, run: Run, kept: np.ndarray, cleaned: np.ndarray) -> None:
        """Add a run; called as `clean_batches.See`."""
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
            walk.plan.run.now_ms,
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
