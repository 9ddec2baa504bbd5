"""Rule that selects the segments of an archived partition that the store still needs. It works on values, without I/O.

`archive-needed` shows all reasons, segment by segment; `compact` and `archive-needed` end with a summary of the same
rule for the archive as a whole. All segments from the first needed one on are needed, so the rest of a log is always
its end, without a hole. That segment is the lowest that any of these names:

  - the first one, if too little is known of the partition, or its folder holds an entry that no job reads;
  - a segment whose file a generation of the store uses;
  - a gap that a generation accepted: the missing segments may be restored later;
  - the last one, because the log continues there. If the run that read it had --sealed (no writer is left), it
    is only an anchor: later runs recognise the log by it, and it is no reason to keep the archive as a whole;
  - a file that no run has read from its first byte to its last, or whose size or checksum has changed since;
  - the input of the next run, which `input_from_generation` selects, as for that run; also the input of a run after a
    rollback to any generation that the store still has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple

from lastkey.jobs.archive.listing import Archive, ArchivedPartition
from lastkey.jobs.command.parse import abbreviate_names
from lastkey.jobs.command.reporting import labelled
from lastkey.jobs.compact.plan_inputs import input_from_generation, parse_gaps
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.compact.plan import PartitionInput
from lastkey.udfs.problem import Problem

WHY: Final = {  # why an archive, or a partition's segments from some offset on, are needed; the worst first
    "uncleanable": "the partition is uncleanable",
    "unreadable": "a folder cannot be read",
    "conflict": "another run committed first",
    "not_judged": "the partition could not be judged",
    "broker": "a broker holds the folder",
    "no_generation": "the store has no generation of the partition",
    "missing": "files that a generation uses are not in the archive",
    "entries": "entries that no job reads",
    "gap": "offsets are missing, and may come back",
    "used": "a generation uses the segment",
    "unread": "no run has read the whole file",
    "changed": "the file is not what the run read",
    "last": "it is the last segment of a log that may continue",
    "anchor": "a later run recognises the log by it",
    "reads_on": "the next run reads on there",
    "rollback": "after a rollback a run would read on there",
    "not_compared": "not compared by this run; archive-needed compares every byte",
    "other_topics": "topics that were not selected",
    "nothing": "no partition was compacted",
}
ANCHOR: Final = "anchor"  # the only kind that is no reason to keep the archive as a whole


@dataclass(frozen=True)
class Reason:
    """Reason why a partition's segments are needed from one on."""

    kind: str  # a key of WHY
    segment: int  # number of the first that it concerns
    message: str = ""

    def __str__(self) -> str:
        return f"{WHY[self.kind]}: {self.message}" if self.message else WHY[self.kind]


@dataclass(frozen=True)
class Needed:
    """Reason why the archive is still needed, and its partitions, entries or topics with this reason."""

    facts: ClassVar[str] = "kind message names"
    kind: str  # a key of WHY
    names: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Reason in words."""
        return WHY[self.kind]

    def __str__(self) -> str:
        return self.message + (f": {abbreviate_names(self.names)}" if self.names else "")


def needed(
    archive: Archive,
    first_reasons: Sequence[tuple[ArchivedPartition, str | None]],
    missing: Iterable[Key],
    other_topics: Sequence[str],
    conflict: str = "",
) -> list[Needed]:
    """Return the reasons why an archive as a whole is needed, the worst first.

    first_reasons: each partition with the kind of its first reason that is no anchor; None: it has none. missing:
    partitions that the archive lacks and the store uses. conflict: the store, if another run committed first.
    """
    names = {
        "unreadable": [problem.path for problem in archive.unreadable],
        "conflict": [conflict] if conflict else [],
        "missing": [partition_folder(*key) for key in sorted(missing)],
        "entries": list(archive.not_read),
        "other_topics": list(other_topics),
        "nothing": [] if first_reasons else [archive.root.uri],
    }
    for archived, kind in first_reasons:
        if kind is not None:
            paths = archived.not_read if kind == "entries" else []
            names.setdefault(kind, []).extend(paths or [partition_folder(*archived.key)])
    return [Needed(kind, tuple(names[kind])) for kind in WHY if names.get(kind)]


def summary_lines(reasons: Sequence[Needed]) -> list[str]:
    """Return the lines of a report's text that state whether the archive is needed."""
    return labelled("the archive is still needed", reasons) or ["the archive is no longer needed"]


class Kept(NamedTuple):
    """A generation that the store still has."""

    checkpoint: Checkpoint
    segments: Sequence[Segment]


