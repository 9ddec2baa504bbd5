"""Offsets that a generation holds, and offsets that its chain has read. Vacuum uses both to decide on deletion.

STORE.md ("Generations and vacuum") defines what a generation *holds*, its *chain*, and what the chain *has read*. The
column `read` carries this from commit to commit, so no decision depends on the history of runs, or on older folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.logformat.listing import Segment
from lastkey.udfs.ranges import Ranges, joined, without


def covered(row: Checkpoint) -> Ranges:
    """Return the offsets that a generation covers, in files of the store or of the archive."""
    return without([(row.log_start_offset, row.next_offset)], _gaps(row))


def read_by(row: Checkpoint) -> Ranges:
    """Return the offsets that a generation's chain has read."""
    return [(first, until) for first, until in json.loads(row.read)]


def read_with(before: Checkpoint | None, row: Checkpoint, segments: Iterable[Segment], log_start: int) -> str:
    """Return the column `read` of a new generation. before: the parent's checkpoint; log_start: the log start before
    this run's retention, which removed the offsets from there to the generation's log start.
    """
    until = max(_own_end(row, segments), row.log_start_offset)
    new = without([(min(log_start, row.log_start_offset), until)], _gaps(row))
    return json.dumps(joined(new + (read_by(before) if before is not None else [])))


def unread(commit: Commit, current: Checkpoint | None, *, committed: bool) -> Ranges:
    """Return the offsets that a generation holds and the current one's chain has not read.

    committed: False for the files of a run that died; they never were a generation, so another chain's offsets will do.
    """
    row = commit.checkpoint
    held = without([(row.log_start_offset, _own_end(row, commit.segments))], _gaps(row))
    comparable = current is not None and (row.chain == current.chain or not committed)
    return without(held, read_by(current) if comparable and current is not None else [])


def _own_end(row: Checkpoint, segments: Iterable[Segment]) -> int:
    """Return the offset up to which a generation has files of the store; from there on it uses the archive's."""
    return max((s.next_offset for s in segments if s.root == "store"), default=row.log_start_offset)


def shown(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges as people read them."""
    return ", ".join(f"{first} to {until - 1}" for first, until in ranges)


def _gaps(row: Checkpoint) -> Ranges:
    return [(gap[0], gap[1] + 1) for gap in json.loads(row.gaps or "[]")]
