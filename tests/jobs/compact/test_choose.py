"""Which partitions of a wave are taken in several tasks: when one task each would leave cores idle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.compact.choose import ASKED, CORES_IDLE, choose, several_of
from logformat.listing import ListedSegment
from tests.builders.folders import Archived, plan_of
from tests.reference.cleaner import Settings
from udfs.compact.plan import Engine, Limits, PartitionPlan
from udfs.segments import SegmentInput

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "cores", "expected"),
    [
        ([], 2, 0),
        ([16 * GIB], 1, 0),  # one core: nothing to win
        ([GIB], 2, 0),  # as soon done by one
        ([GIB], 4, 1),
        ([4 * GIB], 2, 1),
        ([4 * GIB], 4, 1),
        ([4 * GIB], 32, 1),
        ([GIB // 8], 4, 0),  # its stages would cost more
        ([GIB, GIB], 2, 0),
        ([GIB] * 8, 2, 0),
        ([GIB] * 3, 2, 0),  # in turn they are done as soon
        ([8 * GIB] * 5, 4, 1),  # the fifth one would be alone
        ([16 * GIB, *[GIB // 16] * 64], 4, 1),  # one large, many small
        ([16 * GIB, *[GIB] * 16], 2, 0),  # as much small as large
        ([16 * GIB, 16 * GIB, GIB], 8, 2),
        ([GIB] * 100_000, 100, 0),
    ],
)
def test_the_largest_as_far_as_the_wave_is_done_sooner(sizes: list[int], cores: int, expected: int) -> None:
    assert several_of(sizes, cores) == expected


def plan(size: int, engine: Engine = "auto", *, dry_run: bool = False) -> PartitionPlan:
    archived = Archived(Path("/none"), [SegmentInput(ListedSegment("/none", "t-0/0.log", 0, size, 0))])
    limits = Limits(engine=engine)
    return plan_of(
        archived, Path("/none"), Settings(), now_ms=0, log_start_offset=0, limits=limits, dry_run=dry_run
    )  # fmt: skip


def test_what_is_asked_for_is_done() -> None:
    small, large = plan(5), plan(4 * GIB)
    chosen = choose([small, large], 4)
    assert (chosen.one_task, chosen.several, chosen.because) == ((small,), (large,), CORES_IDLE)
    asked: tuple[Engine, ...] = ("blocks", "window")
    for engine in asked:
        plans = [replace(p, limits=Limits(engine=engine)) for p in (small, large)]
        assert choose(plans, 2).several == (plans[1], plans[0])
        assert choose(plans, 2).because == ASKED
    assert choose([plan(4 * GIB, "task")], 2).several == ()


def test_a_dry_run_writes_no_key_files() -> None:
    assert choose([plan(4 * GIB, dry_run=True)], 2).several == ()
