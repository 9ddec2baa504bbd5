"""A `.log` file as a stream of chunks: raw bytes with a BATCH row for every batch in them.

A chunk holds only whole batches. One buffer serves all chunks in turn, so memory is bounded for a segment of any size:
by chunk_bytes, or by one batch if that is larger.
`check_offsets` compares the offsets of batches with the names of their segment and the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.errors import LogFormatError, unreadable
from lastkey.logformat.layout import (
    BATCH,
    BATCH_OVERHEAD,
    LOG_OVERHEAD,
    MAX_LAST_OFFSET,
    MAX_RELATIVE_OFFSET,
    MAX_SEGMENT_BYTES,
)
from lastkey.logformat.storage import io_counts
from lastkey.logformat.storage.regular_files import following, will_read

CHUNK_BYTES: Final = 8 << 20  # tuned: from 4 to 32 MiB made no difference (page faults, cache)
MAX_BATCH_BYTES: Final = (
    256 << 20
)  # limit for a batch, in its file and decompressed: default of max.decompressed.batch.bytes
_ZEROS_BYTES: Final = 1 << 20  # read at once while they are all zero
NO_END: Final = MAX_LAST_OFFSET + 1  # as end_offset: no batch reaches it


@dataclass(frozen=True)
class Chunk:
    """Consecutive batches of a file. `raw` and `batches` are valid only until the next chunk is read."""

    position: int  # position of the first batch in the file
    raw: np.ndarray  # uint8, exactly the bytes of `batches`; empty if only headers were read
    batches: np.ndarray  # BATCH[n]
    before: int = -1  # last offset of the batch before them; -1: unknown
    path: str = ""  # path of the file, in messages
    bytes_read: int = 0

    @property
    def end(self) -> int:
        """Position after the last batch in the file."""
        return int(self.batches["position"][-1]) + int(self.batches["size"][-1])

    @property
    def size(self) -> int:
        """Bytes of all batches in the file."""
        return self.end - self.position

    @property
    def last_offset(self) -> int:
        """Last offset of the last batch."""
        return int(self.batches["last_offset"][-1])


@dataclass(frozen=True)
class LogRange:
    """Bytes of a log to walk over; `start` is a batch border."""

    start: int
    end: int
    previous_last_offset: int = -1  # offsets must rise above it
    end_offset: int = NO_END  # stop before the first batch whose last offset reaches it


@dataclass
class Tail:
    """The end of a walk, and the reason for it; filled when the walk is over."""

    position: int = 0  # first byte that no chunk holds
    reached_end_offset: bool = False  # stopped because of end_offset
    reached_by: int = -1  # last offset of the batch that reached it
    torn_bytes: int = 0  # incomplete batch, or zeros of a preallocated file, at the very end


class ChunkBuffer:
    """The bytes and rows that consecutive chunks share; each thread needs its own.

    It grows for a larger batch, up to max_batch_bytes, so that a damaged length field cannot take any amount of memory.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self.max_batch_bytes = max_batch_bytes
        self.raw = np.empty(chunk_bytes, np.uint8)
        self.rows = np.empty(max(16, chunk_bytes // 512), BATCH)

    def grow_raw(self, size: int, path: str, position: int, base_offset: int) -> None:
        """Make room for a batch of `size` bytes. Raise kind "bomb" if the batch is larger than the limit."""
        check_batch_size(size, self.max_batch_bytes, path, position, base_offset)
        self.raw = np.empty(0, np.uint8)  # frees the old memory first
        self.raw = np.empty(size, np.uint8)

    def grow_rows(self) -> None:
        """Double the number of rows."""
        self.rows = np.empty(2 * len(self.rows), BATCH)


def check_batch_size(size: int, limit: int, path: str, position: int, base_offset: int) -> None:
    """Raise kind "bomb" if a batch of `size` bytes, header included, has a body above the limit."""
    if size > limit + BATCH_OVERHEAD:
        raise too_large(size, limit, path, position, base_offset)


def too_large(size: int, limit: int, path: str, position: int, base_offset: int) -> LogFormatError:
    """Return the error for a batch above the limit."""
    expected = f"a batch of at most {limit} bytes (max.decompressed.batch.bytes)"
    return LogFormatError("bomb", path, position, expected, f"{size}", base_offset=max(base_offset, -1))


def fitting(batches: np.ndarray, limit: int) -> int:
    """Return the number of BATCH[n] before the first that is larger than the limit."""
    over = batches["size"] > limit + BATCH_OVERHEAD
    return int(over.argmax()) if over.any() else len(batches)


def read_exactly(file: Any, path: str, position: int, out: np.ndarray) -> None:
    """Fill `out` (uint8) from `position` of an open pyarrow file, or an io.FileIO.

    Raise LogFormatError kind "changed" if the file ends before, "unreadable" if a read fails.
    """
    filled = 0
    while filled < len(out):
        try:
            file.seek(position + filled)
            n = file.readinto(out.data[filled:])
        except InterruptedError:  # a signal: unlike Python, Arrow does not try again by itself
            continue
        except OSError as error:
            raise unreadable(path, error, position + filled) from error
        if n <= 0:
            raise LogFormatError("changed", path, position + filled, f"{len(out) - filled} more bytes", "end of file")
        filled += n
    io_counts.notify(filled)


def read_chunks(
    file: Any, path: str, wanted: LogRange, buffer: ChunkBuffer, tail: Tail, *, check_crc: int = True
) -> Iterator[Chunk]:
    """Yield the batches of a range of an open pyarrow file, chunk by chunk.

    `tail` reports an incomplete batch, or zeros, at the end of the range, for the caller to judge; every other damage
    raises LogFormatError. check_crc: as in `walk_batches`.
    """
    position, end, previous = wanted.start, wanted.end, wanted.previous_last_offset
    while position < end:
        take = min(len(buffer.raw), end - position)
        read_exactly(file, path, position, buffer.raw[:take])
        done = 0
        while True:
            raw, at = buffer.raw[done:take], position + done
            n, consumed, status, expected, found = walk.walk_batches(
                raw, take - done, at, previous, wanted.end_offset, int(check_crc), buffer.rows
            )
            fit = fitting(buffer.rows[:n], buffer.max_batch_bytes)
            if fit < n:
                large = buffer.rows[fit]
                consumed = int(large["position"]) - position - done
                size, base = int(large["size"]), int(large["base_offset"])
            if fit == n < len(buffer.rows) and status == walk.MORE:
                will_read(file, following(position + done + consumed, end, len(buffer.raw)))
            if fit:
                before, previous = previous, int(buffer.rows["last_offset"][fit - 1])
                yield Chunk(at, raw[:consumed], buffer.rows[:fit], before, path=path, bytes_read=consumed)
            done += consumed
            if fit < n:
                tail.position = position + done
                check_batch_size(size, buffer.max_batch_bytes, path, position + done, base)
            if n < len(buffer.rows):
                break
            buffer.grow_rows()
        tail.position = position + done
        if status == walk.REACHED_END:
            tail.reached_end_offset, tail.reached_by = True, int(found)
            return
        if status != walk.MORE:
            problem = batch_problem(path, position + done, status, expected, found, buffer.raw[done:take])
            if status == walk.BAD_LENGTH and found == 0 and only_zeros(file, path, position + done, end):
                tail.torn_bytes = end - position - done
                return
            raise problem
        if done == 0 and take < end - position:
            size = _batch_size(buffer.raw, take)
            if size > end - position:
                tail.torn_bytes = end - position
                return
            buffer.grow_raw(size, path, position, _base_offset(buffer.raw, take))
        elif position + take == end:
            tail.torn_bytes = take - done
            return
        position += done


def _batch_size(raw: np.ndarray, length: int) -> int:
    if length < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return LOG_OVERHEAD + int.from_bytes(raw[8:12].tobytes(), "big", signed=True)


def _base_offset(raw: np.ndarray, length: int) -> int:
    return int.from_bytes(raw[:8].tobytes(), "big", signed=True) if length >= LOG_OVERHEAD else -1


def only_zeros(file: Any, path: str, position: int, end: int) -> bool:
    """Return whether bytes [position, end) of an open file are zeros, as at the end of a preallocated file."""
    while position < end:
        part = np.empty(min(_ZEROS_BYTES, end - position), np.uint8)
        read_exactly(file, path, position, part)
        if part.any():
            return False
        position += len(part)
    return True


def batch_problem(path: str, position: int, status: int, expected: int, found: int, raw: np.ndarray) -> LogFormatError:
    """Return the error for a status of `walk_batches`; raw: uint8 from the first byte of the batch at `position` on."""
    base = int.from_bytes(raw[:8].tobytes(), "big", signed=True)
    kind, want, got = {
        walk.BAD_LENGTH: ("length", f"at least {expected} bytes, at most {MAX_SEGMENT_BYTES}", f"{found}"),
        walk.BAD_MAGIC: ("magic", f"magic 0 to {expected}", f"{found}"),
        walk.BAD_CRC: ("crc", f"checksum {expected:#010x}, as the header says", f"{found:#010x}"),
        walk.BAD_CODEC: ("codec", f"codec 0 to {expected}, zstd only from magic 2 on", f"codec {found}"),
        walk.BAD_TRAIL: ("varint", "four varints at the end of the header", "one that is too long, or runs past it"),
        walk.BAD_SECTION: (
            "length",
            f"a first section of at most {expected} bytes, plain only with a codec",
            f"{found}",
        ),
        walk.BAD_COUNT: ("count", f"0 to {expected} records, by the offsets of the batch", f"{found} in its header"),
        walk.BAD_OFFSETS: ("offsets", f"an offset of {expected} or more", f"{found}"),
        walk.BAD_LAST_OFFSET: (
            "offsets",
            f"a base offset up to {expected}, so that the last one is below 2^63 - 1",
            f"{found}",
        ),
        walk.BAD_CONTROL: ("transaction", "a control record with a version and a type", "other bytes"),
    }[status]
    return LogFormatError(kind, path, position, want, got, base_offset=max(base, -1))


def check_offsets(path: str, base: int, next_base: int | None, batches: np.ndarray) -> None:
    """Check that the offsets of BATCH[n] are between a segment's base and the next one's, and fit its index entries.

    Raise LogFormatError kind "name", "overlap" or "relative_offset".
    """
    check_first_offset(path, base, batches[0])
    last = int(batches["last_offset"][-1])
    if next_base is not None and last >= next_base:
        i = int(np.searchsorted(batches["last_offset"], next_base))
        row = batches[i]
        raise overlap(path, next_base, int(row["position"]), int(row["last_offset"]), int(row["base_offset"]))
    if last - base > MAX_RELATIVE_OFFSET:
        i = int(np.searchsorted(batches["last_offset"], base + MAX_RELATIVE_OFFSET, "right"))
        position, found = int(batches["position"][i]), f"{int(batches['last_offset'][i])}"
        expected, hint = (
            f"offsets up to {base + MAX_RELATIVE_OFFSET}",
            "let a broker split the segment by loading it once",
        )
        raise LogFormatError("relative_offset", path, position, expected, found, hint=hint)


def check_first_offset(path: str, base: int, batch: Any) -> None:
    """Raise kind "name" if the first batch of a segment, a BATCH row, begins below the segment's base."""
    # the first offset of a compressed batch of magic 0 or 1 is not known yet; its last one must do
    first = int(batch["base_offset"] if batch["base_offset"] >= 0 else batch["last_offset"])
    if first < base:
        position, expected = int(batch["position"]), f"offsets from {base} on, as its name says"
        raise LogFormatError("name", path, position, expected, f"{first}", base_offset=first)


def overlap(path: str, next_base: int, position: int, last: int, base_offset: int = -1) -> LogFormatError:
    """Return the error for a batch that reaches into the next segment."""
    expected = f"offsets below {next_base}, where the next segment begins"
    return LogFormatError("overlap", path, position, expected, f"{last}", base_offset=base_offset)
