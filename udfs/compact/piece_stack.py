"""What survives of a group of segments, waiting to be written: pushed last first, read first to last.

Pieces wait in memory up to a limit and then in an unnamed temporary file; whole copied runs wait as references and are
read again. What is read again is held against a checksum of what was seen before: nothing is signed, or copied, that
was not checked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from logformat.batches.chunks import Chunk, read_exactly
from logformat.errors import LogFormatError
from logformat.layout import MAX_RELATIVE_OFFSET
from logformat.primitives.crc32c import crc32c_extend
from udfs.compact.clean_batches import OUT_BATCH, Piece
from udfs.compact.scan_segment import CHANGED_HINT
from udfs.compact.sources import Source
from udfs.storage import opened

_COPY_BYTES = 4 << 20
_SPILL = "the temporary file of pending output"


class _Waiting(NamedTuple):
    """A piece on the stack. Its bytes are `data`, or lie in the spill file from `place` on, or (-1) in its source."""

    source: int
    rows: np.ndarray  # OUT_BATCH[m]
    data: np.ndarray | None
    place: int
    position: int  # in its source
    size: int
    checksum: int  # CRC-32C of bytes that are read again


class PieceStack:
    """Pieces of one output segment, pushed last first and read first to last."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.digest = 0
        self._pieces: list[_Waiting] = []
        self._spill: Any = None

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def last_offset(self) -> int:
        """Of the last surviving batch; -1 where nothing survives."""
        return int(self._pieces[0].rows["last_offset"][-1]) if self._pieces else -1

    def push(self, source: int, piece: Piece, chunk: Chunk) -> None:
        """Put a piece of `chunk` of source number `source` before all that are there."""
        self.digest = (self.digest + piece.digest) & (2**64 - 1)
        data, place, checksum = piece.data, -1, 0
        if data is not None and self.held_bytes + piece.size > self.max_bytes:
            if self._spill is None:
                self._spill = tempfile.TemporaryFile(prefix="lastkey-")  # noqa: SIM115 - lives as long as the stack
            place = self._spill.seek(0, os.SEEK_END)
            self._spill.write(data.data)
            checksum, data = crc32c_extend(0, data), None
        elif data is not None:
            self.held_bytes += piece.size
        elif piece.position >= 0:
            start = piece.position - chunk.position
            checksum = crc32c_extend(0, chunk.raw[start : start + piece.size])
        self._pieces.append(_Waiting(source, piece.rows, data, place, piece.position, piece.size, checksum))

    def close(self) -> None:
        """What waits will not be written."""
        if self._spill is not None:
            self._spill.close()

    def rows(self) -> np.ndarray:
        """OUT_BATCH[n] of all pieces, in the order of the log."""
        if not self._pieces:
            return np.empty(0, OUT_BATCH)
        return np.concatenate([piece.rows for piece in reversed(self._pieces)])

    def drain(self, sources: list[Source]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(OUT_BATCH rows, bytes) in the order of the log; rows come with the first bytes of their piece.

        Raises LogFormatError behind the last bytes of a piece that are not those that were pushed.
        """
        none = np.empty(0, OUT_BATCH)
        with self._spill or nullcontext(), ExitStack() as files:
            opened_at, file = -1, None
            while self._pieces:
                piece = self._pieces.pop()
                if piece.data is not None:
                    self.held_bytes -= piece.size
                    yield piece.rows, piece.data
                    continue
                rows, checksum = piece.rows, 0
                for start in range(0, piece.size, _COPY_BYTES):
                    part = np.empty(min(_COPY_BYTES, piece.size - start), np.uint8)
                    if piece.place >= 0:
                        read_exactly(self._spill, _SPILL, piece.place + start, part)
                    else:
                        one = sources[piece.source]
                        if piece.source != opened_at:
                            files.close()  # a group may have thousands of sources
                            file = files.enter_context(opened(one.root, one.path))
                            opened_at = piece.source
                        read_exactly(file, one.path, piece.position + start, part)
                    checksum = crc32c_extend(checksum, part)
                    yield rows, part
                    rows = none
                if checksum != piece.checksum:
                    raise _not_as_pushed(piece, sources, checksum)


def _not_as_pushed(piece: _Waiting, sources: list[Source], found: int) -> LogFormatError:
    kind, path, position = "readback", _SPILL, piece.place
    if piece.place < 0:
        kind, path, position = "changed", sources[piece.source].path, piece.position
    return LogFormatError(
        kind,
        path,
        position,
        f"{piece.size} bytes with CRC-32C {piece.checksum:#010x}, as before",
        f"{found:#010x}",
        hint=CHANGED_HINT,
    )


@dataclass
class Group:
    """Segments that become one: what is known of the result before it is written."""

    base_offset: int
    next_offset: int
    mtime_ms: int
    source_bytes: int
    source_records: int
    stack: PieceStack

    def can_begin_at(self, base_offset: int) -> bool:
        """Whether the group may take an earlier base: its offsets must stay in the range of the indexes."""
        return not len(self.stack) or self.stack.last_offset - base_offset <= MAX_RELATIVE_OFFSET

    def take_base_of(self, empty: Group) -> None:
        """Stand for an empty group before this one too."""
        self.base_offset = empty.base_offset
        self.source_bytes += empty.source_bytes
        self.source_records += empty.source_records
