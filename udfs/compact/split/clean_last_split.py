"""The last split is cleaned in its walk, as one task cleans a partition: what leaves it stays, for none comes later.

So its records are read and decompressed once. Its entries go to the tasks that settle, as those of other walks do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.clean_segment import clean_backwards
from lastkey.udfs.compact.clean.key_table import KeyTable, TooManyKeys
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Group
from lastkey.udfs.compact.scan.scan_segment import SegmentScan, chunk_buffer
from lastkey.udfs.compact.split.key_files import KeyFile, Slice
from lastkey.udfs.compact.split.rewrite_split import Cleaned, RewrittenSplit, SplitOutput
from lastkey.udfs.compact.split.splits import Split
from lastkey.udfs.compact.split.walk_split import WALKED_CHUNK, Collected, WalkedSplit


@dataclass(frozen=True)
class CleanedSplit:
    """Result of the last split; `walked` has its entries alone, for no task rewrites it."""

    walked: WalkedSplit
    rewritten: RewrittenSplit
    peak_memory_bytes: int = 0


def clean_last_split(
    plan: PartitionPlan,
    split: Split,
    groups: Mapping[int, Group],
    shared: frozenset[int],
    sources: Sequence[SegmentScan],
    rules: Rules,
    first_dirty_offset: int,
    kept_aborts: np.ndarray,
    n_buckets: int,
    name: str,
) -> CleanedSplit:
    """Clean the last split of a partition without `compaction.strategy`. Arguments as of `rewrite_split`.

    name: of the files, for this try alone. Raises TooManyKeys if the keys do not fit the task's memory.
    """
    buffer, tally = chunk_buffer(plan), Tally()
    loader = BodyLoader(max_batch_bytes=plan.policy.settings.max_decompressed_batch_bytes, secret=plan.run.secret)
    table, output = (
        KeyTable(plan.run.limits.task_memory_bytes // 2),
        SplitOutput(plan, groups, shared, kept_aborts, name),
    )
    with KeyFile(plan, name) as key_file:
        out = Collected(key_file, first_dirty_offset, rules.oldest_ms, n_buckets)

        def mark_last(run: Run, is_last: np.ndarray) -> None:
            if table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, len(is_last)):
                raise TooManyKeys
            with_keys = run.wanted & (run.batches["attributes"] & CONTROL_MASK == 0)
            out.collect(run, with_keys, is_last)

        last_first = reversed(list(enumerate(split.parts)))
        for number, parts in itertools.groupby(last_first, lambda pair: pair[1].group):
            stack = PieceStack(plan.run.limits.task_memory_bytes // 4)
            for i, part in parts:
                chunks = sources[i].chunks[part.first : part.stop]
                for piece, chunk in clean_backwards(
                    sources[i], rules, loader, mark_last, tally, buffer, stack.room, chunks=chunks
                ):
                    stack.push(i, piece, chunk)
            output.write(number, Cleaned(stack.drain(sources, dry_run=plan.run.dry_run), stack.digest))
        blocks = out.finish()
    none = Slice(key_file.path, 0, 0, 0)
    walked = WalkedSplit(split.number, blocks, none, none, none, np.empty(0, WALKED_CHUNK))
    return CleanedSplit(walked, output.result(tally))
