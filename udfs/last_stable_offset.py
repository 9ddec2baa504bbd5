"""Where reading committed data ends: the first offset of the oldest transaction that is still open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from logformat.batch_headers import ChunkBuffer, Tail
from logformat.producer_state import ProducerState
from logformat.sparse_headers import read_headers
from udfs.storage import Root, opened_unbuffered


class ListedLog(Protocol):
    """A `.log` by its listing."""

    @property
    def path(self) -> str:
        """Relative to its root."""

    @property
    def size(self) -> int:
        """Bytes when it was listed."""


def last_stable_offset(
    segments: Iterable[tuple[Root, ListedLog]], log_start_offset: int, high_watermark: int | None = None
) -> int:
    """Of a log, by the headers of all its batches, nothing decompressed.

    Rule: UnifiedLog.fetchLastStableOffsetMetadata of a broker that has just loaded the log: a producer's transaction
    begins with its first batch that is not below the log start. Raises LogFormatError for a bad log.
    """
    state, end = ProducerState(), log_start_offset
    buffer = ChunkBuffer(1 << 20)
    for root, segment in segments:
        with opened_unbuffered(root, segment.path) as file:
            for headers in read_headers(file, segment.path, 0, segment.size, buffer, Tail()):
                batches = headers.batches
                end = max(end, int(batches["last_offset"][-1]) + 1)
                counts = (batches["producer_id"] >= 0) & (batches["last_offset"] >= log_start_offset)
                state.append(batches[counts], segment.path)
    return state.last_stable_offset(end if high_watermark is None else min(end, high_watermark))
