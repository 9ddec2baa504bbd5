"""The entries of a walk as rows for Spark's window, and what the window says of them as the bits that `settle` writes.

The place of a row is the number of its entry among all. Of two records of a key the later one has the higher place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.split.key_files import KeyFile, Slice
from lastkey.udfs.compact.split.settle import Buckets, read_cells
from lastkey.udfs.compact.split.walk_split import WalkedSplit
from lastkey.udfs.storage import open_root

# The hash's halves are signed here; version: 0 if offsets decide; dirty: whether the record supersedes others
ROWS = "key_low long, key_high long, version long, dirty boolean, split int, place long"


def places_end(walked: Sequence[WalkedSplit]) -> np.ndarray:
    """Return int64[splits]: the first place behind each split's."""
    return np.cumsum([walk.n_entries for walk in walked])


def rows_of(plan: PartitionPlan, walked: Sequence[WalkedSplit], number: int) -> Iterator[pa.RecordBatch]:
    """Yield the ROWS of a split's entries, a batch for each block."""
    root, end = open_root(plan.run.store_uri), int(places_end(walked)[number])
    for block in walked[number].blocks:
        entries = read_cells(root, block, Buckets(0, len(block.counts)))
        n, starts = len(entries), np.cumsum(block.counts) - block.counts
        in_cell = np.arange(n) - np.repeat(starts, block.counts)
        columns = {
            "key_low": entries[:, 0].astype(np.int64),
            "key_high": entries[:, 1].astype(np.int64),
            "version": np.zeros(n, np.int64) if plan.policy.settings.by_offset else entries[:, 2].astype(np.int64),
            "dirty": in_cell < np.repeat(block.dirty, block.counts),
            "split": np.full(n, number, np.int32),
            "place": np.arange(end - 1, end - 1 - n, -1),
        }
        end -= n
        yield pa.RecordBatch.from_pydict(columns)


def write_bits(
    plan: PartitionPlan, walked: Sequence[WalkedSplit], decided: Iterable[pa.RecordBatch], name: str
) -> dict[int, Slice]:
    """Write the bits of the splits that come; all rows of a split come, in any order: (split, place, stays).

    name: of the file that is written, for this try alone. Raises ValueError if a row is missing.
    """
    ends, answers = places_end(walked), dict[int, np.ndarray]()
    for batch in decided:
        split, place, stays = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        for number in np.unique(split).tolist():
            if number not in answers:
                answers[number] = np.full(walked[number].n_entries, -1, np.int8)
            answers[number][ends[number] - 1 - place[split == number]] = stays[split == number]
    bits = {}
    with KeyFile(plan, name) as key_file:
        for number, answer in answers.items():
            if (answer < 0).any():
                raise ValueError(f"split {number}: {(answer < 0).sum()} of {len(answer)} keys without an answer")
            borders = np.cumsum([block.counts.sum() for block in walked[number].blocks])[:-1]
            packed = [np.packbits(part) for part in np.split(answer, borders)]
            bits[number] = key_file.write(np.concatenate(packed))
    return bits
