"""Searches by offset and by time: what a slow twin finds in the decoded records, whatever the indexes are like."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from logformat.log_files import SegmentFiles
from logformat.partition_log import (
    EARLIEST,
    END,
    FOUND,
    LATEST,
    MAX_TIMESTAMP,
    OUT_OF_RANGE,
    PartitionLog,
    open_partition,
    to_arrow,
)
from logformat.segment import open_segment
from tests.builders import START_MS, write_partition
from tests.golden import case_names, golden
from tests.reference.lookup import Batch, Log, Segment

STATUS = {"found": FOUND, "end": END, "out_of_range": OUT_OF_RANGE}


def twin_of(segments: tuple[SegmentFiles, ...], log_start: int) -> Log:
    """The decoded log."""
    decoded = []
    for files in segments:
        segment = open_segment(files.log)
        table = segment.to_arrow(["offset", "timestamp_ms"])
        records = list(zip(table["offset"].to_pylist(), table["timestamp_ms"].to_pylist(), strict=True))
        batches, at = [], 0
        for row in segment.headers():
            until = at
            while until < len(records) and records[until][0] <= row["last_offset"]:
                until += 1
            batches.append(
                Batch(
                    int(row["position"]),
                    int(row["size"]),
                    int(row["base_offset"]),
                    int(row["last_offset"]),
                    int(row["max_timestamp"]),
                    int(row["magic"]),
                    int(row["partition_leader_epoch"]),
                    tuple(records[at:until]),
                )
            )
            at = until
        decoded.append(Segment(files.base_offset, files.mtime_ms, tuple(batches)))
    return Log(tuple(decoded), log_start)


def location(found) -> tuple[int, ...]:
    """What `Log.read` gives, as a LOCATION."""
    status, segment, batch = found
    if batch is None:
        return STATUS[status], -1, -1, -1, -1, -1
    return FOUND, segment.base_offset, batch.position, batch.size, batch.base_offset, batch.last_offset


def check(log: PartitionLog, twin: Log, offsets: list[int], times: list[int], end_offset: int | None = None) -> None:
    """Every way to ask gives the twin's answers."""
    expected = [location(twin.read(offset, end_offset)) for offset in offsets]
    assert log.lookup_offsets(offsets).tolist() == expected
    for offset, one in zip(offsets[:50], expected, strict=False):
        assert log.lookup_offset(offset) == (one[1:] if one[0] == FOUND else None)
    expected = [twin.offset_for_time(time, end_offset) or (-1,) * 5 for time in times]
    assert log.offsets_for_times(times).tolist() == expected
    for time, one in list(zip(times, expected, strict=True))[:10]:
        assert log.offsets_for_times([time]).tolist() == [one]
    best = log.max_timestamp()
    assert (best.offset, best.timestamp, best.leader_epoch) == (twin.offset_for_time(-3, end_offset) or (-1,) * 3)[:3]


def questions(twin: Log, rng: random.Random, n: int) -> tuple[list[int], list[int]]:
    """Offsets and timestamps, at random and at every border."""
    known = [time for segment in twin.segments for batch in segment.batches for _, time in batch.records if time >= 0]
    near = [rng.choice(known) + rng.randrange(-2, 3) for _ in range(n)] if known else []
    edges = [segment.mtime_ms + d for segment in twin.segments for d in (0, 1)]
    times = [max(time, 0) for time in (*near, *edges, 0, 2**62)]
    borders = [base + d for base in (s.base_offset for s in twin.segments) for d in (-1, 0, 1)]
    offsets = [rng.randrange(-2, twin.log_end + 3) for _ in range(n)]
    offsets += [*borders, twin.log_start - 1, twin.log_end - 1, twin.log_end, twin.log_end + 1]
    return offsets, [*times, MAX_TIMESTAMP]


@pytest.mark.parametrize("name", case_names())
def test_golden_logs(name, tmp_path_factory):
    case, rng = golden(tmp_path_factory)[name], random.Random(name)
    for partition in case.partitions:
        for folder in (case.input(partition), *(case.expected(number, partition) for number in (1, 2, 3))):
            with open_partition(folder) as log:
                twin = twin_of(log.segments, log.earliest)
                assert (log.earliest, log.latest) == (twin.log_start, twin.log_end)
                check(log, twin, *questions(twin, rng, 60))
                assert log.notes == ()


def test_what_a_notebook_does(tmp_path: Path):
    folder = tmp_path / "orders-3"
    folder.mkdir()
    write_partition(folder, "a=1 b=2 | c=3 || {leader=2} d=4 e=5")
    log = open_partition(folder)
    assert (
        repr(log) == f"PartitionLog('orders-3', 2 segments, {sum(f.size for f in log.segments):,} bytes, from offset 0)"
    )
    assert log.lookup_offset(4) == (3, 0, log.segments[1].size, 3, 4)
    assert log.lookup_offset(5) is None
    answers = log.offsets_for_times([START_MS + 2, EARLIEST, LATEST, START_MS + 9])
    assert answers["offset"].tolist() == [2, 0, 5, -1]
    assert answers["leader_epoch"].tolist() == [0, 0, 2, -1]
    assert to_arrow(answers).to_pylist()[3] == dict.fromkeys(answers.dtype.names)
    table = to_arrow(log.lookup_offsets([4, 5, 6]))
    assert table["status"].to_pylist() == ["found", "end", "out_of_range"]
    assert table["position"].to_pylist() == [0, None, None]
    assert table.schema.field("last_offset").type == pa.int64()
    with pytest.raises(ValueError, match="not a timestamp: -7"):
        log.offsets_for_times(np.array([-7]))
