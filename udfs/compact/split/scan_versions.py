"""The winners of a split by `compaction.strategy`, as rows for Spark's window, as `scan_keys` makes them for
offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.udfs.compact.clean.winners import Winners, runs_of, versions_of
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.scan_segment import SegmentScan, chunk_buffer
from lastkey.udfs.compact.split.splits import Split

KEY_VERSIONS = pa.schema(
    [
        pa.field("key_low", pa.int64(), nullable=False),  # the hash's halves, as signed numbers
        pa.field("key_high", pa.int64(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("segment_group", pa.int32(), nullable=False),
    ]
)
_ROWS = 1 << 20  # per pa.RecordBatch


def scan_versions(
    plan: PartitionPlan, sources: Sequence[SegmentScan], split: Split, rules: Rules, group_bases: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield KEY_VERSIONS rows of one split for Spark's window: the winners within it. A key may come more than once if
    the table would outgrow the memory.

    sources: those of the split's parts; group_bases: first offset of each segment group.
    """
    buffer, table = chunk_buffer(plan), Winners(plan.limits.task_memory_bytes // 2)
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
    bases = np.array(group_bases, np.int64)
    for source, part in zip(sources, split.parts, strict=True):
        for run in runs_of(source, source.chunks[part.first : part.stop], rules, loader, buffer):
            versions, start = versions_of(run, plan), 0
            while (start := table.enter(run, versions, start)) < len(run.spans):
                yield from _rows(table, bases)
                table.clear()
    yield from _rows(table, bases)


def _rows(table: Winners, bases: np.ndarray) -> Iterator[pa.RecordBatch]:
    held = table.held()
    for first in range(0, len(held), _ROWS):
        part = held[first : first + _ROWS]
        group = np.searchsorted(bases, part["offset"], "right") - 1
        columns = [part["low"].view(np.int64), part["high"].view(np.int64), part["version"], part["offset"]]
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
        yield pa.record_batch([*arrays, pa.array(group.astype(np.int32))], schema=KEY_VERSIONS)
