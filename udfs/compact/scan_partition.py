"""All segments of a partition scanned, and whether they are one whole log, and still the one that the store knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from logformat.batches.chunks import NO_END, ChunkBuffer
from logformat.errors import LogFormatError
from logformat.names import MAX_OFFSET
from udfs.compact.gaps import indexed_end
from udfs.compact.plan import NotDue, PartitionPlan, PartitionResult
from udfs.compact.retention import may_take_any
from udfs.compact.scan_segment import SegmentScan, scan_segment
from udfs.compact.sources import Source
from udfs.problem import Problem, SetAside
from udfs.segments import LastBatch
from udfs.storage import open_root


def source_of(plan: PartitionPlan, number: int, scan: SegmentScan) -> Source:
    """One of the plan's segments with its scan."""
    listed = plan.segments[number].listed
    return Source(open_root(listed.root), listed.path, scan, listed.mtime_ms)


def scan_all(plan: PartitionPlan, buffer: ChunkBuffer) -> list[SegmentScan]:
    """Scan the plan's segments in order, up to the high watermark."""
    scans = []
    for i in range(len(plan.segments)):
        scans.append(scan_one(plan, i, buffer))
        if scans[-1].reached_end_offset:
            break
    return scans


def scan_one(plan: PartitionPlan, number: int, buffer: ChunkBuffer) -> SegmentScan:
    """Scan one of the plan's segments; a task of its own where the partition is large."""
    segment = plan.segments[number]
    after = plan.segments[number + 1].base_offset if number + 1 < len(plan.segments) else None
    scan = scan_segment(
        segment,
        buffer,
        next_base_offset=after,
        index_interval_bytes=plan.settings.index_interval_bytes,
        max_index_bytes=plan.settings.segment_index_bytes,
        end_offset=NO_END if plan.read_until is None else plan.read_until,
        mark=plan.known_until,
    )
    if scan.reached_end_offset:
        after = scan.above_base  # what an index names in front of it is in no batch
    end = indexed_end(segment.listed, scan, MAX_OFFSET if after is None else after)
    return replace(scan, indexed_end=end) if end else scan


def check_something_expires(plan: PartitionPlan, buffer: ChunkBuffer) -> None:
    """Raise NotDue where nothing is compacted and the oldest segment tells that retention takes nothing: the others
    need not be read.
    """
    if plan.settings.compacts:
        return
    first = scan_one(plan, 0, buffer)
    if not may_expire(plan, first.size, first.max_timestamp, plan.segments[0].listed.mtime_ms):
        raise NotDue(unread_result(plan))


def may_expire(plan: PartitionPlan, first_size: int, first_max_timestamp: int, first_mtime_ms: int) -> bool:
    """Whether retention may take anything, by the first segment, and by what is known of the others without a look."""
    closed = plan.segments if plan.sealed else plan.segments[:-1]
    if any(s.listed.size and s.min_timestamp_ms < plan.oldest_ms for s in closed):
        return True
    return may_take_any(
        [s.base_offset for s in plan.segments],
        [first_size, *(s.listed.size for s in plan.segments[1:])],
        first_max_timestamp if first_max_timestamp >= 0 else first_mtime_ms,
        plan.settings.retention,
        log_start_offset=plan.log_start_offset,
        now_ms=plan.now_ms,
        last_may_go=plan.sealed,
    )


def unread_result(plan: PartitionPlan) -> PartitionResult:
    """Of a partition that is not compacted, and of which retention takes nothing."""
    start = max(plan.checkpoint or 0, plan.log_start_offset)
    return PartitionResult(
        plan.topic,
        plan.partition,
        "not_due",
        first_dirty_before=start,
        first_dirty_offset=start,
        log_start_offset=plan.log_start_offset,
        next_offset=known_end(plan),
        compacted=False,
    )


def known_end(plan: PartitionPlan) -> int:
    """The log end, of a partition that was not read: -1 where the archive may hold more than the generation."""
    unread = any(s.listed.size for s in plan.segments if not plan.is_ours(s.listed))
    return -1 if unread or plan.known_until is None else plan.known_until


