"""Rule of which segments of an archived partition the store still needs: on values, without I/O.

Everything from a first needed segment on is needed, so what is left of a log is always its end, without a hole. That
segment is the lowest that any of these names:

  - the last one: the log goes on there;
  - what the next run would read (`inputs_from_generation` says so, as for that run), and a run after a rollback to any
    generation that the store still has;
  - a segment whose file such a generation uses;
  - a gap that a generation passed over: what is missing may come back beside it;
  - a file that no run has read from its first byte to its last, or whose size or checksum is not what that run saw.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lastkey.jobs.archive.listing import ArchivedPartition
from lastkey.jobs.compact.plan_partition import Inputs, NotPlanned, gaps_of, inputs_from_generation
from lastkey.jobs.store.rows import Checkpoint, Segment
from lastkey.logformat.listing import ListedSegment
from lastkey.udfs.problem import Problem
from lastkey.udfs.same_files import KnownFile

WHY: Final = {  # why a partition's segments are needed, from some offset on
    "not_judged": "this could not be judged",
    "set_aside": "the partition is set aside",
    "broker": "a broker holds the folder",
    "no_generation": "the store has no generation of it",
    "noted": "something in the folder is odd",
    "gap": "offsets are missing, and may come back",
    "used": "a generation uses the file",
    "reads_on": "the next run reads on there",
    "rollback": "after a rollback a run would read on there",
    "unread": "no run has read the whole file",
    "changed": "the file is not what the run read",
    "last": "it is the last segment",
}


@dataclass(frozen=True)
class Reason:
    """Reason why a partition's segments are needed from one on."""

    kind: str  # a key of WHY
    segment: int  # number of the first that it concerns
    message: str

    def __str__(self) -> str:
        return f"{WHY[self.kind]}: {self.message}" if self.message else WHY[self.kind]


@dataclass(frozen=True)
class Kept:
    """A generation that the store still has."""

    checkpoint: Checkpoint
    segments: Sequence[Segment]


@dataclass
class Answer:
    """Answer for one partition: which of its segments are needed, and why."""

    archived: ArchivedPartition
    generation: int | None = None
    reasons: list[Reason] = field(default_factory=list)
    problem: Problem | None = None  # why it could not be judged, or what is wrong with what was read

    @property
    def first_needed(self) -> int:
        """Number of the first segment that is needed; those before it are not."""
        return min((reason.segment for reason in self.reasons), default=0)

    @property
    def needed(self) -> Sequence[ListedSegment]:
        """Segments that are needed, by offset."""
        return self.archived.segments[self.first_needed :]

    @property
    def not_needed(self) -> Sequence[ListedSegment]:
        """Segments that are not needed, by offset."""
        return self.archived.segments[: self.first_needed]

    @property
    def deciding(self) -> list[Reason]:
        """Reasons that the first needed segment has."""
        return [reason for reason in self.reasons if reason.segment == self.first_needed]

    def with_changed(self, number: int, problem: Problem) -> Answer:
        """Return the answer with segment `number`, and all above it, needed: it is not the file that was read."""
        return replace(self, reasons=[*self.reasons, Reason("changed", number, str(problem))], problem=problem)

    def files(self) -> Iterator[str]:
        """Yield the files that may go, in the order in which to delete them: if that stops at any of them, no index is
        left without its log.
        """
        until = self.needed[0].base_offset if self.needed else 0
        snapshots = sorted((offset, path) for offset, path in self.archived.snapshots.items() if offset < until)
        for i, s in enumerate(self.not_needed):
            end = self.archived.segments[i + 1].base_offset
            yield from (path for offset, path in snapshots if offset < end and (i == 0 or offset >= s.base_offset))
            yield from (path for path in (s.index, s.time_index, s.txn_index) if path is not None)
            yield s.path

    def known_files(self, checkpoint: Checkpoint) -> tuple[KnownFile, ...]:
        """Return what the store knows of the files that may go."""
        read = {one.base_offset: one for one in checkpoint.files_read}
        return tuple(
            KnownFile(s.path, s.size, one.checksum)
            for s in self.not_needed
            if (one := read.get(s.base_offset)) is not None
        )


