"""Scans of all segments of a partition; checks that they are one whole log, and the same log that the store knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import NO_END, ChunkBuffer, Tail
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.cleaner import CleanableRange, SegmentFacts
from lastkey.udfs.compact.plan import ANOTHER_LOG, PartitionPlan, PartitionResult
from lastkey.udfs.compact.retention import may_take_any
from lastkey.udfs.compact.scan.due import retention_held_back
from lastkey.udfs.compact.scan.scan_segment import scan_segment
from lastkey.udfs.compact.scan.segment_facts import scan_by_facts
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.holes import indexed_end
from lastkey.udfs.segments import LastBatch, SegmentScan
from lastkey.udfs.storage import open_root, opened

_HEADERS_BYTES: Final = 1 << 20


def scan_all(plan: PartitionPlan, buffer: ChunkBuffer) -> list[SegmentScan]:
    """Scan the plan's segments in order, up to the high watermark."""
    scans = []
    for i in range(len(plan.input.segments)):
        scans.append(scan_one(plan, i, buffer))
        if scans[-1].reached_end_offset:
            break
    return scans


def scan_one(plan: PartitionPlan, number: int, buffer: ChunkBuffer) -> SegmentScan:
    """Scan one of the plan's segments. In a large partition each scan is a task of its own."""
    segment = plan.input.segments[number]
    known = scan_by_facts(plan, segment) if plan.policy.partial else None
    if known is not None:
        return known
    after = plan.input.segments[number + 1].first_offset if number + 1 < len(plan.input.segments) else None
    scan = scan_segment(
        segment,
        buffer,
        next_base_offset=after,
        index_interval_bytes=plan.policy.settings.index_interval_bytes,
        max_index_bytes=plan.policy.settings.segment_index_bytes,
        end_offset=NO_END if plan.read_until is None else plan.read_until,
        mark=plan.input.before.until,
    )
    if scan.reached_end_offset:
        after = scan.above_base  # no batch holds the offsets that an index names in front of it
        if plan.policy.settings.retention_bytes >= 0:
            scan = replace(scan, bytes_above=_bytes_above(plan, number, scan.end_position))
    last = max(scan.last_offset, scan.base_offset - 1)
    end = indexed_end(segment, scan.end_position, last + 1, MAX_OFFSET if after is None else after)
    return replace(scan, indexed_end=end) if end else scan


def _bytes_above(plan: PartitionPlan, number: int, position: int) -> int:
    """Return the bytes of log from a position in a segment on, as Kafka counts them: the last segment counts up to its
    last batch, because a preallocated file ends in zeros. It reads only headers; damage ends the count.
    """
    *closed, last = plan.input.segments[number:]
    start = 0 if closed else position
    tail = Tail(start)
    with opened(open_root(last.root), last.path) as file, suppress(LogFormatError):
        for _ in read_headers(file, last.path, start, last.size_bytes, ChunkBuffer(_HEADERS_BYTES), tail):
            pass
    return sum(s.size_bytes for s in closed) - (position if closed else 0) + tail.position - start


def if_nothing_expires(plan: PartitionPlan, buffer: ChunkBuffer) -> PartitionResult | None:
    """Return the result if the topic is not compacted and the oldest segment shows that retention removes nothing, so
    that the other segments need not be read; else None.
    """
    if plan.policy.settings.compacts or plan.is_due_anyway or plan.policy.erasing is not None:
        return None
    first = scan_one(plan, 0, buffer)
    facts = first.size, first.segment.max_timestamp_ms, plan.input.segments[0].mtime_ms
    if may_expire(plan, *facts):
        return None
    _check_continues(plan, buffer)
    return unread_result(plan, *facts)


