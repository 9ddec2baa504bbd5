"""Builder of a segment's offset index and time index, from its batches while they are read or written.

Kafka 4.3 and 4.4 make the same bytes in three ways: when they roll a segment after appends, when their cleaner writes a
segment, and by LogSegment.recover from the log alone. An archived index can differ and still be right: an older broker
made an entry for each append and not for each batch, and a broker that restarted or truncated the log while the segment
was active counted from 0 again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_RELATIVE_OFFSET, MAX_SEGMENT_BYTES, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.side_files import index_kernels as k
from lastkey.logformat.side_files import offset_index, time_index

INDEX_INTERVAL_BYTES: Final = 4096  # index.interval.bytes, Kafka's default
MAX_INDEX_BYTES: Final = 10 * 1024 * 1024  # segment.index.bytes, Kafka's default


class IndexBuilder:
    """Builder of a segment's two index files from its batches, which come in order in any number of calls.

    max_index_bytes (segment.index.bytes) limits both files: to max // 8 offset entries, and to max // 12 time entries,
    one of which is reserved for the final entry. Kafka rolls a segment before that (`full`) and fails to recover a
    segment beyond it; here the index then ends early, which makes look-ups slower, but not wrong.

    time_index_interval_ms (time.index.interval.ms, ours) makes a time index entry only if the timestamp has risen into
    another interval since the last entry; 60000 means another minute, 0 Kafka's rule. Look-ups stay right.
    """

    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        max_index_bytes: int = MAX_INDEX_BYTES,
        path: str = "",
        time_index_interval_ms: int = 0,
    ) -> None:
        if min(index_interval_bytes, time_index_interval_ms) < 0 or max_index_bytes < TIME_INDEX_ENTRY.itemsize:
            raise ValueError(f"impossible index limits: {index_interval_bytes}, {max_index_bytes}")
        self.base_offset, self.path = base_offset, path
        self._state = k.new_state(
            base_offset,
            index_interval_bytes,
            max_index_bytes // OFFSET_INDEX_ENTRY.itemsize,
            max_index_bytes // TIME_INDEX_ENTRY.itemsize - 1,
            time_index_interval_ms,
        )
        self._offset_entries: list[NDArray[np.void]] = []
        self._time_entries: list[NDArray[np.void]] = []

    @property
    def size(self) -> int:
        """Bytes of the log so far."""
        return int(self._state[k.POSITION])

    def append(self, last_offsets: ArrayLike, sizes: ArrayLike, max_timestamps: ArrayLike) -> None:
        """Take the next batches: last offset, bytes and largest timestamp (ms, -1 none) of each; int64[n].

        Raises kind "relative_offset" for an offset that does not fit an index entry, even if its batch would get none,
        and kind "length" if the segment grows past 2^31 - 1 bytes. It takes nothing then.
        """
        last = np.ascontiguousarray(last_offsets, np.int64)  # fields of rows have gaps
        size = np.ascontiguousarray(sizes, np.int64)
        timestamp = np.ascontiguousarray(max_timestamps, np.int64)
        self.check(last, size)
        state = self._state
        most = min(len(last), (int(state[k.SINCE_ENTRY]) + int(size.sum())) // (int(state[k.INTERVAL]) + 1))
        offset_entries, time_entries = np.empty(most, offset_index.ENTRY), np.empty(most, time_index.ENTRY)
        n_offset, n_time = k.build_index_entries(
            last,
            size,
            timestamp,
            state,
            offset_entries["offset"],
            offset_entries["position"],
            time_entries["timestamp"],
            time_entries["offset"],
        )
        if n_offset:
            self._offset_entries.append(offset_entries[:n_offset])
        if n_time:
            self._time_entries.append(time_entries[:n_time])

    def finish(self) -> tuple[bytes, bytes]:
        """Return the bytes of the finished `.index` and `.timeindex`.

        The time index ends with an entry for the largest timestamp, even if the limit was reached.
        """
        final = np.empty(int(self._state[k.MAX_TIMESTAMP] > self._state[k.LAST_TIME_ENTRY]), time_index.ENTRY)
        final["timestamp"] = self._state[k.MAX_TIMESTAMP]
        final["offset"] = self._state[k.OFFSET_OF_MAX]
        offset_entries = np.concatenate([np.empty(0, offset_index.ENTRY), *self._offset_entries])
        time_entries = np.concatenate([*self._time_entries, final])
        return (
            offset_index.write(offset_entries, self.base_offset, self.path),
            time_index.write(time_entries, self.base_offset, self.path),
        )

    def check(self, last_offsets: ArrayLike, sizes: ArrayLike) -> None:
        """Raise the errors that `append` would raise for the next batches; take nothing."""
        last, size = np.asarray(last_offsets, np.int64), np.asarray(sizes, np.int64)
        first, end = self.base_offset, self.base_offset + MAX_RELATIVE_OFFSET
        if len(last) and (last.min() < first or last.max() > end):
            i = int(((last < first) | (last > end)).argmax())
            raise LogFormatError(
                "relative_offset",
                self.path,
                self.size + int(size[:i].sum()),
                f"a last offset from {self.base_offset} to {self.base_offset} + 2^31 - 1",
                str(int(last[i])),
            )
        total = self.size + int(size.sum())
        if total > MAX_SEGMENT_BYTES:
            raise LogFormatError(
                "length", self.path, self.size, f"a segment of at most {MAX_SEGMENT_BYTES} bytes", f"{total} bytes"
            )
