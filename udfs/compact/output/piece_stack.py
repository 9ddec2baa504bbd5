"""The survivors of a group of segments, waiting to be written: pushed last first, read first to last.

Pieces wait in memory up to a limit and then in an unnamed temporary file; runs that are copied whole wait as references
into their source. Bytes that are read again must match the checksum of the bytes seen before, so unchecked bytes are
never copied. The next stack of a thread reuses the memory of a closed stack, because touching new memory takes as long
as copying the retained bytes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np

from lastkey.logformat.batches.checksum_kernels import extend_by_batches
from lastkey.logformat.batches.chunks import Chunk, read_exactly
from lastkey.logformat.errors import CHANGED_HINT, LogFormatError
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH, CleanedRun
from lastkey.udfs.compact.output.segment_output import batches_that_fit
from lastkey.udfs.segments import SegmentScan

_COPY_BYTES = 4 << 20
_BLOCK_BYTES = 8 << 20
_SPILL = "the temporary file of pending output"


class _Waiting(NamedTuple):
    """A piece on the stack. Its bytes are `data`, or are in the spill file from `place` on, or (-1) in its source."""

    source: int
    rows: np.ndarray  # OUT_BATCH[m]
    data: np.ndarray | None
    place: int
    position: int  # in its source
    size: int
    checksum: int  # CRC-32C of the bytes to read again


class _Unused(threading.local):
    """Memory of this thread's earlier stacks."""

    def __init__(self) -> None:
        self.blocks: list[np.ndarray] = []


_unused = _Unused()


class PieceStack:
    """Pieces of one output segment, pushed last first and read first to last."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.digest = 0
        self._blocks: list[np.ndarray] = []  # uint8; a piece that is larger has its own
        self._free = 0  # bytes at the end of the last block
        self._pieces: list[_Waiting] = []
        self._spill: Any = None

    def __len__(self) -> int:
        return len(self._pieces)

    def last_offset(self, max_bytes: int) -> int:
        """Return the last offset of the first segment, of at most so many bytes; -1 if no record survives."""
        rows = self.rows()
        return int(rows["last_offset"][max(batches_that_fit(rows["size"], max_bytes), 1) - 1]) if len(rows) else -1

    def room(self, size: int) -> np.ndarray:
        """Return uint8[size] for the bytes of the next piece, to be pushed before it is called again."""
        if size > self._free:
            unused = _unused.blocks
            is_reused = bool(unused) and size <= len(unused[-1])
            length = len(unused[-1]) if is_reused else max(size, min(_BLOCK_BYTES, self.max_bytes))
            if sum(map(len, self._blocks)) + length > self.max_bytes:
                return np.empty(size, np.uint8)
            self._blocks.append(unused.pop() if is_reused else np.empty(length, np.uint8))
            self._free = length
        start = len(self._blocks[-1]) - self._free
        self._free -= size
        return self._blocks[-1][start : start + size]

    def push(self, source: int, piece: CleanedRun, chunk: Chunk) -> None:
        """Put a piece of `chunk`, from source number `source`, in front of all pieces on the stack."""
        self.digest = (self.digest + piece.digest) & (2**64 - 1)
        data, place, checksum = piece.data, -1, 0
        if data is not None and not (self._blocks and data.base is self._blocks[-1]):
            if self._spill is None:
                self._spill = tempfile.TemporaryFile(prefix="lastkey-")  # noqa: SIM115 - lives as long as the stack
            place = self._spill.seek(0, os.SEEK_END)
            self._spill.write(data.data)
            checksum, data = extend_by_batches(0, data, piece.rows["size"]), None
        elif data is None and piece.position >= 0:
            start = piece.position - chunk.position
            checksum = extend_by_batches(0, chunk.raw[start : start + piece.size], piece.rows["size"])
        self._pieces.append(_Waiting(source, piece.rows, data, place, piece.position, piece.size, checksum))

    def close(self) -> None:
        """Close the temporary file and give the memory to the next stack; the pieces are deleted."""
        self._pieces.clear()
        _unused.blocks += [block for block in self._blocks if len(block) <= _BLOCK_BYTES]
        self._blocks, self._free = [], 0
        if self._spill is not None:
            self._spill.close()

    def __del__(self) -> None:  # after a failure of the task before its pieces were written
        if self._spill is not None:
            self._spill.close()

    def rows(self) -> np.ndarray:
        """Return the rows of all pieces, OUT_BATCH[n], in the order of the log."""
        if not self._pieces:
            return np.empty(0, OUT_BATCH)
        return np.concatenate([piece.rows for piece in reversed(self._pieces)])

    def drain(
        self, sources: Sequence[SegmentScan], *, dry_run: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (OUT_BATCH rows, bytes: uint8[], valid until the next ones) in the order of the log; rows come with the
        first bytes of their piece, in a dry run without bytes.

        Raises LogFormatError after the last bytes of a piece that differ from the pushed ones.
        """
        none = np.empty(0, OUT_BATCH)
        if dry_run:
            yield self.rows(), np.empty(0, np.uint8)
            return
        with self._spill or nullcontext(), ExitStack() as files:
            opened_at, file, copied = -1, None, np.empty(_COPY_BYTES, np.uint8)
            while self._pieces:
                piece = self._pieces.pop()
                if piece.data is not None:
                    yield piece.rows, piece.data
                    continue
                rows, checksum = piece.rows, 0
                for start in range(0, piece.size, _COPY_BYTES):
                    part = copied[: piece.size - start]
                    if piece.place >= 0:
                        read_exactly(self._spill, _SPILL, piece.place + start, part)
                    else:
                        log = sources[piece.source]
                        if piece.source != opened_at:
                            files.close()  # a group may have thousands of sources
                            file = files.enter_context(log.open_log())
                            opened_at = piece.source
                        read_exactly(file, log.path, piece.position + start, part)
                    checksum = crc32c_extend(checksum, part)
                    yield rows, part
                    rows = none
                if checksum != piece.checksum:
                    raise _not_as_pushed(piece, sources, checksum)
        self.close()


def _not_as_pushed(piece: _Waiting, sources: Sequence[SegmentScan], found: int) -> LogFormatError:
    kind, path, position = "readback", _SPILL, piece.place
    if piece.place < 0:
        kind, path, position = "changed", sources[piece.source].path, piece.position
    expected = f"{piece.size} bytes with CRC-32C {piece.checksum:#010x}, as before"
    return LogFormatError(kind, path, position, expected, f"{found:#010x}", hint=CHANGED_HINT)
