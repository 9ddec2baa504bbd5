"""Offsets that no segment holds: lawful where a cleaner took what was there, a gap where a file is missing or short.

A leader writes without holes: each batch begins where the one before it ends, each segment where the last one ends, and
a batch holds a record for each of its offsets. Only a cleaner makes holes, and it cleans a log from its start on. So:

  a hole below the cleaner checkpoint                a cleaner took it: nothing to say
  above, with a cleaner's work beside or above it    a cleaner took it too: the checkpoint is lost, or this is a replica
                                                     that was filled from a cleaned leader. Kafka cleans such a log, and
                                                     so do we, with a note
  above, without                                     a file is missing, empty, or cut at a batch border: a gap

"A cleaner's work" is a batch that holds fewer records than offsets, or begins above the end of the one before it. Seen
above a hole it shows that the cleaner has passed the hole; in the segment that ends there, that it may have taken the
end of that segment too (Kafka before 4.0 did not keep the last batch of what it cleaned; KAFKA.md, "Versions").

Wherever a hole lies, it is a gap if a file shows that something was there: an index without its log, or an index whose
last entry lies behind the end of its log. So it is behind the last segment, where a producer snapshot counts too: it is
written when a segment is rolled, or at the log end. In between it does not: a clean stop leaves one in the middle of a
segment, whose records a cleaner may take later. There it is a note. And below the first segment the first leader epoch
tells where the log began: a broker that gives up the beginning moves it up (KAFKA.md, "Leader epochs").

A high watermark says that what is below it was there. So where the batch that reaches it begins above the end of the
one before it, and no cleaner was there, its offset is damaged or a batch is lost: no checksum covers a batch's offset.

`gaps = "accept"` makes a note of a gap. What was passed over stays with the generation (`jobs.compact.plan`
refuses to go on when it comes back after all), and the report goes on to say that the archive is still needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logformat.errors import unless_unreadable
from logformat.listing import ListedSegment
from logformat.names import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from logformat.side_files import offset_index, time_index
from udfs.compact.plan import Gap, PartitionPlan
from udfs.compact.scan_segment import SegmentScan
from udfs.problem import Problem, SetAside
from udfs.storage import open_root, read_file

_SHOWN: Final = 3
_HINT: Final = (
    'bring the missing file back; or --gaps accept (the setting gaps = "accept") where it is known to be lost'
)


@dataclass(frozen=True)
class _Hole:
    """Offsets first..last are in no segment. `below`: the number of the segment that ends there, -1: none."""

    first: int
    last: int
    below: int


def indexed_end(segment: ListedSegment, scan: SegmentScan, next_base_offset: int) -> int:
    """1 + the largest offset behind the end of a `.log` that its indexes name; 0: they name none.

    Only what lies in front of the next segment counts: entries of another log, or torn ones, say nothing.
    """
    root, base, offsets = open_root(segment.beside), segment.base_offset, [-1]
    if segment.index is not None:
        with unless_unreadable():
            entries = offset_index.read(read_file(root, segment.index, segment.size), base, segment.index)
            offsets += entries["offset"][entries["position"] >= scan.end_position][-1:].tolist()
    if segment.time_index is not None:
        with unless_unreadable():
            entries = time_index.read(read_file(root, segment.time_index, segment.size), base, segment.time_index)
            offsets += entries["offset"][-1:].tolist()
    end = max(scan.last_offset, scan.base_offset - 1)
    return max((o + 1 for o in offsets if end < o < next_base_offset), default=0)


def check_gaps(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int, notes: list[str]) -> tuple[Gap, ...]:
    """The holes that the log is worked through with, old ones and new ones; a gap raises SetAside, unless accepted."""
    accept = plan.settings.gaps == "accept"
    passed = [gap for gap in plan.known_gaps if gap.last >= (plan.log_start_checkpoint or 0)]
    said = []
    for hole in _holes(plan, scans):
        if any(gap.first <= hole.first and hole.last <= gap.last for gap in passed):
            continue
        missing = _missing(plan, scans, hole)
        if missing is None and hole.last < _cleaned_until(plan, hole.below):
            continue
        if missing is not None and not accept:
            raise SetAside(missing)
        below = plan.segments[hole.below].listed if hole.below >= 0 else None
        before, size = (-1, -1) if below is None or plan.is_ours(below) else (below.base_offset, below.size)
        passed.append(Gap(hole.first, hole.last, before, size, missing is not None))
        said.append(f"{hole.first} to {hole.last}" + ("" if missing is not None else " (a cleaner's work)"))
    beyond, certain = _beyond(plan, scans, log_end)
    if beyond is not None and certain and not accept:
        raise SetAside(beyond)
    if beyond is not None:
        notes.append(f"{beyond.path}: {beyond.expected}, but the log here ends at {log_end}: it may be cut short")
    if said:
        more = f", and {len(said) - _SHOWN} more ranges" if len(said) > _SHOWN else ""
        notes.append(f"{_name(plan)}: no segment holds offsets {', '.join(said[:_SHOWN])}{more}")
    for snapshot in plan.snapshots:
        if not plan.is_ours(snapshot) and any(g.first < snapshot.offset <= g.last for g in passed):
            notes.append(f"{snapshot.path}: the log once ended, or a segment began, where no segment holds offsets now")
    return tuple(sorted(passed, key=lambda gap: gap.first))


def _name(plan: PartitionPlan) -> str:
    return f"{plan.topic}-{plan.partition}"


def _holes(plan: PartitionPlan, scans: Sequence[SegmentScan]) -> Iterator[_Hole]:
    """Between two segments, without what lies below the cleaner checkpoint where one lies inside; and below the first,
    where something is left of what was there.
    """
    first = scans[0].base_offset
    low = min([orphan.offset for orphan in plan.orphans] + [start for _, start in _first_epoch(plan)], default=first)
    if low < first and (plan.log_start_checkpoint or 0) < first:
        yield _Hole(max(low, plan.log_start_checkpoint or 0), first - 1, -1)
    for i, scan in enumerate(scans[:-1]):
        end = max(scan.base_offset, scan.last_offset + 1, plan.log_start_offset)
        after, cleaned = scans[i + 1].base_offset, _cleaned_until(plan, i)
        if end < after:
            yield _Hole(cleaned if end < cleaned < after else end, after - 1, i)


def _first_epoch(plan: PartitionPlan) -> tuple[tuple[int, int], ...]:
    """(epoch, offset) at which the log began; none where a generation knows it, or knew. A broker that gives up the
    beginning of a log moves this offset up, so it is never below the first segment.
    """
    return plan.leader_epochs[:1] if plan.leader_epochs and plan.known_until is None and not plan.anew else ()


def _behind_generation(plan: PartitionPlan, below: int) -> bool:
    """Whether the last generation ends with this segment, and the archive goes on behind it."""
    if below < 0:
        return False
    segment, after = plan.segments[below], plan.segments[below + 1]
    return bool(segment.from_offset) or (plan.is_ours(segment.listed) and not plan.is_ours(after.listed))


def _cleaned_until(plan: PartitionPlan, below: int) -> int:
    """Below this offset a cleaner's holes are no news. What the archive's own cleaner took behind a generation is."""
    return plan.checkpoint or 0 if _behind_generation(plan, below) else plan.cleaned_until


def _missing(plan: PartitionPlan, scans: Sequence[SegmentScan], hole: _Hole) -> Problem | None:
    """Why a hole is a gap; None: a cleaner made it."""
    offsets = f"offsets {hole.first} to {hole.last}"
    for orphan in plan.orphans:
        if hole.first <= orphan.offset <= hole.last:
            return _gap(orphan.path, f"the .log of this index, with {offsets}", "none", _HINT)
    if hole.below < 0:
        path = f"{plan.segments[0].listed.path.rpartition('/')[0]}/{LEADER_EPOCH_CHECKPOINT}"
        return _gap(
            path,
            f"a log from offset {hole.first} on, where its first leader epoch begins, or a log start checkpoint",
            f"a first segment at {hole.last + 1}",
            _HINT,
        )
    scan, segment = scans[hole.below], plan.segments[hole.below].listed
    if scan.indexed_end:
        return _gap(
            segment.path,
            f"batches up to offset {scan.indexed_end - 1}, as its index says",
            f"the end of the file behind offset {scan.last_offset}",
            _HINT,
            scan.end_position,
        )
    if hole.last < plan.cleaned_until:
        return None
    after = plan.segments[hole.below + 1].listed
    if _behind_generation(plan, hole.below):
        return _gap(
            after.path,
            f"offsets from {hole.first} on, where the last generation ends",
            f"a segment that begins at {hole.last + 1}",
            f"{_HINT}; or --reset to start over from what the archive holds",
        )
    above = max(s.thinned_offset for s in scans[hole.below + 1 :])
    if above >= 0 or scan.thinned_offset >= plan.cleaned_until:
        return None
    return _gap(
        after.path,
        f"a segment that begins at offset {hole.first}, where {segment.path} ends",
        f"one that begins at {hole.last + 1}, and no sign that a cleaner took what was between",
        _HINT,
    )


def _beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> tuple[Problem | None, bool]:
    """What shows that the log went on behind the last segment, where its end was read; and whether that is certain, and
    not only a younger copy than that of a log which was being written.
    """
    if scans[-1].reached_end_offset:
        return _passed_over(plan, scans), True
    if len(scans) < len(plan.segments):
        return None, False
    certain = _certainly_beyond(plan, scans, log_end)
    if certain is not None:
        return certain, True
    if scans[-1].indexed_end:
        last = plan.segments[len(scans) - 1].listed
        expected = f"batches up to offset {scans[-1].indexed_end - 1}, as its index says"
        end = f"the end of the file behind offset {scans[-1].last_offset}"
        return _gap(last.path, expected, end, _HINT, scans[-1].end_position), plan.sealed
    if (plan.high_watermark or 0) > log_end:
        expected = f"{_name(plan)} up to offset {plan.high_watermark}, its high watermark"
        return _gap(HIGH_WATERMARK_CHECKPOINT, expected, f"a log that ends at {log_end}", _HINT), plan.sealed
    return None, False


def _passed_over(plan: PartitionPlan, scans: Sequence[SegmentScan]) -> Problem | None:
    """What shows that the batch which reached the high watermark lies too high: offsets in front of it are in no batch.

    No checksum covers its own offset, and one that is damaged would end the log before its time.
    """
    scan, planned = scans[-1], plan.segments[len(scans) - 1]
    segment = planned.listed
    first = max(scan.last_offset + 1, scan.base_offset, planned.from_offset or 0, plan.log_start_offset)
    found = f"one at {scan.above_base}"
    if scan.indexed_end:
        expected = f"a batch with offset {scan.indexed_end - 1}, as its index says"
        return _gap(segment.path, expected, found, _HINT, scan.end_position)
    last = min(scan.above_base, plan.read_until or 0) - 1
    if last < max(first, plan.cleaned_until) or scan.thinned_offset >= plan.cleaned_until:
        return None  # all that is below the high watermark is there, or a cleaner took it
    return _gap(
        segment.path,
        f"a batch at offset {first}, which is below the high watermark {plan.read_until}",
        f"{found}, and no sign that a cleaner took what was between",
        _HINT,
        scan.end_position,
    )


def _certainly_beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> Problem | None:
    for orphan in plan.orphans:
        if orphan.offset > scans[-1].base_offset:
            return _gap(orphan.path, "the .log of this index", f"a log that ends at offset {log_end}", _HINT)
    for snapshot in plan.snapshots:
        if snapshot.offset > log_end:
            return _gap(
                snapshot.path,
                f"a log that reaches offset {snapshot.offset}, as this snapshot's name says",
                f"one that ends at {log_end}",
                _HINT,
            )
    return None


def _gap(path: str, expected: str, found: str, hint: str, position: int = 0) -> Problem:
    return Problem("gap", path, position, expected, found, hint=hint, state="gap")
