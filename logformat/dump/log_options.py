"""How the lines of a log are asked for, and what was found while they were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logformat.batches.chunks import MAX_BATCH_BYTES, NO_END
from logformat.dump.lines import batch_columns, batch_lines, json_lines, record_columns, record_lines
from logformat.errors import LogFormatError
from logformat.primitives.java_text import text_of
from logformat.schemas import RECORDS, select

NO_LIMIT: Final = 2**31 - 1  # of max_bytes, as in Kafka's tool
# (keys, values, offsets) of data records -> (key texts, payload texts); null where nothing is to be shown
Decoder = Callable[[Any, Any, Any], tuple[Any, Any]]


def as_strings(keys: Any, values: Any, offsets: Any) -> tuple[Any, Any]:
    """Decoder: UTF-8, as Kafka's StringDecoder."""
    return text_of(keys), text_of(values)


@dataclass(frozen=True)
class Wanted:
    """Which records: all limits together. Times are of records, in ms."""

    start_offset: int = 0
    end_offset: int = NO_END
    start_ms: int | None = None
    end_ms: int | None = None
    key: bytes | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Wanted()

    @property
    def by_record(self) -> bool:
        """Whether the records must be looked at."""
        return self.key is not None or self.start_ms is not None or self.end_ms is not None

    def batches(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """bool[n]: which of BATCH[n] may hold such a record. A batch's base timestamp is no lower limit."""
        may = (batches["last_offset"] >= self.start_offset) & (batches["base_offset"] < self.end_offset)
        if self.start_ms is not None:
            may &= batches["max_timestamp"] >= self.start_ms
        return np.asarray(may)

    @property
    def searched(self) -> Any:
        """pa.Schema of the columns that decide."""
        by_time = self.start_ms is not None or self.end_ms is not None
        return select(
            RECORDS, ["offset", *(["timestamp_ms"] if by_time else []), *(["key"] if self.key is not None else [])]
        )

    def records(self, records: Any) -> Any:
        """Mask of a record batch of `searched`."""
        offset = records.column("offset")
        mask = pc.and_(pc.greater_equal(offset, self.start_offset), pc.less(offset, self.end_offset))
        if self.start_ms is not None:
            mask = pc.and_(mask, pc.greater_equal(records.column("timestamp_ms"), self.start_ms))
        if self.end_ms is not None:
            mask = pc.and_(mask, pc.less(records.column("timestamp_ms"), self.end_ms))
        if self.key is not None:
            mask = pc.and_(mask, pc.fill_null(pc.equal(records.column("key"), pa.scalar(self.key, pa.binary())), False))
        return mask


@dataclass(frozen=True)
class LogOptions:
    """What is shown of a log."""

    deep: bool = False  # records too
    decode: Decoder | None = None  # keys and payloads of records too
    metadata: bool = True  # of records
    max_bytes: int = NO_LIMIT
    wanted: Wanted = field(default_factory=Wanted)
    as_json: str | None = None  # the file's name: objects that hold it, instead of the tool's lines
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is passed over and told of

    def batches(self, batches: NDArray[np.void], fit: NDArray[np.bool_]) -> Any:
        """Lines of batches."""
        if self.as_json is None:
            return batch_lines(batches, fit)
        return json_lines({"file": self.as_json} | batch_columns(batches, fit))

    def records(self, records: Any, checksums: Any, key: Any, payload: Any) -> Any:
        """Lines of records."""
        if self.as_json is None:
            return record_lines(records, checksums, metadata=self.metadata, key=key, payload=payload)
        return json_lines({"file": self.as_json} | record_columns(records, key, payload))


@dataclass
class LogFindings:
    """What is wrong with a log, or odd."""

    not_consecutive: list[NDArray[np.int64]] = field(default_factory=list)  # int64[n, 2]: an offset, the next one
    problems: list[LogFormatError] = field(default_factory=list)
    last_offset: int = -1  # of the last record; as in the tool, -1 stands before the first one of every file
    invalid_bytes: int = 0  # at the end

    def take(self, offsets: NDArray[np.int64]) -> None:
        """The offsets of the next records."""
        if len(offsets):
            before = np.concatenate([[self.last_offset], offsets[:-1]])
            jumps = offsets != before + 1
            if jumps.any():
                self.not_consecutive.append(np.column_stack([before[jumps], offsets[jumps]]))
            self.last_offset = int(offsets[-1])
