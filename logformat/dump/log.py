"""Lines of a `.log`'s batches and records, chunk by chunk: the part of kafka-dump-log between its header and findings.

Damage does not end the dump: a batch that cannot be read is reported and skipped, as long as its size is plausible.

Source: Kafka's DumpLogSegments (4.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.batches import legacy
from lastkey.logformat.batches.bodies import BadBatch
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END, Chunk, read_exactly
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.batches.walk_kernels import checksums_fit
from lastkey.logformat.dump.lines import (
    RECORD_COLUMNS,
    batch_columns,
    batch_lines,
    json_lines,
    record_columns,
    record_lines,
)
from lastkey.logformat.errors import LogFormatError, batch_error, without_frames
from lastkey.logformat.layout import CODEC_MASK, LOG_OVERHEAD, MIN_LEGACY_SIZE
from lastkey.logformat.primitives.binary_arrays import decode_text
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.storage.regular_files import LogFile

# (keys, values, offsets) of data records -> (key texts, payload texts); null: no text
Decoder = Callable[[Any, Any, Any], tuple[Any, Any]]


def as_strings(keys: Any, values: Any, offsets: Any) -> tuple[Any, Any]:
    """Decode keys and values as UTF-8, as Kafka's StringDecoder does."""
    return decode_text(keys), decode_text(values)


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
    metadata: bool = True  # print the metadata of records
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
    last_offset: int = -1  # offset of the last record; as in the tool, -1 before the first record of every file
    invalid_bytes: int = 0  # at the end

    def take(self, offsets: NDArray[np.int64]) -> None:
        """Note the gaps in the offsets of the next records."""
        if len(offsets):
            before = np.concatenate([[self.last_offset], offsets[:-1]])
            jumps = offsets != before + 1
            if jumps.any():
                self.not_consecutive.append(np.column_stack([before[jumps], offsets[jumps]]))
            self.last_offset = int(offsets[-1])


_PART_ROWS, _PART_BYTES = 1 << 20, 128 << 20  # text made at once: Arrow takes 2 GiB, JSON up to six bytes for one

_SEARCH_BYTES: Final = 1 << 30  # size of an Arrow batch that is only searched
_SHOWN: Final = select(RECORDS, RECORD_COLUMNS)


def log_lines(file: Any, path: str, size: int, options: LogOptions, findings: LogFindings) -> Iterator[Any]:
    """Yield the lines of a `.log` as one pa.StringArray after another; fill `findings` on the way.

    file: open pyarrow file; size: number of its bytes to read.
    """
    reader, last = LogReader(max_batch_bytes=options.max_batch_bytes), np.full(1, -1, np.int64)
    for chunk in _chunks(file, path, size, reader, findings):
        if options.deep or options.wanted.by_record:
            yield from _deep(chunk, reader, options, findings)
        else:
            may = options.wanted.batches(chunk.batches)
            if may.any():
                shown = chunk.batches[may]
                yield options.batches(shown, _fit(chunk, shown))
        last = np.append(last[-1:], chunk.batches["last_offset"])
        if (last[-2:] + 1 >= options.wanted.end_offset).all():
            break  # offsets increase; a single exception may be damage, which the next batch shows


def _chunks(file: Any, path: str, end: int, reader: LogReader, findings: LogFindings) -> Iterator[Chunk]:
    """Yield all batches with a plausible size, valid or not."""
    log, position, previous = LogFile.opened(file, path, end), 0, -1
    while True:
        at = position
        try:
            for chunk in reader.chunks(log, position, previous_last_offset=previous, check_crc=False):
                at, previous = chunk.end, chunk.last_offset
                yield chunk
        except LogFormatError as error:
            if [str(error)] != [str(problem) for problem in findings.problems[-1:]]:  # not the same batch again
                findings.problems.append(without_frames(error))
            if error.kind == "offsets" and previous >= 0:  # the batch by itself may be sound
                position, previous = at, -1
                continue
            step = _size(file, path, at, end)
            if error.kind in ("unreadable", "changed") or step is None:
                findings.invalid_bytes = end - at
                return
            position, previous = at + step, -1
            continue
        findings.invalid_bytes = reader.tail.torn_bytes
        return


def _size(file: Any, path: str, position: int, end: int) -> int | None:
    """Return the bytes of the batch at a position, by its length field; None if that is not plausible."""
    prefix = np.empty(LOG_OVERHEAD, np.uint8)
    read_exactly(file, path, position, prefix)
    length = int.from_bytes(prefix[8:].tobytes(), "big", signed=True)
    size = LOG_OVERHEAD + length
    return size if length >= MIN_LEGACY_SIZE and position + size <= end else None


