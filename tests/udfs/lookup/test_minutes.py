"""Rows of time_index against decoded records: both options of the draft, out of order, no timestamps, compacted."""

from __future__ import annotations

import random

import pytest

from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.listing import Segment
from lastkey.udfs.groups import groups
from lastkey.udfs.lookup.minutes import CREATE_TIME, LOG_APPEND_TIME, MINUTE_MS, TimedSegment, time_index_rows
from tests.builders.logs import write_segment
from tests.builders.trees import files_in
from tests.golden import case_names, golden
from tests.reference.time_index import first_offsets


def minute_rows(log):
    segment = TimedSegment("t", 3, Segment(str(log.parent), log.name, int(log.stem), log.stat().st_size, 7))
    return time_index_rows((segment,)).to_pylist()


def expected(log):
    """Return minute -> first offset, the slow way."""
    table = open_segment(log).to_arrow(["offset", "timestamp_ms", "control"])
    return first_offsets(zip(*(column.to_pylist() for column in table.columns), strict=True))


def minutes(rows):
    return {round(r["minute"].timestamp()) // 60: r["first_offset"] for r in rows if r["minute"] is not None}


@pytest.mark.parametrize("name", case_names())
def test_minutes_of_golden_logs_equal_those_of_their_records(name, tmp_path_factory):
    case = golden(tmp_path_factory)[name]
    for partition in case.partitions:
        for folder in (case.input(partition), case.expected(2, partition)):
            for log in files_in(folder):
                rows = minute_rows(log)
                assert minutes(rows) == expected(log)
                assert {r["problem"] for r in rows} == {None}
                assert {(r["topic"], r["partition"], r["segment_base_offset"]) for r in rows} == {
                    ("t", 3, int(log.stem))
                }


def test_log_append_time_is_indexed_without_reading_bodies(tmp_path):
    log = write_segment(
        tmp_path, "{append_time=120000 codec=zstd} a=1~5 b=2~9 | {append_time=240001} c=3 | {append_time=240002} d=4"
    )
    data = bytearray(log.read_bytes())
    data[70] ^= 0xFF  # in the compressed body
    log.write_bytes(data)
    rows = minute_rows(log)
    assert {r["timestamps"] for r in rows} == {LOG_APPEND_TIME}
    assert minutes(rows) == {2: 0, 4: 2}


def test_unordered_create_times_are_indexed(tmp_path):
    log = write_segment(tmp_path, "a=1~180000 b=2~60000 | c=3~180001 d=4~1 | {append_time=600000} e=5")
    rows = minute_rows(log)
    assert {r["timestamps"] for r in rows} == {CREATE_TIME}
    assert minutes(rows) == {3: 0, 1: 1, 0: 3, 10: 4}


@pytest.mark.parametrize("header", ["", "{codec=lz4} ", "{append_time=%d} ", "{append_time=%d pid=1 txn} "])
def test_random_minutes_are_added(tmp_path, header):
    rng = random.Random(header)
    batches = []
    for i in range(120):
        times = [rng.choice([-1, rng.randrange(20) * MINUTE_MS, rng.randrange(2**40)]) for _ in range(3)]
        begin = header % times[0] if "%" in header else header
        batches.append(begin + " ".join(f"k{i}{j}=v~{time}" for j, time in enumerate(times)))
        if "txn" in header:
            batches.append("{pid=1 abort}")
    log = write_segment(tmp_path, " | ".join(batches))
    rows = minute_rows(log)
    assert minutes(rows) == expected(log)
    assert [row["minute"] for row in rows] == sorted(row["minute"] for row in rows)
    assert len(rows) > 40


def test_impossible_timestamp_has_no_minute(tmp_path):
    rows = minute_rows(write_segment(tmp_path, f"a=1~{2**62} b=2~60000"))
    assert [(row["minute"] is None, row["first_offset"]) for row in rows] == [(False, 1), (True, 0)]


def test_segment_without_data_has_a_row(tmp_path):
    log = write_segment(tmp_path, "{pid=1 txn ts=-1} a=1~-1 | {pid=1 commit}")
    [row] = minute_rows(log)
    assert (row["minute"], row["first_offset"], row["size_bytes"]) == (None, None, log.stat().st_size)


def test_damaged_log_is_reported(tmp_path):
    log = write_segment(tmp_path, "a=1~60000 | b=2~120000")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    assert {"crc" in row["problem"] for row in minute_rows(log)} == {True}


def test_segment_groups_are_limited_by_size():
    segments = [Segment("", "", i, size, 0) for i, size in enumerate([5, 5, 20, 1, 1])]
    assert [[s.base_offset for s in group] for group in groups(segments, lambda s: s.size_bytes, 10)] == [
        [0, 1],
        [2],
        [3, 4],
    ]
