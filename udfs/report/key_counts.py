"""How many records there are of each key, in a table that grows up to a limit."""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.batches.bodies import Run
from udfs.problem import Problem, SetAside
from udfs.report import measure_kernels as sums_of
from udfs.report.measure_kernels import count_keys

_FIRST_SLOTS: Final = 1 << 14


class KeyCounts:
    """Records of every key: open addressing over key hashes, doubled as keys come."""

    BYTES_PER_SLOT = 32

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used = max_bytes, 0
        self.columns = self._empty(_FIRST_SLOTS)

    @staticmethod
    def _empty(slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        low, high = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        return low, high, np.zeros(slots, np.int64), np.zeros(slots, np.int64)

    def count(self, run: Run, first_dirty_offset: int, end: int, is_last: np.ndarray, path: str) -> None:
        """`count_keys` of a run, with larger tables where they are needed; SetAside where they would be too large."""
        left = len(run.spans)
        while left:
            self.used, left = count_keys(
                run.batches,
                run.bodies,
                run.wanted,
                run.spans,
                first_dirty_offset,
                end,
                *self.columns,
                self.used,
                is_last,
                left,
            )
            if left:
                self._grow(path)

    def _grow(self, path: str) -> None:
        held = len(self.columns[0])
        if 3 * held * self.BYTES_PER_SLOT > self.max_bytes:  # this table, and one of twice its slots
            raise SetAside(
                Problem(
                    "keys",
                    path,
                    0,
                    f"keys that fit {self.max_bytes} bytes",
                    f"{self.used} keys, and more to come",
                    hint="a larger task.memory.bytes, twice these bytes: counts of keys are exact, so all are held",
                )
            )
        columns = self._empty(2 * held)
        sums_of.move_keys(*self.columns, *columns)
        self.columns = columns

    def hottest(self, n: int) -> list[tuple[int, int]]:
        """(records, offset of one of them) of the keys with the most, most first; the later offset first of equals."""
        counts, examples = np.abs(self.columns[2]), self.columns[3]
        taken = np.flatnonzero(counts)
        if len(taken) > n:
            least = np.partition(counts[taken], len(taken) - n)[len(taken) - n]
            taken = taken[counts[taken] >= least]
        order = taken[np.lexsort((-examples[taken], -counts[taken]))][:n]
        return list(zip(counts[order].tolist(), examples[order].tolist(), strict=True))
