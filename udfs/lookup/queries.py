"""Look-ups in one partition's log, listed by the driver: by offset, by time, or a column of queries.

The search itself is logformat.search.partition_log; here answers become columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.names import LOG, segment_file
from lastkey.logformat.search.partition_log import EARLIEST, FOUND, LATEST, MAX_TIMESTAMP, OUT_OF_RANGE, PartitionLog
from lastkey.udfs.data_source.log_end import last_stable_offset, searchable
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.holes import ACCEPT_HINT, GapFinder, offsets_behind
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.segments import Traces

SPECIAL_TIMES: Final = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}

Partition = PartitionLog  # public class under the name that the jobs use
_HINT_IN_PYTHON: Final = 'bring the missing file back; or gaps="accept" if it is known to be lost'

ANSWER: Final = pa.schema(
    [
        pa.field("status", pa.string()),  # found, none, end, out_of_range, no_query, no_partition, or a kind of problem
        pa.field("answer_offset", pa.int64()),  # by time: of the record; by offset: the one asked for
        pa.field("answer_timestamp", pa.int64()),  # timestamp of the record, ms; by time only
        pa.field("leader_epoch", pa.int32()),  # by time only
        pa.field("segment", pa.string()),  # name of the .log
        pa.field("position", pa.int64()),  # position of the batch in it
        pa.field("batch_size", pa.int64()),
        pa.field("batch_base_offset", pa.int64()),
        pa.field("batch_last_offset", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Lookup:
    """Answers in one partition; `answers`: ANSWER, a row for each query, in order."""

    topic: str
    partition: int
    answers: Any
    log_start_offset: int = -1
    log_end_offset: int = -1
    notes: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True)
class Queries:
    """Queries of one partition. targets: int64[n], a timestamp in each row of `by_time`, bool[n], else an offset."""

    targets: NDArray[np.int64]
    by_time: NDArray[np.bool_]


def open_log(partition: SourcePartition, *, committed: bool = False) -> PartitionLog:
    """Open a log. Reads no file yet, except for the last stable offset if `committed`: answers end there."""
    stable = committed and bool(partition.segments)
    return searchable(partition, last_stable_offset(partition) if stable else partition.high_watermark)


def open_whole(partition: SourcePartition) -> Partition:
    """Return a log for a program that reads it. LogFormatError: it cannot be listed, or has a gap."""
    if partition.problem is not None:
        raise partition.problem.as_error()
    log = open_log(partition)
    Passed(partition, log, _HINT_IN_PYTHON).check_all()
    return log


def lookup(partition: SourcePartition, queries: Queries, *, committed: bool = False) -> Lookup:
    """Return the answers of one partition. If its files have a problem, every row's status is the problem's kind."""

    def work() -> Lookup:
        with open_log(partition, committed=committed) as log:
            answers = _answers(log, queries, Passed(partition, log))
            return Lookup(*partition.key, answers, log.earliest, log.latest, log.notes)

    done = attempt(partition.name, work) if partition.problem is None else partition.problem
    if isinstance(done, Lookup):
        return done
    return Lookup(*partition.key, no_answers(done.kind, len(queries.targets)), problem=done)


class Passed:
    """Ranges of offsets that searches skipped: a gap in one may have contained a better answer. Each range is judged
    once.
    """

    def __init__(self, partition: SourcePartition, log: PartitionLog, hint: str = ACCEPT_HINT) -> None:
        self._traces, self._log, self._finder = partition.traces, log, GapFinder(hint)
        self._bases = np.array([segment.base_offset for segment in log.segments], np.int64)
        self._judged: set[int] = set()

    def check(self, targets: NDArray[np.int64], by_time: NDArray[np.bool_], answers: NDArray[np.int64]) -> None:
        """Raise LogFormatError for the first gap. answers: int64[n], base offset of the segment of each answer; -1:
        none.

        A search by offset skips the offsets between the segment that should hold it and the segment that does. A search
        by time skips all offsets in front of its answer, whether timestamps rise or not.
        """
        if self._traces is None or not len(self._bases) or not len(targets):
            return
        n = len(self._bases)
        reached = np.where(answers >= 0, np.searchsorted(self._bases, answers), n)
        first = np.where(by_time, -1, np.searchsorted(self._bases, targets, "right") - 1)
        first[by_time & (targets == LATEST)] = n - 1
        reached[by_time & (targets == EARLIEST)] = 0
        reached[~by_time & (targets < self._log.earliest)] = 0
        reached[by_time & (targets == MAX_TIMESTAMP)] = n
        passed = np.zeros(n + 2, np.int64)  # below the first segment, then after each
        np.add.at(passed, first + 1, 1)
        np.add.at(passed, np.maximum(reached, first) + 1, -1)
        self._judge((np.flatnonzero(np.cumsum(passed)) - 1).tolist())

    def check_all(self) -> None:
        """Raise LogFormatError for the first gap of the log."""
        if self._traces is not None and len(self._bases):
            self._judge(range(-1, len(self._bases)))

    def _judge(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            problem = self._behind(number) if number not in self._judged else None
            if problem is not None:
                raise problem.as_error()
            self._judged.add(number)

    def _behind(self, number: int) -> Problem | None:
        log, traces = self._log, self._traces or Traces()
        if number < 0:
            return self._finder.below(log.segments, traces)
        known = offsets_behind(log.segments, traces, number)
        end, until = log.segment_end(number), NO_END if log.latest == log.log_end_offset else log.latest
        return self._finder.behind(known, end, log.earliest, until, lambda: log.segments[number + 1 :])


def no_answers(status: str, n: int) -> Any:
    """Return n rows of ANSWER that hold only a status."""
    nulls = [pa.nulls(n, field.type) for field in ANSWER]
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(status), n), *nulls[1:]], schema=ANSWER)


def _answers(log: PartitionLog, queries: Queries, passed: Passed) -> Any:
    targets, by_time = queries.targets, queries.by_time
    n = len(targets)
    status = np.full(n, "none", object)
    offset, timestamp, epoch = (np.full(n, -1, np.int64) for _ in range(3))
    offset[~by_time] = targets[~by_time]
    if by_time.any():
        rows = np.flatnonzero(by_time)
        found = log.offsets_for_times(targets[rows])
        offset[rows], timestamp[rows], epoch[rows] = found["offset"], found["timestamp"], found["leader_epoch"]
    # a record that was found by its time is looked up by its offset, as every other is
    asked = np.flatnonzero(offset >= 0)
    located = log.lookup_offsets(offset[asked])
    of_offset = ~by_time[asked]
    words = np.where(
        located["status"] == FOUND, "found", np.where(located["status"] == OUT_OF_RANGE, "out_of_range", "end")
    )
    status[asked] = np.where(of_offset, words, "found")
    status[~by_time & (offset < 0)] = "out_of_range"
    columns = {}
    for name in ("segment_base_offset", "position", "size", "base_offset", "last_offset"):
        columns[name] = np.full(n, -1, np.int64)
        columns[name][asked] = located[name]
    passed.check(targets, by_time, columns["segment_base_offset"])
    bases, row = np.unique(columns["segment_base_offset"], return_inverse=True)
    files = pa.array([segment_file(int(base), LOG) if base >= 0 else None for base in bases], pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(status, pa.string()),
            _numbers(offset),
            _numbers(timestamp),
            _numbers(epoch).cast(pa.int32()),
            files.take(pa.array(row)),
            _numbers(columns["position"]),
            _numbers(columns["size"]),
            _numbers(columns["base_offset"]),
            _numbers(columns["last_offset"]),
        ],
        schema=ANSWER,
    )


def _numbers(values: NDArray[np.int64]) -> Any:
    return pa.array(values, mask=values < 0)


Logs = dict[tuple[str, int], tuple[PartitionLog, Passed]]


def lookup_table(
    partitions: Mapping[tuple[str, int], SourcePartition], batches: Iterator[Any], *, committed: bool = False
) -> Iterator[Any]:
    """Yield record batches of queries with the answers' columns after theirs, in order, each as long as it came.

    Columns: topic, partition; offset, timestamp (ms int64, either may be missing or null; the offset is first). Rows of
    one partition should come together: only the log of a batch's last partition stays open for the next batch.
    """
    logs: Logs = {}
    try:
        for batch in batches:
            yield _answered(partitions, logs, batch, committed=committed)
    finally:
        _close(logs)


def _close(logs: Logs) -> None:
    for log, _ in logs.values():
        log.close()
    logs.clear()


def _answered(partitions: Mapping[tuple[str, int], SourcePartition], logs: Logs, batch: Any, *, committed: bool) -> Any:
    n = batch.num_rows
    none = pa.nulls(n, pa.int64())
    has = batch.schema.names
    offset = batch.column("offset").cast(pa.int64()) if "offset" in has else none
    time = as_ms(batch.column("timestamp")) if "timestamp" in has else none
    by_time = np.asarray(pc.is_null(offset)) & np.asarray(pc.is_valid(time))
    asked = np.asarray(pc.or_(pc.is_valid(offset), pc.is_valid(time)))
    targets = np.where(by_time, np.asarray(pc.fill_null(time, -1)), np.asarray(pc.fill_null(offset, -1)))
    keys = pc.binary_join_element_wise(batch.column("partition").cast(pa.string()), batch.column("topic"), "\0")
    encoded = pc.dictionary_encode(keys)  # numbered as they come
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    order = np.argsort(codes, kind="stable")
    borders = np.append(np.flatnonzero(np.diff(codes[order], prepend=-2)), n)
    parts = []
    for start, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):  # a loop over partitions
        rows = order[start:end]
        code = int(codes[rows[0]])
        number, topic = encoded.dictionary[code].as_py().split("\0", 1) if code >= 0 else ("-1", "")
        key = topic, int(number)
        if key not in logs:
            _close(logs)  # keep one partition's log open: each maps its segments
        queries = Queries(targets[rows], by_time[rows])
        parts.append(_find_in_partition(partitions.get(key), logs, queries, asked[rows], committed=committed))
    back = np.empty(n, np.int64)
    back[order] = np.arange(n)
    answers = pa.Table.from_batches(parts, ANSWER).combine_chunks() if parts else ANSWER.empty_table()
    taken = answers.take(pa.array(back))
    columns = [column.combine_chunks() for column in taken.columns]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *ANSWER]))


def _find_in_partition(
    partition: SourcePartition | None, logs: Logs, queries: Queries, asked: NDArray[np.bool_], *, committed: bool
) -> Any:
    targets, by_time = queries.targets, queries.by_time
    if partition is None or partition.problem is not None:
        problem = None if partition is None else partition.problem
        return no_answers("no_partition" if problem is None else problem.kind, len(targets))
    key = partition.key
    valid = asked & ~(by_time & (targets < MAX_TIMESTAMP))

    def answer() -> Any:
        if key not in logs:
            log = open_log(partition, committed=committed)
            logs[key] = log, Passed(partition, log)
        log, passed = logs[key]
        return _answers(log, Queries(np.where(valid, targets, log.earliest), by_time & valid), passed)

    answers = attempt(partition.name, answer)
    if isinstance(answers, Problem):
        return no_answers(answers.kind, len(targets))
    if valid.all():
        return answers
    blank = no_answers("no_query", len(targets))
    keep = pa.array(valid)
    return pa.RecordBatch.from_arrays(
        [pc.if_else(keep, a, b) for a, b in zip(answers.columns, blank.columns, strict=True)], schema=ANSWER
    )


def as_ms(column: Any) -> Any:
    """Return timestamps as int64 ms. Numbers are ms already (and may be one of SPECIAL_TIMES). Arrow timestamps of any
    unit are rounded towards the past; those before 1970, which no record has, become null.
    """
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    micro = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
    return pc.if_else(pc.less(micro, 0), pa.scalar(None, pa.int64()), pc.divide(micro, 1000))
