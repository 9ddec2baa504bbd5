"""Rows of time_index against decoded records: both options of the draft, out of order, no timestamps, compacted."""

from __future__ import annotations

import pytest

from logformat.segment import open_segment
from tests.builders import write_segment
from tests.golden import case_names, golden
from udfs.time_index_rows import CREATE_TIME, LOG_APPEND_TIME, MINUTE_MS, TimedSegment, groups, time_index_rows


def rows_of(log):
    segment = TimedSegment("t", 3, str(log.parent), int(log.stem), log.name, log.stat().st_size, 7)
    return time_index_rows((segment,)).to_pylist()


def expected(log):
    """minute -> first offset, the slow way."""
    first = {}
    for row in open_segment(log).to_arrow(["offset", "timestamp_ms", "control"]).to_pylist():
        if not row["control"] and row["timestamp_ms"] >= 0:
            first.setdefault(row["timestamp_ms"] // MINUTE_MS, row["offset"])
    return first


def minutes(rows):
    return {round(r["minute"].timestamp()) // 60: r["first_offset"] for r in rows if r["minute"] is not None}


@pytest.mark.parametrize("name", case_names())
def test_golden_logs(name, tmp_path_factory):
    case = golden(tmp_path_factory)[name]
    for partition in case.partitions:
        for folder in (case.input(partition), case.expected(2, partition)):
            for log in sorted(folder.glob("*.log")):
                rows = rows_of(log)
                assert minutes(rows) == expected(log)
                assert {r["problem"] for r in rows} == {None}
                assert {(r["topic"], r["partition"], r["segment_base_offset"]) for r in rows} == {
                    ("t", 3, int(log.stem))
                }


def test_log_append_time_needs_no_bodies(tmp_path):
    log = write_segment(
        tmp_path, "{append_time=120000 codec=zstd} a=1~5 b=2~9 | {append_time=240001} c=3 | {append_time=240002} d=4"
    )
    data = bytearray(log.read_bytes())
    data[70] ^= 0xFF  # in the compressed body
    log.write_bytes(data)
    rows = rows_of(log)
    assert {r["timestamps"] for r in rows} == {LOG_APPEND_TIME}
    assert minutes(rows) == {2: 0, 4: 2}


def test_create_time_out_of_order(tmp_path):
    log = write_segment(tmp_path, "a=1~180000 b=2~60000 | c=3~180001 d=4~1 | {append_time=600000} e=5")
    rows = rows_of(log)
    assert {r["timestamps"] for r in rows} == {CREATE_TIME}
    assert minutes(rows) == {3: 0, 1: 1, 0: 3, 10: 4}


def test_a_segment_without_data_has_a_row(tmp_path):
    log = write_segment(tmp_path, "{pid=1 txn ts=-1} a=1~-1 | {pid=1 commit}")
    [row] = rows_of(log)
    assert (row["minute"], row["first_offset"], row["size_bytes"]) == (None, None, log.stat().st_size)


def test_a_bad_log_says_so(tmp_path):
    log = write_segment(tmp_path, "a=1~60000 | b=2~120000")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    assert {"crc" in row["problem"] for row in rows_of(log)} == {True}


def test_groups():
    segments = [TimedSegment("t", 0, "", i, "", size, 0) for i, size in enumerate([5, 5, 20, 1, 1])]
    assert [[s.base_offset for s in group] for group in groups(segments, 10)] == [[0, 1], [2], [3, 4]]
