"""The last offset of each key, in bounded memory."""

from __future__ import annotations

import numpy as np

from udfs.compact.last_offset_kernels import mark_last_offsets, rehash


class KeyTable:
    """The table, grown as keys come; `max_bytes` bounds its memory (both arrays, the old ones too while it grows)."""

    BYTES_PER_SLOT = 16

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.low = np.zeros(1 << 16, np.uint64)
        self.high = np.zeros(1 << 16, np.uint64)
        self.used = 0

    def mark(
        self,
        batches: np.ndarray,
        bodies: np.ndarray,
        wanted: np.ndarray,
        spans: np.ndarray,
        first_dirty_offset: int,
        is_last: np.ndarray,
        left: int,
    ) -> int:
        """`mark_last_offsets` of the first `left` records of a run, with a larger table where one is needed.

        Returns how many records are left: 0, unless the table is full and may not grow. Then clear() makes room for
        43,690 keys at least.
        """
        while left:
            self.used, left = mark_last_offsets(
                batches, bodies, wanted, spans, first_dirty_offset, self.low, self.high, self.used, is_last, left
            )
            if left and not self._grow():
                break
        return left

    def _grow(self) -> bool:
        """Twice the slots; False where that needs more than max_bytes."""
        slots = 2 * len(self.low)
        if (slots + len(self.low)) * self.BYTES_PER_SLOT > self.max_bytes:
            return False
        low, high = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        rehash(self.low, self.high, low, high)
        self.low, self.high = low, high
        return True
