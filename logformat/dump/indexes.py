"""Entries of index files and checkpoints as columns, by kafka-dump-log's names, compared with their log as it does.

Source: Kafka's DumpLogSegments (4.3.0): dumpIndex, dumpTimeIndex, dumpTxnIndex, dumpProducerIdSnapshot. Differences:
the log's headers are walked once; an entry whose position is no batch's start is a mismatch, where the tool reads
the bytes at that position; an entry beyond the log's end is a problem, where the tool ends with a stack trace; a time
index is compared with the log alone, where the tool needs the offset index too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, NO_TIMESTAMP, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.names import LOG
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.side_files import checkpoints, transaction_index
from lastkey.logformat.storage.regular_files import LogFile

Columns = dict[str, Any]  # numpy or Arrow
_TIME: Final = select(RECORDS, ["timestamp_ms"])

# Kind of a contradiction -> its columns in JSON, the tool's title, its line
CONTRADICTIONS: Final = {
    "offsetMismatch": (
        ("indexOffset", "logOffset"), "Mismatches in :{}", "  Index offset: {}, log offset: {}",
    ),  # -1 in the log: no batch begins there
    "timestampMismatch": (
        ("indexTimestamp", "logTimestamp"), "Found timestamp mismatch in :{}",
        "  Index timestamp: {}, log timestamp: {}",
    ),
    "timestampOutOfOrder": (
        ("indexTimestamp", "previousTimestamp"), "Found out of order timestamp in :{}",
        "  Index timestamp: {}, Previously indexed timestamp: {}",
    ),
    "offsetNotFound": (
        ("indexOffset", "logOffset"), "The following indexed offsets are not found in :{}",
        "Indexed offset: {}, found log offset: {}",
    ),  # -1 in the log: beyond its end
}  # fmt: skip


@dataclass
class IndexFindings:
    """Findings that the tool prints at its end for one index."""

    pairs: dict[str, NDArray[np.int64]] = field(  # int64[n, 2] by CONTRADICTIONS: in the index, in the log
        default_factory=lambda: dict.fromkeys(CONTRADICTIONS, np.empty((0, 2), np.int64))
    )
    problems: list[LogFormatError] = field(default_factory=list)

    def take(self, kind: str, wrong: NDArray[np.bool_], index: NDArray[np.int64], log: NDArray[np.int64]) -> None:
        """Note the entries (bool[n] of int64[n]) that contradict the log, in their order."""
        self.pairs[kind] = np.column_stack([index[wrong], log[wrong]])

    def contradictions(self) -> Iterator[tuple[str, Columns]]:
        """Yield the entries that contradict the log as columns, by kind; what the log does not have is null."""
        for kind, (names, _, _) in CONTRADICTIONS.items():
            index, log = self.pairs[kind].T
            if len(index):
                yield kind, {names[0]: index, names[1]: pa.array(log, mask=(log < 0) & (names[1] == "logOffset"))}


@dataclass(frozen=True)
class IndexedLog:
    """An index to compare, and its log."""

    base_offset: int
    path: str  # path of the index
    file: Any  # open pyarrow file of the `.log`; None skips the comparison
    findings: IndexFindings
    max_batch_bytes: int

    def chunks(self, reader: LogReader) -> Iterator[Chunk]:
        """Yield the batches of the log as far as it can be read."""
        log = LogFile.opened(self.file, f"{self.path.rpartition('.')[0]}.{LOG}")
        try:
            yield from reader.chunks(log, check_crc=False)
        except LogFormatError as error:
            self.findings.problems.append(error)

    def entries(self, data: bytes, dtype: np.dtype[np.void]) -> Columns:
        """Return the fields of the stored entries that the tool reads: those before the first of relative offset 0,
        other than entry 0. Offsets are absolute. A torn last entry is a problem.
        """
        torn = len(data) % dtype.itemsize
        if torn:
            position, expected = len(data) - torn, f"entries of {dtype.itemsize} bytes"
            self.findings.problems.append(
                LogFormatError("index", self.path, position, expected, f"{torn} bytes at the end")
            )
        stored = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        stop = np.flatnonzero(stored["relative_offset"][1:] == 0)
        stored = stored[: stop[0] + 1] if len(stop) else stored
        columns = {name: stored[name].astype(np.int64) for name in dtype.names or ()}
        columns["offset"] = columns.pop("relative_offset") + self.base_offset
        return columns


def offset_index_columns(data: bytes, log: IndexedLog) -> Columns:
    """Return the columns of a `.index`, compared with its log.

    Zeros at the end are left out, except a first entry of zeros. With a log, entries that point beyond its end are left
    out too, as a problem.
    """
    entries = log.entries(data, OFFSET_INDEX_ENTRY)
    offset, position = entries["offset"], entries["position"]
    if log.file is not None and len(offset):
        within = _within(position, log)
        offset, position = offset[within], position[within]
        rows = [
            np.empty(0, BATCH),
            *(c.batches.copy() for c in log.chunks(LogReader(max_batch_bytes=log.max_batch_bytes))),
        ]
        found = _log_offsets(np.concatenate(rows), position)
        log.findings.take("offsetMismatch", (found != offset) | (found < 0), offset, found)  # an entry can hold -1 too
    return {"offset": offset, "position": position}


def _within(position: NDArray[np.int64], log: IndexedLog) -> NDArray[np.bool_]:
    """Return bool[n], which positions are not beyond the log's end; report the first of the others as a problem."""
    size = log.file.size()
    behind = np.flatnonzero(position >= size)
    if len(behind):
        first = int(behind[0])
        found = f"the end of the log at byte {size}"
        found += f"; {len(behind)} entries point past it" if len(behind) > 1 else ""
        expected, at = f"a batch at byte {position[first]} of the log", first * OFFSET_INDEX_ENTRY.itemsize
        log.findings.problems.append(LogFormatError("index", log.path, at, expected, found))
    return np.asarray(position < size)


