"""Which partitions of a wave are taken in several tasks: when one task each would leave cores idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lastkey.jobs.compact.due import with_shares
from lastkey.jobs.compact.splits import ASKED, CORES_IDLE
from lastkey.jobs.compact.waves import choose_ways, several_of
from lastkey.jobs.spark.workers import SparkTasks, Threads
from lastkey.logformat.listing import Segment
from lastkey.udfs.compact.plan import Limits, PartitionPlan, SplitBy
from tests.builders.folders import Archived, plan_of
from tests.builders.plans import changed
from tests.reference.cleaner import Settings

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
    assert several_of(sizes, cores, SparkTasks.stages_bytes) == expected


@pytest.mark.parametrize(
    ("sizes", "cores", "expected"),
    [([GIB], 2, 1), ([GIB // 2], 2, 0), ([GIB // 2], 4, 1), ([GIB // 8], 4, 0), ([GIB, GIB], 2, 0), ([GIB] * 3, 2, 0)],
)
def test_threads_share_smaller_ones(sizes: list[int], cores: int, expected: int) -> None:
    assert several_of(sizes, cores, Threads.stages_bytes) == expected


@pytest.fixture
def workers() -> Iterator[Callable[[int], Threads]]:
    made: list[Threads] = []

    def make(cores: int) -> Threads:
        made.append(Threads(no_spark, cores))
        return made[-1]

    yield make
    for threads in made:
        threads.close()


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


def plan(size: int, split: SplitBy = "auto", *, dry_run: bool = False) -> PartitionPlan:
    archived = Archived(Path("/none"), [Segment("/none", "t-0/0.log", 0, size, 0)])
    limits = Limits(split_by=split)
    return plan_of(
        archived, Path("/none"), Settings(), now_ms=0, log_start_offset=0, limits=limits, dry_run=dry_run
    )  # fmt: skip


def test_what_is_asked_for_is_done(workers: Callable[[int], Threads]) -> None:
    small, large = plan(5), plan(4 * GIB)
    chosen = choose_ways([small, large], workers(4))
    assert (chosen.one_task, chosen.several, chosen.because) == ((small,), (large,), CORES_IDLE)
    asked: tuple[SplitBy, ...] = ("blocks", "window")
    for split in asked:
        plans = [changed(p, limits=Limits(split_by=split)) for p in (small, large)]
        assert choose_ways(plans, workers(2)).several == (plans[1], plans[0])
        assert choose_ways(plans, workers(2)).because == ASKED
    assert choose_ways([plan(4 * GIB, "none")], workers(2)).several == ()


@pytest.mark.parametrize("split", ["auto", "blocks", "window"])
def test_a_dry_run_writes_no_key_files(workers: Callable[[int], Threads], split: SplitBy) -> None:
    assert choose_ways([plan(4 * GIB, split, dry_run=True)], workers(2)).several == ()


def test_a_run_by_yield_counts_as_large_as_what_is_new() -> None:
    whole, rest = plan(4 * GIB), Segment("/none", "t-0/9.log", 9, 7, 0)
    grown = changed(whole, segments=(*whole.input.segments, rest), checkpoint=9)
    assert grown.least_bytes == grown.log_bytes == 4 * GIB + 7
    assert changed(grown, partial=True).least_bytes == 7


def _row(size: int, superseded: int) -> Segment:
    """Return a segment of 100 records."""
    return Segment("/none", "t-0/0.log", 0, size, 0, last_offset=8, batches=1, records=100, superseded=superseded)


def test_a_budget_goes_where_most_is_dead_and_to_whole_runs_that_it_suffices_for() -> None:
    """In equal parts, 25 bytes for each, it would suffice for nothing."""
    dead = {
        0: (20, 30),
        1: (20, 90),
        2: (3, 25),
        3: (0, 0),
    }  # bytes of the segment that is worth it, and its dead share
    full = 30 * 86_400_000
    plans = [changed(plan(20), partition=n, partial=True, now_ms=full, secret_ms=1, checkpoint=9) for n in dead]
    plans = [
        changed(p, segments=(_row(*of), Segment("/none", "t-0/9.log", 9, 20 - of[0], 0)))
        for p, of in zip(plans, dead.values(), strict=True)
    ]

    def shares(*, io_budget: int, **overdue: int) -> list[int | None]:
        due = [changed(p, secret_ms=overdue.get(f"p{p.input.partition}", 1)) for p in plans]
        return [p.policy.io_budget_bytes for p in with_shares(io_budget, due)]

    assert shares(io_budget=100) == [40, 60, 0, 0]
    assert shares(io_budget=109) == [49, 60, 0, 0]
    assert shares(io_budget=169) == [70, 70, 19, 10]
    assert shares(io_budget=100, p3=0) == [0, 20, 0, 80]  # 20 bytes, read twice, written, and read back
    assert shares(io_budget=70, p3=0) == [10, 60, 0, 0]
    assert all(p.policy.io_budget_bytes is None for p in with_shares(None, plans))
