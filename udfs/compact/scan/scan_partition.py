"""Scans of all segments of a partition; checks that they are one whole log, and the same log that the store knows; and
the holes in the log that a compaction passes over.

`udfs.holes` distinguishes a gap from a cleaner's work; this module adds the facts that only compaction has:
generations, high watermarks, gaps that an earlier run accepted.

A snapshot after the last segment is evidence, because a broker writes it when it rolls a segment, or at the log end. A
snapshot in between is none: a clean stop leaves one in the middle of a segment, whose records a cleaner may remove
later. It becomes a note.

All offsets below a high watermark existed. The batch that reaches the high watermark may begin above the end of the
previous batch although no cleaner removed offsets there. Then the batch's offset is damaged or a batch is missing: no
checksum covers a batch's offset.

`gaps = "accept"` turns a gap into a note. The generation remembers the offsets that it passed over:
`jobs.compact.plan_inputs` refuses to continue if they come back, and the report still states that the archive is
needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from lastkey.logformat.batches.chunks import NO_END, ChunkBuffer, LogRange, Tail
from lastkey.logformat.batches.reader import read_headers
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT, MAX_OFFSET
from lastkey.udfs.compact.plan import Extent, Gap, PartitionPlan, PartitionResult
from lastkey.udfs.compact.scan.due import may_expire, unread_result, with_first
from lastkey.udfs.compact.scan.facts_files import scan_by_facts
from lastkey.udfs.compact.scan.scan_segment import scan_segment
from lastkey.udfs.holes import ACCEPT_HINT, Hole, indexed_end, missing, missing_below
from lastkey.udfs.problem import Problem, another_log, gap
from lastkey.udfs.segments import LastBatch, SegmentScan
from lastkey.udfs.storage import open_root, opened

_HEADERS_BYTES: Final = 1 << 20


def scan_all(plan: PartitionPlan, buffer: ChunkBuffer, extent: Extent = Extent.WHOLE) -> list[SegmentScan]:
    """Scan the plan's segments in order, up to the high watermark."""
    scans = []
    for i in range(len(plan.input.segments)):
        scans.append(scan_one(plan, i, buffer, extent))
        if scans[-1].reached_end_offset:
            break
    return scans


def scan_one(plan: PartitionPlan, number: int, buffer: ChunkBuffer, extent: Extent = Extent.WHOLE) -> SegmentScan:
    """Scan one of the plan's segments; if only a part is cleaned, read its facts if it has any. In a large partition
    each scan is a task of its own.
    """
    segment = plan.input.segments[number]
    known = scan_by_facts(plan, segment) if extent is Extent.PARTIAL else None
    if known is not None:
        return known
    after = plan.input.segments[number + 1].first_offset if number + 1 < len(plan.input.segments) else None
    scan = scan_segment(
        segment,
        plan.policy.settings,
        buffer,
        next_base_offset=after,
        end_offset=NO_END if plan.read_until is None else plan.read_until,
        mark=plan.input.generation.next_offset,
    )
    if scan.reached_end_offset:
        after = scan.above_base  # no batch holds the offsets that an index names in front of it
        if plan.policy.settings.retention_bytes >= 0:
            scan = replace(scan, bytes_above=_bytes_above(plan, number, scan.end_position))
    last = max(scan.last_offset, scan.first_offset - 1)
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
        for _ in read_headers(file, last.path, LogRange(start, last.size_bytes), ChunkBuffer(_HEADERS_BYTES), tail):
            pass
    return sum(s.size_bytes for s in closed) - (position if closed else 0) + tail.position - start


def if_nothing_expires(plan: PartitionPlan, buffer: ChunkBuffer) -> PartitionResult | None:
    """Return the result if the topic is not compacted and the oldest segment shows that retention removes no records;
    else None. With a result the other segments need not be read.
    """
    if plan.policy.settings.compacts or plan.is_due_anyway or plan.policy.erasing is not None:
        return None
    first = scan_one(plan, 0, buffer)
    facts = with_first(plan, replace(first.segment, size_bytes=first.size))
    if may_expire(plan, facts):
        return None
    _check_continues(plan, buffer)
    return unread_result(plan, facts)


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
            expected = "whole batches up to the end of the file"
            found = f"{scan.torn_bytes} bytes that are not a whole batch"
            hint = "" if not last else "a sealed archive should end cleanly; without --sealed the log ends there"
            raise LogFormatError("torn_tail", scan.path, scan.end_position, expected, found, hint=hint)
        notes.append(
            f"{scan.path}: torn tail, the last {scan.torn_bytes} bytes are not a whole batch; the log ends before them"
        )


