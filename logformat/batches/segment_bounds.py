"""Check of a segment's offsets against its name and the name of the next segment."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_RELATIVE_OFFSET


def check_offsets(path: str, base: int, next_base: int | None, batches: np.ndarray) -> None:
    """Check that the offsets of BATCH[n] lie between a segment's base and the next one's, and fit its index entries.

    Raise LogFormatError kind "name", "overlap" or "relative_offset".
    """
    first = int(batches["base_offset"][0]) if batches["base_offset"][0] >= 0 else int(batches["last_offset"][0])
    last = int(batches["last_offset"][-1])
    if first < base:
        raise LogFormatError(
            "name",
            path,
            int(batches["position"][0]),
            f"offsets from {base} on, as its name says",
            f"{first}",
            base_offset=first,
        )
    if next_base is not None and last >= next_base:
        i = int(np.searchsorted(batches["last_offset"], next_base))
        row = batches[i]
        raise overlap(path, next_base, int(row["position"]), int(row["last_offset"]), int(row["base_offset"]))
    if last - base > MAX_RELATIVE_OFFSET:
        i = int(np.searchsorted(batches["last_offset"], base + MAX_RELATIVE_OFFSET, "right"))
        raise LogFormatError(
            "relative_offset",
            path,
            int(batches["position"][i]),
            f"offsets up to {base + MAX_RELATIVE_OFFSET}",
            f"{int(batches['last_offset'][i])}",
            hint="let a broker split the segment by loading it once",
        )


def overlap(path: str, next_base: int, position: int, last: int, base_offset: int = -1) -> LogFormatError:
    """Return the error for a batch that reaches into the next segment."""
    return LogFormatError(
        "overlap",
        path,
        position,
        f"offsets below {next_base}, where the next segment begins",
        f"{last}",
        base_offset=base_offset,
    )
