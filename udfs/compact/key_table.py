"""The last offset of each key, in bounded memory."""

from __future__ import annotations

import numpy as np

from udfs.compact.last_offset_kernels import SLOT, mark_last_offsets, rehash


class TooManyKeys(Exception):
    """A table would outgrow the task's memory: the partition must be taken in several tasks."""


class KeyTable:
    """The table, grown as keys come; `max_bytes` bounds its memory (the old slots too while it grows)."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.slots = np.zeros(1 << 16, SLOT)
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
                batches, bodies, wanted, spans, first_dirty_offset, self.slots, self.used, is_last, left
            )
            if left and not self._grow():
                break
        return left

    def _grow(self) -> bool:
        larger = grown(self.slots, self.max_bytes)
        self.slots = self.slots if larger is None else larger
        return larger is not None


def grown(slots: np.ndarray, max_bytes: int) -> np.ndarray | None:
    """A table with twice the slots and the same keys; None where both together need more than max_bytes."""
    size = 2 * len(slots)
    if (size + len(slots)) * slots.itemsize > max_bytes:
        return None
    larger = np.zeros(size, slots.dtype)
    rehash(slots, larger)
    return larger
