"""Offsets that no segment holds, and files that show missing offsets: the independent rule of verify.

A leader's log has no holes; a cleaner makes them, from the start of the log on. A hole is valid below the cleaner
checkpoint, or if a batch at its lower end or anywhere above it shows a cleaner's work; else a file is missing or short.
This is written apart from the cleaner's own rule (`udfs.compact.scan.scan_partition`), and tests compare the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import DELETE_HORIZON_MASK
from lastkey.udfs.verify.findings import CheckPlan


class Thinned:
    """Detector of a cleaner's work in a segment: fewer records than offsets, offsets left out, a delete horizon."""

    def __init__(self, base_offset: int) -> None:
        self.next_offset, self.last = base_offset, -1

    def see(self, batches: np.ndarray) -> None:
        """Look at the next BATCH[n]. Compressed magic 0 and 1 is no evidence: no header states where it begins."""
        first, last = batches["base_offset"], batches["last_offset"]
        expected = np.append(self.next_offset, last[:-1] + 1)
        horizon = (batches["magic"] >= 2) & (batches["attributes"] & DELETE_HORIZON_MASK != 0)
        worked = (first >= 0) & ((first > expected) | (batches["records_count"] <= last - first) | horizon)
        if worked.any():
            self.last = int(last[worked][-1])
        self.next_offset = int(last[-1]) + 1


def gap_problems(
    plan: CheckPlan, segments: Sequence[tuple[str, int, int, int, bool]], first_epoch: tuple[str, int] | None = None
) -> Iterator[LogFormatError | str]:
    """Yield each gap as an error, and what a cleaner did above its checkpoint as a note.

    segments: path, base offset, offset after the last batch, last offset at which a cleaner's work is seen (-1: none),
    and whether it could be read to its end; by base offset. first_epoch: the leader-epoch-checkpoint and the start
    offset of its first epoch. A log start checkpoint of 0: tiered storage holds all below the first segment.
    """
    log_start_offset, cleaned_until = plan.log_start_offset or 0, plan.cleaner_checkpoint or 0
    first, end = (segments[0][1], segments[-1][2]) if segments else (0, 0)
    bases = [base for _, base, _, _, _ in segments]
    ends = [0, *accumulate((after for _, _, after, _, _ in segments), max)]
    for orphan in plan.orphans:
        inside = orphan.offset < ends[bisect_right(bases, orphan.offset)]
        if not inside and not orphan.offset < first <= log_start_offset:
            where = "after the last segment" if orphan.offset >= end else "before one that is there"
            yield LogFormatError("gap", orphan.path, 0, "the .log of this index", f"none; its offsets lie {where}")
    if plan.log_start_offset == 0:
        first_epoch = None
    if first_epoch is not None and segments and max(first_epoch[1], log_start_offset) < first:
        yield LogFormatError(
            "gap",
            first_epoch[0],
            0,
            f"a segment at offset {first_epoch[1]}, where the first leader epoch begins",
            f"the first one at {first}",
            hint="a file is missing: a broker that deletes the beginning of a log moves its first leader epoch too; or "
            "remote storage has the beginning: put its folder into the archive",
        )
    cleaned = []
    thinned_above = list(accumulate((thinned for _, _, _, thinned, _ in reversed(segments)), max))[::-1]
    for i, (path, base, after, _, whole) in enumerate(segments[:-1]):
        low, high = max(base, after, log_start_offset, cleaned_until), segments[i + 1][1]
        if not whole or low >= high:
            continue
        if thinned_above[i + 1] < 0 and segments[i][3] < cleaned_until:
            yield LogFormatError(
                "gap",
                segments[i + 1][0],
                0,
                f"a segment that begins at offset {low}, where {path} ends",
                f"one that begins at {high}, and no sign that a cleaner removed the offsets between",
                hint="a file is missing, empty or short; or, if this topic was ever compacted, a cleaner removed whole "
                "batches at this border and its checkpoint is lost, which leaves the same bytes: then "
                f'gaps = "accept" below [topics."{plan.topic}"] in the settings file (--config) makes it a note',
            )
        else:
            cleaned.append(f"{low} to {high - 1}")
    if cleaned:
        more = f" and {len(cleaned) - 3} more ranges" if len(cleaned) > 3 else ""
        yield f"{plan.name}: no segment holds offsets {', '.join(cleaned[:3])}{more}: a cleaner removed them"
