"""Writer of one segment: `.log`, `.index`, `.timeindex`, `.snapshot`, and `.txnindex` if a transaction was aborted.

    with SegmentWriter("orders-0", 0) as writer:
        writer.append_records(arrow_batch, codec="zstd")
        writer.append_marker(producer_id=7, producer_epoch=0, commit=True, timestamp=now_ms)

The writer streams the `.log`. It writes the other files when you close it, as a broker leaves them when it rolls the
segment. It checks appended bytes as a reader would: bytes that a reader would refuse raise LogFormatError and are not
written. It does not flush to the disk or rename; the caller does that if needed.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, batch_problem
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, CONTROL_ABORT, CONTROL_COMMIT, MIN_LEGACY_SIZE, PREFIX
from lastkey.logformat.names import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file
from lastkey.logformat.side_files import producer_snapshot, transaction_index
from lastkey.logformat.side_files.index_builder import INDEX_INTERVAL_BYTES, MAX_INDEX_BYTES, IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerState, aborted_transactions
from lastkey.logformat.storage.locations import locate
from lastkey.logformat.writing.encode import BatchOptions, encode_batches

_SMALLEST_BATCH: Final = PREFIX.itemsize + MIN_LEGACY_SIZE
_MARKER_KEY: Final = struct.Struct(">hh")  # version, type
_MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class SegmentWriter:
    """Writer of one segment. Close it with `close`, or use it in `with`. After an error only the `.log` is there."""

    def __init__(
        self,
        folder: str | Path,
        base_offset: int,
        filesystem: Any = None,
        *,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        max_index_bytes: int = MAX_INDEX_BYTES,
        producers: ProducerState | None = None,
    ) -> None:
        """Open the `.log` in `folder`, a path or URI (`locations.locate`), which is made if it is missing.

        index_interval_bytes, max_index_bytes: see IndexBuilder. producers: the state at base_offset. The writer updates
        it, so pass the same object to the writer of the next segment. None: no producer is known.
        """
        self.filesystem, self.folder = locate(folder, filesystem)
        self.base_offset = self.next_offset = base_offset
        self.path = self._path(base_offset, LOG)
        self.producers = ProducerState() if producers is None else producers
        self._indexes = IndexBuilder(base_offset, index_interval_bytes, max_index_bytes, self.path)
        self._aborted: list[NDArray[np.void]] = []
        self.filesystem.create_dir(self.folder, recursive=True)
        self._stream = self.filesystem.open_output_stream(self.path, compression=None)

    @property
    def size(self) -> int:
        """Bytes of the `.log` so far."""
        return self._indexes.size

    def append_raw(self, data: bytes | memoryview | NDArray[np.uint8]) -> NDArray[np.void]:
        """Append whole batches of any magic as they are, and return their headers as layout.BATCH[n].

        Raises LogFormatError for batches that a reader would refuse, including bad checksums, and the errors of
        IndexBuilder and ProducerState. Its kind is "length" for an incomplete batch at the end, "offsets" if offsets do
        not rise.
        """
        raw = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        rows = np.empty(len(raw) // _SMALLEST_BATCH + 1, BATCH)
        n, end, status, expected, found = walk.walk_batches(
            raw, len(raw), self.size, self.next_offset - 1, NO_END, True, rows
        )
        if status != walk.MORE:
            raise batch_problem(self.path, self.size + end, status, expected, found, raw[end:])
        if end < len(raw):
            raise LogFormatError("length", self.path, self.size + end, "whole batches", f"{len(raw) - end} more bytes")
        rows = rows[:n].copy()
        if n:
            self._indexes.check(rows["last_offset"], rows["size"])  # must come before the producer state changes
            completed = self.producers.append(rows, self.path)
            self._indexes.append(rows["last_offset"], rows["size"], rows["max_timestamp"])
            self._aborted.append(aborted_transactions(completed))
            self._stream.write(raw.data)
            self.next_offset = int(rows["last_offset"][-1]) + 1
        return rows

    def append_records(self, records: Any, options: BatchOptions | None = None, **fields: Any) -> NDArray[np.void]:
        """Append records (a pyarrow.RecordBatch: see encode_batches) as batches of magic 2, and return their headers.

        Pass options, or its fields by name: codec, producer_id, base_sequence, max_batch_bytes and the others of
        encode.BatchOptions. Without limits all records become one batch. Raises ValueError for records that no batch
        can hold, and the errors of `append_raw`.
        """
        if options is not None and fields:
            raise TypeError("expected either options or its fields by name, found both")
        return self.append_raw(encode_batches(records, self.next_offset, options or BatchOptions(**fields)))

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        timestamp: int,
        coordinator_epoch: int = 0,
        leader_epoch: int = 0,
        offset: int | None = None,
        delete_horizon_ms: int | None = None,
    ) -> NDArray[np.void]:
        """Append the COMMIT or ABORT marker of a transaction: a control batch of one record; timestamp in ms."""
        key = _MARKER_KEY.pack(0, CONTROL_COMMIT if commit else CONTROL_ABORT)
        record = pa.record_batch(
            {
                "key": pa.array([key]),
                "value": pa.array([_MARKER_VALUE.pack(0, coordinator_epoch)]),
                "offset": pa.array([self.next_offset if offset is None else offset]),
                "timestamp_ms": pa.array([timestamp]),
            }
        )
        return self.append_records(
            record,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
            leader_epoch=leader_epoch,
            delete_horizon_ms=delete_horizon_ms,
        )

    def close(self) -> None:
        """Finish the `.log` and write the files beside it, with a snapshot at next_offset."""
        if self._stream.closed:
            return
        self._stream.close()
        offset_index, time_index = self._indexes.finish()
        self._write(self._path(self.base_offset, INDEX), offset_index)
        self._write(self._path(self.base_offset, TIME_INDEX), time_index)
        transactions = b"".join(transaction_index.write(entries) for entries in self._aborted)
        if transactions:
            self._write(self._path(self.base_offset, TXN_INDEX), transactions)
        self._write(self._path(self.next_offset, SNAPSHOT), producer_snapshot.write(self.producers.entries()))

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stream.close()

    def _path(self, offset: int, kind: str) -> str:
        return f"{self.folder}/{segment_file(offset, kind)}"

    def _write(self, path: str, data: bytes) -> None:
        with self.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)
