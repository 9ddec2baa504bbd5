"""Targets and answers of a search: special targets, statuses and rows."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.offset_kernels import LOCATION

FOUND: Final = k.FOUND  # status of a LOCATION
END: Final = 7  # the target is in the log, or is its end, but nothing can be read there (yet)
OUT_OF_RANGE: Final = 8  # below the log start, or above the log end
EARLIEST: Final = -2  # targets of offsets_for_times that are not timestamps (ListOffsetsRequest)
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
TIME_ANSWER: Final = np.dtype(
    [
        ("offset", "i8"),  # of the record; -1: none
        ("timestamp", "i8"),  # of the record, ms; -1: none, also for EARLIEST and LATEST
        ("leader_epoch", "i4"),  # of the record's batch; -1: unknown
        ("segment_base_offset", "i8"),  # -1: none, also for EARLIEST and LATEST
        ("position", "i8"),  # of the batch in the segment's .log; -1: the same
    ],
    align=True,
)
NO_ANSWER: Final = np.array((-1, -1, -1, -1, -1), TIME_ANSWER)
OUT_OF_RANGE_ROW: Final = np.array((OUT_OF_RANGE, -1, -1, -1, -1, -1), LOCATION)
END_ROW: Final = np.array((END, -1, -1, -1, -1, -1), LOCATION)


class Location(NamedTuple):
    """The place of the batch for an offset."""

    segment_base_offset: int
    position: int  # of the batch's first byte in the segment's .log
    size: int  # of the batch, bytes
    base_offset: int  # of the batch; -1: magic 0 or 1, compressed
    last_offset: int


class TimestampAndOffset(NamedTuple):
    """A record found by its time, as Kafka's FileRecords.TimestampAndOffset."""

    timestamp: int  # ms; -1 none
    offset: int  # -1 none
    leader_epoch: int  # -1 unknown
