"""A compaction over several tasks, without Spark: settled by tables, or in plain Python by the rule of the window."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, Tally
from lastkey.udfs.compact.clean.key_table import TooManyKeys
from lastkey.udfs.compact.clean.winners import check_versions
from lastkey.udfs.compact.one_task.compact_partition import check_null_keys
from lastkey.udfs.compact.output.generation import write_generation
from lastkey.udfs.compact.output.place_segments import join_empty_groups
from lastkey.udfs.compact.output.result import result_of
from lastkey.udfs.compact.output.segment_output import manifest_row
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import scan_all, scan_identity
from lastkey.udfs.compact.scan.scan_segment import SegmentScan
from lastkey.udfs.compact.split.clean_last_split import CleanedSplit, clean_last_split
from lastkey.udfs.compact.split.key_files import remove_key_files
from lastkey.udfs.compact.split.rewrite_split import RewrittenSplit, join_pieces, rewrite_split
from lastkey.udfs.compact.split.settle import Buckets, SettledBuckets, settle, share_out, slot_of
from lastkey.udfs.compact.split.splits import Split, cut_between_groups, make_splits, number_of_splits
from lastkey.udfs.compact.split.walk_split import WalkedSplit, buckets_for, walk_split
from lastkey.udfs.compact.split.window_rows import rows_of, write_bits
from lastkey.udfs.compact.verdicts import COUNTER_NAMES
from tests.builders.folders import Outcome, compact

T = TypeVar("T")
R = TypeVar("R")


def splits_of(plan: PartitionPlan, analysis: Analysis, split_bytes: int, cores: int = 1) -> list[Split]:
    scans = analysis.sources
    n = number_of_splits(scans, analysis.groups, split_bytes, plan.limits.task_memory_bytes, cores)
    return make_splits(scans, analysis.groups, n)


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
    """Compact as `jobs.compact.blocks` with the window, in plain Python."""
    return compact_in_blocks(plan, by_rule=True, **more)


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
    """Compact as `jobs.compact.blocks`, in this process. shares: tasks that settle; shuffled: draws the order of each
    stage's tasks, and runs some of them twice, as Spark's retries do. at_once: clean the last split in its walk.
    """

    def run(tasks: Sequence[T], work: Callable[[T, str], R]) -> list[R]:
        order = list(range(len(tasks)))
        if shuffled is not None:
            order = shuffled.sample(order, len(order)) + shuffled.choices(order, k=len(order) // 2)
        done = {i: work(tasks[i], f"{work.__name__}-{i}-{n}") for n, i in enumerate(order)}
        return [done[i] for i in range(len(tasks))]

    buffer = ChunkBuffer(plan.limits.chunk_bytes)
    analysis = analyse(plan, scan_all(plan, buffer), scan_identity(plan, buffer))
    splits = splits_of(plan, analysis, split_bytes)
    n = n_buckets or buckets_for(sum(s.most_records for s in analysis.sources))
    rules, aborts = analysis.rules, analysis.kept_aborts
    groups = {g: analysis.group(numbers) for g, numbers in enumerate(analysis.groups)}
    of = {g: [s.number for s in splits if any(p.group == g for p in s.parts)] for g in groups}
    shared = frozenset(g for g, numbers in of.items() if len(numbers) > 1)

    def own(name: str) -> PartitionPlan:
        return replace(plan, folder=f"{plan.folder}.{name.rpartition('-')[2]}") if shuffled is not None else plan

    def sources(split: Split) -> list[SegmentScan]:
        return [analysis.sources[part.number] for part in split.parts]

    def walk(split: Split, name: str) -> WalkedSplit | CleanedSplit:
        args = (sources(split), rules, analysis.cleanable.first_dirty_offset)
        if split is splits[-1] and at_once and not by_rule and plan.settings.by_offset:
            with suppress(TooManyKeys):
                return clean_last_split(own(name), split, groups, shared, *args, aborts, n, name)
        return walk_split(plan, args[0], split, *args[1:], n, f"{name}-alone")

    def settled_by(buckets: Buckets, name: str) -> SettledBuckets:
        return settle(plan, walked, buckets, n, name)

    def rewrite(split: Split, name: str) -> RewrittenSplit:
        mine = walked[split.number]
        args = (split, groups, shared, sources(split), rules, aborts, mine, settled, name)
        return rewrite_split(own(name), *args)

    results = run(splits, walk)
    walked = [done.walked if isinstance(done, CleanedSplit) else done for done in results]
    cleaned = [done.rewritten for done in results if isinstance(done, CleanedSplit)]
    check_versions(plan, max(walk.highest for walk in walked), any(walk.n_entries for walk in walked))
    if by_rule:
        settled = [settled_by_rule(plan, walked, n)]
    else:
        settled = run(share_out(walked, n, plan.limits.task_memory_bytes, shares, slot_of(plan)), settled_by)
    scans = dict(enumerate(analysis.sources))
    left = splits[: len(splits) - len(cleaned)]
    done = [*run([piece for split in left for piece in cut_between_groups(split, scans, 1)], rewrite), *cleaned]
    tally, segments = (
        Tally(),
        {g: manifest_row(group, "", np.empty(0, OUT_BATCH), 0, (0, 0, 0)) for g, group in groups.items()},
    )
    for result in done:
        tally.counters += result.counters
        tally.recompressed_bytes += result.recompressed_bytes
        segments |= result.segments
    for g in sorted(shared):
        pieces = [piece for result in done for piece in result.pieces if piece.group == g]
        segments[g] = join_pieces(plan, g, groups[g], pieces, aborts).segment
    check_null_keys(plan, tally)
    generation = write_generation(plan, analysis, join_empty_groups(plan, [segments[g] for g in sorted(segments)]))
    remove_key_files(plan)
    counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
    return Outcome(result_of(plan, analysis, generation, counters, tally.recompressed_bytes), plan)


def assert_same(one: Outcome, several: Outcome) -> None:
    """Assert that both made the same files, the same manifest and the same counters."""
    assert several.files() == one.files()
    assert several.result.counters == one.result.counters
    folder = several.plan.folder
    moved = [replace(s, path=s.path.replace(f"{folder}/", "out/")) for s in several.result.segments]
    assert moved == list(one.result.segments)
    assert several.result.bytes_after == one.result.bytes_after
    assert several.result.recompressed_bytes == one.result.recompressed_bytes
    left = {p.name for p in Path(several.plan.store_uri).iterdir() if p.name.startswith(folder)}
    assert f"{folder}.9999999999999999999" not in left


def assert_same_all_ways(plan: PartitionPlan, seed: int | str = 0) -> Outcome:
    """Compact in one task, by the window's rule, by blocks in as many splits as possible, and in chunks of a batch or
    two; assert that all agree.

    A chunk costs a millisecond, a split several. So a large log has a hundred chunks, cut between any two of them;
    blocks are cut at thirty drawn places. A small log has a chunk for each batch, and is cut at every one.
    """
    one = compact(plan)
    if one.result.status != "cleaned":
        return one
    assert_same(one, compact_by_rule(replace(plan, folder="window")))
    assert_same(one, compact_in_blocks(replace(plan, folder="blocks")))
    size = sum(s.listed.size for s in plan.segments)
    small = replace(plan.limits, chunk_bytes=max(size // 100, 1))
    assert_same(one, compact_by_rule(replace(plan, folder="batches", limits=small)))
    rng, plus = random.Random(seed), replace(small, chunk_bytes=small.chunk_bytes + 300)
    for _ in range(2):
        assert_same(
            one,
            compact_in_blocks(
                replace(plan, folder=f"drawn{rng.random()}", limits=rng.choice([small, plus])),
                split_bytes=max(rng.choice([1, 200, 1000, 1 << 30]), size // 30),
                n_buckets=rng.choice([4, 16, 256]),
                shares=rng.choice([1, 2, 5]),
                shuffled=rng,
            ),
        )
    return one
