"""A compaction over several tasks, without Spark, both ways: by blocks; and by `scan_keys` over splits, a window in
plain Python for Spark's, and `rewrite_group`. Both end with `join_empty_groups`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, Tally
from lastkey.udfs.compact.clean.winners import check_versions
from lastkey.udfs.compact.one_task import check_null_keys
from lastkey.udfs.compact.output.generation import write_generation
from lastkey.udfs.compact.output.place_segments import join_empty_groups
from lastkey.udfs.compact.output.result import result_of
from lastkey.udfs.compact.output.segment_output import manifest_row
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import scan_all, scan_identity
from lastkey.udfs.compact.scan.scan_segment import SegmentScan
from lastkey.udfs.compact.split.key_files import remove_key_files
from lastkey.udfs.compact.split.rewrite_group import rewrite_group
from lastkey.udfs.compact.split.rewrite_split import RewrittenSplit, join_pieces, rewrite_split
from lastkey.udfs.compact.split.scan_keys import KEY_OFFSETS, scan_keys
from lastkey.udfs.compact.split.scan_versions import KEY_VERSIONS, scan_versions
from lastkey.udfs.compact.split.settle import Buckets, SettledBuckets, settle, share_out
from lastkey.udfs.compact.split.splits import Split, cut_between_groups, make_splits, number_of_splits
from lastkey.udfs.compact.split.walk_split import WalkedSplit, buckets_for, walk_split
from lastkey.udfs.compact.verdicts import COUNTER_NAMES
from tests.builders.folders import Outcome

T = TypeVar("T")
R = TypeVar("R")


def splits_of(plan: PartitionPlan, analysis: Analysis, split_bytes: int, cores: int = 1) -> list[Split]:
    scans = analysis.sources
    n = number_of_splits(scans, analysis.groups, split_bytes, plan.limits.task_memory_bytes, cores)
    return make_splits(scans, analysis.groups, n)


def window(plan: PartitionPlan, analysis: Analysis, split_bytes: int) -> dict[int, list[int]]:
    """Return surviving offsets by group: of each key the last dirty one, or all clean ones if none is dirty."""
    if not plan.settings.by_offset:
        return _winners(plan, analysis, split_bytes)
    rows: dict[tuple[int, int], list[tuple[int, bool, int]]] = {}
    for split in splits_of(plan, analysis, split_bytes):
        sources = [analysis.sources[part.number] for part in split.parts]
        for batch in scan_keys(plan, sources, split, analysis.rules, analysis.cleanable.first_dirty_offset):
            assert batch.schema == KEY_OFFSETS
            for row in batch.to_pylist():
                key = (row["key_low"], row["key_high"])
                rows.setdefault(key, []).append((row["offset"], row["dirty"], row["segment_group"]))
    surviving: dict[int, list[int]] = {}
    for of_key in rows.values():
        last = max((offset for offset, dirty, _ in of_key if dirty), default=-1)
        for offset, _, group in of_key:
            if offset >= last:
                surviving.setdefault(group, []).append(offset)
    return {group: sorted(offsets) for group, offsets in surviving.items()}


def _winners(plan: PartitionPlan, analysis: Analysis, split_bytes: int) -> dict[int, list[int]]:
    """Return surviving offsets by group for `compaction.strategy`: of each key the highest version, then the last."""
    bases = [analysis.sources[numbers.start].base_offset for numbers in analysis.groups]
    best: dict[tuple[int, int], tuple[int, int, int]] = {}
    for split in splits_of(plan, analysis, split_bytes):
        sources = [analysis.sources[part.number] for part in split.parts]
        for batch in scan_versions(plan, sources, split, analysis.rules, bases):
            assert batch.schema == KEY_VERSIONS
            for row in batch.to_pylist():
                key, place = (row["key_low"], row["key_high"]), (row["version"], row["offset"], row["segment_group"])
                best[key] = max(best.get(key, place), place)
    check_versions(plan, max((version for version, _, _ in best.values()), default=-1), bool(best))
    surviving: dict[int, list[int]] = {}
    for _, offset, group in best.values():
        surviving.setdefault(group, []).append(offset)
    return {group: sorted(offsets) for group, offsets in surviving.items()}


def compact_in_splits(plan: PartitionPlan, *, split_bytes: int = 1, part: int = 3) -> Outcome:
    """Compact as `jobs.compact.splits`, with the window in plain Python. part: offsets that come in one array."""
    buffer = ChunkBuffer(plan.limits.chunk_bytes)
    analysis = analyse(plan, scan_all(plan, buffer), scan_identity(plan, buffer))
    surviving = window(plan, analysis, split_bytes)

    def arrays(group: int) -> Iterator[np.ndarray]:
        offsets = surviving.get(group, [])
        for i in range(0, len(offsets), part):
            yield np.array(offsets[i : i + part], np.int64)
            yield np.empty(0, np.int64)

    tally, written = Tally(), []
    for number, members in enumerate(analysis.groups):
        group = analysis.group(members)
        sources = [analysis.sources[i] for i in members]
        done = rewrite_group(plan, number, group, sources, analysis.rules, analysis.kept_aborts, arrays(number))
        tally.counters += done.counters
        tally.recompressed_bytes += done.recompressed_bytes
        written.append(done.segment)
    check_null_keys(plan, tally)
    generation = write_generation(plan, analysis, join_empty_groups(plan, written))
    counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
    return Outcome(result_of(plan, analysis, generation, counters, tally.recompressed_bytes), plan)


def compact_in_blocks(
    plan: PartitionPlan,
    *,
    split_bytes: int = 1,
    n_buckets: int | None = None,
    shares: int = 2,
    shuffled: random.Random | None = None,
) -> Outcome:
    """Compact as `jobs.compact.blocks`, in this process. shares: tasks that settle; shuffled: draws the order of each
    stage's tasks, and runs some of them twice, as Spark's retries do.
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

    def sources(split: Split) -> list[SegmentScan]:
        return [analysis.sources[part.number] for part in split.parts]

    def walk(split: Split, name: str) -> WalkedSplit:
        return walk_split(plan, sources(split), split, rules, analysis.cleanable.first_dirty_offset, n, name)

    def settled_by(buckets: Buckets, name: str) -> SettledBuckets:
        return settle(plan, walked, buckets, n, name)

    def rewrite(split: Split, name: str) -> RewrittenSplit:
        mine = walked[split.number]
        mine_alone = replace(plan, folder=f"{plan.folder}.{name.rpartition('-')[2]}") if shuffled is not None else plan
        args = (split, groups, shared, sources(split), rules, aborts, mine, settled, name)
        return rewrite_split(mine_alone, *args)

    walked = run(splits, walk)
    settled = run(share_out(walked, n, plan.limits.task_memory_bytes, shares), settled_by)
    scans = dict(enumerate(analysis.sources))
    done = run([piece for split in splits for piece in cut_between_groups(split, scans, 1)], rewrite)
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
