"""The stages of a large partition, as functions of Arrow batches, between which Spark exchanges rows.

  local survivors    a task for each split: key hash, offset and version of the split's records that no later record of
                     their key in the same split supersedes
  last of each key   a task for some buckets of key hashes: the offsets that stay
  rewrite            a task for each group of segments: new segments, of the records with these offsets

Records never leave their task. A row between the stages has some hundred local survivors of one bucket from one split.
A row for each record costs the JVM more than all other work (measured: BENCHMARKS.md). A row without a bucket informs
the rewrite of the number of survivors that a split has sent. So a missing or duplicate row, or a row with a problem,
ends the compaction of the partition. In one task, an `Exchange` hands over the rows (`compact_partition`).
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import IO, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError, stopped
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.storage.io_counts import counted
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally, clean_forwards
from lastkey.udfs.compact.clean.deciders import (
    KeyTable,
    Survivors,
    Winners,
    batches_to_read,
    incomplete,
    key_runs,
    read_versions,
)
from lastkey.udfs.compact.clean.key_kernels import SLOT, collect_survivors, mark_first, mark_highest
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION, WINNER
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.segment_output import GroupOutput
from lastkey.udfs.compact.plan import PartitionPlan, chunk_buffer
from lastkey.udfs.problem import Problem, peak_memory
from lastkey.udfs.segments import SegmentScan
from lastkey.udfs.steps import Stage, step
from lastkey.udfs.storage import flush_whole, open_root

_LEAST_BYTES: Final = 64 << 20  # do not make a split smaller only to keep a core busy


@dataclass(frozen=True)
class Part:
    """Consecutive chunks of one segment."""

    number: int  # number of the segment in the plan
    group: int  # number of the segment group
    first: int  # chunks [first, stop) of its scan
    stop: int


Split = tuple[Part, ...]  # in the order of the log


def make_splits(
    scans: Sequence[SegmentScan], groups: Sequence[range], split_bytes: int, cores: int
) -> tuple[Split, ...]:
    """Cut the groups' segments at borders of chunks into splits of one size: of at most about `split_bytes`, and enough
    for all cores.
    """
    of_chunk = [
        (number, group, chunk)
        for group, numbers in enumerate(groups)
        for number in numbers
        for chunk in range(len(scans[number].chunks))
    ]
    sizes = np.array([scans[number].chunks[chunk].size for number, _, chunk in of_chunk], np.int64)
    n_bytes = int(sizes.sum())
    for_all = min(cores, max(n_bytes // _LEAST_BYTES, 1))
    n_splits = min(-(-max(n_bytes // split_bytes, 1) // for_all) * for_all, len(of_chunk))
    split_of = (np.cumsum(sizes) - sizes // 2) * n_splits // max(n_bytes, 1)  # by the middle of each chunk
    borders = [0, *(np.flatnonzero(np.diff(split_of)) + 1).tolist(), len(of_chunk)]
    return tuple(_parts(of_chunk[start:stop]) for start, stop in pairwise(borders) if start < stop)


def _parts(chunks: Sequence[tuple[int, int, int]]) -> Split:
    """Return the parts that consist of these (segment, group, chunk of it), in order."""
    out: list[Part] = []
    for number, group, chunk in chunks:
        if out and out[-1].number == number:
            out[-1] = Part(number, group, out[-1].first, chunk + 1)
        else:
            out.append(Part(number, group, chunk, chunk + 1))
    return tuple(out)


# Local survivors of a bucket, split, block and group, in the order of the walk. n: the first n are dirty; keys: u8[m, 2
# or 3], halves of key hashes, and versions if those decide; offsets: i8[m]. A row of bucket -1: a split sent n local
# survivors of a group; offsets: i8[m], the last offsets of batches that the rewrite must read, whatever survives;
# report: the pickled TaskReport of the split's task, or its Problem.
SURVIVORS: Final = (
    "part int, bucket int, split int, block int, group int, n long, keys binary, offsets binary, report binary"
)
# The offsets of a group that stay, of n local survivors; or a row of bucket -1, as above
OFFSETS: Final = "group int, bucket int, n long, offsets binary, report binary"
_TYPES: Final = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
_SURVIVORS, _OFFSETS = (
    pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, text.split(", "))])
    for text in (SURVIVORS, OFFSETS)
)
T = TypeVar("T")
_ROW_RECORDS: Final = 256  # records of a row: Spark hands over 10,000 rows at once, each for some microseconds
_BUCKET: Final = 1 << 17  # records in a bucket, so that its table stays in the processor's cache
_MOST_BUCKETS: Final = 1 << 12
_BUCKETS_A_TASK: Final = 64
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class LargePartition:
    """Plan of a large partition, for the tasks of all stages."""

    plan: PartitionPlan
    scans: tuple[SegmentScan, ...]
    splits: tuple[Split, ...]
    groups: tuple[tuple[Segment, range], ...]  # each new segment, and the numbers of its sources
    rules: Rules
    first_dirty_offset: int
    kept_aborts: np.ndarray
    n_buckets: int  # a power of two
    n_parts: int  # tasks of the second stage
    folder: str  # folder of all new segments, below the store; "": each task has one of its own (`own_folder`)


@dataclass(frozen=True)
class TaskReport:
    """Counts and bounds that a task returns in addition to its rows."""

    counts: Mapping[str, int]  # counts by `io_counts`
    peak_memory_bytes: int
    highest: int = NO_VERSION  # version of a record
    n_keys: int = 0


@dataclass(frozen=True)
class RewrittenGroup:
    """Result for one group. An empty segment has no file: the driver joins it to the next one."""

    group: int
    segments: list[Segment]
    tally: Tally
    reports: tuple[TaskReport, ...]  # reports of the tasks that worked for it


def buckets_for(n_records: int, cores: int) -> tuple[int, int]:
    """Return the number of buckets, a power of two from 4 to 4096, and of tasks that share them."""
    n = min(max(1 << (n_records // _BUCKET).bit_length(), 4), _MOST_BUCKETS)
    return n, min(n, max(cores, n // _BUCKETS_A_TASK))


def local_survivors(of: LargePartition, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the SURVIVORS of a split."""
    yield from _or_problem(
        of, "walk", lambda: _walk(of, number), lambda problem: _row(_SURVIVORS, bucket=-1, report=problem)
    )


