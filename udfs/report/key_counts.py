"""Counts of the records of each key, in a table that grows up to a limit."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.compact.clean.deciders import grown
from lastkey.udfs.problem import Problem, SetAside
from lastkey.udfs.report.measure_kernels import KEY_COUNT, count_keys

_FIRST_SLOTS: Final = 1 << 14


class KeyCounts:
    """Counts of every key's records: open addressing over key hashes, doubled as keys come."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used = max_bytes, 0
        self.slots = np.zeros(_FIRST_SLOTS, KEY_COUNT)

    def count(self, run: Run, first_dirty_offset: int, end: int, is_last: np.ndarray, path: str) -> None:
        """Count a run with `count_keys`, in larger tables as needed. Raises SetAside if they would be too large."""
        left = len(run.spans)
        while left:
            self.used, left = count_keys(
                run.batches,
                run.bodies,
                run.wanted,
                run.spans,
                first_dirty_offset,
                end,
                self.slots,
                self.used,
                is_last,
                left,
            )
            if left:
                self._grow(path)

    def _grow(self, path: str) -> None:
        larger = grown(self.slots, self.max_bytes)
        if larger is None:
            raise SetAside(
                Problem(
                    "keys",
                    path,
                    NO_POSITION,
                    f"keys that fit {self.max_bytes} bytes",
                    f"{self.used} keys, and more to come",
                    hint="raise task.memory.bytes, of which keys get half: their counts are exact, so all are held",
                )
            )
        self.slots = larger

    def hottest(self, n: int) -> list[tuple[int, int]]:
        """Return (records, highest offset) of the n keys with the most records, most first; of equals the later offset
        first.
        """
        counts, examples = np.abs(self.slots["count"]), self.slots["example"]
        taken = np.flatnonzero(counts)
        if len(taken) > n:
            least = np.partition(counts[taken], len(taken) - n)[len(taken) - n]
            taken = taken[counts[taken] >= least]
        order = taken[np.lexsort((-examples[taken], -counts[taken]))][:n]
        return list(zip(counts[order].tolist(), examples[order].tolist(), strict=True))
