"""Builder of a segment's offset index and time index, from its batches while they are read or written.

Kafka 4.3 and 4.4 make the same bytes in three ways: when they roll a segment after appends, when their cleaner writes a
segment, and by LogSegment.recover from the log alone. An archived index can differ and still be right: an older broker
wrote an entry for each append and not for each batch. A broker that restarted, or truncated the log while the segment
was active, counted from 0 again.
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

    max_index_bytes (segment.index.bytes) limits both files: to max // 8 offset entries, and to max // 12 time entries
    with one reserved for the final entry. Kafka rolls a segment before that (`full`) and fails to recover a segment
    beyond it; here the index then ends early, which makes look-ups slower, but not wrong.

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
        self._offset_entries: list[NDArray[np.int64]] = []
        self._time_entries: list[NDArray[np.int64]] = []

    @property
    def size(self) -> int:
        """Bytes of the log so far."""
        return int(self._state[k.POSITION])

    def append(self, last_offsets: ArrayLike, sizes: ArrayLike, max_timestamps: ArrayLike) -> None:
        """Take the next batches: last offset, bytes and largest timestamp (ms, -1 none) of each; int64[n].

        Raises kind "relative_offset" for an offset that does not fit an index entry, even if its batch gets no entry.
        Raises kind "length" if the segment exceeds 2^31 - 1 bytes. It takes no batch then.
        """
        last, size = (np.ascontiguousarray(values, np.int64) for values in (last_offsets, sizes))
        self.check(last, size)
        offset_entries, time_entries = index_entries(last, size, max_timestamps, self._state)
        self._offset_entries.append(offset_entries)
        self._time_entries.append(time_entries)

    def finish(self) -> tuple[bytes, bytes]:
        """Return the bytes of the finished `.index` and `.timeindex`.

        The time index ends with an entry for the largest timestamp, even if the limit was reached.
        """
        state, none = self._state, np.empty((0, 2), np.int64)
        final = none
        if state[k.MAX_TIMESTAMP] > state[k.LAST_TIME_ENTRY]:
            final = state[[k.MAX_TIMESTAMP, k.OFFSET_OF_MAX]].reshape(1, 2)
        offset_entries = np.concatenate([none, *self._offset_entries], axis=None).view(offset_index.ENTRY)
        time_entries = np.concatenate([*self._time_entries, final], axis=None).view(time_index.ENTRY)
        return (
            offset_index.write(offset_entries, self.base_offset, self.path),
            time_index.write(time_entries, self.base_offset, self.path),
        )

    def check(self, last_offsets: ArrayLike, sizes: ArrayLike) -> None:
        """Raise the errors that `append` would raise for the next batches; take no batch."""
        last, size = np.asarray(last_offsets, np.int64), np.asarray(sizes, np.int64)
        first, end = self.base_offset, self.base_offset + MAX_RELATIVE_OFFSET
        if len(last) and (last.min() < first or last.max() > end):
            i = int(((last < first) | (last > end)).argmax())
            position, expected = self.size + int(size[:i].sum()), f"a last offset from {first} to {first} + 2^31 - 1"
            raise LogFormatError("relative_offset", self.path, position, expected, str(int(last[i])))
        total = self.size + int(size.sum())
        if total > MAX_SEGMENT_BYTES:
            expected = f"a segment of at most {MAX_SEGMENT_BYTES} bytes"
            raise LogFormatError("length", self.path, self.size, expected, f"{total} bytes")


def index_entries(
    last_offsets: ArrayLike, sizes: ArrayLike, max_timestamps: ArrayLike, state: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of the next batches as int64[m, 2]: (last offset, position) and (timestamp, last offset).

    The arguments are those of `IndexBuilder.append`; state: of index_kernels.new_state or an earlier call, updated.
    """
    # fields of rows have gaps
    last, size, timestamp = (np.ascontiguousarray(a, np.int64) for a in (last_offsets, sizes, max_timestamps))
    most = min(len(last), (int(state[k.SINCE_ENTRY]) + int(size.sum())) // (int(state[k.INTERVAL]) + 1))
    out = np.empty((4, most), np.int64)
    n, n_times = k.build_index_entries(last, size, timestamp, state, *out)
    return np.ascontiguousarray(out[:2, :n].T), np.ascontiguousarray(out[2:, :n_times].T)