def last_of_each_key(of: LargePartition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield OFFSETS, those of each group that stay. batches: SURVIVORS by bucket, then in the order of the walk."""
    rows = _or_problem(
        of, "resolve", lambda: _resolve(of, batches), lambda problem: _row(_OFFSETS, bucket=-1, report=problem)
    )
    yield from rows


def rewrite_group(of: LargePartition, batches: Iterable[pa.RecordBatch]) -> Iterator[RewrittenGroup | Problem]:
    """Yield the rewritten group, or a Problem. batches: its OFFSETS; without any, yield no item: the group has no
    chunk.
    """
    table = pa.Table.from_batches(batches, _OFFSETS)
    if len(table):
        yield from _or_problem(of, "rewrite", lambda: iter([_rewrite(of, table)]), pickle.loads)


def _or_problem(
    of: LargePartition, stage: Stage, work: Callable[[], Iterator[T]], as_result: Callable[[bytes], T]
) -> Iterator[T]:
    """Yield the results of `work`; if it fails, `as_result` of the pickled problem. Raises OSError for a full disk."""
    try:
        yield from work()
    except Exception as error:
        yield as_result(pickle.dumps(Problem.of(stopped(error, of.plan.name))))
    else:
        step(stage)


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    """Return a row; numbers that are not given are 0, and bytes empty."""
    zeros = {name: b"" if kind == pa.binary() else 0 for name, kind in zip(schema.names, schema.types, strict=True)}
    return pa.RecordBatch.from_pylist([zeros | values], schema)


def _walk(of: LargePartition, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, walked backwards with a table of its keys. If the table would outgrow the task's
    memory, it is emptied, and a key may be sent twice.
    """
    plan, buffer, block = of.plan, chunk_buffer(of.plan), 0
    by_offset, table_bytes = plan.policy.settings.by_offset, plan.run.limits.task_memory_bytes // 2
    table = KeyTable(table_bytes) if by_offset else Winners(table_bytes)
    with counted() as counts:
        for group, parts in groupby(reversed(of.splits[number]), lambda part: part.group):
            highest, n_sent, waiting, to_read = NO_VERSION, 0, _Waiting(), [_NONE]
            for part in parts:
                source = of.scans[part.number]
                chunks = source.chunks[part.first : part.stop]
                for run in key_runs(plan, source, chunks, of.rules, buffer):
                    may_stay, versions = _marked(of, run, table)
                    if versions is not None:
                        highest = max(highest, int(versions.max(initial=NO_VERSION)))
                    waiting.add(run, may_stay, versions)
                    to_read.append(batches_to_read(run))
                    if waiting.n >= _ROW_RECORDS * of.n_buckets:
                        n_sent += waiting.n
                        yield _rows_of_block(of, number, block, group, waiting)
                        block, waiting = block + 1, _Waiting()
            if waiting.n:
                n_sent += waiting.n
                yield _rows_of_block(of, number, block, group, waiting)
                block += 1
            report = TaskReport(dict(counts), peak_memory(), highest, n_sent)
            counts.clear()
            yield _row(
                _SURVIVORS, part=group % of.n_parts, bucket=-1, group=group, split=number, n=n_sent,
                offsets=np.concatenate(to_read).tobytes(), report=pickle.dumps(report),
            )  # fmt: skip


def _marked(of: LargePartition, run: Run, table: KeyTable | Winners) -> tuple[np.ndarray, np.ndarray | None]:
    """Return bool[len(run.spans)], the last records of each key as far as the walk has come, and their versions."""
    left = n = len(run.spans)
    may_stay, versions = np.empty(n, np.bool_), None
    if isinstance(table, KeyTable):
        while left := table.mark(run, of.first_dirty_offset, may_stay, left):
            table.clear()
        return may_stay, None
    versions = read_versions(run, of.plan)
    while left := table.enter(run, versions, may_stay, left):
        table.clear()
    return may_stay, versions


class _Waiting:
    """Local survivors that wait to be sent, in the order of the walk."""

    def __init__(self) -> None:
        self.n = 0
        self.keys = list[np.ndarray]()  # u8[m, 2 or 3] of each run
        self.offsets = list[np.ndarray]()  # i8[m]

    def add(self, run: Run, may_stay: np.ndarray, versions: np.ndarray | None) -> None:
        keys = np.empty((len(may_stay), 2 if versions is None else 3), np.uint64)
        offsets = np.empty(len(may_stay), np.int64)
        n = collect_survivors(run, may_stay, keys, offsets)
        if versions is not None:
            keys[:n, 2] = versions[may_stay & ~run.spans["null_key"]][::-1].view(np.uint64)
        self.keys.append(keys[:n].copy())
        self.offsets.append(offsets[:n].copy())
        self.n += n


def _rows_of_block(of: LargePartition, split: int, block: int, group: int, waiting: _Waiting) -> pa.RecordBatch:
    keys, offsets = np.concatenate(waiting.keys), np.concatenate(waiting.offsets)
    bucket = (keys[:, 1] >> np.uint64(64 - of.n_buckets.bit_length() + 1)).astype(np.uint16)
    order = np.argsort(bucket, kind="stable")  # a radix sort
    counts = np.bincount(bucket, minlength=of.n_buckets)
    dirty = np.bincount(bucket[offsets >= of.first_dirty_offset], minlength=of.n_buckets)
    filled = np.flatnonzero(counts)
    n, ends = len(filled), np.concatenate([[0], np.cumsum(counts[filled])])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(filled * of.n_parts // of.n_buckets, pa.int32()),
            pa.array(filled, pa.int32()),
            *(pa.array(np.full(n, value, np.int32)) for value in (split, block, group)),
            pa.array(dirty[filled], pa.int64()),
            _binary(keys[order], ends),
            _binary(offsets[order], ends),
            pa.nulls(n, pa.binary()),
        ],
        schema=_SURVIVORS,
    )


