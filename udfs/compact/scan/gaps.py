"""The holes in a log that a compaction passes over. `udfs.holes` tells a gap from a cleaner's work; this module adds
the facts that only compaction knows: generations, high watermarks, gaps that an earlier run accepted.

A snapshot behind the last segment is evidence, because a broker writes it when it rolls a segment, or at the log end. A
snapshot in between is none: a clean stop leaves one in the middle of a segment, whose records a cleaner may remove
later. It becomes a note.

A high watermark says that all offsets below it were there. So if the batch that reaches it begins above the end of the
batch before it, and no cleaner was there, its offset is damaged or a batch is lost: no checksum covers a batch's
offset.

`gaps = "accept"` turns a gap into a note. The generation remembers the offsets that it passed over:
`jobs.compact.plan` refuses to go on if they come back, and the report still says that the archive is needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from lastkey.logformat.names import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from lastkey.udfs.compact.plan import Gap, PartitionPlan
from lastkey.udfs.holes import ACCEPT_HINT, Hole, gap, missing, missing_below
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import SegmentScan

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
    passed = [gap for gap in plan.input.before.gaps if gap.last >= (plan.input.log_start_checkpoint or 0)]
    known, said = _Ranges(passed), []
    thinned_above = list(accumulate((s.thinned_offset for s in reversed(scans)), max))[::-1]
    for hole in _holes(plan, scans):
        if known.hold(hole.first, hole.last):
            continue
        missing = _missing(plan, scans, thinned_above, hole)
        if missing is None and hole.last < _cleaned_until(plan, hole.below):
            continue
        if missing is not None and not accept:
            raise missing.as_error()
        below = plan.input.segments[hole.below] if hole.below >= 0 else None
        before, size = (-1, -1) if below is None or plan.is_ours(below) else (below.base_offset, below.size_bytes)
        passed.append(Gap(hole.first, hole.last, before, size, missing is not None))
        said.append(f"{hole.first} to {hole.last}" + ("" if missing is not None else " (removed by a cleaner)"))
    beyond, certain = _beyond(plan, scans, log_end)
    if beyond is not None and certain and not accept:
        raise beyond.as_error()
    if beyond is not None:
        notes.append(f"{beyond.path}: expected {beyond.expected}, but the log ends at {log_end}: it may be cut short")
    if said:
        more = f", and {len(said) - _SHOWN} more ranges" if len(said) > _SHOWN else ""
        notes.append(f"{plan.name}: no segment holds offsets {', '.join(said[:_SHOWN])}{more}")
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
    """Yield the holes between two segments, cut off at the cleaner checkpoint if it lies inside; and the hole below the
    first segment, if orphaned indexes or leader epochs show that the log began earlier.
    """
    first = scans[0].base_offset
    low = min(
        [orphan.offset for orphan in plan.input.orphans] + [start for _, start in _first_epoch(plan)], default=first
    )
    if low < first and (plan.input.log_start_checkpoint or 0) < first:
        yield _Hole(max(low, plan.input.log_start_checkpoint or 0), first - 1, -1)
    for i, scan in enumerate(scans[:-1]):
        end = max(scan.base_offset, scan.last_offset + 1, plan.input.log_start_offset)
        after, cleaned = scans[i + 1].base_offset, _cleaned_until(plan, i)
        if end < after:
            yield _Hole(cleaned if end < cleaned < after else end, after - 1, i)


def _first_epoch(plan: PartitionPlan) -> tuple[tuple[int, int], ...]:
    """Return ((epoch, offset),) at which the log began; () if a generation knows it, or knew, or if the beginning is in
    remote storage: Kafka writes a log start checkpoint of 0 for no other topic. A broker that gives up the beginning of
    a log moves this offset up, so it is never below the first segment.
    """
    told = plan.input.before.until is not None or plan.input.anew or plan.input.log_start_checkpoint == 0
    return plan.input.leader_epochs[:1] if plan.input.leader_epochs and not told else ()


def _behind_generation(plan: PartitionPlan, below: int) -> bool:
    """Return whether the last generation ends with this segment, and the archive continues behind it."""
    if below < 0:
        return False
    segment, after = plan.input.segments[below], plan.input.segments[below + 1]
    return bool(segment.from_offset) or (plan.is_ours(segment) and not plan.is_ours(after))


def _cleaned_until(plan: PartitionPlan, below: int) -> int:
    """Return the offset below which a cleaner's holes are no news. Holes that the archive's own cleaner made behind a
    generation are news.
    """
    return plan.input.checkpoint or 0 if _behind_generation(plan, below) else plan.cleaned_until


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
    path, known = plan.input.segments[hole.below].path, scan.indexed_end
    first = scan.last_offset + 1 if known and not orphan else hole.first
    thinned = thinned_above[hole.below + 1] >= 0 or scan.thinned_offset >= plan.cleaned_until
    between = Hole(first, hole.last, path, scan.end_position, known, after.path)
    return missing(between, orphan, lambda: below or thinned, hint)


def _beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> tuple[Problem | None, bool]:
    """Return the problem if anything shows that the log continued behind the last segment, provided that its end was
    read. Also return whether that is certain: a file that was copied later than a log still being written proves
    nothing.
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
    """Return the problem if the batch that reached the high watermark lies too high: no batch holds the offsets in
    front of it.

    No checksum covers its own offset, and a damaged one would end the log too early.
    """
    scan, planned = scans[-1], plan.input.segments[len(scans) - 1]
    segment = planned
    first = max(scan.last_offset + 1, scan.base_offset, planned.from_offset or 0, plan.input.log_start_offset)
    found = f"one at {scan.above_base}"
    if scan.indexed_end:
        expected = f"a batch with offset {scan.indexed_end - 1}, as its index says"
        return gap(segment.path, expected, found, ACCEPT_HINT, scan.end_position)
    last = min(scan.above_base, plan.read_until or 0) - 1
    if last < max(first, plan.cleaned_until) or scan.thinned_offset >= plan.cleaned_until:
        return None  # everything below the high watermark is there, or a cleaner removed it
    return gap(
        segment.path,
        f"a batch at offset {first}, which is below the high watermark {plan.read_until}",
        f"{found}, and no sign that a cleaner removed the offsets between",
        ACCEPT_HINT,
        scan.end_position,
    )


def _certainly_beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> Problem | None:
    for orphan in plan.input.orphans:
        if orphan.offset > scans[-1].base_offset:
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
