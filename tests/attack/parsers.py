"""The output of `logformat` for the bytes of one file: in memory, without folder or job. Slow readers judge it.

A parser takes bytes of any origin: those of a damaged specimen, and those that a fuzzer makes up. It returns the
problems and the output, and raises Failed if the two do not fit what a slow reader sees in the same bytes.
"""

from __future__ import annotations

import atexit
import io
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BadBatch, BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import read_headers
from lastkey.logformat.batches.walk_kernels import checksums_fit
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.names import parse_segment_file
from lastkey.logformat.primitives.codec import Scratch
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.side_files import checkpoints, offset_index, producer_snapshot, time_index, transaction_index
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerState
from tests.attack.forked import Failed
from tests.attack.judge import data_rows, decoded
from tests.builders.damage import BOMB_LIMIT
from tests.reference.index_entries import index_entries
from tests.reference.producer_state import BadTransactionError, State

_COLUMNS: Final = select(RECORDS, ["offset", "timestamp_ms", "key", "value", "headers", "control"])
_CHUNK_BYTES: Final = 1 << 12
_STALE: Final = 0xA5  # fills memory that is reused, so that a read of it shows in a record


@dataclass
class Parsed:
    """Problems found in some bytes, and the output."""

    problems: list[LogFormatError] = field(default_factory=list)
    output: Any = None


def parse_log(data: bytes, path: str) -> Parsed:
    """Parse a `.log`: headers by both walks, records around damage, indexes and producers."""
    headers, wrong = _walked(data, path)
    seen = _records(data, path, check_crc=True)
    if any(p.kind == "crc" for p in seen.problems):
        _records(data, path, check_crc=False)  # as if the damage had a right checksum
    if wrong is not None and not seen.problems:
        raise Failed(f"a walk of headers says {wrong}, a reader nothing")
    for check in (_indexes, _producers):
        try:
            check(headers, path)
        except LogFormatError as error:
            seen.problems.append(error)
    return seen


def _records(data: bytes, path: str, *, check_crc: bool) -> Parsed:
    """Read the rows: none of an unreadable batch, all of the others."""
    seen, tail = Parsed(), Tail()
    buffer = ChunkBuffer(_CHUNK_BYTES, BOMB_LIMIT)
    buffer.raw[:] = _STALE
    loader = BodyLoader(max_batch_bytes=BOMB_LIMIT, soft_bytes=1 << 12, secret=(1, 2))
    loader._scratch, loader._inner = _stale_scratch(), _stale_scratch()
    tables, bad = [], set()
    file = pa.BufferReader(data)
    try:
        for chunk in read_chunks(file, path, LogRange(0, len(data)), buffer, tail, check_crc=check_crc):
            wanted = np.ones(len(chunk.batches), np.bool_)
            if check_crc:
                fit = np.zeros(len(wanted), np.bool_)
                checksums_fit(chunk.raw, chunk.position, chunk.batches, fit)
                if not fit.all():
                    raise Failed("a batch was walked whose checksum does not fit")
            for run in loader.runs_around_damage(chunk, wanted):
                if isinstance(run, BadBatch):
                    seen.problems.append(run.error)
                    bad.add(int(chunk.batches["position"][run.row]))
                else:
                    tables += record_batches(run, _COLUMNS, TopicPartition(), max_rows=8)
    except LogFormatError as error:
        seen.problems.append(error)
    rows = [row for table in tables for row in _rows(table)]
    if check_crc:
        expected = _by_the_twin(data, tail.position, frozenset(bad))
        if rows != expected:
            raise Failed(_difference(rows, expected, seen))
    seen.output = rows
    return seen


def _stale_scratch() -> Scratch:
    scratch = Scratch(1 << 10)
    scratch.array[:] = _STALE
    return scratch


def _rows(table: Any) -> list[Any]:
    columns = [column.to_pylist() for column in table.columns]
    return [
        (offset, timestamp, key, value, tuple((h["key"], h["value"]) for h in headers or ()))
        for offset, timestamp, key, value, headers, control in zip(*columns, strict=True)
        if not control
    ]


