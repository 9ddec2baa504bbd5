"""Logs drawn by hypothesis, as lists of events: each is one that a broker could have written.

Offsets rise, producers open and close their transactions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import strategies as st

from lastkey.udfs.compact.plan import PartitionPlan
from tests.builders.folders import lay_out, log_end, make_plan
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import ABORT, COMMIT, GZIP, NONE, Batch, Record, marker_batch, with_timestamps

NOW = 1_700_000_000_000
RETENTION = 1000
KEYS = [b"a", b"b", b"c", b"d", b""]


@dataclass
class Drawn:
    """A log with all that a run of the cleaner needs to know about it."""

    segments: tuple[Segment, ...]
    settings: Settings
    log_start_offset: int
    checkpoint: int | None
    sealed: bool
    null_keys: str
    times: list[int]  # times of the passes
    later_checkpoints: list[int | None]
    with_snapshots: bool


@dataclass
class _Writer:
    """Writer that turns events into batches, as a partition's leader would."""

    draw: st.DrawFn
    null_keys: bool
    transactions: bool
    legacy: bool
    offset: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def timestamp(self) -> int:
        return NOW + self.draw(st.sampled_from([0, 1, -5, -3000, 2500, -1 - NOW]))

    def records(self, headers: bool) -> list[Record]:
        """Draw one to six records, with the holes that earlier compactions leave."""
        deltas = self.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6, unique=True).map(sorted))
        keys = [*KEYS, None] if self.null_keys else KEYS
        values = [None, None, b"", b"x", b"value " * 5]
        out = []
        for delta in deltas:
            h = self.draw(st.sampled_from([(), (), ((b"h", b"1"), (b"h", None))])) if headers else ()
            key, value = self.draw(st.sampled_from(keys)), self.draw(st.sampled_from(values))
            out.append(Record(self.offset + delta, self.timestamp(), key, value, h))
        return out

    def horizon(self) -> int | None:
        return self.draw(st.sampled_from([None, None, None, NOW - 1, NOW, NOW + 1, NOW + RETENTION + 1]))

    def producer(self) -> dict[str, int | bool]:
        pid = self.draw(st.sampled_from([-1, -1, 1, 2, 7]))
        if pid == -1:
            return {}
        began = pid in self.open
        transactional = began or (self.transactions and pid < 7 and self.draw(st.booleans()))
        if transactional:
            self.open.add(pid)
        sequence = self.draw(st.sampled_from([0, 5, 2**31 - 2]))
        epoch = self.epochs.setdefault(pid, 0)
        if began and self.draw(st.integers(0, 2)) == 0:  # the marker of the transaction before is lost
            epoch = self.epochs[pid] = epoch + 1
        return {
            "producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence, "transactional": transactional,
        }  # fmt: skip

    def data(self) -> Batch:
        fields = self.producer()
        codec = self.draw(st.sampled_from([NONE, NONE, GZIP]))
        append_time = self.draw(st.sampled_from([False, False, True]))
        records = self.records(headers=True)
        if self.draw(st.integers(0, 7)) == 0:
            records, codec = [], NONE
        horizon = self.horizon() if records else None
        last = (records[-1].offset if records else self.offset) + self.draw(st.sampled_from([0, 0, 1, 3]))
        batch = Batch(
            self.offset, last, tuple(records), codec=codec, append_time=append_time, delete_horizon=horizon,
            max_timestamp=self.timestamp(), leader_epoch=self.draw(st.integers(-1, 2)),
            **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        if append_time and horizon is not None:
            records = [replace(r, timestamp=batch.max_timestamp) for r in records]
            return replace(batch, base_timestamp=horizon, records=tuple(records)).encoded()
        return with_timestamps(batch).encoded()

    def legacy_batch(self) -> Batch:
        magic, codec = self.draw(st.sampled_from([(0, NONE), (1, NONE), (0, GZIP), (1, GZIP)]))
        append_time = magic == 1 and self.draw(st.booleans())
        records = self.records(headers=False)
        if codec == NONE:
            records = [replace(records[0], offset=self.offset)]
        if magic == 0:
            records = [replace(r, timestamp=-1) for r in records]
        batch = Batch(
            records[0].offset, records[-1].offset, tuple(records), magic=magic, codec=codec, append_time=append_time,
            max_timestamp=self.timestamp(),
        )  # fmt: skip
        return with_timestamps(batch).encoded()

    def marker(self) -> Batch:
        return self.make_marker(self.draw(st.sampled_from([*sorted(self.open), 1, 2])))

    def draw_marker(self, pid: int) -> Batch:
        batch = self.make_marker(pid)
        self.offset += 1
        return batch

    def make_marker(self, pid: int) -> Batch:
        self.open.discard(pid)
        if self.draw(st.integers(0, 3)) == 0:  # fenced: the epoch rises with each transaction since KIP-890
            self.epochs[pid] = self.epochs.get(pid, 0) + 1
        return marker_batch(
            self.offset, pid, self.draw(st.sampled_from([ABORT, COMMIT])), timestamp=self.timestamp(),
            epoch=self.epochs.setdefault(pid, 0), delete_horizon=self.horizon(),
        )  # fmt: skip

    def empty_marker(self) -> Batch:
        pid = self.draw(st.sampled_from([1, 2]))
        return Batch(
            self.offset, self.offset, transactional=True, control=True, max_timestamp=self.timestamp(),
            producer_id=pid, producer_epoch=self.epochs.setdefault(pid, 0),
        ).encoded()  # fmt: skip

    def event(self) -> Batch:
        kinds = [self.data] * 6
        kinds += [self.marker, self.marker, self.empty_marker] if self.transactions else []
        kinds += [self.legacy_batch] * 2 if self.legacy else []
        batch = self.draw(st.sampled_from(kinds))()
        self.offset = batch.last_offset + 1 + self.draw(st.sampled_from([0, 0, 0, 0, 2]))
        return batch


@st.composite
def logs(draw: st.DrawFn) -> Drawn:
    null_keys = draw(st.sampled_from(["fail", "fail", "keep", "drop"]))
    writer = _Writer(
        draw, null_keys != "fail" or draw(st.integers(0, 9)) == 0, draw(st.booleans()), draw(st.integers(0, 3)) == 0,
        offset=draw(st.sampled_from([0, 0, 100])),
    )  # fmt: skip
    segments = []
    for n in draw(st.lists(st.integers(0, 5), min_size=2, max_size=5)):
        # no two files have one name: behind an empty segment the base moves on
        base = max(writer.offset, segments[-1].base_offset + 1) if segments else writer.offset
        writer.offset = base + draw(st.sampled_from([0, 0, 0, 1]))
        batches = tuple(writer.event() for _ in range(n))
        segments.append(Segment(base, batches, NOW + draw(st.sampled_from([0, -1, -RETENTION, 5000]))))
    if draw(st.booleans()):  # end open transactions, so that the whole log can be cleaned
        writer.offset = max(writer.offset, segments[-1].base_offset)
        markers = tuple(writer.draw_marker(pid) for pid in sorted(writer.open))
        segments[-1] = replace(segments[-1], batches=segments[-1].batches + markers)
    if draw(st.integers(0, 3)) == 0:  # everything below this segment may be cleaned
        segments.append(Segment(writer.offset + 1, (), NOW))
    first, end = segments[0].base_offset, log_end(segments)
    offsets = st.integers(first, end)
    any_checkpoint = st.sampled_from([None, *range(first, end + 1)])
    steps = draw(st.lists(st.sampled_from([0, 1, RETENTION, RETENTION + 1]), max_size=3))
    return Drawn(
        tuple(segments),
        Settings(
            delete_retention_ms=RETENTION,
            min_compaction_lag_ms=draw(st.sampled_from([0, 0, 0, 1, 2000])),
            segment_bytes=draw(st.sampled_from([150, 600, 1 << 30])),
            index_interval_bytes=draw(st.sampled_from([0, 150, 4096])),
            keep_null_keys=null_keys == "keep",
        ),
        log_start_offset=draw(st.one_of(st.just(first), st.just(first), offsets)),
        checkpoint=draw(any_checkpoint),
        sealed=draw(st.booleans()),
        null_keys=null_keys,
        times=[*itertools.accumulate(steps, initial=NOW)],
        later_checkpoints=[draw(any_checkpoint) if draw(st.booleans()) else None for _ in steps],
        with_snapshots=draw(st.booleans()),
    )  # fmt: skip


def plan_of_drawn(drawn: Drawn, folder: Path) -> PartitionPlan:
    """Lay out a drawn log in a folder; return the plan of its first pass."""
    return make_plan(
        lay_out(folder / "archive", drawn.segments), folder / "store", drawn.settings, now_ms=drawn.times[0],
        log_start_offset=drawn.log_start_offset, checkpoint=drawn.checkpoint, sealed=drawn.sealed,
        force=drawn.checkpoint is None, null_keys=drawn.null_keys,
    )  # fmt: skip
