"""Kafka's rules on numbers: the cleanable range, when it is due, segments that become one, the rest of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.layout import BATCH, CONTROL_MASK, DELETE_HORIZON_MASK
from lastkey.udfs.compact.cleaner import (
    CleanableRange,
    LastBatches,
    SegmentTimes,
    batch_retention,
    cleanable_range,
    compaction_delay_ms,
    first_dirty_offset,
    group_segments_by_size,
    is_due,
    is_last_of_producer,
    last_stable_offset,
)
from lastkey.udfs.compact.verdicts import DELETE, DELETE_EMPTY, RETAIN_EMPTY

NOBODY = LastBatches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int16))


def facts(
    bases: list[int],
    sizes: list[int] | None = None,
    timestamps: list[int] | None = None,
    mtimes: list[int] | None = None,
) -> SegmentTimes:
    """Return facts of segments whose batches all carry the same timestamp."""
    n = len(bases)
    times = np.array(timestamps or [0] * n, np.int64)
    return SegmentTimes(
        np.array(bases, np.int64), np.array(sizes or [100] * n, np.int64), times, times.copy(),
        np.array(mtimes or [0] * n, np.int64),
    )  # fmt: skip


def ranged(segments: SegmentTimes, **given_: int) -> CleanableRange:
    """Return the cleanable range of a log with ten offsets a segment, the last of them active."""
    end = int(segments.base_offset[-1]) + 10
    usual = {
        "first_dirty": int(segments.base_offset[0]), "log_end_offset": end,
        "active_base_offset": int(segments.base_offset[-1]), "last_stable_offset": end, "min_compaction_lag_ms": 0,
        "now_ms": 1_000_000,
    }  # fmt: skip
    return cleanable_range(segments, **{**usual, **given_})


# LogCleanerManagerTest


@pytest.mark.parametrize(
    ("checkpoint", "log_start", "expected"),
    [(None, 10, 10), (0, 10, 10), (15, 10, 15), (10, 10, 10), (20, 10, 20), (200, 10, 20)],
)
def test_dirty_section_begins_at_the_checkpoint_within_the_log(
    checkpoint: int | None, log_start: int, expected: int
) -> None:
    """testDirtyOffsetResetIfSmallerThanStartOffset; a checkpoint beyond the end is refused elsewhere (`diverged`)."""
    assert first_dirty_offset(checkpoint, log_start, 20) == expected


def test_cleanable_offsets_end_at_the_active_segment() -> None:
    assert ranged(facts([0, 10, 20])).first_uncleanable_offset == 20


def test_a_sealed_log_is_cleaned_to_its_end() -> None:
    assert ranged(facts([0, 10, 20]), active_base_offset=30).first_uncleanable_offset == 30


@pytest.mark.parametrize(
    ("unstable", "log_start", "expected"),
    [
        (30, 0, 30),  # no open transaction
        (3, 0, 3),  # inside a segment
        (8, 0, 20),  # behind the last batch of its segment, and the next one is empty
        (3, 8, 20),  # the log start is
        (3, 12, 20),  # the log start lies in the empty segment
        (25, 0, 30),  # behind the last batch of the log
    ],
)
def test_last_stable_offset_is_determined_by_batches(unstable: int, log_start: int, expected: int) -> None:
    bases, lasts = np.array([0, 10, 20]), np.array([7, -1, 24])
    assert last_stable_offset(unstable, log_start, bases, lasts, 30) == expected


@pytest.mark.parametrize(("last_stable", "expected"), [(0, 0), (9, 0), (10, 10), (19, 10), (20, 20), (25, 20)])
def test_cleanable_offsets_end_at_the_segment_of_the_last_stable_offset(last_stable: int, expected: int) -> None:
    assert ranged(facts([0, 10, 20]), last_stable_offset=last_stable).first_uncleanable_offset == expected


@pytest.mark.parametrize(
    ("timestamps", "mtimes", "expected"),
    [
        ([100, 100, 100], [0, 0, 0], 20),  # testCleanableOffsetsForShortTime: all are old
        ([100, 501, 100], [0, 0, 0], 10),  # testCleanableOffsetsForTime: the second is young
        ([100, 500, 100], [0, 0, 0], 20),  # as old as the lag
        ([100, -1, 100], [0, 501, 0], 10),  # no timestamps: the file's time
        ([100, 501, 100], [0, 0, 0], 10),
        ([100, 100, 900], [0, 0, 0], 20),  # the active one does not count
    ],
)
def test_min_lag_excludes_segments_from_the_first_recent_one_on(
    timestamps: list[int], mtimes: list[int], expected: int
) -> None:
    got = ranged(facts([0, 10, 20], None, timestamps, mtimes), min_compaction_lag_ms=500, now_ms=1000)
    assert got.first_uncleanable_offset == expected


def test_min_lag_considers_only_dirty_segments() -> None:
    segments = facts([0, 10, 20, 30], None, [900, 100, 100, 100])
    assert ranged(segments, first_dirty=10, min_compaction_lag_ms=500, now_ms=1000).first_uncleanable_offset == 30
    assert ranged(segments, first_dirty=9, min_compaction_lag_ms=500, now_ms=1000).cleanable_bytes == 0


def test_dirty_offset_above_the_active_base_leaves_no_cleanable_range() -> None:
    got = ranged(facts([0, 10, 20]), first_dirty=25)
    assert got.cleanable_bytes == 0
    assert got.first_uncleanable_offset == 20


def test_log_start_in_the_active_segment_leaves_no_cleanable_range() -> None:
    assert ranged(facts([0]), first_dirty=5).cleanable_bytes == 0


# LogCleanerTest.testLogToClean, testLogToCleanWithUncleanableSection


def test_clean_and_cleanable_bytes_give_the_dirty_ratio() -> None:
    got = ranged(facts([0, 10, 20, 30], [100, 200, 300, 400]), first_dirty=10)
    assert (got.clean_bytes, got.cleanable_bytes) == (100, 500)
    assert got.ratio == 500 / 600


def test_segment_with_the_first_dirty_offset_counts_as_clean_and_dirty() -> None:
    got = ranged(facts([0, 10, 20, 30], [100, 200, 300, 400]), first_dirty=15)
    assert (got.clean_bytes, got.cleanable_bytes) == (300, 500)


def test_cleanable_bytes_exclude_the_uncleanable_section() -> None:
    got = ranged(facts([0, 10, 20, 30], [100, 200, 300, 400]), first_dirty=10, last_stable_offset=25)
    assert (got.clean_bytes, got.cleanable_bytes) == (100, 200)


def test_empty_log_has_dirty_ratio_zero() -> None:
    assert CleanableRange(0, 0, 0, 0).ratio == 0.0


# LogCleanerManager.maxCompactionDelay and grabFilthiestCompactedLog


@pytest.mark.parametrize(
    ("first_dirty", "timestamps", "expected"),
    [
        (0, [100, 200, 50], 400),  # the active segment does not count
        (10, [100, 200, 50], 300),
        (0, [600, 700, 0], 0),  # not yet
        (0, [500, 700, 0], 0),  # just now
        (0, [-1, 200, 0], 300),  # no timestamp
        (0, [0, 200, 0], 300),  # zero is none
        (20, [100, 200, 50], 0),  # nothing is dirty
    ],
)
def test_compaction_delay_is_that_of_the_oldest_dirty_record(
    first_dirty: int, timestamps: list[int], expected: int
) -> None:
    assert compaction_delay_ms(facts([0, 10, 20], None, timestamps), first_dirty, 20, 500, 1000) == expected


def test_compaction_delay_is_zero_without_a_max_lag() -> None:
    assert compaction_delay_ms(facts([0, 10], None, [1, 1]), 0, 10, 2**63 - 1, 2**62) == 0


@pytest.mark.parametrize(
    ("clean", "dirty", "delay", "ratio", "volume", "force", "expected"),
    [
        (50, 50, 0, 0.5, 0, False, False),  # the ratio must be exceeded
        (49, 51, 0, 0.5, 0, False, True),
        (0, 51, 0, 0.5, 52, False, False),  # ratio without volume
        (0, 52, 0, 0.5, 52, False, True),
        (99, 1, 1, 0.5, 100, False, True),  # the lag alone
        (99, 0, 1, 0.5, 0, False, False),  # nothing to clean
        (99, 1, 0, 0.5, 100, True, True),
        (99, 0, 0, 0.5, 100, True, False),  # nothing from the log start on
        (0, 0, 0, 0.0, 0, True, False),
    ],
)
def test_partition_is_due_by_delay_ratio_volume_or_force(
    clean: int, dirty: int, delay: int, ratio: float, volume: int, force: bool, expected: bool
) -> None:
    assert is_due(CleanableRange(0, 10, clean, dirty), delay, ratio, volume, force) is expected


# LogCleanerTest.testSegmentGrouping and its neighbours


def grouped(
    bases: list[int], sizes: list[int], end: int, max_bytes: int = 10**9, max_index: int = 10**9, index: int = 8
) -> list[list[int]]:
    groups = group_segments_by_size(
        bases, sizes, [index] * len(bases), [12] * len(bases), end_offset=end, max_bytes=max_bytes,
        max_index_bytes=max_index,
    )  # fmt: skip
    assert [i for g in groups for i in g] == list(range(len(bases)))
    return [list(g) for g in groups]


def test_segments_are_grouped_by_size() -> None:
    bases, sizes = list(range(0, 70, 10)), [100] * 7
    assert grouped(bases, sizes, 70) == [[0, 1, 2, 3, 4, 5, 6]]
    assert grouped(bases, sizes, 70, max_bytes=1) == [[i] for i in range(7)]
    assert grouped(bases, sizes, 70, max_index=1) == [[i] for i in range(7)]
    assert grouped(bases, sizes, 70, max_bytes=300) == [[0, 1, 2], [3, 4, 5], [6]]
    assert grouped(bases, sizes, 70, max_bytes=399) == [[0, 1, 2], [3, 4, 5], [6]]
    assert grouped(bases, sizes, 70, max_index=36) == [[0, 1, 2], [3, 4, 5], [6]]
    assert grouped(bases, sizes, 70, max_index=24, index=0) == [[0, 1], [2, 3], [4, 5], [6]]
    assert grouped([], [], 0) == []


def test_groups_of_sparse_segments_are_limited_by_offsets() -> None:
    """A relative offset limits the range of a group; the last segment ends below the end."""
    limit = 2**31 - 1
    assert grouped([0, 10], [100, 100], limit + 1) == [[0, 1]]
    assert grouped([0, 10], [100, 100], limit + 2) == [[0], [1]]
    assert grouped([0, 10, limit + 1], [100] * 3, limit + 5) == [[0, 1], [2]]
    assert grouped([0, 10, limit + 2], [100] * 3, limit + 5) == [[0], [1, 2]]


def test_groups_of_sparse_and_empty_segments_are_limited_by_offsets() -> None:
    limit = 2**31 - 1
    bases = [0, limit, 2 * limit]
    assert grouped(bases, [100, 100, 100], 2 * limit + 10) == [[0], [1], [2]]
    assert grouped(bases, [0, 0, 100], 2 * limit + 10) == [[0, 1], [2]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**30), st.integers(0, 300)), max_size=12), st.integers(1, 600))
def test_every_group_has_the_maximum_size(steps: list[tuple[int, int]], max_bytes: int) -> None:
    bases = np.cumsum([0, *(step for step, _ in steps)]).tolist()
    sizes, end = [size for _, size in steps], bases[-1]
    bases = bases[:-1]
    groups = grouped(bases, sizes, end, max_bytes)

    def fits(members: list[int]) -> bool:
        last = (bases[members[-1] + 1] if members[-1] + 1 < len(bases) else end) - 1
        return sum(sizes[i] for i in members) <= max_bytes and (
            sizes[members[-1]] == 0 or last - bases[members[0]] <= 2**31 - 1
        )

    for number, members in enumerate(groups):
        assert all(fits(members[:n]) for n in range(2, len(members) + 1))
        if number + 1 < len(groups):
            assert not fits([*members, members[-1] + 1])


# Cleaner.isBatchLastRecordOfProducer, RecordFilter.checkBatchRetention


def batch(last_offset: int, **fields: int) -> np.ndarray:
    row = np.zeros(1, BATCH)
    row["magic"], row["producer_id"], row["last_offset"], row["base_offset"] = 2, -1, last_offset, last_offset
    for name, value in fields.items():
        row[name] = value
    return row


PRODUCERS = LastBatches(np.array([3, 7]), np.array([50, -1]), np.array([1, 2], np.int16))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (batch(50, producer_id=3, producer_epoch=1), True),
        (batch(50, producer_id=3, producer_epoch=0), True),  # by its offset, with any epoch
        (batch(49, producer_id=3, producer_epoch=1), False),
        (batch(60, producer_id=3, producer_epoch=1, attributes=CONTROL_MASK), False),
        (batch(60, producer_id=7, producer_epoch=2, attributes=CONTROL_MASK), True),  # wrote only markers: by epoch
        (batch(61, producer_id=7, producer_epoch=2, attributes=CONTROL_MASK), True),
        (batch(60, producer_id=7, producer_epoch=1, attributes=CONTROL_MASK), False),
        (batch(60, producer_id=7, producer_epoch=2), False),
        (batch(50, producer_id=-1), False),
        (batch(50, producer_id=4), False),  # not active, or never heard of
        (batch(50, producer_id=9), False),
    ],
)
def test_last_batch_of_a_producer_is_identified(row: np.ndarray, expected: bool) -> None:
    assert is_last_of_producer(row, PRODUCERS).tolist() == [expected]
    assert is_last_of_producer(row, NOBODY).tolist() == [False]


HORIZON = CONTROL_MASK | DELETE_HORIZON_MASK


@pytest.mark.parametrize(
    ("row", "discardable", "retention", "drop"),
    [
        (batch(5), False, DELETE_EMPTY, False),
        (batch(5), True, DELETE, True),  # aborted
        (batch(9), True, RETAIN_EMPTY, True),  # the last batch of the round
        (batch(9), False, RETAIN_EMPTY, False),
        (batch(50, producer_id=3), True, RETAIN_EMPTY, True),
        (batch(5, attributes=CONTROL_MASK), True, DELETE_EMPTY, False),  # no horizon yet
        (batch(5, attributes=HORIZON, base_timestamp=1001), True, DELETE_EMPTY, False),
        (batch(5, attributes=HORIZON, base_timestamp=1000), True, DELETE, True),
        (batch(5, attributes=HORIZON, base_timestamp=1000), False, DELETE_EMPTY, False),
        (batch(60, attributes=HORIZON, base_timestamp=0, producer_id=7, producer_epoch=2), True, RETAIN_EMPTY, True),
    ],
)
def test_batch_retention_is_that_of_kafka(row: np.ndarray, discardable: bool, retention: int, drop: bool) -> None:
    got, dropped = batch_retention(row, np.array([discardable]), PRODUCERS, 10, 1000)
    assert (got.tolist(), dropped.tolist()) == ([retention], [drop])
