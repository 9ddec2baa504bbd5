"""Files of an export, written where logs are read: pieces of logs -> Arrow columns -> decoders -> one file of a task.

A file appears under its name whole or not at all: on a disk by a rename, in a bucket when its upload ends. A task that
Spark repeats replaces its own file. A task of an export that was killed may still work when the next export begins: it
writes no file, since the mark in the folder names another run by then.

In memory at a time: what udfs.data_source needs, and 64 MiB of rows.

Lines of JSON, one object a line, are built by column: no Python object for a value. Null fields are written. Bytes
become base64, timestamps ISO 8601 in UTC with milliseconds; NaN and infinite numbers become text. Strings are escaped
as RFC 8259 demands and no further.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastkey.logformat.schemas import PROBLEM, RECORDS, select
from lastkey.logformat.storage.io_counts import WRITTEN, spend
from lastkey.udfs.data_source.pieces import ReadSpec, Task, Wanted, logs_behind
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.decode.decoders import as_binary, decode, decoder
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import Root, cached_root, flush, make_folder, native_output, read_file

Format = Literal["parquet", "ndjson", "delta"]
TOMBSTONE: Final = "tombstone"
MALFORMED: Final = "_malformed"  # ending of the column with bytes that a decoder refused
_READ: Final = select(
    RECORDS, ["partition", "offset", "timestamp", "timestamp_ms", "timestampType", "key", "value", "headers"]
)
_BOUNDED: Final = ("partition", "offset", "timestamp_ms")  # columns with a least and a largest value in Delta's log
_GROUP_BYTES: Final = 64 << 20
_ENDINGS: Final[Mapping[Format, str]] = {"parquet": ".zstd.parquet", "ndjson": ".json", "delta": ".zstd.parquet"}


@dataclass(frozen=True)
class ExportSpec:
    """Request that all tasks of an export share."""

    root: str  # URI of the output
    mark: str  # path of the file that names the run, below it
    run: str
    format: Format
    decoders: Mapping[str, str | None]  # by column; None: bytes as they are
    committed: bool


@dataclass(frozen=True)
class ExportTask:
    """Pieces of the logs of one topic that become one file."""

    topic: str
    number: int  # number of the file among those of its topic
    pieces: Task
    max_batch_bytes: int


@dataclass
class Exported:
    """Result of a task. path: of its file below the output; "": no row, and no file."""

    topic: str
    path: str = ""
    size: int = 0
    records: int = 0
    tombstones: int = 0
    malformed: dict[str, int] = field(default_factory=dict)  # by column
    problems: list[tuple[int | None, Problem]] = field(default_factory=list)  # partition, problem
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)  # least and largest value by column

    @property
    def statistics(self) -> str:
        """Statistics of the file, as Delta's log has them."""
        least, most = ({name: pair[i] for name, pair in self.bounds.items()} for i in (0, 1))
        return json.dumps({"numRecords": self.records, "minValues": least, "maxValues": most})


def export_schema(decoders: Mapping[str, str | None]) -> Any:
    """Return the pa.Schema of the rows of an export."""
    return decoded_schema(_READ, decoders)


def decoded_schema(read: Any, decoders: Mapping[str, str | None]) -> Any:
    """Return the pa.Schema of `decoded` rows of a schema."""
    kinds = {name: decoder(kind).result for name, kind in decoders.items() if kind is not None and name in read.names}
    columns = [pa.field(f.name, kinds.get(f.name, f.type)) for f in read]
    columns += [pa.field(TOMBSTONE, pa.bool_())] if "value" in read.names else []
    return pa.schema([*columns, *(pa.field(f"{name}{MALFORMED}", pa.binary()) for name in kinds)])


