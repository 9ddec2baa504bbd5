"""Reader of `.log` files, one after another: the walk of all that looks at batches or records, except the cleaner.

    reader = LogReader(secret=secret)
    for chunk in reader.chunks(log):
        for run in reader.runs(chunk): ...
    reader.tail     # where the walk ended, and why

The reader opens the file for the walk, and owns all memory of it: the bytes and rows of a chunk, and the scratch arrays
of decompressed bodies. Judgement of what is read belongs to the caller.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.bodies import SOFT_BYTES, BadBatch, BodyLoader
from lastkey.logformat.batches.chunks import (
    CHUNK_BYTES,
    MAX_BATCH_BYTES,
    NO_END,
    Chunk,
    ChunkBuffer,
    LogRange,
    Tail,
    batch_problem,
    only_zeros,
    read_chunks,
)
from lastkey.logformat.batches.pread_kernels import SHORT_READ, walk_headers
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError, readable, unreadable
from lastkey.logformat.storage.io_counts import spend
from lastkey.logformat.storage.regular_files import LogFile

WINDOW_BYTES: Final = 64 << 10  # tuned: larger windows than 16 KiB made no difference
_ROWS: Final = 1 << 14  # batches before control returns to Python


_NOTHING: Final = np.empty(0, np.uint8)


def read_headers(
    file: Any, path: str, wanted: LogRange, buffer: ChunkBuffer, tail: Tail, *, check_markers: bool = False
) -> Iterator[Chunk]:
    """Yield the batches of a range of a file, front to back, by their headers: no body is decompressed, and only
    markers' checksums are compared, on request. Every field of a header is checked as in `chunks.read_chunks`.

    file: an io.FileIO (`open(path, "rb", buffering=0)`), whose headers are read with one `pread` each, or together with
    all between them where batches are small; or an open pyarrow file, which is read whole. check_markers: check the CRC
    of control batches and of batches with the size of a marker: one flipped bit turns an ABORT into a COMMIT, or
    changes the producer of a marker.

    The other arguments, the state of `tail` at the end, and the errors are as in `chunks.read_chunks`.
    """
    if not isinstance(file, io.FileIO):
        check_crc = walk.CHECK_MARKERS if check_markers else False
        yield from read_chunks(file, path, wanted, buffer, tail, check_crc=check_crc)
        return
    position, end, previous, failed_at = wanted.start, wanted.end, wanted.previous_last_offset, -1
    window = buffer.raw[:WINDOW_BYTES] if len(buffer.raw) >= WINDOW_BYTES else np.empty(WINDOW_BYTES, np.uint8)
    rows = buffer.rows[:_ROWS]
    while True:
        n, stopped, status, expected, found, bytes_read = walk_headers(
            file.fileno(), position, end, previous, wanted.end_offset, check_markers, window, rows
        )
        spend(bytes_read)
        if n:
            before, previous = previous, int(rows["last_offset"][n - 1])
            yield Chunk(position, _NOTHING, rows[:n], before, path=path, bytes_read=bytes_read)
        position = tail.position = stopped
        if status == walk.REACHED_END:
            tail.reached_end_offset, tail.reached_by = True, int(found)
            return
        if status == SHORT_READ:
            again = len(_pread(file, path, stopped, expected))  # raises the error that the C library only counts
            if again < expected:
                raise LogFormatError("changed", path, stopped, f"{expected} more bytes", f"{again}")
            if failed_at == stopped:
                raise LogFormatError("unreadable", path, stopped, "a readable file", "reads that fail now and then")
            failed_at = stopped  # a signal, or a disk that came back: try once more from here
            continue
        if status != walk.MORE:
            if status == walk.BAD_LENGTH and found == 0 and only_zeros(file, path, stopped, end):
                tail.torn_bytes = end - stopped
                return
            first = np.frombuffer(_pread(file, path, stopped, 8), np.uint8)
            raise batch_problem(path, stopped, status, expected, found, first)
        if n < len(rows):
            tail.torn_bytes = end - stopped
            return


def _pread(file: io.FileIO, path: str, position: int, size: int) -> bytes:
    try:
        return os.pread(file.fileno(), size, position)
    except OSError as error:
        raise unreadable(path, error, position) from error


class LogReader:
    """Buffers for walks over logs, and their limits. For one thread, and one walk at a time."""

    def __init__(
        self,
        chunk_bytes: int = CHUNK_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        *,
        soft_bytes: int = SOFT_BYTES,
        secret: tuple[int, int] | None = None,
        keys_only: bool = False,
    ) -> None:
        """Read chunk_bytes at once; the other limits and the secret are as for `BodyLoader`."""
        self.buffer = ChunkBuffer(chunk_bytes, max_batch_bytes)
        self.tail = Tail()  # tail of the last walk
        self._soft_bytes, self._secret, self._keys_only = soft_bytes, secret, keys_only

    @cached_property
    def loader(self) -> BodyLoader:
        """Decoder of bodies, made when the first ones are decoded."""
        return BodyLoader(
            max_batch_bytes=self.buffer.max_batch_bytes,
            soft_bytes=self._soft_bytes,
            secret=self._secret,
            keys_only=self._keys_only,
        )

    def chunks(
        self,
        log: LogFile,
        start: int = 0,
        *,
        previous_last_offset: int = -1,
        end_offset: int = NO_END,
        check_crc: bool = True,
    ) -> Iterator[Chunk]:
        """Yield the batches of a log from byte `start` on, which is a batch border, chunk by chunk.

        Arguments and errors are as in `chunks.read_chunks`; kind "changed" also if the file is shorter than the size in
        `log`.
        """
        with self.open(log, start) as (file, end):
            wanted = LogRange(start, end, previous_last_offset, end_offset)
            yield from read_chunks(file, log.path, wanted, self.buffer, self.tail, check_crc=check_crc)

    def headers(
        self,
        log: LogFile,
        start: int = 0,
        *,
        previous_last_offset: int = -1,
        end_offset: int = NO_END,
        check_markers: bool = False,
    ) -> Iterator[Chunk]:
        """Yield the batches of a log as `chunks` does, by their headers alone (`read_headers`)."""
        with self.open(log, start) as (file, end):
            wanted = LogRange(start, end, previous_last_offset, end_offset)
            yield from read_headers(file, log.path, wanted, self.buffer, self.tail, check_markers=check_markers)

    @contextmanager
    def open(self, log: LogFile, start: int = 0) -> Iterator[tuple[Any, int]]:
        """Open a log for a walk; yield the file and its bytes that count. Raise kind "changed" if it is shorter."""
        self.tail = Tail(start)
        with readable(log.path):
            opened = log.open()
        with opened as file:
            with readable(log.path):
                size = int(file.size())
            if log.size is not None and size < log.size:
                raise LogFormatError("changed", log.path, size, f"{log.size} bytes, as listed", f"{size}")
            yield file, size if log.size is None else log.size

    def runs(self, chunk: Chunk, wanted: NDArray[np.bool_] | None = None, *, backwards: bool = False) -> Iterator[Run]:
        """Yield the batches of a chunk with the records of the wanted ones (bool[n]; None: all): `BodyLoader.runs`."""
        return self.loader.runs(chunk, wanted, backwards=backwards)

    def runs_around_damage(self, chunk: Chunk, wanted: NDArray[np.bool_] | None = None) -> Iterator[Run | BadBatch]:
        """Yield runs as `runs` does, and a BadBatch for each batch that cannot be decoded."""
        return self.loader.runs_around_damage(chunk, wanted)
