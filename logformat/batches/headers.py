"""Batch headers of a `.log`, without the bodies: nothing is decompressed, and only markers' checksums on request.

A local file is read by headers only, with one `pread` each, or together with all between them where batches are small;
any other file is read whole. Every field of a header is checked as in `chunks.read_chunks`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, Chunk, ChunkBuffer, Tail, batch_problem, only_zeros, read_chunks
from lastkey.logformat.batches.pread_kernels import SHORT_READ, walk_headers
from lastkey.logformat.errors import LogFormatError, unreadable
from lastkey.logformat.storage.io_limit import spend

WINDOW_BYTES: Final = 64 << 10  # tuned: larger windows than 16 KiB made no difference
_ROWS: Final = 1 << 14  # batches before control returns to Python


_NOTHING: Final = np.empty(0, np.uint8)


def read_headers(
    file: Any,
    path: str,
    start: int,
    end: int,
    buffer: ChunkBuffer,
    tail: Tail,
    *,
    previous_last_offset: int = -1,
    end_offset: int = NO_END,
    check_markers: bool = False,
) -> Iterator[Chunk]:
    """Yield the batches of bytes [start, end) of a file, front to back; `start` is a batch border.

    file: an io.FileIO (`open(path, "rb", buffering=0)`), whose bodies are skipped, or an open pyarrow file, which is
    read whole. check_markers: check the CRC of control batches and of batches that have the size of a marker, because
    one flipped bit turns an ABORT into a COMMIT, or takes a marker away from its producer.

    The other arguments, the state of `tail` at the end, and the errors are as in `chunks.read_chunks`.
    """
    if not isinstance(file, io.FileIO):
        yield from read_chunks(
            file,
            path,
            start,
            end,
            buffer,
            tail,
            previous_last_offset=previous_last_offset,
            end_offset=end_offset,
            check_crc=walk.CHECK_MARKERS if check_markers else False,
        )
        return
    position, previous, failed_at = start, previous_last_offset, -1
    window = buffer.raw[:WINDOW_BYTES] if len(buffer.raw) >= WINDOW_BYTES else np.empty(WINDOW_BYTES, np.uint8)
    rows = buffer.rows[:_ROWS]
    while True:
        n, stopped, status, expected, found, bytes_read = walk_headers(
            file.fileno(), position, end, previous, end_offset, check_markers, window, rows
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