def export_file(spec: ExportSpec, logs: Sequence[Sequence[ListedLog]], task: ExportTask) -> Exported:
    """Write the records of a task's pieces to a file. logs: of the partitions, in which ends of transactions are
    looked for. The first file of a topic is written without rows too: readers take the columns from it.
    """
    root, done = cached_root(spec.root), Exported(task.topic)
    rows = _rows(spec, logs, task, done)
    first = next(rows, None)
    if first is None and task.number:
        return done
    # Readers of Delta know files by its log alone: each attempt has a file of its own there
    own = f"-{uuid.uuid4()}" if spec.format == "delta" else ""
    path = f"{task.topic}/part-{task.number:05}{own}{_ENDINGS[spec.format]}"
    make_folder(root, task.topic)
    write = _write_lines if spec.format == "ndjson" else write_parquet
    try:
        with _published(root, path, spec) as stream:
            write(stream, export_schema(spec.decoders), chain(() if first is None else (first,), rows))
    except _TakenError:  # the driver finds out by itself
        return done
    done.path, done.size = path, root.filesystem.get_file_info(root.full(path)).size
    return done


def _rows(
    spec: ExportSpec, logs: Sequence[Sequence[ListedLog]], task: ExportTask, done: Exported
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, and count them."""
    read = ReadSpec(
        pa.schema([*_READ, PROBLEM]),
        Wanted(committed=spec.committed),
        quarantine=True,
        max_batch_bytes=task.max_batch_bytes,
        logs_behind=partial(logs_behind, logs),
    )
    for batch in read_records(read, task.pieces):
        problems = batch.column(PROBLEM.name)
        if problems.null_count < len(batch):
            told = zip(batch.column("partition").to_pylist(), problems.to_pylist(), strict=True)
            done.problems += [(partition, Problem(**one)) for partition, one in told if one is not None]
            continue
        out = decoded(batch.select(_READ.names), spec.decoders)
        done.records += len(out)
        done.tombstones += batch.column("value").null_count
        for name in out.schema.names:
            if name.endswith(MALFORMED):
                done.malformed[name] = done.malformed.get(name, 0) + len(out) - out.column(name).null_count
        for name in _BOUNDED:
            found = pc.min_max(out.column(name)).as_py()
            before = done.bounds.get(name, (found["min"], found["max"]))
            done.bounds[name] = min(before[0], found["min"]), max(before[1], found["max"])
        yield out


def decoded(batch: pa.RecordBatch, decoders: Mapping[str, str | None]) -> pa.RecordBatch:
    """Return records with their columns decoded; with TOMBSTONE, if they have values; and with the bytes that decoders
    refuse in columns of their own.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "value" in columns:
        columns[TOMBSTONE] = columns["value"].is_null()
    for name, kind in decoders.items():
        if kind is not None and name in columns:
            values = as_binary(columns[name])
            columns[name], reasons = decoder(kind).read(values)
            columns[f"{name}{MALFORMED}"] = pc.if_else(reasons.is_valid(), values, pa.scalar(None, pa.binary()))
    return pa.record_batch(list(columns.values()), schema=decoded_schema(batch.schema, decoders))


def write_parquet(stream: Any, schema: Any, rows: Iterator[pa.RecordBatch]) -> None:
    """Write rows as Parquet, some 64 MiB in a row group. stream: of `native_output`."""
    with pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1) as writer:
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in rows:
            waiting.append(batch)
            size += batch.nbytes
            if size >= _GROUP_BYTES:
                _write_group(stream, writer, waiting)
                size = 0
        if waiting:
            _write_group(stream, writer, waiting)


def _write_group(stream: Any, writer: Any, waiting: list[pa.RecordBatch]) -> None:
    before = stream.tell()
    writer.write_table(pa.Table.from_batches(waiting))
    waiting.clear()
    spend(stream.tell() - before, WRITTEN)


def _write_lines(stream: Any, schema: Any, rows: Iterator[pa.RecordBatch]) -> None:
    for batch in rows:
        lines = json_lines(batch)
        stream.write(lines)
        spend(len(lines), WRITTEN)


class _TakenError(Exception):
    """Another export has taken the folder."""