def _by_the_twin(data: bytes, end: int, bad: frozenset[int]) -> list[Any]:
    """Return the rows of the batches that begin before `end`, except those at the positions `bad`."""
    batches, at = [], 0
    for batch in decoded(data[:end]):
        if at not in bad:
            batches.append(batch)
        at += len(batch.data)
    return [(*row[:4], tuple((k.decode(errors="replace"), v) for k, v in row[4])) for row in data_rows(batches)]


def _difference(rows: list[Any], expected: list[Any], seen: Parsed) -> str:
    missing, more = ([r for r in a if r not in b][:3] for a, b in ((expected, rows), (rows, expected)))
    return f"missing {missing}, more {more}; said: {[str(p) for p in seen.problems[:3]]}"


def _walked(data: bytes, path: str) -> tuple[np.ndarray, LogFormatError | None]:
    """Return the headers, and the error that stopped the walk. Raises Failed if reading bodies and skipping them by
    `pread` differ.
    """
    by_chunks = _headers(pa.BufferReader(data), data, path)
    by_pread = _headers(_in_memory(data), data, path)
    if by_chunks[1:3] != by_pread[1:3] or not np.array_equal(by_chunks[0], by_pread[0]):
        raise Failed(f"headers by chunks: {by_chunks[1:]}, by pread: {by_pread[1:]}")
    return by_chunks[0], by_chunks[3]


def _headers(file: Any, data: bytes, path: str) -> tuple[np.ndarray, Tail, str, LogFormatError | None]:
    tail, parts, wrong = Tail(), [np.empty(0, BATCH)], None
    try:
        for part in read_headers(file, path, LogRange(0, len(data)), ChunkBuffer(_CHUNK_BYTES), tail):
            parts.append(part.batches.copy())
    except LogFormatError as error:
        wrong = error
    return np.concatenate(parts), tail, str(wrong), wrong


@cache
def _memory_file() -> io.FileIO:
    """Return a file without a folder, one for the process."""
    file = io.FileIO(os.memfd_create("log"), "r+b")
    atexit.register(file.close)
    return file


def _in_memory(data: bytes) -> io.FileIO:
    """Return a file of these bytes, valid until the next call."""
    file = _memory_file()
    os.ftruncate(file.fileno(), len(data))
    os.pwrite(file.fileno(), data, 0)
    return file


def _base(path: str) -> int:
    name = parse_segment_file(path.rpartition("/")[2])
    return name.base if name is not None else 0


def _indexes(headers: np.ndarray, path: str) -> None:
    """Check the index entries of these batches against those that a broker would recover."""
    base = _base(path)
    builder = IndexBuilder(base, index_interval_bytes=0, path=path)
    columns = [headers[name] for name in ("last_offset", "size", "max_timestamp")]
    builder.append(*columns)
    offsets, times = builder.finish()
    expected = index_entries(zip(*(c.tolist() for c in columns), strict=True), base, 0)
    entries = (
        [(base + relative, position) for relative, position in struct.iter_unpack(">ii", offsets)],
        [(at, base + relative) for at, relative in struct.iter_unpack(">qi", times)],
    )
    if entries != expected:
        raise Failed(f"index entries {entries}, expected {expected}")


def _producers(headers: np.ndarray, path: str) -> None:
    """Check the producers after these batches against those that a broker would recover."""
    twin, state = State(), ProducerState()
    try:
        for row in headers:
            twin.append({name: int(row[name]) for name in BATCH.names})
    except BadTransactionError:
        try:
            state.append(headers, path)
        except LogFormatError:
            return
        raise Failed("a transaction that cannot be, and nothing is said of it") from None
    state.append(headers, path)
    producers = {row[0]: row[1:] for row in state.entries().tolist()}
    if producers != twin.entries():
        raise Failed(f"producers {producers}, expected {twin.entries()}")


# -- side files


