"""`readStream.format("kafka_log")`: what is added to an archive, micro-batch by micro-batch.

A stream's offset is JSON as Spark's Kafka source writes it: {"orders": {"0": 123}}, the next offset to read of each
partition. A checkpoint therefore holds all that a restart needs. A log is read up to its last whole batch, never into a
torn tail; up to the high watermark if a broker holds it, and up to the last stable offset with read_committed. A new
partition begins at its first offset: one micro-batch writes that offset down, and the next one reads from it. Without
this, no checkpoint could show after a restart what retention has deleted. Every trigger lists the archive again, but
only looks into the ends of logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lastkey.jobs.data_source.options import ReadOptions
from lastkey.jobs.data_source.plan_tasks import each, make_range, source_partitions
from lastkey.jobs.data_source.read import read_task
from lastkey.jobs.errors import DATA_LOSS, DataError, UsageError
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import LogFormatError, stopped
from lastkey.udfs.data_source.find_pieces import first_to_read
from lastkey.udfs.data_source.log_end import bytes_behind, find_ends
from lastkey.udfs.data_source.pieces import LATEST, Bound, SourcePartition, pack

Offsets = dict[Key, int]


@dataclass(frozen=True)
class _Log:
    partition: SourcePartition
    first: int  # log start
    end: int  # end of what may be read
    log_end: int
    certain: bool  # no damage hides what comes after the end

    def ends_before(self, offset: int) -> bool:
        """Return whether the log certainly ends before the stream's `offset`. If the offset is only above `end`, the
        stream waits.
        """
        return offset > self.log_end and self.certain


@dataclass(frozen=True)
class _Logs:
    """Listing of all logs at one moment."""

    readable: Mapping[Key, _Log]
    aside: Mapping[Key, tuple[SourcePartition, LogFormatError]]  # listed, but cannot be read
    hidden: bool  # some folder cannot be listed: any partition may be in it


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream; it lives on the driver as long as its query, and its copies in workers only read."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        if options.end.default != LATEST or options.end.each is not None:
            raise UsageError(
                message=f"{options.end.option}: a stream has no end. Trigger.AvailableNow stops at what is there now"
            )
        if options.store is not None:
            raise UsageError(message="store: a generation does not grow. Read it with spark.read")
        self.options, self.schema, self.asked = options, schema, options.asked
        self._target: Offsets | None = None  # the end for Trigger.AvailableNow
        self._latest: Offsets = {}

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Return the offset where a new query begins: at the end, unless the options set another offset."""
        logs = self._logs()
        total = sum(segment.size_bytes for log in logs.readable.values() for segment in log.partition.segments)
        out = {}
        for key, log in logs.readable.items():
            start = self._start(key)
            asked = replace(make_range(self.options, log.partition, total), start=start)
            try:
                out[key] = log.end if start == LATEST else first_to_read(log.partition, asked)
            except LogFormatError as gap:
                if gap.kind != "gap" or not self.asked.quarantine or start.kind != "earliest":
                    raise
                # left out, it is a new partition: the first micro-batch has a row for the gap before it
        for key, (partition, error) in logs.aside.items():  # a partition that is left out here is a new one later
            start = self._start(key)
            known = _without_the_log(partition, start)
            if known is not None:
                out[key] = known
            elif start.kind != "earliest":
                raise UsageError(
                    message=f"{key[0]}-{key[1]}: the log cannot be read, so the stream's first offset is unknown"
                    f" ({error}). Give that offset in startingOffsets, or leave the partition out"
                )
        return _to_json(out)

    def _start(self, key: Key) -> Bound:
        return LATEST if self.options.start is None else self.options.start.of(*key)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return the offset up to which the next micro-batch reads."""
        begin, listed = _from_json(start), self._logs()
        logs = listed.readable
        self._latest = {key: log.end for key, log in logs.items()}
        self._check_loss(begin, listed)
        first = {key: self._first(log, begin.get(key)) for key, log in logs.items()}
        end = {key: max(log.end, first[key]) if key in begin else first[key] for key, log in logs.items()}
        if self._target is not None:
            end = {key: max(min(end[key], self._target.get(key, first[key])), first[key]) for key in end}
        return _to_json({**begin, **self._limited(first, end, logs, limit)})

    def _first(self, log: _Log, begin: int | None) -> int:
        """Return the first offset of the next micro-batch. If the log ends before the stream's offset, return the log
        end, as Spark's Kafka source does: a stream that waited for that offset would skip all new records below it.
        """
        if begin is None:
            return log.first
        if log.ends_before(begin):
            return min(log.end, (self._target or {}).get(log.partition.key, log.end))
        return begin

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        begin, until = _from_json(start), _from_json(end)
        partitions_by_key = {p.key: p for p in source_partitions(self.options, may_be_none=True)}
        moved = [key for key in until if begin.get(key, -1) < until[key]]
        for key in moved:  # a restart may plan the last micro-batch again much later: skip no partition silently
            if key not in partitions_by_key and self.asked.fail_on_data_loss:
                raise _no_such_partition(key, begin.get(key, 0))
        moved = [key for key in moved if key in partitions_by_key]
        ranges = []
        for key in moved:
            problem = partitions_by_key[key].problem
            if problem is not None and not self.asked.quarantine:
                raise problem.as_error()
            first = Bound("offset", begin[key]) if key in begin else Bound("earliest")
            ranges.append(replace(self.asked, start=first, end=Bound("offset", until[key])))
        pieces = each([partitions_by_key[key] for key in moved], ranges)
        tasks = pack(pieces, self.asked.split_bytes, self.options.min_partitions)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield pa.RecordBatch with exactly the declared columns, in a worker."""
        return read_task(self.options, self.schema, partition)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that maxOffsetsPerTrigger or maxBytesPerTrigger sets."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """Return the ends of the logs as last seen, for the query's progress."""
        return _to_json(self._latest) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to the records that are there now."""
        self._target = {key: log.end for key, log in self._logs().readable.items()}

    def _logs(self) -> _Logs:
        """Find where each log begins and ends now. A log that cannot be read stays where it is, or is an error."""
        out, aside, hidden = {}, {}, False
        for partition in source_partitions(self.options, may_be_none=True):
            try:
                if partition.problem is not None:
                    raise partition.problem.as_error()
                ends = find_ends(partition, committed=self.asked.wanted.committed, quarantine=self.asked.quarantine)
            except Exception as found:  # any error: the other logs continue
                error = stopped(found, partition.name)
                if not self.asked.quarantine:
                    raise error from error.__cause__
                if partition.topic is None:
                    hidden = True
                else:
                    aside[partition.key] = partition, error
                continue
            if partition.topic is not None:
                out[partition.key] = _Log(partition, *ends)
        return _Logs(out, aside, hidden)

    def _check_loss(self, begin: Mapping[Key, int], logs: _Logs) -> None:
        if not self.asked.fail_on_data_loss:
            return
        for (topic, number), offset in begin.items():
            log = logs.readable.get((topic, number))
            if log is None and ((topic, number) in logs.aside or logs.hidden):
                continue  # it cannot be read, for now
            if log is None:
                raise _no_such_partition((topic, number), offset)
            if offset < log.first or log.ends_before(offset):
                found = f"offsets from {log.first} to {log.log_end}"
                raise DATA_LOSS(path=f"{topic}-{number}", expected=f"offset {offset}", found=found)

    def _limited(
        self, first: Mapping[Key, int], end: Mapping[Key, int], logs: Mapping[Key, _Log], limit: ReadLimit
    ) -> Offsets:
        """Return ends within the limit, each partition in proportion to what it has, as Spark's Kafka source does."""
        sizes = {key: end[key] - first[key] for key in end}
        if isinstance(limit, ReadMaxRows):
            most, total = limit.max_rows, sum(sizes.values())
        elif isinstance(limit, ReadMaxBytes):
            most = limit.max_bytes
            total = sum(
                bytes_behind(logs[key].partition, first[key], quarantine=self.asked.quarantine)
                for key, size in sizes.items()
                if size
            )
        else:
            return dict(end)
        if total <= most:
            return dict(end)
        # At least one offset of each, so that a large one does not block the others
        return {key: min(first[key] + max(sizes[key] * most // total, 1), end[key]) for key in end}


def _without_the_log(partition: SourcePartition, start: Bound) -> int | None:
    """Return the first offset of a stream in an unreadable log, by the listing; None: unknown."""
    if start.kind == "offset":
        return start.value
    if partition.problem is not None or not partition.segments or start.kind == "timestamp":
        return None
    first = max(partition.segments[0].base_offset, partition.log_start_offset or 0)
    if start.kind == "earliest" or first > partition.segments[-1].base_offset:  # the log ends below its start
        return first
    return None


def _no_such_partition(key: Key, offset: int) -> DataError:
    return DATA_LOSS(path=f"{key[0]}-{key[1]}", expected=f"offset {offset}", found="no such partition")


def _to_json(offsets: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(number)] = offset
    return out


def _from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(number)): offset for topic, of in offsets.items() for number, offset in of.items()}
