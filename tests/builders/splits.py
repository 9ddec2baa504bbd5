"""A compaction over several tasks, without Spark: settled by tables, or in plain Python by the rule of the window."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lastkey.jobs.command.progress import Counted, Silent, Watcher
from lastkey.jobs.compact import blocks
from lastkey.jobs.compact.splits import compact_in_splits
from lastkey.jobs.spark.workers import InTurn
from lastkey.udfs.compact.clean.deciders import TooManyKeys
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split.rewrite_split import CleanedSplit
from lastkey.udfs.compact.split.settle import Buckets, SettledBuckets, rows_of, write_bits
from lastkey.udfs.compact.split.walk_split import WalkedSplit
from tests.builders.folders import Outcome, compact
from tests.builders.plans import changed

T = TypeVar("T")
R = TypeVar("R")


def settled_by_rule(plan: PartitionPlan, walked: Sequence[WalkedSplit], n_buckets: int) -> SettledBuckets:
    """Settle as the window does: of each key the dirty row with the highest version stays, of equal ones the last; or
    all if none is dirty.
    """
    rows = [row for walk in walked for batch in rows_of(plan, walked, walk.number) for row in batch.to_pylist()]
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for row in rows:
        if row["dirty"]:
            key, rank = (row["key_low"], row["key_high"]), (row["version"], row["place"])
            best[key] = max(best.get(key, rank), rank)
    stays = [(row["version"], row["place"]) >= best.get((row["key_low"], row["key_high"]), (-9, -9)) for row in rows]
    decided = list(zip([row["split"] for row in rows], [row["place"] for row in rows], stays, strict=True))
    random.Random(len(rows)).shuffle(decided)
    parts = [decided[first : first + 1000] for first in range(0, len(decided), 1000)]
    batches = [pa.RecordBatch.from_arrays([*map(pa.array, zip(*part, strict=True))], list("sps")) for part in parts]
    bits = write_bits(plan, walked, batches, "window")
    return SettledBuckets(Buckets(0, n_buckets), bits)


def compact_by_rule(plan: PartitionPlan, **more: Any) -> Outcome:
    """Compact in several tasks, settled as by Spark's window, in plain Python."""
    return compact_in_blocks(plan, by_rule=True, **more)


class InAnyOrder(InTurn):
    """Runner that draws the order of each stage's tasks, and runs some of them twice, as Spark's retries do."""

    def __init__(self, cores: int, drawn: random.Random | None) -> None:
        self.cores, self._drawn = cores, drawn

    def run(self, function: Callable[[T], R], items: Sequence[T], name: str, watcher: Watcher | None = None) -> list[R]:
        order = list(range(len(items)))
        if self._drawn is not None:
            order = self._drawn.sample(order, len(order)) + self._drawn.choices(order, k=len(order) // 2)
        done = {i: function(items[i]) for i in order}
        return [done[i] for i in range(len(items))]


def compact_in_blocks(
    plan: PartitionPlan,
    *,
    split_bytes: int = 1,
    n_buckets: int | None = None,
    shares: int = 2,
    shuffled: random.Random | None = None,
    by_rule: bool = False,
    at_once: bool = True,
) -> Outcome:
    """Compact in several tasks, as the job does, in this process, and rewrite each group in a task of its own.

    shares: tasks that settle; shuffled: draws as InAnyOrder does; at_once: clean the last split in its walk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_PIECES_A_CORE", 1 << 62)
        if n_buckets is not None:
            patch.setattr(blocks, "buckets_for", lambda _: n_buckets)
        if not at_once:
            patch.setattr(blocks, "clean_last_split", _too_many_keys)
        small = changed(plan, limits=replace(plan.run.limits, split_bytes=split_bytes))
        workers, rule = InAnyOrder(shares, shuffled), settled_by_rule if by_rule else None
        return Outcome(compact_in_splits(workers, small, Counted(Silent()), rule), plan)


def _too_many_keys(*_: Any) -> CleanedSplit:
    raise TooManyKeys


def assert_same(one: Outcome, several: Outcome) -> None:
    """Assert that both made the same files, the same manifest and the same counters."""
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
    """Compact in one task, by the window's rule, by blocks in as many splits as possible, and in chunks of a batch or
    two; assert that all agree.

    A chunk costs a millisecond, a split several. So a large log has a hundred chunks, cut between any two of them;
    blocks are cut at thirty drawn places. A small log has a chunk for each batch, and is cut at every one.
    """
    one = compact(plan)
    if one.result.status != "cleaned":
        return one
    assert_same(one, compact_by_rule(changed(plan, folder="window")))
    assert_same(one, compact_in_blocks(changed(plan, folder="blocks")))
    size = sum(s.size_bytes for s in plan.input.segments)
    small = replace(plan.run.limits, chunk_bytes=max(size // 100, 1))
    assert_same(one, compact_by_rule(changed(plan, folder="batches", limits=small)))
    rng, plus = random.Random(seed), replace(small, chunk_bytes=small.chunk_bytes + 300)
    for _ in range(2):
        assert_same(
            one,
            compact_in_blocks(
                changed(plan, folder=f"drawn{rng.random()}", limits=rng.choice([small, plus])),
                split_bytes=max(rng.choice([1, 200, 1000, 1 << 30]), size // 30),
                n_buckets=rng.choice([4, 16, 256]),
                shares=rng.choice([1, 2, 5]),
                shuffled=rng,
            ),
        )
    return one
