"""The task after Spark's window: it makes one new segment of a segment group and its surviving offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, Tally
from lastkey.udfs.compact.clean.clean_segment import clean_forwards
from lastkey.udfs.compact.clean.last_offset_kernels import mark_survivors
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.generation import finish_segment
from lastkey.udfs.compact.output.place_segments import make_folder
from lastkey.udfs.compact.output.segment_output import SegmentOutput, manifest_row
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Group
from lastkey.udfs.compact.scan.scan_segment import SegmentScan, chunk_buffer
from lastkey.udfs.compact.split.key_files import in_own_folder
from lastkey.udfs.segments import OutputSegment


@dataclass(frozen=True)
class GroupResult:
    """Result for one group. An empty group has no file: the driver joins it to the next one."""

    number: int
    segment: OutputSegment
    counters: np.ndarray
    recompressed_bytes: int
    peak_memory_bytes: int = 0
    seconds: float = 0.0


class SurvivorStream:
    """Surviving offsets of a group, ascending, read from an iterator as needed."""

    def __init__(self, arrays: Iterator[np.ndarray]) -> None:
        self._arrays = arrays
        self._held = np.empty(0, np.int64)
        self._at = 0

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the run's surviving records (`mark_survivors`); runs come in the order of the log."""
        end = int(run.batches["last_offset"][-1])
        parts = [self._held[self._at :]]
        while not len(parts[-1]) or parts[-1][-1] < end:
            more = next(self._arrays, None)
            if more is None:
                break
            parts.append(more)
        if len(parts) > 1:
            self._held, self._at = np.concatenate(parts), 0
        self._at = mark_survivors(run.batches, run.bodies, run.wanted, run.spans, self._held, self._at, is_last)


def rewrite_group(
    plan: PartitionPlan,
    number: int,
    group: Group,
    sources: Sequence[SegmentScan],
    rules: Rules,
    kept_aborts: np.ndarray,
    survivors: Iterator[np.ndarray],
) -> GroupResult:
    """Write the survivors of a group's sources into a folder of its own.

    survivors: arrays of int64 offsets, ascending over all.
    """
    plan = in_own_folder(plan)
    buffer = chunk_buffer(plan)
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes)
    stream = SurvivorStream(survivors)
    tally = Tally()
    output: SegmentOutput | None = None
    all_rows: list[np.ndarray] = []
    digest = 0
    for source in sources:
        for piece, data in clean_forwards(source, rules, loader, stream.mark, tally, buffer):
            digest = (digest + piece.digest) & (2**64 - 1)
            all_rows.append(piece.rows)
            if plan.dry_run:
                continue
            if output is None:
                output = SegmentOutput(make_folder(plan), plan.folder, group.base_offset, plan.settings)
            output.append(piece.rows, data)
    if output is not None:
        segment = finish_segment(plan, kept_aborts, output.root, output, group, digest, buffer)
    else:
        rows = np.concatenate(all_rows) if all_rows else np.empty(0, OUT_BATCH)
        segment = manifest_row(group, "", rows, 0, (0, 0, 0))
    return GroupResult(number, segment, tally.counters, tally.recompressed_bytes)