def may_expire(plan: PartitionPlan, first_size: int, first_max_timestamp: int, first_mtime_ms: int) -> bool:
    """Return whether retention may remove anything, judged by the first segment and by facts that need no look at the
    others.
    """
    closed = plan.input.segments if plan.run.sealed else plan.input.segments[:-1]
    if any(s.size_bytes and s.min_timestamp_ms < plan.oldest_ms for s in closed):
        return True
    return may_take_any(
        [s.first_offset for s in plan.input.segments],
        [first_size, *(s.size_bytes for s in plan.input.segments[1:])],
        first_max_timestamp if first_max_timestamp >= 0 else first_mtime_ms,
        plan.policy.settings.retention,
        log_start_offset=plan.input.log_start_offset,
        now_ms=plan.run.now_ms,
        last_may_go=plan.run.sealed,
    )


def not_due(
    plan: PartitionPlan,
    first_dirty: int,
    next_offset: int,
    cleanable: CleanableRange,
    held_back: tuple[HeldBack, ...],
) -> PartitionResult:
    """Return the result of a partition with which nothing is done now."""
    return PartitionResult(
        plan.input.topic,
        plan.input.partition,
        "not_due",
        first_dirty_before=first_dirty,
        first_dirty_offset=first_dirty,
        log_start_offset=plan.input.log_start_offset,
        next_offset=next_offset,
        dirty_ratio=cleanable.ratio,
        clean_bytes=cleanable.clean_bytes,
        dirty_bytes=cleanable.cleanable_bytes,
        held_back=held_back,
    )


def unread_result(
    plan: PartitionPlan, first_size: int, first_max_timestamp: int, first_mtime_ms: int
) -> PartitionResult:
    """Return the result of a partition that is not compacted and loses nothing by retention, as its first segment
    shows.
    """
    start = max(plan.input.checkpoint or 0, plan.input.log_start_offset)
    bases, paths = [s.first_offset for s in plan.input.segments], [s.path for s in plan.input.segments]
    sizes = [first_size, *(s.size_bytes for s in plan.input.segments[1:])][: len(bases)]
    unknown = np.full(len(bases), -1, np.int64)
    newest, times = unknown.copy(), unknown.copy()
    newest[:1], times[:1] = first_max_timestamp, first_mtime_ms
    facts = SegmentFacts(np.array(bases, np.int64), np.array(sizes, np.int64), newest, unknown, times)
    held_back = retention_held_back(plan, facts, paths, active=MAX_OFFSET if plan.run.sealed else max(bases, default=0))
    result = not_due(plan, start, known_end(plan), CleanableRange(start, start, 0, 0), held_back)
    return replace(result, compacted=False)


def known_end(plan: PartitionPlan) -> int:
    """Return the log end of a partition that was not read; -1 if the archive may hold more than the generation."""
    unread = any(s.size_bytes for s in plan.input.segments if not plan.is_ours(s))
    return -1 if unread or plan.input.before.until is None else plan.input.before.until


def until_high_watermark(plan: PartitionPlan, scans: Sequence[SegmentScan], notes: list[str]) -> Sequence[SegmentScan]:
    """Return the scans up to the one that ended at the high watermark."""
    for i, scan in enumerate(scans):
        if scan.reached_end_offset:
            how_far = f"read up to offset {scan.last_offset}" if scan.segment.batches else "nothing of it was read"
            notes.append(
                f"{plan.input.segments[i].path}: {how_far}, below the high watermark {plan.read_until}; what is "
                "above it may still be undone by the cluster"
            )
            return scans[: i + 1]
    return scans


def check_tails(plan: PartitionPlan, scans: Sequence[SegmentScan], notes: list[str]) -> None:
    """Add a note for a torn tail of the last segment, where the log ends. Raises LogFormatError kind "torn_tail" for
    one elsewhere, or in a sealed archive.
    """
    for i, scan in enumerate(scans):
        if not scan.torn_bytes:
            continue
        last = i + 1 == len(plan.input.segments)
        if not last or plan.run.sealed:
            raise LogFormatError(
                "torn_tail",
                plan.input.segments[i].path,
                scan.end_position,
                "whole batches up to the end of the file",
                f"{scan.torn_bytes} bytes that are not a whole batch",
                hint="" if not last else "a sealed archive should end cleanly; without --sealed the log ends there",
            )
        notes.append(
            f"{plan.input.segments[i].path}: torn tail, the last {scan.torn_bytes} bytes are not a whole batch; "
            "the log ends before them"
        )