def _log_offsets(headers: NDArray[np.void], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n], the last offset of the batch at each position; -1 if none begins there."""
    if not len(headers):
        return np.full(len(positions), -1)
    at = np.minimum(np.searchsorted(headers["position"], positions), len(headers) - 1)
    return np.where(headers["position"][at] == positions, headers["last_offset"][at], -1)


def time_index_columns(data: bytes, log: IndexedLog) -> Columns:
    """Return the columns of a `.timeindex`, as `offset_index_columns` does."""
    entries = log.entries(data, TIME_INDEX_ENTRY)
    offset, timestamp = entries["offset"], entries["timestamp"]
    if log.file is not None and len(offset):
        last_offset, largest = _largest_timestamps(log, offset)
        row = np.searchsorted(last_offset, offset)
        ends, times = np.append(last_offset, -1)[row], np.append(largest, NO_TIMESTAMP)[row]
        exact = (ends == offset) & (ends >= 0)  # an entry can hold -1 too
        before = np.concatenate([[NO_TIMESTAMP], timestamp[:-1]])
        log.findings.take("offsetNotFound", ~exact, offset, ends)
        log.findings.take("timestampMismatch", exact & (times != timestamp), timestamp, times)
        log.findings.take("timestampOutOfOrder", exact & (before >= timestamp), timestamp, before)
    return {"timestamp": timestamp, "offset": offset}


def _largest_timestamps(log: IndexedLog, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the last offset of every batch, and the largest timestamp of its records.

    Only batches that end at one of `offsets` are decoded; others, and batches without records, have timestamp -1.
    """
    ends, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    reader = LogReader(max_batch_bytes=log.max_batch_bytes)
    try:
        for chunk in log.chunks(reader):
            ends.append(chunk.batches["last_offset"].copy())
            largest = np.full(len(chunk.batches), NO_TIMESTAMP)
            times.append(largest)
            for run in reader.runs(chunk, np.isin(ends[-1], offsets)):
                filled = np.flatnonzero(run.bodies["n_records"] > 0)
                if len(filled):
                    of_records = np.concatenate(
                        [np.asarray(part.column(0)) for part in record_batches(run, _TIME, TopicPartition())]
                    )
                    first = run.bodies["first_span"][filled]
                    largest[run.first + filled] = np.maximum.reduceat(of_records, first)
    except LogFormatError as error:  # from a body
        log.findings.problems.append(error)
    return np.concatenate(ends), np.concatenate(times)


def transaction_index_columns(data: bytes, path: str) -> Columns:
    """Return the columns of a `.txnindex`; like the tool, skip a torn last entry."""
    e = transaction_index.read(data, path, allow_torn=True)
    return {
        "version": e["version"], "producerId": e["producer_id"], "firstOffset": e["first_offset"],
        "lastOffset": e["last_offset"], "lastStableOffset": e["last_stable_offset"],
    }  # fmt: skip


def leader_epoch_columns(data: bytes, path: str) -> Columns:
    """Return the columns of a `leader-epoch-checkpoint`, which the tool does not support."""
    epochs = np.array(checkpoints.read_leader_epochs(data, path), np.int64).reshape(-1, 2)
    return {"epoch": epochs[:, 0], "startOffset": epochs[:, 1]}


def offset_checkpoint_columns(data: bytes, path: str) -> Columns:
    """Return the columns of a log directory's offset checkpoint, which the tool does not support."""
    offsets = sorted(checkpoints.read_offset_checkpoint(data, path).items())
    return {
        "topic": pa.array([topic for (topic, _), _ in offsets], pa.string()),
        "partition": pa.array([partition for (_, partition), _ in offsets], pa.int32()),
        "offset": pa.array([offset for _, offset in offsets], pa.int64()),
    }
