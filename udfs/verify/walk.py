"""A walk to the end of a `.log` in spite of damage: every batch that can be read, and a row for each that cannot.

`LogReader.chunks` stops at the first bad batch, as copying must. This walk continues at the end that the bad batch's
length states if a batch seems to begin there. Otherwise it continues at the next position in the offset index. Without
such a position the walk ends and reports how many bytes were not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.bodies import BadBatch
from lastkey.logformat.batches.chunks import NO_END, Chunk, batch_problem, only_zeros, read_exactly, too_large
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_OFFSET, MAX_MAGIC, MIN_LEGACY_SIZE, V3_SMALLEST
from lastkey.logformat.storage.regular_files import LogFile, following, will_read
from lastkey.udfs.problem import Problem

MAX_PROBLEMS: Final = 1000  # rows for one file; further ones are only counted
_PEEK: Final = MAGIC_OFFSET + 1
_TRUSTED_SIZE: Final = 16 << 20  # a batch that claims to be larger is read only if another one seems to follow it


class LogWalk:
    """Walk over one `.log`, and its findings besides the batches, which the walk adds."""

    def __init__(self, log: LogFile, reader: LogReader, resync: np.ndarray, *, base_offset: int = 0) -> None:
        """resync: int64[n], rising: positions of batches by the offset index; base_offset: by the file's name."""
        self.path, self.size = log.path, log.size or 0
        self.problems: list[Problem] = []
        self.n_problems = 0
        self.end_position = 0  # first byte after the last batch, good or bad
        self.torn_bytes = 0  # incomplete batch, or zeros, at the very end
        self.zeros = False  # the torn bytes are all zero
        self.unread_bytes = 0  # skipped, because the start of the next batch is unknown
        self._log, self._reader, self._resync, self._base_offset = log, reader, resync, base_offset
        self._file: Any = None  # open during the walk

    def add(self, error: LogFormatError, hint: str = "") -> None:
        """Add a row, or only count it if there are MAX_PROBLEMS."""
        self.n_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            problem = Problem.of(error)
            self.problems.append(replace(problem, hint="; ".join(filter(None, (problem.hint, hint)))))

    def chunks(self) -> Iterator[Chunk]:
        """Yield the readable batches of the log, chunk by chunk, with checksums checked.

        Chunks hold consecutive batches without a bad one among them. Offsets of neighbours that do not rise are a row,
        and both batches are yielded. Raises LogFormatError kind "changed" if the file is shorter than listed.
        """
        with self._reader.open(self._log) as (self._file, _):
            yield from self._chunks()

    def _chunks(self) -> Iterator[Chunk]:
        buffer, position, previous = self._reader.buffer, 0, -1
        while position < self.size:
            take = min(len(buffer.raw), self.size - position)
            read_exactly(self._file, self.path, position, buffer.raw[:take])
            done, status = 0, walk.MORE
            while done < take:
                raw = buffer.raw[done:take]
                n, consumed, status, expected, got = walk.walk_batches(
                    raw, take - done, position + done, previous, NO_END, True, buffer.rows
                )
                if status == walk.MORE and n < len(buffer.rows) and consumed:
                    will_read(self._file, following(position + done + consumed, self.size, len(buffer.raw)))
                if n:
                    before, previous = previous, int(buffer.rows["last_offset"][n - 1])
                    self._add_too_large(buffer.rows[:n])
                    before = max(before, self._base_offset - 1)
                    yield Chunk(position + done, raw[:consumed], buffer.rows[:n], before, path=self.path)
                done += consumed
                if status == walk.MORE and n == len(buffer.rows):
                    buffer.grow_rows()
                    continue
                if status == walk.BAD_OFFSETS and expected > 0:
                    self.add(batch_problem(self.path, position + done, status, expected, got, raw[consumed:]))
                    previous = -1  # it does not fit the batch before it, but may be right by itself
                    continue
                break
            position += done
            self.end_position = position
            if status != walk.MORE:
                raw = buffer.raw[done:take]
                if status == walk.BAD_LENGTH and got == 0 and only_zeros(self._file, self.path, position, self.size):
                    self.torn_bytes, self.zeros = self.size - position, True
                    return
                self.add(batch_problem(self.path, position, status, expected, got, raw))
                after = self._behind(position, raw, previous)
            elif done or position == self.size:
                continue
            else:
                after = self._incomplete(position)
            if after is None:
                return
            position = after

    def _incomplete(self, position: int) -> int | None:
        """Return the position to read from again at a batch that is incomplete in the buffer; None: the file ends
        inside it.
        """
        left = self.size - position
        if left < _PEEK:
            self.torn_bytes = left
            return None
        base, length, _ = self._peek(position)
        size = LOG_OVERHEAD + length
        fits = size <= left
        if fits and (size <= _TRUSTED_SIZE or position + size == self.size or self._is_plausible(position + size, -1)):
            if size > len(self._reader.buffer.raw):
                try:
                    self._reader.buffer.grow_raw(size, self.path, position, base)
                except LogFormatError as large:
                    return self._too_large(large, position, position + size)
            return position
        later = self._by_index(position)
        if later is None and not fits:
            self.torn_bytes = left
            return None
        expected, found = f"a batch that ends before byte {later or self.size}", f"{size} bytes"
        error = LogFormatError("length", self.path, position, expected, found, base_offset=max(base, -1))
        return self._continue_after(error, position, later)

    def _add_too_large(self, batches: np.ndarray) -> None:
        """Add a row for each batch above the limit that the buffer holds nevertheless: the buffer must not decide."""
        limit = self._reader.buffer.max_batch_bytes
        for batch in batches[batches["size"] > limit + BATCH_OVERHEAD]:
            self.add(too_large(int(batch["size"]), limit, self.path, int(batch["position"]), int(batch["base_offset"])))

    def _too_large(self, error: LogFormatError, position: int, end: int) -> int | None:
        """Return the position after a batch that is too large to read: its end, if another batch seems to follow."""
        if end == self.size or self._is_plausible(end, -1):
            self.add(error)
            self.unread_bytes += end - position
            self.end_position = end
            return end
        return self._continue_after(error, position, self._by_index(position))

    def _behind(self, position: int, raw: np.ndarray, previous: int) -> int | None:
        """Return the position at which the walk continues after the bad batch at `position`, which is noted."""
        size = LOG_OVERHEAD + int.from_bytes(raw[8:LOG_OVERHEAD].tobytes(), "big", signed=True)
        end = position + size
        if size >= LOG_OVERHEAD + MIN_LEGACY_SIZE and (end == self.size or self._is_plausible(end, previous)):
            self.end_position = end
            return end
        return self._continue_after(None, position, self._by_index(position))

    def _continue_after(self, error: LogFormatError | None, position: int, later: int | None) -> int | None:
        skipped = (self.size if later is None else later) - position
        self.unread_bytes += skipped
        how = "to the end of the file" if later is None else f"up to byte {later}, where the index names a batch"
        hint = f"the {skipped} bytes from here {how} were not read"
        if error is not None:
            self.add(error, hint)
        elif self.problems and self.problems[-1].position == position:
            self.problems[-1] = replace(self.problems[-1], hint=hint)
        self.end_position = position if later is None else later
        return later

    def _by_index(self, position: int) -> int | None:
        for at in self._resync[np.searchsorted(self._resync, position, "right") :]:  # nearly always the first will do
            if self._is_plausible(int(at), -1):
                return int(at)
        return None

    def _is_plausible(self, position: int, previous: int) -> bool:
        """Return whether a batch could begin here; the walk checks its checksum later."""
        if position + _PEEK > self.size:
            return False
        offset, length, magic = self._peek(position)
        smallest = {2: BATCH_OVERHEAD - LOG_OVERHEAD, 3: V3_SMALLEST - LOG_OVERHEAD}.get(magic, MIN_LEGACY_SIZE)
        return magic <= MAX_MAGIC and length >= smallest and offset > previous

    def _peek(self, position: int) -> tuple[int, int, int]:
        """Return (offset, length, magic) of what should be a batch."""
        head = np.empty(_PEEK, np.uint8)
        read_exactly(self._file, self.path, position, head)
        data = head.tobytes()
        return int.from_bytes(data[:8], "big", signed=True), int.from_bytes(data[8:12], "big", signed=True), data[-1]

    def runs(self, chunk: Chunk) -> Iterator[Run]:
        """Yield runs over the records of a chunk's readable batches; each other batch is a row.

        A bad batch in a run is not wanted: it has no records.
        """
        for run in self._reader.runs_around_damage(chunk):
            if isinstance(run, BadBatch):
                self.add(run.error)
            else:
                yield run
