"""A compaction of too many keys for one task, without Spark: `scan_keys` over splits, a window in plain Python for
Spark's, `rewrite_group`, `join_empty_groups`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from logformat.batches.chunks import ChunkBuffer
from tests.builders.folders import Outcome
from udfs.compact.analyse import Analysis, analyse, result_of
from udfs.compact.clean_batches import Tally
from udfs.compact.decide_kernels import COUNTER_NAMES
from udfs.compact.generation import join_empty_groups, write_generation
from udfs.compact.one_task import check_null_keys
from udfs.compact.plan import PartitionPlan
from udfs.compact.rewrite_group import rewrite_group
from udfs.compact.scan_keys import KEY_OFFSETS, make_splits, scan_keys
from udfs.compact.scan_partition import scan_all, scan_identity


def window(plan: PartitionPlan, analysis: Analysis, split_bytes: int) -> dict[int, list[int]]:
    """Surviving offsets by group: of each key the last dirty one, or all clean ones where none is dirty."""
    splits = make_splits([s.scan.size for s in analysis.sources], analysis.groups, split_bytes)
    rows: dict[tuple[int, int], list[tuple[int, bool, int]]] = {}
    for split in splits:
        sources = [analysis.sources[i] for i in split.numbers]
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


def compact_in_splits(plan: PartitionPlan, *, split_bytes: int = 1, part: int = 3) -> Outcome:
    """As `jobs.compact.splits`, with the window in plain Python; `part`: offsets that come in one array."""
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
        group = analysis.group(members, None)
        sources = [analysis.sources[i] for i in members]
        done = rewrite_group(plan, number, group, sources, analysis.rules, analysis.kept_aborts, arrays(number))
        tally.counters += done.counters
        tally.recompressed_bytes += done.recompressed_bytes
        written.append(done.segment)
    check_null_keys(plan, tally)
    generation = write_generation(plan, analysis, join_empty_groups(plan, written))
    counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
    return Outcome(result_of(plan, analysis, generation, counters, tally.recompressed_bytes), plan)
