"""The last offset of each key in a split, as rows for Spark's window. `walk_split` does the same for the blocks.

`scan_keys` walks a split backwards with the key table, so at most one row a key leaves it. If the table would outgrow
the task's memory, it is emptied, and a key may leave twice; the window settles that. All records below the first dirty
offset leave, marked as clean (their keys differ already, unless somebody edited a checkpoint).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.udfs.compact.clean.key_table import KeyTable
from lastkey.udfs.compact.cleaner import Rules, key_candidates
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.read_again import chunk_at
from lastkey.udfs.compact.scan.scan_segment import SegmentScan, chunk_buffer
from lastkey.udfs.compact.split.splits import Split

KEY_OFFSETS = pa.schema(
    [
        pa.field("key_low", pa.int64(), nullable=False),  # the hash's halves, as signed numbers
        pa.field("key_high", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("dirty", pa.bool_(), nullable=False),
        pa.field("segment_group", pa.int32(), nullable=False),
    ]
)


def scan_keys(
    plan: PartitionPlan, sources: Sequence[SegmentScan], split: Split, rules: Rules, first_dirty_offset: int
) -> Iterator[pa.RecordBatch]:
    """Yield the KEY_OFFSETS rows of one split.

    sources: those of the split's parts.
    """
    buffer = chunk_buffer(plan)
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
    table = KeyTable(plan.limits.task_memory_bytes // 2)
    for source, part in zip(reversed(sources), reversed(split.parts), strict=True):
        with source.open_log() as file:
            for scanned in reversed(source.chunks[part.first : part.stop]):
                chunk = chunk_at(file, source.path, scanned, buffer)
                wanted = key_candidates(chunk.batches, rules)
                for run in loader.runs(
                    chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=True, before=chunk.before
                ):
                    yield _rows(run, table, first_dirty_offset, part.group)


def _rows(run: Run, table: KeyTable, first_dirty_offset: int, group: int) -> pa.RecordBatch:
    is_last = np.empty(len(run.spans), np.bool_)
    left = len(run.spans)
    while left := table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, left):
        table.clear()
    base = np.repeat(run.bodies["base_offset"], run.bodies["n_records"])
    offset = base + run.spans["offset_delta"]
    dirty = offset >= first_dirty_offset
    leaves = np.flatnonzero((is_last | ~dirty) & ~run.spans["null_key"])
    return pa.record_batch(
        [
            pa.array(run.spans["key_low"][leaves].view(np.int64)),
            pa.array(run.spans["key_high"][leaves].view(np.int64)),
            pa.array(offset[leaves]),
            pa.array(dirty[leaves]),
            pa.array(np.full(len(leaves), group, np.int32)),
        ],
        schema=KEY_OFFSETS,
    )