@dataclass(frozen=True)
class Facts:
    """Facts about one partition of the archive, from which the rule decides."""

    archived: ArchivedPartition
    current: Kept | None  # the current generation; None: the store has none
    store_uri: str
    gaps: str  # the setting; "accept": gaps that are known do not count
    problem: Problem | None = None  # why the partition cannot be judged
    uncleanable: str = ""  # why the partition is uncleanable
    sealed: bool = False  # the last run that read the partition had --sealed
    older: Callable[[], Sequence[Kept]] = tuple  # generations to which a rollback can go
    compared: Collection[int] | None = None  # base offsets of the files that count as compared; None: all


@dataclass
class Answer:
    """Answer for one partition: its needed segments, and the reasons."""

    archived: ArchivedPartition
    generation: int | None = None
    reasons: list[Reason] = field(default_factory=list)
    problem: Problem | None = None  # reason without an answer, or the problem of a file that was read

    @property
    def first_needed(self) -> int:
        """Number of the first segment that is needed; those before it are not."""
        return min((reason.segment for reason in self.reasons), default=len(self.archived.segments))

    @property
    def replaced(self) -> Sequence[Segment]:
        """Segments that the store replaces, by offset: those that are not needed, and anchors after them."""
        until = min((r.segment for r in self.reasons if r.kind != ANCHOR), default=len(self.archived.segments))
        return self.archived.segments[:until]

    @property
    def needed(self) -> Sequence[Segment]:
        """Segments that are needed, by offset."""
        return self.archived.segments[self.first_needed :]

    @property
    def not_needed(self) -> Sequence[Segment]:
        """Segments that are not needed, by offset."""
        return self.archived.segments[: self.first_needed]

    @property
    def deciding(self) -> list[Reason]:
        """Reasons that the first needed segment has."""
        return [reason for reason in self.reasons if reason.segment == self.first_needed]

    def with_problem(self, kind: str, number: int, problem: Problem) -> Answer:
        """Return the answer with segment `number`, and all above it, needed, for a problem of a file that was read."""
        return replace(self, reasons=[*self.reasons, Reason(kind, number, str(problem))], problem=problem)

    def files(self) -> Iterator[str]:
        """Yield the deletable files in an order of deletion that never leaves an index without its log."""
        until = self.needed[0].base_offset if self.needed else 0
        snapshots = sorted((offset, path) for offset, path in self.archived.snapshots.items() if offset < until)
        for i, s in enumerate(self.not_needed):
            end = self.archived.segments[i + 1].base_offset
            yield from (path for offset, path in snapshots if offset < end and (i == 0 or offset >= s.base_offset))
            yield from (path for path in (s.index, s.time_index, s.txn_index) if path is not None)
            yield s.path


def answer(facts: Facts) -> Answer:
    """Return the answer for one partition, as far as names and sizes decide."""
    generation = facts.current.checkpoint.generation if facts.current is not None else None
    return Answer(facts.archived, generation, list(reasons(facts)), facts.problem)


def reasons(facts: Facts) -> Iterator[Reason]:
    """Yield the reasons why segments of a partition are needed; none: the store does not need the partition.

    Reasons that need no plan of a run and no older generation come first.
    """
    current = facts.current
    if (whole := _whole(facts)) is not None:
        yield whole
        return
    if current is None:
        yield Reason("no_generation", 0)
        return
    read = {one.base_offset: one.size for one in current.checkpoint.files_read}
    by_files = list(_by_files(facts, current, read))
    yield from by_files
    if facts.archived.segments:
        until = min((r.segment for r in by_files), default=len(facts.archived.segments))
        yield from _by_next_runs(facts, current, read, until)


def _by_files(facts: Facts, current: Kept, read: Mapping[int, int]) -> Iterator[Reason]:
    """Yield the reasons that follow from the files of the archive and of the current generation.

    read: base offset -> size of each file that the generation's chain has read whole.
    """
    archived = facts.archived
    bases = [s.base_offset for s in archived.segments]
    yield from _used_or_missing(current, bases, facts.gaps)
    if not bases:
        return
    ended = _has_ended(facts, read)
    yield Reason(ANCHOR if ended else "last", len(bases) - 1)
    for i, s in enumerate(archived.segments if ended else archived.segments[:-1]):
        if s.base_offset not in read:
            yield Reason("unread", i, s.path)
            break
        if read[s.base_offset] != s.size_bytes:
            yield Reason("changed", i, f"{s.path}: expected {read[s.base_offset]} bytes, found {s.size_bytes}")
            break
        if facts.compared is not None and s.base_offset not in facts.compared:
            yield Reason("not_compared", i, s.path)
            break