def _parsed(read: Callable[[], Any], expected: Callable[[], Any]) -> Parsed:
    """Return a parser's output, or its problem. Raises Failed if a slow parser's output differs."""
    try:
        result = read()
    except LogFormatError as error:
        return Parsed([error])
    twin = expected()
    if result != twin:
        raise Failed(f"read {result}, expected {twin}")
    return Parsed([], result)


def parse_index(data: bytes, path: str) -> Parsed:
    """Parse an `.index`."""
    base = _base(path)

    def slowly() -> list[Any]:
        entries = struct.iter_unpack(">ii", data)
        return [(base + relative, at) for relative, at in takewhile(lambda entry: entry[0] != 0, entries)]

    return _parsed(lambda: offset_index.read(data, base, path).tolist(), slowly)


def parse_time_index(data: bytes, path: str) -> Parsed:
    """Parse a `.timeindex`."""
    base = _base(path)

    def slowly() -> list[Any]:
        first, *rest = [*struct.iter_unpack(">qi", data)] or [None]
        if first is None:
            return []
        kept = [*takewhile(lambda entry: entry[1] != 0, rest)]
        if first == (0, 0) and rest and not kept:
            return []
        return [(at, base + relative) for at, relative in (first, *kept)]

    return _parsed(lambda: time_index.read(data, base, path).tolist(), slowly)


def parse_txn_index(data: bytes, path: str) -> Parsed:
    """Parse a `.txnindex`."""
    return _parsed(lambda: transaction_index.read(data, path).tolist(), lambda: [*struct.iter_unpack(">hqqqq", data)])


def parse_snapshot(data: bytes, path: str) -> Parsed:
    """Parse a `.snapshot`."""
    return _parsed(
        lambda: producer_snapshot.read(data, path).tolist(), lambda: [*struct.iter_unpack(">qhiqiqiq", data[10:])]
    )


def parse_offset_checkpoint(data: bytes, path: str) -> Parsed:
    """Parse any of names.OFFSET_CHECKPOINTS; written and read again it must be the same."""
    read = checkpoints.read_offset_checkpoint
    return _again(read, checkpoints.write_offset_checkpoint, data, path)


def parse_leader_epochs(data: bytes, path: str) -> Parsed:
    """Parse a leader-epoch-checkpoint."""
    return _again(checkpoints.read_leader_epochs, checkpoints.write_leader_epochs, data, path)


def parse_metadata(data: bytes, path: str) -> Parsed:
    """Parse a partition.metadata."""
    return _again(checkpoints.read_partition_metadata, checkpoints.write_partition_metadata, data, path)


def _again(read: Callable[[bytes, str], Any], write: Callable[[Any], bytes], data: bytes, path: str) -> Parsed:
    results: list[Any] = []

    def first() -> Any:
        results.append(read(data, path))
        return results[0]

    return _parsed(first, lambda: read(write(results[0]), path))


def parse_properties(data: bytes, path: str) -> Parsed:
    """Parse a meta.properties."""
    try:
        return Parsed([], checkpoints.read_meta_properties(data, path))
    except LogFormatError as error:
        return Parsed([error])


PARSERS: Final[dict[str, Callable[[bytes, str], Parsed]]] = {  # by the end of a file's name
    ".log": parse_log, ".index": parse_index, ".timeindex": parse_time_index, ".txnindex": parse_txn_index,
    ".snapshot": parse_snapshot, "-offset-checkpoint": parse_offset_checkpoint,
    "leader-epoch-checkpoint": parse_leader_epochs, "partition.metadata": parse_metadata,
    "meta.properties": parse_properties,
}  # fmt: skip


def parse(data: bytes, path: str) -> Parsed:
    """Parse a file by its name. Raises Failed unless each problem names this file and a byte in it, or at its end."""
    parser = next(parser for name, parser in PARSERS.items() if path.endswith(name))
    seen = parser(data, path)
    for problem in seen.problems:
        if problem.kind in ("defect", "memory") or problem.path != path or not 0 <= problem.position <= len(data):
            raise Failed(f"no problem of {len(data)} bytes: {problem}")
    return seen
