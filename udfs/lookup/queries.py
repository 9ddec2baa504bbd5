"""Look-ups in one partition's log, planned by the driver: by offset, by time, or a column of queries.

The search itself is logformat.search.partition_log; here a plan becomes a log, and answers become columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logformat.batches.chunks import MAX_BATCH_BYTES
from logformat.listing import ListedSegment
from logformat.names import LOG, segment_file
from logformat.search.answers import EARLIEST, FOUND, LATEST, MAX_TIMESTAMP, OUT_OF_RANGE
from logformat.search.partition_log import PartitionLog
from udfs.attempt import attempt
from udfs.lookup.last_stable_offset import last_stable_offset
from udfs.problem import Problem
from udfs.storage import cached_place

SPECIAL_TIMES: Final = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}

ANSWER: Final = pa.schema(
    [
        pa.field("status", pa.string()),  # found, none, end, out_of_range, no_query, no_partition, or a kind of problem
        pa.field("answer_offset", pa.int64()),  # by time: of the record; by offset: the one asked for
        pa.field("answer_timestamp", pa.int64()),  # of the record, ms; by time only
        pa.field("leader_epoch", pa.int32()),  # by time only
        pa.field("segment", pa.string()),  # name of the .log
        pa.field("position", pa.int64()),  # of the batch in it
        pa.field("batch_size", pa.int64()),
        pa.field("batch_base_offset", pa.int64()),
        pa.field("batch_last_offset", pa.int64()),
    ]
)


@dataclass(frozen=True)
class LookupPlan:
    """One partition's log."""

    topic: str
    partition: int
    archive_uri: str
    segments: tuple[ListedSegment, ...]
    log_start_offset: int | None = None
    end_offset: int | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()
    snapshots: tuple[tuple[int, str, str], ...] = ()  # offset, URI of the root, path; rising
    max_batch_bytes: int = MAX_BATCH_BYTES
    read_committed: bool = False  # answers end at the last stable offset, which headers are read for
    problem: Problem | None = None  # its files cannot be listed, or stand for nothing certain

    @property
    def name(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class Lookup:
    """What was found in one partition; `answers`: ANSWER, a row a query, in order."""

    topic: str
    partition: int
    answers: Any
    log_start_offset: int = -1
    log_end_offset: int = -1
    notes: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True)
class Queries:
    """What is asked of one partition. offsets, timestamps: int64[n]; of each row one is asked, by `by_time`."""

    targets: NDArray[np.int64]
    by_time: NDArray[np.bool_]


def open_log(plan: LookupPlan) -> PartitionLog:
    """The log of a plan; nothing is read yet, but for its last stable offset, where that is asked for."""
    end = plan.end_offset
    if plan.read_committed and plan.segments:
        end = last_stable_offset(plan.segments, plan.log_start_offset, end, plan.snapshots)
    return PartitionLog(
        plan.segments,
        log_start_offset=plan.log_start_offset,
        topic=plan.topic,
        partition=plan.partition,
        leader_epochs=plan.leader_epochs,
        end_offset=end,
        max_batch_bytes=plan.max_batch_bytes,
        place=cached_place,
    )


def lookup(plan: LookupPlan, queries: Queries) -> Lookup:
    """Answers of one partition. What is wrong with its files is `problem`, and the status of every row."""
    problem = plan.problem
    if problem is None:
        done = attempt(plan.name, lambda: _looked_up(plan, queries))
        if isinstance(done, Lookup):
            return done
        problem = done
    return Lookup(plan.topic, plan.partition, no_answers(problem.kind, len(queries.targets)), problem=problem)


def _looked_up(plan: LookupPlan, queries: Queries) -> Lookup:
    with open_log(plan) as log:
        answers = _answers(log, queries)
        return Lookup(plan.topic, plan.partition, answers, log.earliest, log.latest, log.notes)


def no_answers(status: str, n: int) -> Any:
    """n rows of ANSWER that only say why."""
    nulls = [pa.nulls(n, field.type) for field in ANSWER]
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(status), n), *nulls[1:]], schema=ANSWER)


def _answers(log: PartitionLog, queries: Queries) -> Any:
    targets, by_time = queries.targets, queries.by_time
    n = len(targets)
    status = np.full(n, "none", object)
    offset, timestamp, epoch = (np.full(n, -1, np.int64) for _ in range(3))
    offset[~by_time] = targets[~by_time]
    if by_time.any():
        rows = np.flatnonzero(by_time)
        found = log.offsets_for_times(targets[rows])
        offset[rows], timestamp[rows], epoch[rows] = found["offset"], found["timestamp"], found["leader_epoch"]
    # the batch of a record that was found by its time is looked up by its offset, as is every other
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


def lookup_table(plans: dict[tuple[str, int], LookupPlan], batches: Iterator[Any]) -> Iterator[Any]:
    """Record batches of queries with the answers' columns behind them, in order, each as long as it came.

    Columns: topic, partition; offset, timestamp (ms int64, either may be missing or null; the offset goes first). Rows
    of one partition should come together: only the log of a batch's last partition is kept open for the next batch.
    """
    logs: dict[tuple[str, int], PartitionLog] = {}
    try:
        for batch in batches:
            yield _answered(plans, logs, batch)
    finally:
        _close(logs)


def _close(logs: dict[tuple[str, int], PartitionLog]) -> None:
    for log in logs.values():
        log.close()
    logs.clear()


def _answered(plans: dict[tuple[str, int], LookupPlan], logs: dict[tuple[str, int], PartitionLog], batch: Any) -> Any:
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
            _close(logs)  # of one partition at a time: each holds maps of its segments
        parts.append(_of_partition(plans.get(key), logs, targets[rows], by_time[rows], asked[rows]))
    back = np.empty(n, np.int64)
    back[order] = np.arange(n)
    answers = pa.Table.from_batches(parts, ANSWER).combine_chunks() if parts else ANSWER.empty_table()
    taken = answers.take(pa.array(back))
    columns = [column.combine_chunks() for column in taken.columns]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *ANSWER]))


def _of_partition(
    plan: LookupPlan | None,
    logs: dict[tuple[str, int], PartitionLog],
    targets: NDArray[np.int64],
    by_time: NDArray[np.bool_],
    asked: NDArray[np.bool_],
) -> Any:
    if plan is None or plan.problem is not None:
        return no_answers("no_partition" if plan is None or plan.problem is None else plan.problem.kind, len(targets))
    key = plan.topic, plan.partition
    valid = asked & ~(by_time & (targets < MAX_TIMESTAMP))

    def answer() -> Any:
        if key not in logs:
            logs[key] = open_log(plan)
        return _answers(logs[key], Queries(np.where(valid, targets, 0), by_time & valid))

    answers = attempt(plan.name, answer)
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
    """Timestamps as int64 ms: numbers are ms already (and may be one of SPECIAL_TIMES); Arrow timestamps of any unit
    are cast towards the past, and those before 1970, which no record has, are null.
    """
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    micro = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
    return pc.if_else(pc.less(micro, 0), pa.scalar(None, pa.int64()), pc.divide(micro, 1000))
