"""Choice of the partitions of a wave that take several tasks: if one task each would leave cores idle."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from lastkey.jobs.compact.plan_partitions import share_budget
from lastkey.jobs.compact.waves import choose_ways, count_large_partitions
from lastkey.jobs.spark.workers import SparkTasks, Threads
from lastkey.logformat.listing import Segment
from lastkey.udfs.compact.plan import (
    CleanPolicy,
    CleanSettings,
    Limits,
    PartitionInput,
    PartitionPlan,
    RunContext,
    SplitBy,
)
from tests.builders.folders import Archived, make_plan
from tests.builders.plans import changed
from tests.reference.cleaner import Settings

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "cores", "expected"),
    [
        ([], 2, 0),
        ([16 * GIB], 1, 0),  # one core: nothing to win
        ([64 * GIB], 2, 0),  # cost of reading each record twice
        ([GIB], 4, 0),  # its stages would cost more
        ([4 * GIB], 4, 0),
        ([16 * GIB], 4, 1),
        ([4 * GIB], 32, 1),
        ([GIB] * 8, 2, 0),
        ([64 * GIB, *[GIB // 16] * 64], 8, 1),  # one large, many small
        ([16 * GIB, *[GIB] * 64], 4, 0),  # more small ones than that
        ([64 * GIB, 64 * GIB, GIB], 16, 2),
        ([GIB] * 100_000, 100, 0),
    ],
)
def test_largest_partition_is_split_if_the_wave_ends_earlier(sizes: list[int], cores: int, expected: int) -> None:
    assert count_large_partitions(sizes, cores) == expected


class EightCores(SparkTasks):
    """Workers of a Spark that is never started."""

    cores = 8


WORKERS = EightCores(lambda: pytest.fail("Spark was started"))


def plan(size: int, split: SplitBy = "auto") -> PartitionPlan:
    archived = Archived(Path("/none"), [Segment("/none", "t-0/0.log", 0, size, 0)])
    limits = Limits(split_by=split)
    return make_plan(archived, Path("/none"), Settings(), now_ms=0, log_start_offset=0, limits=limits)


def test_split_setting_decides_how_partitions_are_split() -> None:
    small, large = plan(5), plan(16 * GIB)
    chosen = choose_ways([small, large], WORKERS)
    assert (chosen.one_task, chosen.several) == ((small,), (large,))
    plans = [changed(p, limits=Limits(split_by="always")) for p in (small, large)]
    assert choose_ways(plans, WORKERS).several == tuple(plans)
    assert choose_ways([plan(16 * GIB, "none")], WORKERS).several == ()


def test_threads_engine_uses_one_task_per_partition() -> None:
    with closing(Threads(8)) as threads:
        for split in get_args(SplitBy):
            assert choose_ways([plan(16 * GIB, split)], threads).several == ()


def test_size_of_a_run_by_yield_is_the_size_of_new_data() -> None:
    whole, rest = plan(4 * GIB), Segment("/none", "t-0/9.log", 9, 7, 0)
    grown = changed(whole, segments=(*whole.input.segments, rest), first_dirty_offset=9)
    assert grown.least_bytes == grown.log_bytes == 4 * GIB + 7
    assert changed(grown, partial=True).least_bytes == 7


def _row(size: int, superseded: int) -> Segment:
    """Return a segment of 100 records."""
    return Segment("/none", "t-0/0.log", 0, size, 0, last_offset=8, batches=1, records=100, superseded=superseded)


def test_budget_prefers_dead_records_and_affordable_full_runs() -> None:
    """In equal parts, 25 bytes for each, it would suffice for nothing."""
    dead = {
        0: (20, 30),
        1: (20, 90),
        2: (3, 25),
        3: (0, 0),
    }  # bytes of the segment that is worth it, and its dead share
    full = 30 * 86_400_000

    def drafts(**overdue: int) -> list[PartitionPlan]:
        inputs = [
            PartitionInput("t", n, (_row(*of), Segment("/none", "t-0/9.log", 9, 20 - of[0], 0)), 0, 9)
            for n, of in dead.items()
        ]
        return [
            PartitionPlan(
                shares,
                CleanPolicy(CleanSettings(), by_yield=True, partial=True),
                RunContext("", full, Limits(), (0, 0), overdue.get(f"p{shares.partition}", 1)),
            )
            for shares in inputs
        ]

    def shares(*, io_budget: int, **overdue: int) -> list[int | None]:
        return share_budget(io_budget, drafts(**overdue))

    assert shares(io_budget=100) == [40, 60, 0, 0]
    assert shares(io_budget=109) == [49, 60, 0, 0]
    assert shares(io_budget=169) == [70, 70, 19, 10]
    assert shares(io_budget=100, p3=0) == [0, 20, 0, 80]  # 20 bytes, read twice, written, and read back
    assert shares(io_budget=70, p3=0) == [10, 60, 0, 0]
    assert share_budget(None, drafts()) == [None] * 4
