"""A walk to the end of a `.log` in spite of damage: every batch that can be read, and a row for each that cannot.

`logformat.batches.chunks.read_chunks` stops at the first bad batch, as copying must. This walk goes on: at the end that
the bad batch's length states, if something there looks like a batch, else at the next position that the offset index
names. If there is none, it ends and says how many bytes were not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.bodies import BadBatch, BodyLoader, Run
from lastkey.logformat.batches.chunks import (
    NO_END,
    Chunk,
    ChunkBuffer,
    batch_problem,
    only_zeros,
    read_exactly,
    too_large,
)
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_OFFSET, MAX_MAGIC, MIN_LEGACY_SIZE, V3_SMALLEST
from lastkey.logformat.read_ahead import following, will_read
from lastkey.udfs.problem import Problem

MAX_PROBLEMS: Final = 1000  # rows for one file; further ones are only counted
_PEEK: Final = MAGIC_OFFSET + 1
_TRUSTED_SIZE: Final = 16 << 20  # a batch that claims to be larger is read only if another one seems to follow it


@dataclass
class LogWalk:
    """Findings of a walk over one `.log` besides its batches; filled while it goes."""

    path: str
    size: int
    resync: np.ndarray  # int64[n], rising: positions of batches by the offset index
    problems: list[Problem] = field(default_factory=list)
    n_problems: int = 0
    bad_positions: list[int] = field(default_factory=list)  # where bad batches begin
    end_position: int = 0  # first byte behind the last batch, good or bad
    torn_bytes: int = 0  # incomplete batch, or zeros, at the very end
    zeros: bool = False  # those torn bytes are all zero
    base_offset: int = 0  # by its name
    unread_bytes: int = 0  # skipped, because nothing said where the next batch begins

    def add(self, error: LogFormatError, hint: str = "") -> None:
        """Add a row, or only count it if there are MAX_PROBLEMS."""
        self.n_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            problem = Problem.of(error)
            if hint:
                problem = Problem(
                    problem.kind,
                    problem.path,
                    problem.position,
                    problem.expected,
                    problem.found,
                    problem.base_offset,
                    "; ".join(filter(None, (problem.hint, hint))),
                )
            self.problems.append(problem)


def walk_log(file: Any, found: LogWalk, buffer: ChunkBuffer) -> Iterator[Chunk]:
    """Yield the readable batches of bytes [0, found.size) of an open file, chunk by chunk, with checksums checked.

    Chunks hold consecutive batches without a bad one among them. Offsets of neighbours that do not rise are a row of
    `found`, and both batches are yielded. Raises LogFormatError kind "changed" if the file is shorter.
    """
    position, previous = 0, -1
    while position < found.size:
        take = min(len(buffer.raw), found.size - position)
        read_exactly(file, found.path, position, buffer.raw[:take])
        done, status = 0, walk.MORE
        while done < take:
            raw = buffer.raw[done:take]
            n, consumed, status, expected, got = walk.walk_batches(
                raw, take - done, position + done, previous, NO_END, True, buffer.rows
            )
            if status == walk.MORE and n < len(buffer.rows) and consumed:
                will_read(file, following(position + done + consumed, found.size, len(buffer.raw)))
            if n:
                before, previous = previous, int(buffer.rows["last_offset"][n - 1])
                _add_too_large(found, buffer.rows[:n], buffer.max_batch_bytes)
                yield Chunk(position + done, raw[:consumed], buffer.rows[:n], before)
            done += consumed
            if status == walk.MORE and n == len(buffer.rows):
                buffer.grow_rows()
                continue
            if status == walk.BAD_OFFSETS and expected > 0:
                found.add(batch_problem(found.path, position + done, status, expected, got, raw[consumed:]))
                previous = -1  # it does not fit the batch before it, but may be right by itself
                continue
            break
        position += done
        found.end_position = position
        if status != walk.MORE:
            raw = buffer.raw[done:take]
            if status == walk.BAD_LENGTH and got == 0 and only_zeros(file, found.path, position, found.size):
                found.torn_bytes, found.zeros = found.size - position, True
                return
            found.add(batch_problem(found.path, position, status, expected, got, raw))
            after = _behind(file, found, position, raw, previous)
        elif done or position == found.size:
            continue
        else:
            after = _incomplete(file, found, position, buffer)
        if after is None:
            return
        position = after


def _incomplete(file: Any, found: LogWalk, position: int, buffer: ChunkBuffer) -> int | None:
    """Return where to read on at a batch that is not whole in the buffer; None if the file ends inside it."""
    left = found.size - position
    if left < _PEEK:
        found.torn_bytes = left
        return None
    base, length, _ = _peek(file, found, position)
    size = LOG_OVERHEAD + length
    fits = size <= left
    if fits and (
        size <= _TRUSTED_SIZE or position + size == found.size or _plausible(file, found, position + size, -1)
    ):
        if size > len(buffer.raw):
            try:
                buffer.grow_raw(size, found.path, position, base)
            except LogFormatError as large:
                return _too_large(file, found, large, position, position + size)
        return position
    later = _by_index(file, found, position)
    if later is None and not fits:
        found.torn_bytes = left
        return None
    error = LogFormatError(
        "length",
        found.path,
        position,
        f"a batch that ends before byte {later or found.size}",
        f"{size} bytes",
        base_offset=max(base, -1),
    )
    return _go_on(found, error, position, later)


def _add_too_large(found: LogWalk, batches: np.ndarray, limit: int) -> None:
    """Add a row for each batch above the limit that the buffer holds nevertheless: the buffer must not decide."""
    for batch in batches[batches["size"] > limit + BATCH_OVERHEAD]:
        position = int(batch["position"])
        found.add(too_large(int(batch["size"]), limit, found.path, position, int(batch["base_offset"])))
        found.bad_positions.append(position)


def _too_large(file: Any, found: LogWalk, error: LogFormatError, position: int, end: int) -> int | None:
    """Return where the walk goes on behind a batch too large to read: at its end, if another one seems to follow."""
    if end == found.size or _plausible(file, found, end, -1):
        found.add(error)
        found.bad_positions.append(position)
        found.unread_bytes += end - position
        found.end_position = end
        return end
    return _go_on(found, error, position, _by_index(file, found, position))


def _behind(file: Any, found: LogWalk, position: int, raw: np.ndarray, previous: int) -> int | None:
    """Return where the walk goes on behind the bad batch at `position`, whose problem is in `found` already."""
    found.bad_positions.append(position)
    size = LOG_OVERHEAD + int.from_bytes(raw[8:LOG_OVERHEAD].tobytes(), "big", signed=True)
    end = position + size
    if size >= LOG_OVERHEAD + MIN_LEGACY_SIZE and (end == found.size or _plausible(file, found, end, previous)):
        found.end_position = end
        return end
    return _go_on(found, None, position, _by_index(file, found, position))


def _go_on(found: LogWalk, error: LogFormatError | None, position: int, later: int | None) -> int | None:
    skipped = (found.size if later is None else later) - position
    found.unread_bytes += skipped
    how = "to the end of the file" if later is None else f"up to byte {later}, where the index names a batch"
    hint = f"the {skipped} bytes from here {how} were not read"
    if error is not None:
        found.bad_positions.append(position)
        found.add(error, hint)
    elif found.problems and found.problems[-1].position == position:
        last = found.problems.pop()
        found.problems.append(
            Problem(last.kind, last.path, last.position, last.expected, last.found, last.base_offset, hint)
        )
    found.end_position = position if later is None else later
    return later


def _by_index(file: Any, found: LogWalk, position: int) -> int | None:
    for at in found.resync[np.searchsorted(found.resync, position, "right") :]:  # nearly always the first will do
        if _plausible(file, found, int(at), -1):
            return int(at)
    return None


def _plausible(file: Any, found: LogWalk, position: int, previous: int) -> bool:
    """Return whether a batch could begin here; the walk checks its checksum later."""
    if position + _PEEK > found.size:
        return False
    offset, length, magic = _peek(file, found, position)
    smallest = {2: BATCH_OVERHEAD - LOG_OVERHEAD, 3: V3_SMALLEST - LOG_OVERHEAD}.get(magic, MIN_LEGACY_SIZE)
    return magic <= MAX_MAGIC and length >= smallest and offset > previous


def _peek(file: Any, found: LogWalk, position: int) -> tuple[int, int, int]:
    """Return (offset, length, magic) of what should be a batch."""
    head = np.empty(_PEEK, np.uint8)
    read_exactly(file, found.path, position, head)
    data = head.tobytes()
    return int.from_bytes(data[:8], "big", signed=True), int.from_bytes(data[8:12], "big", signed=True), data[-1]


def read_records(loader: BodyLoader, chunk: Chunk, found: LogWalk) -> Iterator[Run]:
    """Yield runs over the records of a chunk's readable batches; each other batch is a row of `found`.

    A bad batch in a run is not wanted: it has no records.
    """
    wanted = np.ones(len(chunk.batches), np.bool_)
    before = max(chunk.before, found.base_offset - 1)
    for run in loader.runs_around_damage(chunk.raw, chunk.position, chunk.batches, wanted, found.path, before=before):
        if isinstance(run, BadBatch):
            found.add(run.error)
            found.bad_positions.append(int(chunk.batches["position"][run.row]))
        else:
            yield run
