"""The stack of pieces: what is pushed comes back in the order of the log, from memory that stacks share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.layout import BATCH
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, CleanedRun
from lastkey.udfs.compact.output import piece_stack
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.plan import Limits
from tests.builders.folders import archived_at, compact, make_plan
from tests.builders.logs import write_partition
from tests.reference.cleaner import Settings

NOTHING = Chunk(0, np.empty(0, np.uint8), np.empty(0, BATCH))
LIMIT = 1000


@pytest.fixture(autouse=True)
def blocks_of_300_bytes(monkeypatch):
    monkeypatch.setattr(piece_stack, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(piece_stack, "_unused", piece_stack._Unused())


def filled(rng, sizes):
    """Return a stack with a piece of random bytes of each size, and the bytes in the order of the log."""
    stack, expected_pieces = PieceStack(LIMIT), []
    for size in sizes:
        rows = np.zeros(1, OUT_BATCH)
        rows["size"] = size
        data = stack.room(size)
        data[:] = rng.integers(0, 256, size, dtype=np.uint8)
        stack.push(0, CleanedRun(rows, data, -1, size), NOTHING)
        expected_pieces.append(data.tobytes())
    return stack, b"".join(expected_pieces[::-1])


def drained(stack):
    return b"".join(part.tobytes() for _, part in stack.drain([]))


def test_stack_returns_pieces_in_reverse_order():
    """Two stacks at a time, because a group's pieces wait for those of the previous group."""
    rng = np.random.default_rng(1)
    held, expected_pieces = filled(rng, [10])
    for _ in range(200):
        following, expected = filled(rng, rng.integers(1, 500, rng.integers(1, 12)))
        assert drained(held) == expected_pieces
        held, expected_pieces = following, expected
    assert drained(held) == expected_pieces


def test_piece_stack_reuses_released_memory():
    rng = np.random.default_rng(2)
    stack, _ = filled(rng, [200, 200])
    before = {id(block) for block in stack._blocks}
    drained(stack)
    stack, _ = filled(rng, [250, 250])
    assert {id(block) for block in stack._blocks} == before


@pytest.mark.parametrize("sizes", [[300, 300, 300, 300], [990, 20], [1001], [200] * 6])
def test_pieces_above_the_memory_limit_are_spilled_to_a_file(sizes):
    stack, expected_pieces = filled(np.random.default_rng(3), sizes)
    assert sum(map(len, stack._blocks)) <= LIMIT
    assert stack._spill is not None
    assert drained(stack) == expected_pieces
    assert stack._spill.closed


def test_piece_stacks_of_threads_share_no_memory():
    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            stack, expected_pieces = filled(rng, rng.integers(1, 500, 8))
            assert drained(stack) == expected_pieces

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_task_keeps_retained_records_of_one_segment_in_memory(tmp_path):
    segments = ["|".join(f"{name}{i}={i} x=0" for i in range(100)) for name in "abcd"]  # all but the last x go
    write_partition(tmp_path / "archive" / "t-0", "||".join([*segments, "x=1"]))
    archived = archived_at(tmp_path / "archive", "t-0")
    plan = make_plan(
        archived, tmp_path / "out", Settings(segment_bytes=1), now_ms=1 << 60, log_start_offset=0,
        limits=Limits(chunk_bytes=100),
    )  # fmt: skip
    done = compact(plan).result
    largest = max(segment.size_bytes for segment in done.log.segments if segment.cleaned)
    assert sum(segment.cleaned for segment in done.log.segments) == 4 and largest > 10 * 300
    assert sum(map(len, piece_stack._unused.blocks)) < 1.5 * largest
