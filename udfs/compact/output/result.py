"""The result of a cleaned partition, from its analysis and the generation that was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.cleaner import first_dirty_offset
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult
from lastkey.udfs.compact.retention import Expired
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.verdicts import COUNTER_NAMES
from lastkey.udfs.segments import OutputSegment, ReadFile


@dataclass(frozen=True)
class WrittenGeneration:
    """The segments of a generation in order, and those that retention removed from it."""

    segments: tuple[OutputSegment, ...]
    log_start_offset: int
    expired: tuple[Expired, ...] = ()
    gone: tuple[OutputSegment, ...] = ()
    notes: tuple[str, ...] = ()


def result_of(plan: PartitionPlan, analysis: Analysis, generation: WrittenGeneration, tally: Tally) -> PartitionResult:
    """Return the result of a cleaned partition."""
    out = generation.segments
    cleaned = [s for s in (*generation.gone, *out) if s.cleaned]
    before = sum(s.size for s in analysis.sources)
    read = sum(s.facts_bytes or s.size for s in analysis.sources)
    read_again = sum(s.source_bytes for s in cleaned)
    last = analysis.sources[-1]
    log_start, cleanable = generation.log_start_offset, analysis.cleanable
    dirty = first_dirty_offset(plan.input.checkpoint, plan.input.log_start_offset, analysis.log_end_offset)
    cleaned_until = cleanable.first_uncleanable_offset if analysis.compacts else dirty
    return PartitionResult(
        topic=plan.input.topic,
        partition=plan.input.partition,
        status="cleaned",
        folder=plan.run.folder,
        notes=analysis.notes + generation.notes,
        first_dirty_before=analysis.cleanable.first_dirty_offset,
        first_dirty_offset=max(cleaned_until, log_start),
        log_start_offset=log_start,
        next_offset=analysis.log_end_offset,
        last_batch=analysis.last_batch,
        log_end_timestamp_ms=last.max_timestamp,
        dirty_ratio=analysis.cleanable.ratio,
        clean_bytes=analysis.cleanable.clean_bytes,
        dirty_bytes=analysis.cleanable.cleanable_bytes,
        segments=out,
        gaps=analysis.gaps,  # also those below the log start: files that come back there were never read
        compacted=analysis.compacts,
        erases=plan.policy.erasing is not None,
        expired=generation.expired,
        segments_before=len(analysis.sources),
        counters=dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True)),
        bytes_read=read + read_again,
        bytes_written=sum(s.size_bytes + s.facts_bytes for s in cleaned),
        bytes_before=before,
        bytes_after=sum(s.size_bytes for s in out),
        recompressed_bytes=tally.recompressed_bytes,
        archived_files=tuple(_read_whole(plan, analysis)),
    )


def _read_whole(plan: PartitionPlan, analysis: Analysis) -> Iterator[ReadFile]:
    """Yield the archived files of which every byte is a batch that this run has read."""
    for s in analysis.sources:
        listed = s.segment.listed
        if not plan.is_ours(listed) and s.start_position == 0 and s.end_position == listed.size:
            yield ReadFile(listed.base_offset, listed.size, s.checksum)
