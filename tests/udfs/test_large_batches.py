"""A batch larger in its file than max.decompressed.batch.bytes is refused, whatever the chunk; a larger limit reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files.small_files import MOST_SIDE_BYTES, MOST_TEXT_BYTES, most_side_bytes, read_side_file
from tests.builders.damage import BOMB_LIMIT, RECORDS, SEGMENT_OFFSETS, START_MS, Partition, batch_at, build
from tests.builders.opened import open_partition
from tests.builders.plans import changed
from tests.builders.sources import read
from tests.reference.log import data_batch

INNER = SEGMENT_OFFSETS
LARGE = INNER + RECORDS


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    """Write a partition in which the middle batch of an inner segment has 1.5 times the limit, uncompressed."""
    part = build(tmp_path / "archive")
    value = bytes(BOMB_LIMIT * 3 // 2 // RECORDS)
    large = data_batch(LARGE, [(START_MS + 10**6 + i, b"large-%d" % i, value) for i in range(RECORDS)], leader_epoch=3)
    part.write(INNER, [batch_at(INNER), large, batch_at(INNER + 2 * RECORDS)])
    return part


@pytest.mark.parametrize("chunk_bytes", [1 << 16, 8 << 20])
def test_large_batch_is_quarantined_with_the_name_of_the_setting(part, chunk_bytes):
    """The other batches of a chunk change nothing."""
    position = part.positions(INNER)[1]
    part.limits = replace(part.limits, chunk_bytes=chunk_bytes)
    for problem in (part.compact().problem, part.verify(chunk_bytes=chunk_bytes).problems[0]):
        assert problem is not None
        assert (problem.kind, problem.position, problem.base_offset) == ("bomb", position, LARGE)
        assert f"{BOMB_LIMIT} bytes (max.decompressed.batch.bytes)" in str(problem)
    assert len(part.verify(chunk_bytes=chunk_bytes).problems) == 1, "the batch behind it is read"


def test_larger_limit_accepts_the_batch(part):
    plan = part.plan()
    plan = changed(plan, settings=replace(plan.policy.settings, max_decompressed_batch_bytes=2 * BOMB_LIMIT))
    assert part.compact(plan=plan).status == "cleaned"


def test_data_source_continues_after_a_too_large_batch(part):
    options = {"maxDecompressedBatchBytes": str(BOMB_LIMIT), "badRecords": "quarantine", "columns": "offset"}
    everything = list(range(4 * SEGMENT_OFFSETS))
    rows = read("kafka_log", part.root, **options).to_pylist()
    lost = range(LARGE, LARGE + RECORDS)
    assert [row["offset"] for row in rows if not row["problem"]] == [o for o in everything if o not in lost]
    assert [row["problem"]["kind"] for row in rows if row["problem"]] == ["bomb"]
    assert read("kafka_log", part.root)["offset"].to_pylist() == everything


def test_search_and_segment_refuse_a_too_large_batch(part):
    with pytest.raises(LogFormatError, match="bomb"):
        open_partition(part.folder, max_batch_bytes=BOMB_LIMIT).offsets_for_times([START_MS + 10**6])
    assert open_partition(part.folder).offsets_for_times([START_MS + 10**6])["offset"].tolist() == [LARGE]
    segment = open_segment(part.log(INNER), chunk_bytes=1 << 16, max_batch_bytes=BOMB_LIMIT)
    with pytest.raises(LogFormatError, match="bomb"):
        segment.to_arrow()
    assert open_segment(part.log(INNER), chunk_bytes=1 << 16).to_arrow().num_rows == 3 * RECORDS


def test_side_files_are_read_up_to_their_limit():
    assert most_side_bytes("a/00.snapshot") == most_side_bytes("a/00.txnindex.deleted") == MOST_SIDE_BYTES
    assert most_side_bytes("a/leader-epoch-checkpoint") == most_side_bytes("meta.properties") == MOST_TEXT_BYTES
    assert most_side_bytes("a/00.index") == MOST_SIDE_BYTES < most_side_bytes("a/00.timeindex", 2**31 - 1)
    text = bytes(MOST_TEXT_BYTES)
    assert read_side_file(pa.BufferReader(text), "leader-epoch-checkpoint") == text
    with pytest.raises(LogFormatError, match=f"no more than {MOST_TEXT_BYTES} bytes") as caught:
        read_side_file(pa.BufferReader(text + b"\n"), "leader-epoch-checkpoint")
    assert caught.value.kind == "side_file"
