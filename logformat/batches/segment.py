"""Reader of one `.log` file: its batch headers and its records as Arrow, in bounded memory, without Spark.

    segment = open_segment("orders-0/00000000000000000000.log")
    for batch in segment.records(["key", "value", "offset"]): ...      # pyarrow.RecordBatch
    frame = segment.to_pandas(["key", "offset"], start_offset=1000)

Reading checks the structure, the order of offsets and the checksums, and raises LogFormatError for any damage. Each
walk opens the file again and reads it from front to back, up to its size at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches.bodies import SOFT_BYTES
from lastkey.logformat.batches.chunks import CHUNK_BYTES, MAX_BATCH_BYTES, NO_END, Chunk, check_first_offset
from lastkey.logformat.batches.columns import MAX_BYTES, MAX_ROWS, TopicPartition, header_batch, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.names import LOG, parse_partition_folder, parse_segment_file
from lastkey.logformat.schemas import BATCHES, RECORDS, select
from lastkey.logformat.storage.locations import locate
from lastkey.logformat.storage.regular_files import LogFile, open_regular

_NULLABLE: Final = {"int32": "Int32", "int64": "Int64"}  # Arrow's type -> the pandas type that can hold null


def open_segment(
    path_or_uri: str | Path,
    filesystem: Any = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    sealed: bool = False,
    check_crc: bool = True,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> SegmentReader:
    """Return the segment in a file without reading it yet.

    path_or_uri, filesystem: see `locations.locate`; the file may have any name. topic, partition: by default taken from
    the folder's name, if it is a partition's. sealed: raise "torn_tail" for an incomplete last batch, instead of taking
    it for the end of a log that is being written. check_crc: compare the checksum of every batch. max_batch_bytes:
    refuse a batch that is larger, stored or decompressed. chunk_bytes: how much to read at once.
    """
    located, path = locate(path_or_uri, filesystem)
    folder = parse_partition_folder(path.rpartition("/")[0].rpartition("/")[2])
    if folder is not None:
        topic = folder.topic if topic is None else topic
        partition = folder.partition if partition is None else partition
    return SegmentReader(
        located, path, TopicPartition(topic, partition), sealed, check_crc, max_batch_bytes, chunk_bytes
    )


@dataclass(eq=False, repr=False)
class SegmentReader:
    """A `.log` file, as `open_segment` returns it. Several iterators over one segment may run at the same time."""

    filesystem: Any
    path: str
    place: TopicPartition
    sealed: bool
    check_crc: bool
    max_batch_bytes: int
    chunk_bytes: int
    torn_bytes: int | None = None  # incomplete batch, or zeros, at the end; None: no walk has reached it yet

    @property
    def base_offset(self) -> int | None:
        """The offset in the file's name."""
        name = parse_segment_file(self.path.rpartition("/")[2])
        return name.base if name is not None and name.kind == LOG else None

    @property
    def topic(self) -> str | None:
        """Name of the topic, if known."""
        return self.place.topic

    @property
    def partition(self) -> int | None:
        """Number of the partition, if known."""
        return self.place.partition

    def __repr__(self) -> str:
        return f"SegmentReader({self.path!r})"

    def iter_headers(self) -> Iterator[NDArray[np.void]]:
        """Yield batch headers as layout.BATCH[n] arrays, chunk by chunk, without decompressing anything."""
        for chunk in self._chunks(LogReader(self.chunk_bytes, self.max_batch_bytes)):
            yield chunk.batches.copy()

    def headers(self) -> NDArray[np.void]:
        """Return all batch headers as one layout.BATCH[n]; takes 96 bytes a batch."""
        return np.concatenate([np.empty(0, BATCH), *self.iter_headers()])

    def batches(self, columns: Iterable[str] | None = None) -> Iterator[Any]:
        """Yield batch headers as pyarrow.RecordBatch with the schema BATCHES, or only the named columns of it."""
        schema = select(BATCHES, columns)
        return (header_batch(rows, schema, self.place) for rows in self.iter_headers())

    def records(
        self,
        columns: Iterable[str] | None = None,
        *,
        start_offset: int = 0,
        end_offset: int = NO_END,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        soft_bytes: int = SOFT_BYTES,
    ) -> Iterator[Any]:
        """Yield records as pyarrow.RecordBatch with the schema RECORDS, or only the named columns, in the log's order.

        Takes offsets in [start_offset, end_offset) and does not decompress batches outside. Includes control records,
        marked in the column `control`, and records of aborted transactions. max_rows, max_bytes (keys, values and
        headers): limits of one Arrow batch; a single record may exceed them. Memory holds a chunk, about soft_bytes of
        decompressed batches or one batch, and one Arrow batch. Raises ValueError for an unknown column at once.
        """
        schema = select(RECORDS, columns)
        if not schema.names:
            raise ValueError("no columns")
        keys_only = not {"value", "headers"} & set(schema.names)
        reader = LogReader(self.chunk_bytes, self.max_batch_bytes, soft_bytes=soft_bytes, keys_only=keys_only)
        shown = partial(
            record_batches,
            schema=schema,
            place=self.place,
            start_offset=start_offset,
            end_offset=end_offset,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )

        def found() -> Iterator[Any]:
            for chunk in self._chunks(reader):
                batches = chunk.batches
                if int(batches["base_offset"][0]) >= end_offset:
                    return
                wanted = (batches["last_offset"] >= start_offset) & (batches["base_offset"] < end_offset)
                for run in reader.runs(chunk, wanted) if wanted.any() else ():
                    yield from shown(run)

        return found()

    def to_arrow(self, columns: Iterable[str] | None = None, **limits: int) -> Any:
        """Return all records, or those of an offset range, as one pyarrow.Table; `limits` as in `records`."""
        names = None if columns is None else list(columns)
        return pa.Table.from_batches(self.records(names, **limits), schema=select(RECORDS, names))

    def to_pandas(self, columns: Iterable[str] | None = None, **limits: int) -> Any:
        """Return `to_arrow` as a pandas.DataFrame. Keys and values are bytes; nullable integers are Int64 or Int32."""
        table = self.to_arrow(columns, **limits)
        frame = table.to_pandas()
        for field in table.schema:
            if field.nullable and str(field.type) in _NULLABLE:  # pyarrow would make floats of them
                column = table.column(field.name)
                numbers = column.fill_null(0).to_pandas().astype(_NULLABLE[str(field.type)])
                frame[field.name] = numbers.mask(column.is_null().to_pandas())
        return frame

    def _chunks(self, reader: LogReader) -> Iterator[Chunk]:
        """Yield the whole batches of the file, checked against its name; set torn_bytes after the last."""
        log = LogFile(lambda: open_regular(self.filesystem, self.path), self.path)
        for chunk in reader.chunks(log, check_crc=self.check_crc):
            if chunk.position == 0 and self.base_offset is not None:
                check_first_offset(self.path, self.base_offset, chunk.batches[0])
            yield chunk
        tail = reader.tail
        if tail.torn_bytes and self.sealed:
            found = f"{tail.torn_bytes} more bytes"
            raise LogFormatError("torn_tail", self.path, tail.position, "whole batches", found)
        self.torn_bytes = tail.torn_bytes
