"""A file that changes between two reads makes its partition uncleanable (`changed`): unchecked bytes get no new
checksum.

The files are real, and change at a chosen read (tests.builders.faults).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np
import pytest

from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, CleanedRun
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.plan import PartitionResult
from lastkey.udfs.problem import Problem
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.storage import Root
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, START_MS, Partition, build
from tests.builders.faults import Fault, faults, happened
from tests.builders.folders import lay_out, make_plan
from tests.builders.splits import compact_in_blocks
from tests.builders.trees import files_in
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import data_batch

HEADER = [
    0,
    4,
    7,
    8,
    11,
    12,
    13,
    15,
    16,
    17,
    20,
    21,
    22,
    23,
    26,
    27,
    34,
    42,
    43,
    50,
    51,
    53,
    57,
    60,
]  # positions below 61
BODY = [61, 62, 63, 70, 80]


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


@pytest.fixture
def copied(part: Partition) -> Partition:
    """Write a third segment that keeps all its records: its batches are copied as they are, and so read a third
    time.
    """
    base = 2 * SEGMENT_OFFSETS
    records = [
        (START_MS + i, b"only-%d" % i, b"value %05d, some bytes" % i) for i in range(base, base + SEGMENT_OFFSETS)
    ]
    batches = [
        data_batch(base + i, records[i : i + RECORDS], leader_epoch=3) for i in range(0, SEGMENT_OFFSETS, RECORDS)
    ]
    part.write(base, batches)
    return part


def log_path(part: Partition, number: int = 1) -> Path:
    return files_in(part.folder)[number]


def uncleanable(result: PartitionResult, part: Partition) -> Problem:
    assert result.status == "uncleanable", result
    assert result.problem is not None
    left = [p for p in part.store.rglob("*") if p.is_file()] if part.store.exists() else []
    assert not left
    return result.problem


def changed(part: Partition, tmp_path: Path, *given: Fault) -> Problem:
    """Compact while faults happen; check that each happened, and return the problem, of kind "changed"."""
    plan = part.plan()
    with faults(tmp_path, *given):
        problem = uncleanable(compact_partition(plan), part)
    did = happened(tmp_path)
    assert len(did) == len(given) > 0 and all(did)
    assert problem.kind == "changed"
    return problem


@pytest.mark.parametrize("at", HEADER + BODY)
def test_byte_flipped_before_the_second_read_is_detected(part: Partition, tmp_path: Path, at: int) -> None:
    log = log_path(part)
    position = part.positions(int(log.stem))[1]
    fault = Fault("read", str(log), nth=2, at=position + at, flip=(position + at, 0x01))
    problem = changed(part, tmp_path, fault)
    assert problem.path == f"t-0/{log.name}"
    assert "CRC-32C" in problem.expected
    # byte by byte: a batch's own checksum covers byte 21 and what follows; it names the batch then
    assert problem.position == (position if at >= 17 else problem.position)


@pytest.mark.parametrize("at", HEADER + BODY)
def test_byte_flipped_before_copying_batches_is_detected(copied: Partition, tmp_path: Path, at: int) -> None:
    log = log_path(copied, 2)
    position = copied.positions(int(log.stem))[1]
    problem = changed(copied, tmp_path, Fault("read", str(log), nth=3, at=position + at, flip=(position + at, 0x80)))
    assert problem.path == f"t-0/{log.name}"


@pytest.mark.parametrize("nth", [2, 3])
def test_truncation_before_a_later_read_is_detected(copied: Partition, tmp_path: Path, nth: int) -> None:
    log = log_path(copied, 2)
    problem = changed(copied, tmp_path, Fault("open", str(log), nth=nth, truncate=100))
    assert (problem.path, problem.found) == (f"t-0/{log.name}", "end of file")


@pytest.mark.parametrize("nth", [2, 3])
def test_replacement_by_a_log_of_the_same_size_is_detected(copied: Partition, tmp_path: Path, nth: int) -> None:
    """All checksums fit, all offsets and sizes are the same: only the values differ."""
    log = log_path(copied, 2)
    data = bytearray(log.read_bytes())
    _sign_other_values(data, copied.positions(int(log.stem)))
    problem = changed(copied, tmp_path, Fault("open", str(log), nth=nth, replace=bytes(data)))
    assert problem.path == f"t-0/{log.name}"


def _sign_other_values(data: bytearray, positions: list[int]) -> None:
    for start, end in zip(positions, [*positions[1:], len(data)], strict=True):
        data[end - 2] ^= 0x20  # in the last value; the last byte counts its headers
        data[start + 17 : start + 21] = google_crc32c.value(bytes(data[start + 21 : end])).to_bytes(4, "big")


@pytest.mark.parametrize("nth", [2, 3])
def test_changes_between_reads_of_splits_are_detected(part: Partition, tmp_path: Path, nth: int) -> None:
    """The second read finds the keys, the third writes; both are compared with the scan."""
    log = log_path(part, 1)
    plan = part.plan()
    with faults(tmp_path, Fault("read", str(log), nth=nth, at=70, flip=(70, 0x01))):
        problem = compact_in_blocks(plan).result.problem
    assert happened(tmp_path) == [1]
    assert problem is not None
    assert (problem.kind, problem.path) == ("changed", f"t-0/{log.name}")


@pytest.mark.parametrize("nth", [2, 3])
def test_changes_between_reads_of_report_are_detected(part: Partition, tmp_path: Path, nth: int) -> None:
    """The second read counts records; the third reads a hot key's bytes at their position."""
    log = log_path(part, 3)
    plan = part.plan()
    with faults(tmp_path, Fault("read", str(log), nth=nth, at=65, flip=(65, 0x01))):
        profile = profile_partition(ProfilePlan(plan, compacted=True))
    assert happened(tmp_path) == [1]
    assert profile.problem is not None
    assert (profile.problem.kind, profile.problem.path) == ("changed", f"t-0/{log.name}")


