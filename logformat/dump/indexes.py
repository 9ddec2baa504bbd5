"""Entries of index files and checkpoints as columns, by kafka-dump-log's names, compared with their log as it does.

Source: Kafka's DumpLogSegments (4.3.0): dumpIndex, dumpTimeIndex, dumpTxnIndex, dumpProducerIdSnapshot. Differences:
the log's headers are walked once; an entry whose position is no batch's start is a mismatch, where the tool reads
the bytes at that position; an entry behind the log's end is a problem, where the tool ends with a stack trace; a time
index is compared with the log alone, where the tool needs the offset index too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, NO_TIMESTAMP, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.names import LOG
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.side_files import checkpoints, offset_index, time_index, transaction_index
from lastkey.logformat.storage.regular_files import LogFile

Pairs = list[tuple[int, int]]
Columns = dict[str, Any]  # numpy or Arrow
_TIME: Final = select(RECORDS, ["timestamp_ms"])


@dataclass
class IndexFindings:
    """Findings that the tool prints at its end for one index; pairs are in its order."""

    mismatches: Pairs = field(default_factory=list)  # offset in the index, in the log (-1: no batch begins there)
    wrong_timestamps: Pairs = field(default_factory=list)  # in the index, in the log
    out_of_order: Pairs = field(default_factory=list)  # timestamp, the one before it
    not_found: Pairs = field(default_factory=list)  # offset in the index, in the log (-1: behind its end)
    problems: list[LogFormatError] = field(default_factory=list)

    def contradictions(self) -> Iterator[tuple[str, Columns]]:
        """Yield the entries that contradict the log as columns, by kind; what the log does not have is null."""
        for kind, pairs, names in (
            ("offsetMismatch", self.mismatches, ("indexOffset", "logOffset")),
            ("timestampMismatch", self.wrong_timestamps, ("indexTimestamp", "logTimestamp")),
            ("timestampOutOfOrder", self.out_of_order, ("indexTimestamp", "previousTimestamp")),
            ("offsetNotFound", self.not_found, ("indexOffset", "logOffset")),
        ):
            index, log = np.array(pairs, np.int64).reshape(-1, 2).T
            if len(index):
                yield kind, {names[0]: index, names[1]: pa.array(log, mask=(log < 0) & (names[1] == "logOffset"))}


def offset_index_columns(
    data: bytes, base_offset: int, path: str, log: Any, findings: IndexFindings, max_batch_bytes: int
) -> Columns:
    """Return the columns of a `.index`, compared with its log.

    Zeros at the end are left out, except a first entry of zeros. With a log, entries that point behind its end are left
    out too, as a problem. log: open pyarrow file of the `.log`; None skips the comparison.
    """
    stored = _stored(_whole(data, OFFSET_INDEX_ENTRY.itemsize, path, findings), OFFSET_INDEX_ENTRY)
    entries = np.empty(len(stored), offset_index.ENTRY)
    entries["offset"] = stored["relative_offset"].astype(np.int64) + base_offset
    entries["position"] = stored["position"]
    if log is not None and len(entries):
        entries = _within(entries, log.size(), path, findings)
        headers = _headers(log, path, findings, max_batch_bytes)
        found = _log_offsets(headers, entries["position"])
        wrong = (found != entries["offset"]) | (found < 0)  # an entry can say -1 too
        findings.mismatches += zip(entries["offset"][wrong].tolist(), found[wrong].tolist(), strict=True)
    return {"offset": entries["offset"], "position": entries["position"]}


def _stored(data: bytes, dtype: Any) -> NDArray[np.void]:
    """Return the entries that the tool reads: those before the first of relative offset 0, other than entry 0."""
    stored = np.frombuffer(data, dtype)
    stop = np.flatnonzero(stored["relative_offset"][1:] == 0)
    return stored[: stop[0] + 1] if len(stop) else stored


def _within(entries: NDArray[np.void], log_bytes: int, path: str, findings: IndexFindings) -> NDArray[np.void]:
    """Return offset_index.ENTRY[n] without positions behind the log's end; report the first of those as a problem."""
    behind = np.flatnonzero(entries["position"] >= log_bytes)
    if len(behind):
        first = int(behind[0])
        found = f"the end of the log at byte {log_bytes}"
        found += f"; {len(behind)} entries point past it" if len(behind) > 1 else ""
        findings.problems.append(
            LogFormatError(
                "index",
                path,
                first * OFFSET_INDEX_ENTRY.itemsize,
                f"a batch at byte {entries['position'][first]} of the log",
                found,
            )
        )
    return np.delete(entries, behind)


