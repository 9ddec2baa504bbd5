"""Options for the lines of a log, and findings made along with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END
from lastkey.logformat.dump.lines import batch_columns, batch_lines, json_lines, record_columns, record_lines
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.java_text import text_of
from lastkey.logformat.schemas import RECORDS, select

NO_LIMIT: Final = 2**31 - 1  # for max_bytes, as in Kafka's tool
# (keys, values, offsets) of data records -> (key texts, payload texts); null shows nothing
Decoder = Callable[[Any, Any, Any], tuple[Any, Any]]


def as_strings(keys: Any, values: Any, offsets: Any) -> tuple[Any, Any]:
    """Decode keys and values as UTF-8, as Kafka's StringDecoder does."""
    return text_of(keys), text_of(values)


@dataclass(frozen=True)
class RecordLimits:
    """Limits on the records to show; a record must meet all of them. Times are of records, in ms."""

    start_offset: int = 0
    end_offset: int = NO_END
    start_ms: int | None = None
    end_ms: int | None = None
    key: bytes | None = None

    @property
    def everything(self) -> bool:
        """True if there are no limits."""
        return self == RecordLimits()

    @property
    def by_record(self) -> bool:
        """True if records must be read to decide."""
        return self.key is not None or self.start_ms is not None or self.end_ms is not None

    def batches(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return bool[n]: whether each of BATCH[n] may hold a wanted record. A batch's base timestamp is no lower
        limit.
        """
        may = (batches["last_offset"] >= self.start_offset) & (batches["base_offset"] < self.end_offset)
        if self.start_ms is not None:
            may &= batches["max_timestamp"] >= self.start_ms
        return np.asarray(may)

    @property
    def searched(self) -> Any:
        """The pa.Schema of the columns that decide."""
        by_time = self.start_ms is not None or self.end_ms is not None
        return select(
            RECORDS, ["offset", *(["timestamp_ms"] if by_time else []), *(["key"] if self.key is not None else [])]
        )

    def records(self, records: Any) -> Any:
        """Return the mask of wanted records in a record batch of `searched`."""
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
    """The parts of a log to show, and their form."""

    deep: bool = False  # records too
    decode: Decoder | None = None  # keys and payloads of records too
    metadata: bool = True  # of records
    max_bytes: int = NO_LIMIT
    wanted: RecordLimits = field(default_factory=RecordLimits)
    as_json: str | None = None  # the file's name: print JSON objects that hold it, instead of the tool's lines
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is reported and skipped

    def batches(self, batches: NDArray[np.void], fit: NDArray[np.bool_]) -> Any:
        """Return the lines of batches."""
        if self.as_json is None:
            return batch_lines(batches, fit)
        return json_lines({"file": self.as_json} | batch_columns(batches, fit))

    def records(self, records: Any, checksums: Any, key: Any, payload: Any) -> Any:
        """Return the lines of records."""
        if self.as_json is None:
            return record_lines(records, checksums, metadata=self.metadata, key=key, payload=payload)
        return json_lines({"file": self.as_json} | record_columns(records, key, payload))


@dataclass
class LogFindings:
    """Damage and oddities of a log."""

    not_consecutive: list[NDArray[np.int64]] = field(default_factory=list)  # int64[n, 2]: an offset, the next one
    problems: list[LogFormatError] = field(default_factory=list)
    last_offset: int = -1  # of the last record; as in the tool, -1 stands before the first record of every file
    invalid_bytes: int = 0  # at the end

    def take(self, offsets: NDArray[np.int64]) -> None:
        """Note the gaps in the offsets of the next records."""
        if len(offsets):
            before = np.concatenate([[self.last_offset], offsets[:-1]])
            jumps = offsets != before + 1
            if jumps.any():
                self.not_consecutive.append(np.column_stack([before[jumps], offsets[jumps]]))
            self.last_offset = int(offsets[-1])