@contextmanager
def _published(root: Root, path: str, spec: ExportSpec) -> Iterator[Any]:
    """Yield a stream of a file that has its name, whole, once the block has ended without an error."""

    def check() -> None:
        if spec.run.encode() not in read_file(root, spec.mark):
            raise _TakenError

    if not root.is_local:
        with native_output(root, path, check) as stream:
            yield stream
        return
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"  # readers skip names that begin with a dot
    try:
        with native_output(root, temporary) as stream:
            yield stream
        check()
        flush(root, temporary)
        root.filesystem.move(root.full(temporary), root.full(path))
    except BaseException:
        with suppress(OSError):
            root.filesystem.delete_file(root.full(temporary))
        raise


_TEXT: Final = pa.large_string()  # text of a batch may exceed 2 GiB
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROL: Final = {char: _SHORT.get(char, f"\\u{ord(char):04X}") for char in map(chr, range(32))}
_LAST_YEAR: Final = 9999  # later ones have a sign, as ISO 8601 demands


def json_lines(rows: Any) -> memoryview:
    """Return a pa.RecordBatch as the bytes of its lines."""
    names = [f'{"," if number else "{"}"{name}":' for number, name in enumerate(rows.schema.names)]
    parts = [part for name, values in zip(names, rows.columns, strict=True) for part in (name, json_texts(values))]
    return _joined_bytes(_joined(*parts, "}\n"))


def json_texts(values: Any) -> Any:
    """Return each value of a column as its JSON text (pa.LargeStringArray without nulls)."""
    return pc.fill_null(_texts(values), pa.scalar("null", _TEXT))


def _texts(values: Any) -> Any:
    kind = values.type
    if pa.types.is_list(kind):
        return _lists(values)
    if pa.types.is_struct(kind):
        fields = [
            part for i, field in enumerate(kind) for part in (f'"{field.name}":', json_texts(values.field(i)), ",")
        ]
        return _joined("{", *fields[:-1], "}")
    if pa.types.is_binary(kind):
        return _joined('"', decode(values, "base64").cast(_TEXT), '"')
    if pa.types.is_string(kind):
        return _joined('"', _escaped(values.cast(_TEXT)), '"')
    if pa.types.is_timestamp(kind):
        return _joined('"', _moments(values), '"')
    if pa.types.is_floating(kind):
        names = pc.if_else(pc.is_nan(values), '"NaN"', pc.if_else(pc.less(values, 0), '"-Infinity"', '"Infinity"'))
        return pc.if_else(pc.is_finite(values), values.cast(_TEXT), names.cast(_TEXT))
    return values.cast(_TEXT)


def _lists(values: Any) -> Any:
    texts = pa.LargeListArray.from_arrays(values.offsets.cast(pa.int64()), json_texts(values.values))
    joined = _joined("[", pc.binary_join(texts, pa.scalar(",", _TEXT)), "]")
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, _TEXT))


def _moments(values: Any) -> Any:
    """Return timestamps of UTC as text."""
    whole = values.cast(pa.timestamp("ms"), safe=False)
    sign = pc.if_else(pc.greater(pc.year(whole), _LAST_YEAR), "+", "")
    return _joined(sign.cast(_TEXT), pc.strftime(whole, "%Y-%m-%dT%H:%M:%SZ").cast(_TEXT))


def _escaped(texts: Any) -> Any:
    for pattern, changes in (('["\\\\]', {"\\": "\\\\", '"': '\\"'}), ("[\\x00-\\x1f]", _CONTROL)):
        if pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            for char, escape in changes.items():
                texts = pc.replace_substring(texts, char, escape)
    return texts


def _joined(*parts: Any) -> Any:
    """Join columns and texts by row; null where a column is."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts), pa.scalar("", _TEXT)
    )


def _joined_bytes(texts: Any) -> memoryview:
    """Return the bytes of texts without nulls, one after the other."""
    _, offsets, data = texts.buffers()
    at = memoryview(offsets).cast("q")
    return memoryview(data)[at[texts.offset] : at[texts.offset + len(texts)]]
