"""Survivors in the message format of the store (`store.format`), from the decoded records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.layout import CONTROL_MASK, IGNORE_ATTRIBUTES_MASK
from lastkey.logformat.writing.formats import Magic, may_be_v3, to_v2, to_v3
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.plan import LARGEST_V3_BYTES
from lastkey.udfs.compact.verdicts import COPIED, EMPTIED, REBUILT

# Fields of a header that come from the decision about its batch
_DECIDED = ("base_offset", "last_offset", "base_timestamp", "max_timestamp", "attributes")


class Replaced(NamedTuple):
    """Batches of a run in another format."""

    which: np.ndarray  # bool[n]
    data: np.ndarray  # uint8: they, one behind the other
    sizes: np.ndarray  # int64[n], 0 for the others
    magic: int


def format_for(size: int, rules: Rules) -> Magic | None:
    """Return the magic that the survivors of a segment of `size` bytes get; None: as they are, and rebuilt ones 2."""
    return None if rules.dry_run or (rules.magic == 3 and size > LARGEST_V3_BYTES) else rules.magic


def wanted_for(magic: Magic | None, raw: np.ndarray, raw_position: int, batches: np.ndarray) -> np.ndarray:
    """Return bool[n]: batches whose records must be there even where all stay, because their format changes."""
    if magic == 3:
        return may_be_v3(raw, raw_position, batches)
    return np.asarray((batches["magic"] == 3) & (magic == 2))


def in_format(
    run: Run,
    raw_position: int,
    kept: np.ndarray,
    cleaned: np.ndarray,
    magic: Magic | None,
    max_batch_bytes: int,
    path: str,
) -> Replaced:
    """Return the surviving batches that get another format than the run's way of writing them gives (magic 2, or a
    copy). kept: bool[len(run.spans)]; cleaned: CLEANED[n].
    """
    if magic != 3 and not (run.batches["magic"] == 3).any():
        return nothing(len(run.batches))
    outcome = cleaned["outcome"]
    which = (outcome == COPIED) & run.wanted & wanted_for(magic, run.raw, raw_position, run.batches)
    if magic != 3:
        return Replaced(which, *to_v2(run, which, path), 2) if which.any() else nothing(len(which))
    changed = (outcome == REBUILT) | (outcome == EMPTIED)
    which |= changed & (cleaned["attributes"] & (CONTROL_MASK | IGNORE_ATTRIBUTES_MASK) == 0)
    if not which.any():
        return nothing(len(which))
    batches = run.batches.copy()
    for name in _DECIDED:
        batches[name][changed] = cleaned[name][changed]
    batches["records_count"][changed] = cleaned["n_kept"][changed]
    data, sizes = to_v3(run, batches, kept, changed, which, max_batch_bytes)
    return Replaced(which, data, np.where(which, sizes, 0), 3)


def nothing(n: int) -> Replaced:
    """Return that none of n batches gets another format."""
    return Replaced(np.zeros(n, np.bool_), np.empty(0, np.uint8), np.zeros(n, np.int64), 2)
