"""One log of a partition's remote segments and of the local log directory beside them.

A broker with tiered storage uploads closed segments as they are, and deletes them locally when their local retention is
over. So the remote segments hold the beginning of the log, the local ones its end, and some segments are in both. The
log has all remote segments, and the local segments that remote storage lacks. A listed segment therefore stays listed
when the broker deletes its local copy. If the upload of the last remote segment is incomplete, the local copy replaces
it.

A listing opens no log. Topic id, leader epochs, and the base offsets and sizes of shared segments show that both parts
are one log. Readers of the log report any other difference as an overlap or a gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Protocol, TypeVar

from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.checkpoints import truncate_from_end, truncate_from_start
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, is_remote


class Listed(Protocol):
    """The fields of an `ArchivedPartition` that count here."""

    path: str
    segments: list[Segment]
    snapshots: dict[int, str]
    orphans: dict[int, str]
    topic_id: str | None
    leader_epochs: tuple[tuple[int, int], ...] | None
    unread: Problem | None
    not_read: list[str]
    notes: list[str]
    problem: Problem | None

    @property
    def begins_elsewhere(self) -> bool:
        """True if the beginning of the log is in remote storage."""


_Partition = TypeVar("_Partition", bound=Listed)


def one_log(root: Root, other: _Partition, partition: _Partition) -> _Partition:
    """Return the partition of two folders: one log if one of them holds its remote segments, else a problem."""
    if is_remote(root, other.path) == is_remote(root, partition.path):
        return duplicate(other, partition)
    uploaded, local = (other, partition) if is_remote(root, other.path) else (partition, other)
    out = copy(local)
    out.problem = uploaded.problem or local.problem or _difference(uploaded, local)
    if out.problem is not None:
        return out
    ours, theirs = ({s.base_offset: s for s in one.segments} for one in (local, uploaded))
    larger = {base: s for base, s in ours.items() if base in theirs and s.size_bytes > theirs[base].size_bytes}
    joined = ours | theirs | larger
    out.segments = [joined[base] for base in sorted(joined)]
    twice = [s.path for s in (*uploaded.segments, *local.segments) if s is not joined[s.base_offset]]
    out.snapshots = local.snapshots | uploaded.snapshots
    out.orphans = {base: path for base, path in (uploaded.orphans | local.orphans).items() if base not in joined}
    out.topic_id, out.leader_epochs = local.topic_id or uploaded.topic_id, local.leader_epochs or uploaded.leader_epochs
    out.unread, out.not_read = local.unread or uploaded.unread, [*uploaded.not_read, *local.not_read, *twice]
    out.notes = [*uploaded.notes, *local.notes]
    if twice:
        out.notes.append(
            f"{local.path}: the log continues that of {uploaded.path}; {len(twice):,} segments lie in both and are "
            f"read once, from offset {local.segments[0].base_offset} on"
        )
    return out


def duplicate(other: _Partition, partition: _Partition) -> _Partition:
    """Return a partition that has two folders, with the problem that names both."""
    expected, same = "one folder for each partition", f"the same partition in {other.path}"
    partition.problem = Problem("duplicate", partition.path, NO_POSITION, expected, same)
    return partition


def note_beginnings(partitions: Iterable[Listed]) -> None:
    """Note which logs begin in remote storage that the archive lacks."""
    for partition in partitions:
        if partition.begins_elsewhere:
            where = f"{partition.path}: offsets 0 to {partition.segments[0].base_offset - 1} are in remote storage"
            advice = "put the folder of the remote storage into the archive to have them read too"
            partition.notes.append(f"{where}, which this archive lacks: {advice}")
            partition.not_read.append(where)  # a run that reads them too begins with the segments that are here


def _difference(uploaded: Listed, local: Listed) -> Problem | None:
    """Return the problem of two folders with different logs; None if the listing shows no difference."""

    def differ(expected: str, found: str) -> Problem:
        hint = "keep the folder of the log that you want below the root, and move the other one away"
        return Problem("duplicate", local.path, NO_POSITION, f"{expected}, as in {uploaded.path}", found, hint=hint)

    if None not in (uploaded.topic_id, local.topic_id) and uploaded.topic_id != local.topic_id:
        return differ(f"topic id {uploaded.topic_id}", f"{local.topic_id}")
    theirs, ours = uploaded.leader_epochs, local.leader_epochs
    last = uploaded.segments[-1].base_offset
    end = max(uploaded.snapshots, default=last)
    if theirs and ours and (begin := max(theirs[0][1], ours[0][1])) < end:
        theirs, ours = (tuple(truncate_from_start(truncate_from_end(one, end), begin)) for one in (theirs, ours))
        if theirs != ours:
            return differ(f"leader epochs (epoch, offset) {theirs}", f"{ours}")
    first, until = local.segments[0].base_offset, min(last, local.segments[-1].base_offset)
    uploaded_files, here = (
        {s.base_offset: s for s in one.segments if first <= s.base_offset <= until} for one in (uploaded, local)
    )
    for base in sorted(uploaded_files.keys() ^ here.keys()):
        which = ("a segment", "none") if base in uploaded_files else ("no segment", "one")
        return differ(f"{which[0]} that begins at offset {base}", which[1])
    for base in sorted(here):
        size, found = uploaded_files[base].size_bytes, here[base].size_bytes
        is_older = found < size and base == local.segments[-1].base_offset  # copied before the segment was closed
        is_uploading = found > size and base == last and uploaded_files[base].index is None
        if found != size and not is_older and not is_uploading:
            return differ(f"a segment of {size} bytes at offset {base}", f"{found}")
    return None
