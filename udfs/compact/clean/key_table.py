"""The last offset of each key, in bounded memory."""

from __future__ import annotations

import numpy as np

from lastkey.udfs.compact.clean.last_offset_kernels import mark_last_offsets
from lastkey.udfs.compact.clean.slot_kernels import SLOT, enter_keys, rehash


class TooManyKeys(Exception):
    """A table would outgrow the task's memory: several tasks must share the partition."""


class KeyTable:
    """A table of keys that grows as keys come; `max_bytes` bounds its memory (with the old slots while it grows)."""

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
        """Mark the last records of each key (`mark_last_offsets`) among the first `left` records of a run; enlarge the
        table as needed.

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

    def enter(self, keys: np.ndarray) -> bool:
        """Enter SLOT[n]; return False if they do not all fit."""
        done = 0
        while done < len(keys):
            self.used, done = enter_keys(keys, self.slots, self.used, done)
            if done < len(keys) and not self._grow():
                return False
        return True

    def keys(self) -> np.ndarray:
        """Return the keys that it holds: SLOT[used]."""
        held: np.ndarray = self.slots[(self.slots["low"] != 0) | (self.slots["high"] != 0)]
        return held

    def _grow(self) -> bool:
        larger = grown(self.slots, self.max_bytes)
        self.slots = self.slots if larger is None else larger
        return larger is not None


def grown(slots: np.ndarray, max_bytes: int) -> np.ndarray | None:
    """Return a table with twice the slots and the same keys; None if both together need more than max_bytes."""
    size = 2 * len(slots)
    if (size + len(slots)) * slots.itemsize > max_bytes:
        return None
    larger = np.zeros(size, slots.dtype)
    rehash(slots, larger)
    return larger