def not_judged(archived: ArchivedPartition, generation: int | None, problem: Problem) -> Answer:
    """Return the answer for a partition of which too little is known: all of it is needed."""
    return Answer(archived, generation, [Reason("not_judged", 0, str(problem))], problem)


def all_needed(archived: ArchivedPartition, generation: int | None, kind: str, message: str = "") -> Answer:
    """Return the answer for a partition that is needed as a whole."""
    return Answer(archived, generation, [Reason(kind, 0, message)])


def judged(archived: ArchivedPartition, current: Kept, older: Sequence[Kept], store_uri: str, gaps: str) -> Answer:
    """Return the answer for a partition with a generation, as far as names and sizes tell.

    older: generations to which a rollback can go. gaps: the setting; "accept": those that are known do not count.
    """
    at = current.checkpoint
    try:
        inputs = inputs_from_generation(archived, at, current.segments, store_uri, gaps)
    except NotPlanned as reason:
        return all_needed(archived, at.generation, "set_aside", f"the next run would say: {reason.problem}")
    answer = Answer(archived, at.generation, list(_reasons(archived, current, older, inputs, store_uri, gaps)))
    if answer.first_needed and not _reads_the_same(answer, current, store_uri, gaps, inputs):
        answer.reasons.append(Reason("reads_on", 0, "without the older segments it would begin elsewhere"))
    return answer


def _reasons(
    archived: ArchivedPartition, current: Kept, older: Sequence[Kept], inputs: Inputs, store_uri: str, gaps: str
) -> Iterator[Reason]:
    bases = [s.base_offset for s in archived.segments]
    yield Reason("last", len(bases) - 1, "")
    at = current.checkpoint
    if (first := _first_read(archived, inputs)) is not None:
        yield Reason("reads_on", bisect_left(bases, first), f"generation {at.generation} ends at {at.next_offset}")
    for kept in (current, *older):
        row, used = kept.checkpoint, [s.base_offset for s in kept.segments if s.root == "archive"]
        if there := sorted(set(used) & set(bases)):
            yield Reason("used", bisect_left(bases, there[0]), f"generation {row.generation} from {there[0]} on")
        if gaps != "accept":
            for gap in gaps_of(row):
                before = max(bisect_left(bases, gap.first) - 1, 0)
                yield Reason("gap", before, f"{gap.first} to {gap.last} in no segment of generation {row.generation}")
    for kept in older:
        row = kept.checkpoint
        if row.chain != at.chain:
            continue  # of another log, or of what a --reset gave up: no run reads on from there
        try:
            first = _first_read(archived, inputs_from_generation(archived, row, kept.segments, store_uri, gaps))
        except NotPlanned:
            continue  # no run could go on after a rollback to it, whatever is deleted now
        if first is not None:
            message = f"generation {row.generation} ends at {row.next_offset}, until vacuum deletes it"
            yield Reason("rollback", bisect_left(bases, first), message)
    read = {one.base_offset: one for one in at.files_read}
    for i, s in enumerate(archived.segments[:-1]):
        one = read.get(s.base_offset)
        if one is None:
            yield Reason("unread", i, f"{s.path}")
            return
        if one.size != s.size:
            yield Reason("changed", i, f"{s.path}: expected {one.size} bytes, found {s.size}")
            return


def _first_read(archived: ArchivedPartition, inputs: Inputs) -> int | None:
    """Return the base offset of the first segment of the archive that a run would open."""
    read = [*inputs["segments"], *filter(None, [inputs.get("identity_segment")])]
    return min((s.listed.base_offset for s in read if s.listed.root == archived.root), default=None)


def _reads_the_same(answer: Answer, current: Kept, store_uri: str, gaps: str, inputs: Inputs) -> bool:
    """Return whether the next run would read the same segments if those that may go had gone."""
    left = replace(answer.archived, segments=list(answer.needed))
    try:
        then = inputs_from_generation(left, current.checkpoint, current.segments, store_uri, gaps)
    except NotPlanned:
        return False
    same = ("segments", "log_start_offset", "checkpoint", "identity_segment")
    return all(then.get(name) == inputs.get(name) for name in same)
