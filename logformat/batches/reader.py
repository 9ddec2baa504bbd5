"""Reader of `.log` files, one after another: the walk of all that looks at batches or records, except the cleaner.

    reader = LogReader(secret=secret)
    for chunk in reader.chunks(log):
        for run in reader.runs(chunk): ...
    reader.tail     # where the walk ended, and why

The reader opens the file for the walk, and owns all memory of it: the bytes and rows of a chunk, and the scratch arrays
of decompressed bodies. Judgement of what is read belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.bodies import SOFT_BYTES, BadBatch, BodyLoader, Run
from lastkey.logformat.batches.chunks import CHUNK_BYTES, MAX_BATCH_BYTES, NO_END, Chunk, ChunkBuffer, Tail, read_chunks
from lastkey.logformat.batches.headers import read_headers
from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.storage.regular_files import LogFile


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
        self.tail = Tail()  # of the last walk
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

        Arguments and errors are as in `chunks.read_chunks`; kind "changed" also if the file is shorter than `log` says.
        """
        with self.open(log, start) as (file, end):
            yield from read_chunks(
                file,
                log.path,
                start,
                end,
                self.buffer,
                self.tail,
                previous_last_offset=previous_last_offset,
                end_offset=end_offset,
                check_crc=check_crc,
            )

    def headers(
        self,
        log: LogFile,
        start: int = 0,
        *,
        previous_last_offset: int = -1,
        end_offset: int = NO_END,
        check_markers: bool = False,
    ) -> Iterator[Chunk]:
        """Yield the batches of a log as `chunks` does, by their headers alone (`headers.read_headers`)."""
        with self.open(log, start) as (file, end):
            yield from read_headers(
                file,
                log.path,
                start,
                end,
                self.buffer,
                self.tail,
                previous_last_offset=previous_last_offset,
                end_offset=end_offset,
                check_markers=check_markers,
            )

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
        wanted = np.ones(len(chunk.batches), np.bool_) if wanted is None else wanted
        return self.loader.runs(
            chunk.raw, chunk.position, chunk.batches, wanted, chunk.path, backwards=backwards, before=chunk.before
        )

    def runs_around_damage(self, chunk: Chunk, wanted: NDArray[np.bool_] | None = None) -> Iterator[Run | BadBatch]:
        """Yield runs as `runs` does, and a BadBatch for each batch that cannot be decoded."""
        wanted = np.ones(len(chunk.batches), np.bool_) if wanted is None else wanted
        return self.loader.runs_around_damage(
            chunk.raw, chunk.position, chunk.batches, wanted, chunk.path, before=chunk.before
        )