def check_checkpoints(plan: PartitionPlan, log_end: int) -> None:
    """Raise LogFormatError if a checkpoint is beyond the log end, because it belongs to another log. A broker would
    then begin at the log start, or delete all segments.
    """
    for what, offset in (
        ("log start", max(plan.input.log_start_offset, plan.input.log_start_checkpoint or 0)),
        ("first dirty offset", plan.cleaned_until),
    ):
        if offset > log_end:
            expected, found = f"a {what} of at most {log_end}, the log end", f"{offset} in its checkpoint"
            hint = (
                "the log was replaced, or is incomplete: restore what belongs to it, or --reset to begin at its first "
                "segment"
            )
            raise LogFormatError("side_file", plan.name, NO_POSITION, expected, found, state="diverged", hint=hint)


def scan_identity(plan: PartitionPlan, buffer: ChunkBuffer) -> LastBatch:
    """Return the archive's last batch before the end of the last generation if it is in no segment of the plan; else
    an empty LastBatch.
    """
    segment = plan.input.identity_segment
    return LastBatch() if segment is None else _last_batch_before(plan, segment, buffer)


def _last_batch_before(plan: PartitionPlan, segment: Segment, buffer: ChunkBuffer) -> LastBatch:
    return scan_segment(segment, plan.policy.settings, buffer, mark=plan.input.generation.next_offset).marked_batch


def _check_continues(plan: PartitionPlan, buffer: ChunkBuffer) -> None:
    """Raise LogFormatError if the archive is another log than the last generation was made of. Reads one segment."""
    until = plan.input.generation.next_offset or 0
    theirs = [s for s in plan.input.segments if not plan.is_ours(s) and s.base_offset < until and s.size_bytes]
    segment = plan.input.identity_segment or (theirs[-1] if theirs else None)
    if segment is not None:
        _check_last_batch(plan, _last_batch_before(plan, segment, buffer))


def _check_last_batch(plan: PartitionPlan, last_batch: LastBatch) -> None:
    noted_batch = plan.input.generation.last_batch
    if noted_batch.base_offset >= 0 and last_batch != noted_batch:
        expected = f"{noted_batch} before offset {plan.input.generation.next_offset}"
        raise another_log(plan.name, expected, f"{last_batch}").as_error()


def check_identity(plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch, log_end: int) -> LastBatch:
    """Raise LogFormatError if this is not the log of the last generation. Return its last batch."""
    if plan.input.generation.next_offset is not None:
        if log_end < plan.input.generation.next_offset:
            expected = f"a log that reaches offset {plan.input.generation.next_offset}, as the last generation did"
            raise another_log(plan.name, expected, f"one that ends at {log_end}").as_error()
        marked = [  # skip our own files: their last batch may be rebuilt
            scan.marked_batch
            for scan, segment in zip(scans, plan.input.segments, strict=False)
            if not plan.is_ours(segment) and scan.marked_batch.base_offset >= 0
        ]
        known = plan.input.generation.last_batch
        _check_last_batch(
            plan, identity if plan.input.identity_segment is not None else (marked[-1] if marked else known)
        )
    last = [s.last_batch for s in scans if s.last_batch.base_offset >= 0]
    if plan.input.generation.next_offset == log_end:
        return plan.input.generation.last_batch
    return last[-1] if last else LastBatch()


_SHOWN: Final = 3


@dataclass(frozen=True)
class _Hole:
    """Offsets first..last that no segment holds. `below`: number of the segment in front of them; -1: none."""

    first: int
    last: int
    below: int


