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
end of that segment too (Kafka before 4.0 did not keep the last batch of what it cleaned).

Wherever a hole lies, it is a gap if a file shows that something was there: an index without its log, or an index whose
last entry lies behind the end of its log. So it is behind the last segment, where a producer snapshot counts too: it is
written when a segment is rolled, or at the log end. In between it does not: a clean stop leaves one in the middle of a
segment, whose records a cleaner may take later. There it is a note.

`gaps = "accept"` makes a note of a gap. What was passed over stays with the generation (`jobs.plan_partitions`
refuses to go on when it comes back after all), and the report goes on to say that the archive is still needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from logformat import offset_index, time_index
from logformat.errors import LogFormatError
from logformat.names import parse_segment_file
from udfs.plan import Gap, PartitionPlan, Problem, SegmentInput, SetAside
from udfs.scan_batches import SegmentScan
from udfs.storage import Root, read_file

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


def indexed_end(root: Root, segment: SegmentInput, scan: SegmentScan, next_base_offset: int) -> int:
    """1 + the largest offset behind the end of a `.log` that its indexes name; 0: they name none.

    Only what lies in front of the next segment counts: entries of another log, or torn ones, say nothing.
    """
    file = parse_segment_file(segment.path.rpartition("/")[2])  # of a segment that is cut, the index is not
    base, offsets = file.base if file is not None else segment.base_offset, [-1]
    if segment.offset_index is not None:
        with suppress(LogFormatError):
            entries = offset_index.read(read_file(root, segment.offset_index, segment.size), base, segment.offset_index)
            offsets += entries["offset"][entries["position"] >= scan.end_position][-1:].tolist()
    if segment.time_index is not None:
        with suppress(LogFormatError):
            entries = time_index.read(read_file(root, segment.time_index, segment.size), base, segment.time_index)
            offsets += entries["offset"][-1:].tolist()
    end = max(scan.last_offset, segment.base_offset - 1)
    return max((o + 1 for o in offsets if end < o < next_base_offset), default=0)


def check_gaps(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int, notes: list[str]) -> tuple[Gap, ...]:
    """The holes that the log is worked through with, old ones and new ones; a gap raises SetAside, unless accepted."""
    accept = plan.settings.gaps == "accept"
    passed = [gap for gap in plan.known_gaps if gap.last >= plan.log_start_offset]
    said = []
    for hole in _holes(plan, scans):
        if any(gap.first <= hole.first and hole.last <= gap.last for gap in passed):
            continue
        missing = _missing(plan, scans, hole)
        if missing is None and _is_cleaned(plan, hole):
            continue
        if missing is not None and not accept:
            raise SetAside(missing)
        below = plan.segments[hole.below] if missing is not None and hole.below >= 0 else None
        passed.append(
            Gap(hole.first, hole.last, below.base_offset, below.size) if below else Gap(hole.first, hole.last)
        )
        said.append(f"{hole.first} to {hole.last}" + ("" if missing is not None else " (a cleaner's work)"))
    beyond = _beyond(plan, scans, log_end)
    if beyond is not None and not accept:
        raise SetAside(beyond)
    if beyond is not None:
        notes.append(f"{beyond.path}: the log went on behind offset {log_end - 1}; accepted")
    if said:
        more = f", and {len(said) - _SHOWN} more ranges" if len(said) > _SHOWN else ""
        notes.append(f"{_name(plan)}: no segment holds offsets {', '.join(said[:_SHOWN])}{more}")
    for snapshot in plan.snapshots:
        if snapshot.root == "archive" and any(g.first < snapshot.offset <= g.last for g in passed):
            notes.append(f"{snapshot.path}: the log once ended, or a segment began, where no segment holds offsets now")
    return tuple(sorted(passed, key=lambda gap: gap.first))


def _name(plan: PartitionPlan) -> str:
    return f"{plan.topic}-{plan.partition}"


def _holes(plan: PartitionPlan, scans: Sequence[SegmentScan]) -> Iterator[_Hole]:
    """Between two segments, as far as it lies above the cleaner checkpoint; and below the first, where an index is
    left of what was there.
    """
    first = scans[0].base_offset
    for orphan in plan.orphans:
        if orphan.offset < first and (plan.log_start_checkpoint or 0) < first:
            yield _Hole(max(orphan.offset, plan.log_start_checkpoint or 0), first - 1, -1)
            break
    for i, scan in enumerate(scans[:-1]):
        end = max(scan.base_offset, scan.last_offset + 1, plan.log_start_offset)
        after = scans[i + 1].base_offset
        if end < plan.cleaned_until < after:  # the head begins inside of it
            yield _Hole(plan.cleaned_until, after - 1, i)
        elif end < after:
            yield _Hole(end, after - 1, i)


def _is_cleaned(plan: PartitionPlan, hole: _Hole) -> bool:
    return hole.last < plan.cleaned_until


def _missing(plan: PartitionPlan, scans: Sequence[SegmentScan], hole: _Hole) -> Problem | None:
    """Why a hole is a gap; None: a cleaner made it."""
    offsets = f"offsets {hole.first} to {hole.last}"
    for orphan in plan.orphans:
        if hole.first <= orphan.offset <= hole.last:
            return _gap(orphan.path, f"the .log of this index, with {offsets}", "none", _HINT)
    if hole.below < 0:
        return None
    scan, segment = scans[hole.below], plan.segments[hole.below]
    if scan.indexed_end:
        return _gap(
            segment.path, f"batches up to offset {scan.indexed_end - 1}, as its index says",
            f"the end of the file behind offset {scan.last_offset}", _HINT, scan.end_position,
        )  # fmt: skip
    if _is_cleaned(plan, hole):
        return None
    after = plan.segments[hole.below + 1]
    if segment.from_offset or (segment.root == "store" and after.root == "archive"):
        return _gap(
            after.path, f"offsets from {hole.first} on, where the last generation ends",
            f"a segment that begins at {hole.last + 1}",
            f"{_HINT}; or --reset to begin anew from what the archive holds",
        )  # fmt: skip
    above = max(s.thinned_offset for s in scans[hole.below + 1 :])
    if above >= 0 or scan.thinned_offset >= plan.cleaned_until:
        return None
    return _gap(
        after.path, f"a segment that begins at offset {hole.first}, where {segment.path} ends",
        f"one that begins at {hole.last + 1}, and no sign that a cleaner took what was between", _HINT,
    )  # fmt: skip


def _beyond(plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int) -> Problem | None:
    """What shows that the log went on behind the last segment, where its end was read."""
    if scans[-1].reached_end_offset or len(scans) < len(plan.segments):
        return None
    if scans[-1].indexed_end:
        return _gap(
            plan.segments[len(scans) - 1].path, f"batches up to offset {scans[-1].indexed_end - 1}, as its index says",
            f"the end of the file behind offset {scans[-1].last_offset}", _HINT, scans[-1].end_position,
        )  # fmt: skip
    for orphan in plan.orphans:
        if orphan.offset > scans[-1].base_offset:
            return _gap(orphan.path, "the .log of this index", f"a log that ends at offset {log_end}", _HINT)
    for snapshot in plan.snapshots:
        if snapshot.offset > log_end:
            return _gap(
                snapshot.path, f"a log that reaches offset {snapshot.offset}, as this snapshot's name says",
                f"one that ends at {log_end}", _HINT,
            )  # fmt: skip
    return None


def _gap(path: str, expected: str, found: str, hint: str, position: int = 0) -> Problem:
    return Problem("gap", path, position, expected, found, hint=hint, state="gap")
