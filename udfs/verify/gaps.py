"""verify: offsets that no segment holds, and files that say that there were more.

A leader's log has no holes; a cleaner makes them, from the start of the log on. A hole is lawful below the cleaner
checkpoint, or where a batch at its lower end or anywhere above it shows a cleaner's work; else a file is missing or
short. Written apart from the cleaner's own rule (`udfs.compact.gaps`), which the tests hold it against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from logformat.errors import LogFormatError
from udfs.segments import SideFile


class Thinned:
    """Sees a cleaner's work in the batches of one segment: fewer records than offsets, or offsets left out between."""

    def __init__(self, base_offset: int) -> None:
        self.next_offset, self.last = base_offset, -1

    def see(self, batches: np.ndarray) -> None:
        """The next BATCH[n], in order. Where a compressed one of magic 0 or 1 begins, its header does not say."""
        first, last = batches["base_offset"], batches["last_offset"]
        expected = np.append(self.next_offset, last[:-1] + 1)
        left_out = (first >= 0) & ((first > expected) | (batches["records_count"] <= last - first))
        if left_out.any():
            self.last = int(last[left_out][-1])
        self.next_offset = int(last[-1]) + 1


def gap_problems(
    name: str,
    segments: Sequence[tuple[str, int, int, int, bool]],
    orphans: Sequence[SideFile],
    *,
    log_start_offset: int,
    cleaned_until: int,
    first_epoch: tuple[str, int] | None = None,
) -> Iterator[LogFormatError | str]:
    """What is a gap, as an error, and what a cleaner did above its checkpoint, as a note.

    segments: path, base offset, offset after the last batch, last offset at which a cleaner's work is seen (-1: none),
    and whether it could be read to its end; by base offset. orphans: indexes without a log. first_epoch: the
    leader-epoch-checkpoint and where its first epoch begins.
    """
    first, end = (segments[0][1], segments[-1][2]) if segments else (0, 0)
    for orphan in orphans:
        inside = any(base <= orphan.offset < after for _, base, after, _, _ in segments)
        if not inside and not orphan.offset < first <= log_start_offset:
            where = "behind the last segment" if orphan.offset >= end else "before one that is there"
            yield LogFormatError("gap", orphan.path, 0, "the .log of this index", f"none; its offsets lie {where}")
    if first_epoch is not None and segments and max(first_epoch[1], log_start_offset) < first:
        yield LogFormatError(
            "gap",
            first_epoch[0],
            0,
            f"a segment at offset {first_epoch[1]}, where the first leader epoch begins",
            f"a first one at {first}",
            hint="a file is missing: a broker that gives up the beginning moves it up",
        )
    cleaned = []
    for i, (path, base, after, _, whole) in enumerate(segments[:-1]):
        low, high = max(base, after, log_start_offset, cleaned_until), segments[i + 1][1]
        if not whole or low >= high:
            continue
        if max([-1, *(thinned for _, _, _, thinned, _ in segments[i + 1 :])]) < 0 and segments[i][3] < cleaned_until:
            yield LogFormatError(
                "gap",
                segments[i + 1][0],
                0,
                f"a segment that begins at offset {low}, where {path} ends",
                f"one that begins at {high}, and no sign that a cleaner took what was between",
                hint="a file is missing, empty or short",
            )
        else:
            cleaned.append(f"{low} to {high - 1}")
    if cleaned:
        more = f" and {len(cleaned) - 3} more ranges" if len(cleaned) > 3 else ""
        yield f"{name}: no segment holds offsets {', '.join(cleaned[:3])}{more}: a cleaner took them"