def check_checkpoints(plan: PartitionPlan, log_end: int) -> None:
    """Raise LogFormatError if a checkpoint lies beyond the log end, because it belongs to another log. A broker would
    then begin at the log start, or delete everything.
    """
    for what, offset in (
        ("log start", max(plan.input.log_start_offset, plan.input.log_start_checkpoint or 0)),
        ("first dirty offset", plan.cleaned_until),
    ):
        if offset > log_end:
            raise LogFormatError(
                "side_file",
                plan.name,
                NO_POSITION,
                f"a {what} of at most {log_end}, the log end",
                f"{offset} in its checkpoint",
                state="diverged",
                hint="the log was replaced, or is incomplete: restore what belongs to it, or --reset to begin at "
                "its first segment",
            )


def scan_identity(plan: PartitionPlan, buffer: ChunkBuffer) -> LastBatch:
    """Return the archive's last batch before the end of the last generation if it lies in no segment of the plan; else
    an empty LastBatch.
    """
    segment = plan.input.identity_segment
    if segment is None:
        return LastBatch()
    scan = scan_segment(
        segment,
        buffer,
        next_base_offset=None,
        mark=plan.input.before.until,
        index_interval_bytes=plan.policy.settings.index_interval_bytes,
        max_index_bytes=plan.policy.settings.segment_index_bytes,
    )
    return scan.marked_batch


def _check_continues(plan: PartitionPlan, buffer: ChunkBuffer) -> None:
    """Raise LogFormatError if the archive is another log than the last generation was made of. Reads one segment."""
    until = plan.input.before.until or 0
    theirs = [s for s in plan.input.segments if not plan.is_ours(s) and s.base_offset < until and s.size_bytes]
    segment = plan.input.identity_segment or (theirs[-1] if theirs else None)
    if segment is not None:
        _check_last_batch(
            plan, scan_identity(replace(plan, input=replace(plan.input, identity_segment=segment)), buffer)
        )


def _check_last_batch(plan: PartitionPlan, found: LastBatch) -> None:
    known = plan.input.before.last_batch
    if known.base_offset >= 0 and found != known:
        raise LogFormatError(
            "changed",
            plan.name,
            NO_POSITION,
            f"{known} before offset {plan.input.before.until}",
            f"{found}",
            hint=ANOTHER_LOG,
            state="diverged",
        )


def check_identity(plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch, log_end: int) -> LastBatch:
    """Raise LogFormatError unless this is still the log that the last generation was made of. Return its last batch."""
    if plan.input.before.until is not None:
        if log_end < plan.input.before.until:
            raise LogFormatError(
                "changed",
                plan.name,
                NO_POSITION,
                f"a log that reaches offset {plan.input.before.until}, as the last generation did",
                f"one that ends at {log_end}",
                hint=ANOTHER_LOG,
                state="diverged",
            )
        marked = [  # skip our own files: their last batch may be rebuilt
            scan.marked_batch
            for scan, segment in zip(scans, plan.input.segments, strict=False)
            if not plan.is_ours(segment) and scan.marked_batch.base_offset >= 0
        ]
        known = plan.input.before.last_batch
        _check_last_batch(
            plan, identity if plan.input.identity_segment is not None else (marked[-1] if marked else known)
        )
    last = [s.last_batch for s in scans if s.last_batch.base_offset >= 0]
    if plan.input.before.until == log_end:
        return plan.input.before.last_batch
    return last[-1] if last else LastBatch()