def _has_ended(facts: Facts, read: Mapping[int, int]) -> bool:
    """Return whether no run will find data after the last segment: a run read all of the segment with --sealed."""
    last = facts.archived.segments[-1]
    return facts.sealed and read.get(last.base_offset) == last.size_bytes


def _whole(facts: Facts) -> Reason | None:
    """Return the reason why all segments of a partition are needed, if there is one."""
    archived = facts.archived
    if facts.problem is not None:
        return Reason("not_judged", 0, str(facts.problem))
    if facts.uncleanable:
        return Reason("uncleanable", 0, facts.uncleanable)
    if archived.held_by_broker:
        return Reason("broker", 0, "give its topics a retention instead")
    if archived.not_read and facts.current is not None:
        return Reason("entries", 0, archived.not_read[0])
    if len(archived.path.splitlines()) > 1:  # --format paths would name other files
        return Reason("entries", 0, "a line break in the folder's path")
    return None


def _used_or_missing(kept: Kept, bases: Sequence[int], gaps: str) -> Iterator[Reason]:
    """Yield the reasons why a generation needs segments: it uses their files, or passed over a gap beside them."""
    row, used = kept.checkpoint, [s.base_offset for s in kept.segments if s.root == "archive"]
    if there := sorted(set(used) & set(bases)):
        yield Reason("used", bisect_left(bases, there[0]), f"generation {row.generation} from {there[0]} on")
    elif used and not bases:
        yield Reason("missing", 0, f"generation {row.generation} from {used[0]} on")
    if gaps != "accept":
        for gap in parse_gaps(row):
            before = max(bisect_left(bases, gap.first) - 1, 0)
            yield Reason("gap", before, f"{gap.first} to {gap.last} in no segment of generation {row.generation}")


def _by_next_runs(facts: Facts, current: Kept, read: Mapping[int, int], until: int) -> Iterator[Reason]:
    """Yield the reasons that follow from what later runs read. until: number of the first segment that is needed."""
    archived, at = facts.archived, current.checkpoint
    bases = [s.base_offset for s in archived.segments]
    inputs = input_from_generation(archived, at, current.segments, facts.store_uri, facts.gaps)
    if isinstance(inputs, Problem):
        yield Reason("uncleanable", 0, f"the next run would report: {inputs}")
        return
    reasons_found = []
    first = _first_read(archived, inputs)
    if first is not None:
        message = f"generation {at.generation} ends at {at.next_offset}"
        anchor_alone = _has_ended(facts, read) and all(s.root == "store" for s in current.segments)
        reasons_found.append(Reason(ANCHOR if anchor_alone else "reads_on", bisect_left(bases, first), message))
    for kept in facts.older():
        reasons_found += _used_or_missing(kept, bases, facts.gaps)
        if kept.checkpoint.chain == at.chain:  # else of another log, or abandoned by --reset: no run continues there
            reasons_found += _after_rollback(facts, kept, bases)
    yield from reasons_found
    until = min([until, *(r.segment for r in reasons_found)])
    if until and not _reads_the_same(facts, current, inputs, archived.segments[until:]):
        yield Reason("reads_on", 0, "without the older segments it would begin elsewhere")


def _after_rollback(facts: Facts, kept: Kept, bases: Sequence[int]) -> Iterator[Reason]:
    row = kept.checkpoint
    inputs = input_from_generation(facts.archived, row, kept.segments, facts.store_uri, facts.gaps)
    if isinstance(inputs, Problem):
        return  # after a rollback to this generation no run can continue, with or without these segments
    if (first := _first_read(facts.archived, inputs)) is not None:
        message = f"generation {row.generation} ends at {row.next_offset}, until vacuum deletes it"
        yield Reason("rollback", bisect_left(bases, first), message)


def _first_read(archived: ArchivedPartition, inputs: PartitionInput) -> int | None:
    """Return the base offset of the first segment of the archive that a run would open."""
    read = [*inputs.segments, *filter(None, [inputs.identity_segment])]
    return min((s.base_offset for s in read if s.root == archived.root), default=None)


def _reads_the_same(facts: Facts, current: Kept, inputs: PartitionInput, left: Sequence[Segment]) -> bool:
    """Return whether the next run would read the same segments if only these were `left`."""
    archived = replace(facts.archived, segments=list(left))
    then = input_from_generation(archived, current.checkpoint, current.segments, facts.store_uri, facts.gaps)
    if isinstance(then, Problem):
        return False
    new, old = (
        (one.segments, one.log_start_offset, one.first_dirty_offset, one.identity_segment) for one in (then, inputs)
    )
    return new == old
