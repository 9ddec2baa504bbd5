"""The end of a segment as a reader meets it: its last data record, and whether its last batch holds no record.

The offset index leads to the end of the log, so only the last batches are read: more only if these hold no data record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.layout import BATCH, CONTROL_MASK
from lastkey.logformat.side_files import offset_index
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.storage import Root, opened

_BUFFER_BYTES: Final = 64 << 10


class SegmentEnd(NamedTuple):
    """The last data record and the last batch of a segment."""

    last_record: int  # offset; -1: the segment holds no data record
    ends_in_empty_batch: bool


def segment_end(root: Root, path: str, size: int, base_offset: int, index: bytes, max_batch_bytes: int) -> SegmentEnd:
    """Return the end of a `.log` of `size` bytes, given the bytes of its `.index`. Records of aborted and open
    transactions count, as for a consumer with read_uncommitted. Raise LogFormatError for damage on the way.
    """
    starts = np.concatenate([[0], offset_index.read(index, base_offset, path)["position"]])
    end, number, step, is_empty = size, len(starts), 1, False
    with opened(root, path) as file:
        while number and end:
            number = max(number - step, 0)
            start, step = int(starts[number]), 2 * step
            log = LogFile.opened(file, path, end)
            read = (chunk.batches.copy() for chunk in LogReader(_BUFFER_BYTES).headers(log, start))
            batches = np.concatenate([np.empty(0, BATCH), *read])
            if end == size and len(batches):
                is_empty = int(batches["records_count"][-1]) == 0
            is_data = (batches["records_count"] != 0) & (batches["attributes"] & CONTROL_MASK == 0)
            if is_data.any():
                return SegmentEnd(_last_record(log, batches[is_data][-1], max_batch_bytes), is_empty)
            end = start
    return SegmentEnd(-1, is_empty)


def _last_record(log: LogFile, batch: np.void, max_batch_bytes: int) -> int:
    """Return the offset of the last record of a batch: below the batch's last offset if a cleaner removed that one."""
    base, last = int(batch["base_offset"]), int(batch["last_offset"])
    if batch["magic"] < 2 or int(batch["records_count"]) == last - base + 1:
        return last
    start, size = int(batch["position"]), int(batch["size"])
    reader = LogReader(size, max_batch_bytes)
    [chunk] = reader.chunks(replace(log, size=start + size), start)
    [run] = reader.runs(chunk)
    return base + int(run.spans["offset_delta"][-1])