def check_gaps(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int, notes: list[str]) -> tuple[Gap, ...]:
    """Return the holes that the compaction passes over, old ones and new ones. Raises LogFormatError for a gap unless
    accepted.
    """
    accept = plan.policy.settings.gaps == "accept"
    passed = [gap for gap in plan.input.generation.gaps if gap.last >= (plan.input.log_start_checkpoint or 0)]
    accepted, range_texts = _Ranges(passed), []
    thinned_above = list(accumulate((s.thinned_offset for s in reversed(scans)), max))[::-1]
    for hole in _holes(plan, scans):
        if accepted.hold(hole.first, hole.last):
            continue
        missing = _missing(plan, scans, thinned_above, hole)
        if missing is None and hole.last < _cleaned_until(plan, hole.below):
            continue
        if missing is not None and not accept:
            raise missing.as_error()
        below = plan.input.segments[hole.below] if hole.below >= 0 else None
        before, size = (-1, -1) if below is None or plan.is_ours(below) else (below.base_offset, below.size_bytes)
        passed.append(Gap(hole.first, hole.last, before, size, missing is not None))
        range_texts.append(f"{hole.first} to {hole.last}" + ("" if missing is not None else " (removed by a cleaner)"))
    beyond, certain = _beyond(plan, scans, log_end)
    if beyond is not None and certain and not accept:
        raise beyond.as_error()
    if beyond is not None:
        notes.append(f"{beyond.path}: expected {beyond.expected}, but the log ends at {log_end}: it may be cut short")
    if range_texts:
        more = f", and {len(range_texts) - _SHOWN} more ranges" if len(range_texts) > _SHOWN else ""
        notes.append(f"{plan.name}: no segment holds offsets {', '.join(range_texts[:_SHOWN])}{more}")
    ranges = _Ranges(passed)
    for snapshot in plan.input.snapshots:
        if not plan.is_ours(snapshot) and ranges.hold(snapshot.offset - 1, snapshot.offset):
            notes.append(f"{snapshot.path}: the log once ended, or a segment began, where no segment holds offsets now")
    return tuple(sorted(passed, key=lambda gap: gap.first))


