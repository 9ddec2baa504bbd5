"""Targets and answers of a search: special targets, statuses, rows, and their table."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.search import offset_kernels as k
from lastkey.logformat.search.offset_kernels import LOCATION

FOUND: Final = k.FOUND  # status of a LOCATION
END: Final = 7  # the target is in the log, or is its end, but nothing can be read there (yet)
OUT_OF_RANGE: Final = 8  # below the log start, or above the log end
STATUS_NAMES: Final = {FOUND: "found", END: "end", OUT_OF_RANGE: "out_of_range"}
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


def to_arrow(answers: NDArray[np.void]) -> Any:
    """Convert LOCATION[n] or TIME_ANSWER[n] to a pyarrow.Table, one column a field; -1 becomes null, the status text.

    Numbers are int64, except leader_epoch (int32); timestamps are ms.
    """
    columns = {}
    for name in answers.dtype.names or ():
        values = np.ascontiguousarray(answers[name])
        if name == "status":
            codes = pa.array(np.searchsorted(np.array(sorted(STATUS_NAMES)), values).astype(np.int8))
            columns[name] = pa.array([STATUS_NAMES[code] for code in sorted(STATUS_NAMES)]).take(codes)
        else:
            columns[name] = pa.array(values, mask=values < 0)
    return pa.table(columns)