def _log_offsets(headers: NDArray[np.void], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n], the last offset of the batch at each position; -1 if none begins there."""
    if not len(headers):
        return np.full(len(positions), -1)
    at = np.minimum(np.searchsorted(headers["position"], positions), len(headers) - 1)
    return np.where(headers["position"][at] == positions, headers["last_offset"][at], -1)


def time_index_columns(
    data: bytes, base_offset: int, path: str, log: Any, findings: IndexFindings, max_batch_bytes: int
) -> Columns:
    """Return the columns of a `.timeindex`, as `offset_index_columns` does."""
    stored = _stored(_whole(data, TIME_INDEX_ENTRY.itemsize, path, findings), TIME_INDEX_ENTRY)
    entries = np.empty(len(stored), time_index.ENTRY)
    entries["timestamp"] = stored["timestamp"]
    entries["offset"] = stored["relative_offset"].astype(np.int64) + base_offset
    if log is not None and len(entries):
        _verify_times(entries, log, path, findings, max_batch_bytes)
    return {"timestamp": entries["timestamp"], "offset": entries["offset"]}


def _verify_times(
    entries: NDArray[np.void], log: Any, path: str, findings: IndexFindings, max_batch_bytes: int
) -> None:
    last_offset, largest = _largest_timestamps(log, path, entries["offset"], findings, max_batch_bytes)
    row = np.searchsorted(last_offset, entries["offset"])
    ends, times = np.append(last_offset, -1)[row], np.append(largest, NO_TIMESTAMP)[row]
    exact = (ends == entries["offset"]) & (ends >= 0)  # an entry can say -1 too
    findings.not_found += zip(entries["offset"][~exact].tolist(), ends[~exact].tolist(), strict=True)
    wrong = exact & (times != entries["timestamp"])
    findings.wrong_timestamps += zip(entries["timestamp"][wrong].tolist(), times[wrong].tolist(), strict=True)
    before = np.concatenate([[NO_TIMESTAMP], entries["timestamp"][:-1]])
    falls = exact & (before >= entries["timestamp"])
    findings.out_of_order += zip(entries["timestamp"][falls].tolist(), before[falls].tolist(), strict=True)


def _largest_timestamps(
    log: Any, path: str, offsets: NDArray[np.int64], findings: IndexFindings, max_batch_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the last offset of every batch, and the largest timestamp of its records.

    Only batches that end at one of `offsets` are decoded; others, and batches without records, have timestamp -1.
    """
    ends, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    reader = LogReader(max_batch_bytes=max_batch_bytes)
    try:
        for chunk in reader.chunks(_open_log(log, path), check_crc=False):
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
    except LogFormatError as error:
        findings.problems.append(error)
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


def _whole(data: bytes, entry: int, path: str, findings: IndexFindings) -> bytes:
    torn = len(data) % entry
    if torn:
        position = len(data) - torn
        findings.problems.append(
            LogFormatError("index", path, position, f"entries of {entry} bytes", f"{torn} bytes at the end")
        )
    return data[: len(data) - torn]


def _open_log(file: Any, path: str) -> LogFile:
    """Return the open `.log` beside an index; path: of the index, as everywhere in this module."""
    return LogFile.opened(file, f"{path.rpartition('.')[0]}.{LOG}")


def _headers(log: Any, path: str, findings: IndexFindings, max_batch_bytes: int) -> NDArray[np.void]:
    """Return BATCH[n] of the whole log, as far as it can be read."""
    rows, reader = [np.empty(0, BATCH)], LogReader(max_batch_bytes=max_batch_bytes)
    try:
        for chunk in reader.chunks(_open_log(log, path), check_crc=False):
            rows.append(chunk.batches.copy())
    except LogFormatError as error:
        findings.problems.append(error)
    return np.concatenate(rows)
