"""Records that stay by their offsets: the decider of a second pass over the log, once every key's last record is known.

The rewrite of a large partition uses it, and the last pass of one task that goes in rounds.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.udfs.compact.clean.survivor_kernels import mark_survivors
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.verdicts import ALL_GO, ALL_STAY, UNKNOWN


class Survivors:
    """The decider of a rewrite: records with these offsets stay. It counts those that it has met."""

    def __init__(self, plan: PartitionPlan, offsets: np.ndarray, to_read: np.ndarray) -> None:
        """offsets: int64[n], ascending; to_read: int64[m], as of `batches_to_read`."""
        self.offsets, self.met = offsets, 0
        self._plan, self._to_read = plan, to_read

    def mark(self, run: Run, may_stay: np.ndarray) -> None:
        """Mark the records of a run that stay."""
        if len(run.bodies):
            at = int(np.searchsorted(self.offsets, run.bodies["base_offset"].min()))
            self.met += mark_survivors(run, self.offsets, at, may_stay)

    def verdicts(self, batches: np.ndarray, decided: np.ndarray) -> np.ndarray:
        """Return int8[n], the verdicts on BATCH[n] that are certain before their records are read.

        decided: bool[n], batches whose records all go, or all stay, in any case.
        """
        possible = ~decided & (batches["magic"] == 2) & (batches["attributes"] & CONTROL_MASK == 0)
        possible &= (batches["records_count"] > 0) & ~np.isin(batches["last_offset"], self._to_read)
        first = np.searchsorted(self.offsets, batches["base_offset"])
        n = np.searchsorted(self.offsets, batches["last_offset"], side="right") - first
        all_stay = possible & (n == batches["records_count"])
        self.met += int(n[all_stay].sum())
        verdicts = np.full(len(batches), UNKNOWN, np.int8)
        verdicts[all_stay], verdicts[possible & (n == 0)] = ALL_STAY, ALL_GO
        return verdicts

    def check(self) -> None:
        """Raise LogFormatError kind "readback" unless all records that stay were met."""
        if self.met != len(self.offsets):
            raise incomplete(self._plan, f"{self.met} of {len(self.offsets)} records")


def batches_to_read(run: Run) -> np.ndarray:
    """Return int64[m], the last offsets of the batches with a tombstone or a record without key: the rules may decide
    about these by more than whether a later record of the key exists.
    """
    rows = run.spans["null_key"] | run.spans["null_value"]
    if not rows.any():
        return np.zeros(0, np.int64)
    batch_of = np.repeat(np.arange(len(run.batches)), run.bodies["n_records"])
    last: np.ndarray = run.batches["last_offset"][np.unique(batch_of[rows])]
    return last


def incomplete(plan: PartitionPlan, found: str) -> LogFormatError:
    """Return the error of a rewrite that did not meet what it must write."""
    return LogFormatError(
        "readback", plan.name, NO_POSITION, "every record that stays, and a decision about each", found
    )