class _Ranges:
    """Gaps in the order of their beginnings, for many look-ups: a log may have as many as segments."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        ordered = sorted(gaps, key=lambda gap: gap.first)
        self._firsts = [gap.first for gap in ordered]
        self._reach = list(accumulate((gap.last for gap in ordered), max))

    def hold(self, first: int, last: int) -> bool:
        """Return whether one gap holds both offsets."""
        n = bisect_right(self._firsts, first)
        return n > 0 and last <= self._reach[n - 1]


def _holes(plan: PartitionPlan, scans: Sequence[SegmentScan]) -> Iterator[_Hole]:
    """Yield the holes between two segments, cut off at the cleaner checkpoint if it is inside; and the hole below the
    first segment, if orphaned indexes or leader epochs show that the log began earlier.
    """
    first = scans[0].first_offset
    low = min(
        [orphan.offset for orphan in plan.input.orphans] + [start for _, start in _first_epoch(plan)], default=first
    )
    if low < first and (plan.input.log_start_checkpoint or 0) < first:
        yield _Hole(max(low, plan.input.log_start_checkpoint or 0), first - 1, -1)
    for i, scan in enumerate(scans[:-1]):
        end = max(scan.first_offset, scan.last_offset + 1, plan.input.log_start_offset)
        after, cleaned = scans[i + 1].first_offset, _cleaned_until(plan, i)
        if end < after:
            yield _Hole(cleaned if end < cleaned < after else end, after - 1, i)


def _first_epoch(plan: PartitionPlan) -> tuple[tuple[int, int], ...]:
    """Return ((epoch, offset),) at which the log began; () if a generation knows it, or knew, or if the beginning is in
    remote storage: Kafka writes a log start checkpoint of 0 for no other topic. A broker that gives up the beginning of
    a log moves this offset up, so it is never below the first segment.
    """
    told = plan.input.generation.next_offset is not None or plan.input.reset or plan.input.log_start_checkpoint == 0
    return plan.input.leader_epochs[:1] if plan.input.leader_epochs and not told else ()


def _behind_generation(plan: PartitionPlan, below: int) -> bool:
    """Return whether the last generation ends with this segment, and the archive continues after it."""
    if below < 0:
        return False
    segment, after = plan.input.segments[below], plan.input.segments[below + 1]
    return bool(segment.from_offset) or (plan.is_ours(segment) and not plan.is_ours(after))


def _cleaned_until(plan: PartitionPlan, below: int) -> int:
    """Return the offset below which holes made by a cleaner are not reported. Holes that the archive's own cleaner made
    above a generation are reported.
    """
    return plan.input.first_dirty_offset or 0 if _behind_generation(plan, below) else plan.cleaned_until


def _missing(
    plan: PartitionPlan, scans: Sequence[SegmentScan], thinned_above: Sequence[int], hole: _Hole
) -> Problem | None:
    """Return the problem of a hole that is a gap; None if a cleaner made it.

    thinned_above: for each segment, the largest `thinned_offset` of it and all above it.
    """
    n = bisect_left(plan.input.orphans, hole.first, key=lambda orphan: orphan.offset)
    orphan = (
        plan.input.orphans[n].path
        if n < len(plan.input.orphans) and plan.input.orphans[n].offset <= hole.last
        else None
    )
    line = f'gaps = "accept" below [topics."{plan.input.topic}"] in the settings file (--config)'
    hint = f"{ACCEPT_HINT}; {line} accepts the gaps of this topic in every run"
    if hole.below < 0:
        epochs = f"{plan.input.segments[0].path.rpartition('/')[0]}/{LEADER_EPOCH_CHECKPOINT}"
        return missing_below(hole.first, hole.last, orphan, epochs, hint)
    scan, after = scans[hole.below], plan.input.segments[hole.below + 1]
    below = hole.last < plan.cleaned_until
    if _behind_generation(plan, hole.below) and not (orphan or scan.indexed_end or below):
        return gap(
            after.path,
            f"offsets from {hole.first} on, where the last generation ends",
            f"a segment that begins at {hole.last + 1}",
            f"{ACCEPT_HINT}; or --reset to start over from what the archive holds",
        )
    path, end_is_known = plan.input.segments[hole.below].path, scan.indexed_end
    first = scan.last_offset + 1 if end_is_known and not orphan else hole.first
    thinned = thinned_above[hole.below + 1] >= 0 or scan.thinned_offset >= plan.cleaned_until
    between = Hole(first, hole.last, path, scan.end_position, end_is_known, after.path)
    return missing(between, orphan, lambda: below or thinned, hint)


def _beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> tuple[Problem | None, bool]:
    """Return the problem if any file shows that the log continued after the last segment, provided that its end was
    read. Also return whether that is certain: a file that was copied later than a log still being written is no proof.
    """
    if scans[-1].reached_end_offset:
        return _passed_over(plan, scans), True
    if len(scans) < len(plan.input.segments):
        return None, False
    certain = _certainly_beyond(plan, scans, log_end)
    if certain is not None:
        return certain, True
    if scans[-1].indexed_end:
        last = plan.input.segments[len(scans) - 1]
        expected = f"batches up to offset {scans[-1].indexed_end - 1}, as its index says"
        end = f"the end of the file after offset {scans[-1].last_offset}"
        return gap(last.path, expected, end, ACCEPT_HINT, scans[-1].end_position), plan.run.sealed
    if (plan.input.high_watermark or 0) > log_end:
        expected = f"{plan.name} up to offset {plan.input.high_watermark}, its high watermark"
        return gap(HIGH_WATERMARK_CHECKPOINT, expected, f"a log that ends at {log_end}", ACCEPT_HINT), plan.run.sealed
    return None, False


def _passed_over(plan: PartitionPlan, scans: Sequence[SegmentScan]) -> Problem | None:
    """Return the problem if the batch that reached the high watermark has an offset that is too high: no batch holds
    the offsets in front of it.

    No checksum covers its own offset, and a damaged one would end the log too early.
    """
    scan, segment = scans[-1], plan.input.segments[len(scans) - 1]
    first = max(scan.last_offset + 1, scan.first_offset, plan.input.log_start_offset)
    found = f"one at {scan.above_base}"
    if scan.indexed_end:
        expected = f"a batch with offset {scan.indexed_end - 1}, as its index says"
        return gap(segment.path, expected, found, ACCEPT_HINT, scan.end_position)
    last = min(scan.above_base, plan.read_until or 0) - 1
    if last < max(first, plan.cleaned_until) or scan.thinned_offset >= plan.cleaned_until:
        return None  # each offset below the high watermark exists, or a cleaner removed it
    return gap(
        segment.path,
        f"a batch at offset {first}, which is below the high watermark {plan.read_until}",
        f"{found}, and no sign that a cleaner removed the offsets between",
        ACCEPT_HINT,
        scan.end_position,
    )


def _certainly_beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> Problem | None:
    for orphan in plan.input.orphans:
        if orphan.offset > scans[-1].first_offset:
            return gap(orphan.path, "the .log of this index", f"a log that ends at offset {log_end}", ACCEPT_HINT)
    for snapshot in plan.input.snapshots:
        if snapshot.offset > log_end:
            return gap(
                snapshot.path,
                f"a log that reaches offset {snapshot.offset}, as this snapshot's name says",
                f"one that ends at {log_end}",
                ACCEPT_HINT,
            )
    return None
