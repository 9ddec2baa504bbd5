"""The winner of each key where `compaction.strategy` is timestamp or header: a pass before the one that cleans.

From the end backwards the first record of a key is its last one, but not the one with the highest version. So what is
to be cleaned is read twice, and the table takes 32 bytes a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import ChunkBuffer
from logformat.errors import LogFormatError
from udfs.compact.analyse import Analysis
from udfs.compact.cleaner import Rules
from udfs.compact.key_table import TooManyKeys, grown
from udfs.compact.plan import PartitionPlan
from udfs.compact.scan_segment import CHANGED_HINT, ScannedChunk, chunk_buffer
from udfs.compact.sources import Source, chunk_at
from udfs.compact.splits import Split
from udfs.compact.walk_split import entering
from udfs.compact.winner_kernels import (
    NO_VERSION,
    WINNER,
    enter_winners,
    mark_winners,
    versions_by_header,
    versions_by_time,
)
from udfs.problem import Problem, SetAside
from udfs.storage import opened

KEY_VERSIONS = pa.schema(
    [
        pa.field("key_low", pa.int64(), nullable=False),  # the hash's halves, as signed numbers
        pa.field("key_high", pa.int64(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("segment_group", pa.int32(), nullable=False),
    ]
)
_ROWS = 1 << 20  # of a record batch


class Winners:
    """The table, grown as keys come; `max_bytes` bounds its memory (the old slots too while it grows)."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.slots = np.zeros(1 << 15, WINNER)
        self.used = 0

    def enter(self, run: Run, versions: np.ndarray, start: int = 0) -> int:
        """Enter records of a run from row `start` on. Returns where it stopped: at len(run.spans), unless the table is
        full and may not grow.
        """
        while start < len(run.spans):
            self.used, start = enter_winners(
                run.batches, run.bodies, run.wanted, run.spans, versions, self.slots, self.used, start
            )
            if start < len(run.spans) and not self._grow():
                break
        return start

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the records of a run that win (bool[len(run.spans)])."""
        if not mark_winners(run.batches, run.bodies, run.wanted, run.spans, self.slots, is_last):
            raise LogFormatError(
                "changed",
                "",
                int(run.batches["position"][0]),
                "keys that were met when the winners were looked for",
                "another one",
                hint=CHANGED_HINT,
            )

    def held(self) -> np.ndarray:
        """WINNER[used]."""
        taken = (self.slots["low"] != 0) | (self.slots["high"] != 0)
        found: np.ndarray = self.slots[taken]
        return found

    def _grow(self) -> bool:
        larger = grown(self.slots, self.max_bytes)
        self.slots = self.slots if larger is None else larger
        return larger is not None


def versions_of(run: Run, plan: PartitionPlan) -> np.ndarray:
    """int64[len(run.spans)]: the version of each record of the wanted batches; NO_VERSION: none, or no key; less where
    it lies below the log start: what nobody reads takes nothing with it that somebody reads.
    """
    versions, settings = np.full(len(run.spans), NO_VERSION, np.int64), plan.settings
    if settings.compaction_strategy == "timestamp":
        versions_by_time(run.batches, run.bodies, run.wanted, run.spans, versions)
    else:
        name = np.frombuffer(settings.compaction_strategy_header.encode(), np.uint8)
        versions_by_header(run.raw, run.scratch, run.bodies, run.wanted, run.spans, name, versions)
    versions[run.spans["null_key"]] = NO_VERSION
    if len(run.batches) and run.batches["base_offset"][0] < plan.log_start_offset:
        offsets = np.repeat(run.bodies["base_offset"], run.bodies["n_records"]) + run.spans["offset_delta"]
        versions[offsets < plan.log_start_offset] = NO_VERSION - 1
    return versions


def find_winners(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer) -> Winners:
    """The winners of all that will be cleaned. Raises TooManyKeys, and SetAside where no record has the header."""
    table = Winners(plan.limits.task_memory_bytes // 2)
    loader = _loader(plan)
    highest = NO_VERSION
    for numbers in analysis.groups:
        for source in (analysis.sources[number] for number in numbers):
            for run in _runs(source, source.scan.chunks, analysis.rules, loader, buffer):
                versions = versions_of(run, plan)
                if table.enter(run, versions) < len(run.spans):
                    raise TooManyKeys
                highest = max(highest, int(versions.max(initial=NO_VERSION)))
    check_versions(plan, highest, bool(table.used))
    return table


def check_versions(plan: PartitionPlan, highest: int, any_keys: bool) -> None:
    """Set a partition aside of which no record has the header: by offset alone is not what was asked for."""
    settings = plan.settings
    if settings.compaction_strategy == "header" and any_keys and highest <= NO_VERSION:
        raise SetAside(
            Problem(
                "version",
                f"{plan.topic}-{plan.partition}",
                0,
                f"a header {settings.compaction_strategy_header!r} of eight bytes, not negative, in some record",
                "none",
                hint="compaction.strategy.header names it: without one, offsets alone would decide",
            )
        )


def scan_versions(
    plan: PartitionPlan, sources: Sequence[Source], split: Split, rules: Rules, group_bases: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """KEY_VERSIONS rows of one split, for Spark's window: the winners within it, some keys more than once where the
    table would outgrow the memory. `sources` are those of its parts; group_bases: first offset of each segment group.
    """
    buffer, loader, table = chunk_buffer(plan), _loader(plan), Winners(plan.limits.task_memory_bytes // 2)
    bases = np.array(group_bases, np.int64)
    for source, part in zip(sources, split.parts, strict=True):
        for run in _runs(source, source.scan.chunks[part.first : part.stop], rules, loader, buffer):
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


def _loader(plan: PartitionPlan) -> BodyLoader:
    return BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)


def _runs(
    source: Source, chunks: Sequence[ScannedChunk], rules: Rules, loader: BodyLoader, buffer: ChunkBuffer
) -> Iterator[Run]:
    with opened(source.root, source.path) as file:
        for scanned in chunks:
            chunk = chunk_at(file, source.path, scanned, buffer)
            wanted = entering(chunk.batches, rules)
            yield from loader.runs(
                chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=False, before=chunk.before
            )