def _binary(values: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Return values as bytes: row i holds the values [ends[i], ends[i + 1])."""
    places = (ends * (values.nbytes // max(len(values), 1))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(places), pa.py_buffer(values)])


def _values(column: pa.Array, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of all rows of a binary column, and how many each row has: int64[n]."""
    places = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(column.buffers()[2] or b"", np.uint8)[places[0] : places[-1]]
    raw.flags.writeable = False  # numba compiles kernels of their own for arrays that can be written
    return raw.view(dtype), np.diff(places) // np.dtype(dtype).itemsize


def _resolve(of: LargePartition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows without a bucket as they come; then a row for each group."""
    judged = Counter[int]()
    stay = dict[int, list[np.ndarray]]()  # by group
    for bucket, parts in groupby(_cut(batches, "bucket"), lambda one: one[0]):
        if bucket < 0:
            yield from (rows.select(_OFFSETS.names) for _, rows in parts)
            continue
        rows = pa.Table.from_batches([rows for _, rows in parts]).combine_chunks().to_batches()[0]
        for group, offsets, n in _stay(of, rows):
            judged[group] += n
            stay.setdefault(group, []).append(offsets)
    report = pickle.dumps(TaskReport({}, peak_memory()))
    for group, found in stay.items():
        yield _row(_OFFSETS, group=group, n=judged[group], offsets=np.concatenate(found).tobytes(), report=report)


def _cut(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (value of the column, rows with it), cut where the value changes."""
    for batch in batches:
        values = batch[column].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        for start, stop in pairwise(borders):
            if start < stop:
                yield int(values[start]), batch.slice(start, stop - start)


def _stay(of: LargePartition, rows: pa.RecordBatch) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yield (group, offsets that stay, how many records there were) of a bucket's rows."""
    offsets, counts = _values(rows["offsets"], np.int64)
    keys = _values(rows["keys"], np.uint64)[0].reshape(len(offsets), -1)
    stays = np.empty(len(offsets), np.bool_)
    if of.plan.policy.settings.by_offset:
        in_row = np.arange(len(offsets)) - np.repeat(np.cumsum(counts) - counts, counts)
        mark_first(keys, in_row < np.repeat(rows["n"].to_numpy(), counts), _table(len(offsets), SLOT), stays)
    else:
        table = _table(len(offsets), WINNER)
        for _ in range(2):
            mark_highest(keys, table, stays)
    group_of = np.repeat(rows["group"].to_numpy(), counts)
    for group in np.unique(group_of).tolist():
        of_group = group_of == group
        yield group, offsets[of_group & stays], int(of_group.sum())


def _table(n_keys: int, slot: np.dtype[np.void]) -> np.ndarray:
    """Return a table of zeros; this number of keys uses at most two thirds of it."""
    return np.zeros(1 << (n_keys + n_keys // 2 + 1).bit_length(), slot)


def _rewrite(of: LargePartition, rows: pa.Table) -> RewrittenGroup:
    reports = [pickle.loads(one) for one in rows["report"].to_pylist()]
    if problem := next((one for one in reports if isinstance(one, Problem)), None):
        raise problem.as_error()
    number = rows["group"][0].as_py()
    group, numbers = of.groups[number]
    sent, n = rows["bucket"].to_numpy() < 0, rows["n"].to_numpy()
    offsets, to_read = (_sorted_offsets(rows.filter(pa.array(which))) for which in (~sent, sent))
    if n[sent].sum() != n[~sent].sum():
        raise incomplete(of.plan, f"{n[~sent].sum()} local survivors of {n[sent].sum()}")
    with counted() as counts:
        segments, tally = _write_survivors(of, group, numbers, Survivors(of.plan, offsets, to_read))
    return RewrittenGroup(number, segments, tally, (*reports, TaskReport(dict(counts), peak_memory())))


def _write_survivors(
    of: LargePartition, group: Segment, numbers: range, survivors: Survivors
) -> tuple[list[Segment], Tally]:
    plan, tally, buffer = of.plan, Tally(), chunk_buffer(of.plan)
    verdicts_of = survivors.verdicts if of.rules.oldest_ms < 0 else None
    reader, folder = Pass(survivors.mark, plan.loader(None), buffer, tally, verdicts_of), of.folder or own_folder(plan)
    output, digest = GroupOutput(plan, folder, group, of.kept_aborts), 0
    for source in of.scans[numbers.start : numbers.stop]:
        for piece, data in clean_forwards(reader, source, of.rules):
            digest = (digest + piece.digest) & (2**64 - 1)
            output.append(piece.rows, data)
    survivors.check()
    segments = output.finish(digest, buffer)
    if segments[0].path and not of.folder:
        flush_whole(open_root(plan.run.store_uri), folder)  # here: the driver may be elsewhere
    return segments, tally


def _sorted_offsets(rows: pa.Table) -> np.ndarray:
    """Return int64[n], the offsets of all rows, ascending."""
    found = np.concatenate([_NONE, *(_values(chunk, np.int64)[0] for chunk in rows["offsets"].chunks)])
    found.sort()
    return found


def own_folder(plan: PartitionPlan) -> str:
    """Return a folder beside the generation's, where a new segment waits. No other task writes there, nor another try
    of the same task: a late retry must not write into a committed folder.
    """
    return f"{plan.run.folder}.{secrets.randbelow(10**19)}"


_SPILL: Final = "the temporary file of survivors"


class Exchange:
    """Rows between the stages of one task, in a temporary file: written in any order, read by the value of a column."""

    def __init__(self, file: IO[bytes], column: str) -> None:
        self._file, self._column = file, column
        self._schema = _SURVIVORS if column == "part" else _OFFSETS
        self._places = defaultdict[int, list[tuple[int, int, int]]](list)  # value -> position, bytes, CRC-32C

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows."""
        for value, rows in _cut(batches, self._column):
            data = np.frombuffer(rows.serialize(), np.uint8)
            self._places[value].append((self._file.seek(0, os.SEEK_END), len(data), crc32c_extend(0, data)))
            self._file.write(data.data)

    def read(self, value: int) -> pa.Table:
        """Return the rows with a value. Raises LogFormatError kind "readback" if bytes differ from the written ones."""
        batches = []
        for position, n_bytes, checksum in self._places[value]:
            data = np.empty(n_bytes, np.uint8)
            read_exactly(self._file, _SPILL, position, data)
            if (found := crc32c_extend(0, data)) != checksum:
                expected = f"{n_bytes} bytes with CRC-32C {checksum:#010x}, as they were written"
                raise LogFormatError("readback", _SPILL, position, expected, f"{found:#010x}")
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(data), self._schema))
        return pa.Table.from_batches(batches, self._schema)
