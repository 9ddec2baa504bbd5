"""A compaction over several tasks, without Spark: the stages in this process, and what Spark does between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lastkey.jobs.command.progress import CountedBytes, Silent
from lastkey.jobs.compact.large import compact_large
from lastkey.udfs.compact import compact_partition
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split_stages import (
    LargePartition,
    RewrittenGroup,
    last_of_each_key,
    local_survivors,
    rewrite_group,
)
from lastkey.udfs.problem import Problem
from tests.builders.folders import Outcome, compact
from tests.builders.plans import changed
from tests.builders.workers import InTurn

T = TypeVar("T")


def in_this_process(of: LargePartition, drawn: random.Random) -> list[RewrittenGroup | Problem]:
    """Run the stages in a drawn order, some tasks twice, as Spark's retries do, and exchange rows as Spark does."""
    cells = _exchanged(_ran(len(of.splits), lambda i: list(local_survivors(of, i)), drawn), "part", of.n_parts, drawn)
    order = [("bucket", "ascending"), ("split", "descending"), ("block", "ascending")]
    in_order = [part.sort_by(order) for part in cells]
    keys = _ran(of.n_parts, lambda i: list(last_of_each_key(of, _cut(in_order[i], drawn))), drawn)
    groups = _exchanged(keys, "group", len(of.groups), drawn)
    done = _ran(len(groups), lambda i: list(rewrite_group(of, _cut(groups[i], drawn))), drawn)
    return [result for results in done for result in results]


def _ran(n: int, task: Callable[[int], list[T]], drawn: random.Random) -> list[list[T]]:
    """Run tasks in a drawn order, some of them twice; of two tries one counts."""
    order = drawn.sample(range(n), n)
    done = {i: task(i) for i in order + drawn.choices(order, k=n // 2)}
    return [done[i] for i in range(n)]


def _exchanged(tasks: list[list[pa.RecordBatch]], column: str, n: int, drawn: random.Random) -> list[pa.Table]:
    """Return the rows of each partition, in any order."""
    table = pa.Table.from_batches([batch for batches in tasks for batch in batches])
    table = table.take(drawn.sample(range(len(table)), len(table)))
    return [table.filter(pc.equal(table[column], i)) for i in range(n)]


def _cut(table: pa.Table, drawn: random.Random) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches(max_chunksize=drawn.choice([1, 7, 10_000])))


def compact_in_blocks(
    plan: PartitionPlan,
    *,
    split_bytes: int = 1,
    n_buckets: int | None = None,
    shares: int = 2,
    shuffled: random.Random | None = None,
) -> Outcome:
    """Compact in several tasks, as the job does, in this process. shares: tasks of the second stage."""
    drawn = shuffled or random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        if n_buckets is not None:
            patch.setattr(compact_partition, "buckets_for", lambda *_: (n_buckets, shares))
        small = changed(plan, limits=replace(plan.run.limits, split_bytes=split_bytes))
        result = compact_large(InTurn(), small, CountedBytes(Silent(), []), lambda of: in_this_process(of, drawn))
        return Outcome(result, plan)


def assert_same(one: Outcome, several: Outcome) -> None:
    """Assert that both have the same files, manifest and counters."""
    assert several.files() == one.files()
    assert several.result.work.counters == one.result.work.counters
    folder = several.plan.run.folder
    moved = [replace(s, path=s.path.replace(f"{folder}/", "out/")) for s in several.result.log.segments]
    assert moved == list(one.result.log.segments)
    assert several.result.work.bytes_after == one.result.work.bytes_after
    assert several.result.work.recompressed_bytes == one.result.work.recompressed_bytes
    left = {p.name for p in Path(several.plan.run.store_uri).iterdir() if p.name.startswith(folder)}
    assert left == {folder}


def assert_same_all_ways(plan: PartitionPlan, seed: int | str = 0) -> Outcome:
    """Compact in one task, in as many splits as possible, and in chunks of a batch or two; assert that all agree.

    A chunk costs a millisecond, a split several. So a large log has a hundred chunks, cut between any two of them;
    splits are cut at thirty drawn places. A small log has a chunk for each batch, and is cut at every one.
    """
    one = compact(plan)
    if one.result.status != "cleaned":
        return one
    assert_same(one, compact_in_blocks(changed(plan, folder="blocks")))
    size = sum(s.size_bytes for s in plan.input.segments)
    small = replace(plan.run.limits, chunk_bytes=max(size // 100, 1))
    rng, plus = random.Random(seed), replace(small, chunk_bytes=small.chunk_bytes + 300)
    for _ in range(2):
        assert_same(
            one,
            compact_in_blocks(
                changed(plan, folder=f"drawn{rng.random()}", limits=rng.choice([small, plus])),
                split_bytes=max(rng.choice([1, 200, 1000, 1 << 30]), size // 30),
                n_buckets=rng.choice([4, 16, 256]),
                shares=rng.choice([1, 2, 4]),
                shuffled=rng,
            ),
        )
    return one
