"""The sound batches of a damaged `.log`, and the byte ranges between them.

A walk that continues after damage:

  checksum, or a field after the length, is bad    the next batch is where the length field leads, if a sound batch
                                                   begins there or the file ends there
  the length field is bad                          search the next bytes for a sound batch of magic 2

A batch that the search finds counts only if another sound batch begins where it ends, or the file ends there, or the
damaged batch there shows the offset that follows: the value of a record may hold the bytes of a batch. So a batch is
lost if both its neighbours are damaged in these fields. Batches of magic 0 and 1 are found by length fields alone. The
order of offsets is not checked here, because the checksum does not cover the base offset: the caller has other copies
to compare with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import ChunkBuffer, batch_problem, only_zeros, read_exactly
from lastkey.logformat.batches.salvage_kernels import find_sound, walk_sound
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_OFFSET
from lastkey.logformat.storage.regular_files import following, will_read


@dataclass(frozen=True)
class Damage:
    """Bytes of a `.log` that hold no sound batch."""

    position: int
    end: int
    error: LogFormatError  # error of the first batch there; kind "torn_tail": no bytes follow


def salvage(
    file: Any, path: str, size: int, offsets: tuple[int, int], buffer: ChunkBuffer
) -> Iterator[np.ndarray | Damage]:
    """Yield the sound batches of an open file as BATCH[n], valid until the next step, and the damage between them.

    size: bytes of the file that count. offsets: base offsets of batches that a search finds are in [first, second).
    Raise LogFormatError kind "unreadable" or "changed" if the file cannot be read up to `size`.
    """
    search = _SoundSearch(file, path, size, offsets, buffer)
    position = 0
    while position < size:
        take = min(len(buffer.raw), size - position)
        read_exactly(file, path, position, buffer.raw[:take])
        done, n = 0, len(buffer.rows)
        while n == len(buffer.rows):
            n, done, status, expected, found, of_bad = walk_sound(buffer.raw, done, take, position, buffer.rows)
            if n < len(buffer.rows) and status == walk.MORE:
                will_read(file, following(position + done, size, len(buffer.raw)))
            if n:
                yield buffer.rows[:n]
        at, rest = position + done, size - position - done
        if status != walk.MORE:
            error = batch_problem(path, at, status, expected, found, buffer.raw[done:take])
            if status == walk.BAD_LENGTH and found == 0 and only_zeros(file, path, at, size):
                error = LogFormatError("torn_tail", path, at, "batches up to the end of the file", f"{rest} zeros")
                yield Damage(at, size, error)
                return
        elif rest == 0:
            return
        elif position + take < size and of_bad <= min(rest, buffer.max_batch_bytes + BATCH_OVERHEAD):
            if of_bad > len(buffer.raw):
                buffer.grow_raw(of_bad, path, at, -1)
            position = at
            continue
        else:
            error = LogFormatError("torn_tail", path, at, f"{of_bad or BATCH_OVERHEAD} bytes of a batch", f"{rest}")
        position = search.next_sound(at, of_bad)
        yield Damage(at, position, error)


class _SoundSearch:
    """The search for the next sound batch."""

    def __init__(self, file: Any, path: str, size: int, offsets: tuple[int, int], buffer: ChunkBuffer) -> None:
        self.file, self.path, self.size, self.offsets, self.buffer = file, path, size, offsets, buffer
        self.row = np.empty(1, BATCH)

    def next_sound(self, bad: int, of_bad: int) -> int:
        """Return the position of the first sound batch after a bad one; the file's size: there is none."""
        behind = bad + of_bad
        if of_bad and (behind == self.size or self._sound_size(behind)):
            return behind
        at = bad + 1
        while at + BATCH_OVERHEAD <= self.size:
            take, done = min(len(self.buffer.raw), self.size - at), 0
            read_exactly(self.file, self.path, at, self.buffer.raw[:take])
            while True:
                place, size = find_sound(self.buffer.raw, done, take, *self.offsets, self._most(at), self.row)
                if size == 0:
                    break
                if self._begins_a_chain(at + place):
                    return at + place
                done = place + 1
            at += place
        return self.size

    def _most(self, at: int) -> int:
        return min(self.buffer.max_batch_bytes + BATCH_OVERHEAD, self.size - at)

    def _begins_a_chain(self, at: int) -> bool:
        """Return whether a sound batch begins here, and another one where it ends, or the file ends there; or a damaged
        one that shows the next offset and a lawful length, or a later offset and a length that leads to another sound
        batch or to the end.
        """
        size = self._sound_size(at)
        behind, last = at + size, int(self.row["last_offset"][0])
        if size == 0 or behind == self.size or self._sound_size(behind):
            return size > 0
        base, length, end = self._prefix(behind)
        follows = base == last + 1 and MAGIC_OFFSET < length <= self.buffer.max_batch_bytes + BATCH_OVERHEAD
        later = last < base < self.offsets[1] and end > behind and (end == self.size or self._sound_size(end) > 0)
        return follows or later

    def _sound_size(self, at: int) -> int:
        """Return the size of the sound batch at a position; 0: there is none."""
        size = self._prefix(at)[2] - at
        if size == 0:
            return 0
        data = np.empty(size, np.uint8)
        read_exactly(self.file, self.path, at, data)
        n, *_ = walk_sound(data, 0, size, at, self.row)
        return size if n else 0

    def _prefix(self, at: int) -> tuple[int, int, int]:
        """Return the base offset of the batch at a position, -1: none; the size that its length shows; and where that
        leads, `at`: to no batch.
        """
        head = np.empty(max(min(MAGIC_OFFSET + 1, self.size - at), 0), np.uint8)
        if len(head) < LOG_OVERHEAD:
            return -1, 0, at
        read_exactly(self.file, self.path, at, head)
        base, size = (int.from_bytes(head[a:b].tobytes(), "big", signed=True) for a, b in ((0, 8), (8, 12)))
        size += LOG_OVERHEAD
        is_whole = len(head) > MAGIC_OFFSET < size <= self._most(at)
        return base, size, at + (size if is_whole else 0)