def _fit(chunk: Chunk, batches: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return bool[n], whether each of these batches of the chunk has the checksum of its bytes."""
    fit = np.empty(len(batches), np.bool_)
    checksums_fit(chunk.raw, chunk.position, batches, fit)
    return fit


def _deep(chunk: Chunk, reader: LogReader, options: LogOptions, findings: LogFindings) -> Iterator[Any]:
    for run in reader.runs_around_damage(chunk, options.wanted.batches(chunk.batches)):
        if isinstance(run, BadBatch):
            findings.problems.append(without_frames(run.error))
        else:
            yield from _run_lines(run, chunk, options, findings)


def _run_lines(run: Run, chunk: Chunk, options: LogOptions, findings: LogFindings) -> Iterator[Any]:
    row_of = np.repeat(np.arange(len(run.batches)), run.bodies["n_records"])
    batches, keep = run.batches, None
    checksums = legacy_checksums(run, chunk, options.max_batch_bytes) if (batches["magic"] < 2).any() else None
    if not options.wanted.everything:
        keep = _keep(run, options.wanted)
        shown = np.bincount(row_of[keep], minlength=len(batches)) > 0
        if not options.wanted.by_record:
            shown |= run.wanted & (run.bodies["n_records"] == 0)
        row_of = (np.cumsum(shown) - 1)[row_of[keep]]
        batches = batches[shown]
        checksums = None if checksums is None else (checksums[0][keep], checksums[1][keep])
    fit = _fit(chunk, batches)
    parts = record_batches(run, _SHOWN, TopicPartition(), max_rows=_PART_ROWS, max_bytes=_PART_BYTES, keep=keep)
    first_batch = first = 0
    for records in parts:
        last = first + len(records)
        last_batch = len(batches) if last == len(row_of) else int(row_of[last - 1]) + 1
        if keep is None:
            findings.take(np.asarray(records.column("offset")))
        part_rows, part_batches = slice(first, last), slice(first_batch, last_batch)
        sums = None if checksums is None else (checksums[0][part_rows], checksums[1][part_rows])
        try:
            lines = options.batches(batches[part_batches], fit[part_batches])
            yield _with_records(lines, records, row_of[part_rows] - first_batch, sums, options)
        except pa.ArrowCapacityError as error:
            batch, expected = batches[row_of[first]], "records of less than 2 GiB as text"
            findings.problems.append(batch_error("huge", chunk.path, batch, expected, str(error)))
        first, first_batch = last, last_batch
    if not first and len(batches):
        yield options.batches(batches, fit)


def _keep(run: Run, wanted: RecordLimits) -> NDArray[np.bool_]:
    """Return bool[records of the run], whether each record is wanted. Only the columns that decide are made."""
    parts = record_batches(run, wanted.searched, TopicPartition(), max_rows=_PART_ROWS, max_bytes=_SEARCH_BYTES)
    return np.concatenate([np.empty(0, np.bool_), *(np.asarray(wanted.records(records)) for records in parts)])


def _with_records(lines: Any, records: Any, row_of: NDArray[np.int64], checksums: Any, options: LogOptions) -> Any:
    """Return the lines of batches, each followed by those of its records.

    row_of: int64[records], row of each record's batch; -1: that batch was shown before. checksums: as record_lines
    takes them.
    """
    if not options.deep:
        return lines
    n, data = len(lines), pc.invert(records.column("control"))
    key = payload = None
    if options.decode is not None and len(records):
        texts = options.decode(records.column("key"), records.column("value"), records.column("offset"))
        key, payload = (pc.if_else(data, column, None) for column in texts)
    of_records = options.records(records, checksums, key, payload)
    order = np.empty(n + len(records), np.int64)
    counts = np.bincount(np.maximum(row_of, 0), minlength=n) if n else np.empty(0, np.int64)
    before = int((row_of < 0).sum())
    counts[:1] -= before
    order[:before] = n + np.arange(before)
    order[before + np.arange(n) + np.cumsum(counts) - counts] = np.arange(n)
    order[np.arange(before, len(records)) + row_of[before:] + 1] = n + np.arange(before, len(records))
    return pa.concat_arrays([lines, of_records]).take(pa.array(order))


def legacy_checksums(run: Run, chunk: Chunk, max_batch_bytes: int) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the checksum of each record's message, and whether it fits; 0 and True for magic 2.

    This is a Python loop over compressed batches of magic 0 and 1. It decompresses them again for their messages'
    bytes.
    """
    n = int(run.bodies["n_records"].sum())
    crc, valid = np.zeros(n, np.uint32), np.ones(n, np.bool_)
    codec = run.batches["attributes"] & CODEC_MASK
    plain = np.flatnonzero(run.wanted & (run.batches["magic"] < 2) & (codec == 0))
    crc[run.bodies["first_span"][plain]] = run.batches["crc"][plain]
    fit = np.empty(len(plain), np.bool_)
    checksums_fit(chunk.raw, chunk.position, run.batches[plain], fit)
    valid[run.bodies["first_span"][plain]] = fit
    for i in np.flatnonzero(run.wanted & (run.batches["magic"] < 2) & (codec != 0)):
        first, count = int(run.bodies["first_span"][i]), int(run.bodies["n_records"][i])
        rows = slice(first, first + count)
        legacy.message_checksums(chunk, run.batches[i], max_batch_bytes, crc[rows], valid[rows])
    return crc, valid