def until_high_watermark(plan: PartitionPlan, scans: Sequence[SegmentScan], notes: list[str]) -> Sequence[SegmentScan]:
    """The scans up to the one that ended at the high watermark."""
    for i, scan in enumerate(scans):
        if scan.reached_end_offset:
            how_far = f"read up to offset {scan.last_offset}" if scan.n_batches else "nothing of it was read"
            notes.append(
                f"{plan.segments[i].listed.path}: {how_far}, below the high watermark {plan.read_until}; what is above "
                "it may still be undone by the cluster"
            )
            return scans[: i + 1]
    return scans


def check_tails(plan: PartitionPlan, scans: Sequence[SegmentScan], notes: list[str]) -> None:
    """A torn tail ends the log in its last segment, with a note; elsewhere, and in a sealed archive, it is damage."""
    for i, scan in enumerate(scans):
        if not scan.torn_bytes:
            continue
        last = i + 1 == len(plan.segments)
        if not last or plan.sealed:
            raise LogFormatError(
                "torn_tail",
                plan.segments[i].listed.path,
                scan.end_position,
                "whole batches up to the end of the file",
                f"{scan.torn_bytes} bytes that are none",
                hint="" if not last else "a sealed archive should end cleanly; without --sealed the log ends there",
            )
        notes.append(
            f"{plan.segments[i].listed.path}: torn tail, the last {scan.torn_bytes} bytes are no batch; the log ends "
            "there"
        )


def check_checkpoints(plan: PartitionPlan, log_end: int) -> None:
    """A checkpoint beyond the log end belongs to another log. A broker begins at the log start then, or deletes all."""
    for what, offset in (
        ("log start", max(plan.log_start_offset, plan.log_start_checkpoint or 0)),
        ("first dirty offset", plan.cleaned_until),
    ):
        if offset > log_end:
            raise SetAside(
                Problem(
                    "side_file",
                    f"{plan.topic}-{plan.partition}",
                    0,
                    f"a {what} up to the log end, {log_end}",
                    f"{offset}, by its checkpoint",
                    state="diverged",
                    hint="the log was replaced, or is not whole: bring back what belongs to it, or --reset to "
                    "begin at its first segment",
                )
            )


def scan_identity(plan: PartitionPlan, buffer: ChunkBuffer) -> LastBatch:
    """The archive's last batch before the end of the last generation, where that lies in no segment of the plan."""
    segment = plan.identity_segment
    if segment is None:
        return LastBatch()
    scan = scan_segment(
        segment,
        buffer,
        next_base_offset=None,
        mark=plan.known_until,
        index_interval_bytes=plan.settings.index_interval_bytes,
        max_index_bytes=plan.settings.segment_index_bytes,
    )
    return scan.marked_batch


def check_identity(plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch, log_end: int) -> LastBatch:
    """That this is still the log that the last generation was made of."""
    name = f"{plan.topic}-{plan.partition}"
    hint = "topic recreated, archive rolled back, or another cluster: --reset starts it anew"
    if plan.known_until is not None:
        if log_end < plan.known_until:
            raise SetAside(
                Problem(
                    "changed",
                    name,
                    0,
                    f"a log that reaches offset {plan.known_until}, as the last generation did",
                    f"one that ends at {log_end}",
                    hint=hint,
                    state="diverged",
                )
            )
        marked = [  # in files of ours the last batch may be a rebuilt one
            scan.marked_batch
            for scan, segment in zip(scans, plan.segments, strict=False)
            if not plan.is_ours(segment.listed) and scan.marked_batch.base_offset >= 0
        ]
        known = plan.known_last_batch
        found = identity if plan.identity_segment is not None else (marked[-1] if marked else known)
        if known.base_offset >= 0 and found != known:
            raise SetAside(
                Problem(
                    "changed",
                    name,
                    0,
                    f"{known} before offset {plan.known_until}",
                    f"{found}",
                    hint=hint,
                    state="diverged",
                )
            )
    last = [s.last_batch for s in scans if s.last_batch.base_offset >= 0]
    if plan.known_until == log_end:
        return plan.known_last_batch
    return last[-1] if last else LastBatch()