def test_output_with_a_read_back_mismatch_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilt batches that waited in the temporary file are compared with the written bytes: here a bit is lost."""
    made: list[IO[bytes]] = []
    real = tempfile.TemporaryFile

    def temporary_file(**given: Any) -> IO[bytes]:
        made.append(real(**given))
        return made[-1]

    monkeypatch.setattr("lastkey.udfs.compact.output.piece_stack.tempfile.TemporaryFile", temporary_file)
    stack = PieceStack(0)
    rows, data = np.zeros(1, OUT_BATCH), np.arange(200, dtype=np.uint8)
    rows["size"] = len(data)
    nothing = Chunk(0, np.empty(0, np.uint8), np.empty(0, BATCH))
    stack.push(0, CleanedRun(rows, data, -1, len(data)), nothing)
    assert bytes(np.concatenate([part for _, part in stack.drain([])])) == data.tobytes()
    again = PieceStack(0)
    again.push(0, CleanedRun(rows, data, -1, len(data)), nothing)
    made[1].seek(100)
    made[1].write(b"\0")
    with pytest.raises(LogFormatError, match="temporary file") as raised:
        list(again.drain([]))
    assert raised.value.kind == "readback"


def test_file_copied_to_an_earlier_base_offset_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several splits: nothing of the first groups survives, and the next file is copied under their base, on storage
    that cannot move files.
    """
    monkeypatch.setattr(Root, "is_local", property(lambda self: False))
    values = [[(5, b"a", b"1")], [(6, b"a", b"2")], [(7, b"a", b"3"), (8, b"b", b"4")], [(9, b"c", b"5")]]
    segments = [Segment(o, (data_batch(o, v),), 100 + o) for o, v in zip([10, 11, 12, 14], values, strict=True)]
    plan = make_plan(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(segment_bytes=1, index_interval_bytes=0),
        now_ms=10**6, log_start_offset=10,
    )  # fmt: skip
    copy = tmp_path / "store" / plan.run.folder / f"{10:020d}.log"
    with faults(tmp_path, Fault("read", str(copy), flip=(70, 0x01))):
        problem = compact_in_blocks(plan).result.problem
    assert happened(tmp_path) == [1]
    assert problem is not None
    assert (problem.kind, problem.path) == ("readback", f"{plan.run.folder}/{copy.name}")
