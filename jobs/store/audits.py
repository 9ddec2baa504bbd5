"""Tables `audit_*` of a store: what audits have read of logs, and their results. They are no part of a generation.

`audit_records` has a row for each record, in files that the tasks write. `audit_reads` is the switch: a row for each
stretch of a log, whose read_id its records carry. Records that no read counts do not exist: a killed audit leaves such.
Order: files of records, then their reads; reads that others replace, then the files that no read needs. Vacuum deletes
these a week later, so an audit that is at work still finds them.

delta-rs commits (`jobs.store.table`); Spark reads and writes plain Parquet files, and needs no Delta.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from lastkey.jobs.errors import DAMAGED_AUDIT
from lastkey.jobs.store import rows
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.minutes import uri_for_spark
from lastkey.jobs.store.paths import AUDIT_KEY, AUDIT_READS, AUDIT_RECORDS, table_folder
from lastkey.jobs.store.table import FILE, Change, Version, in_files
from lastkey.jobs.store.tables import State
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.udfs.audit.rows import AUDIT_RECORDS as RECORD_COLUMNS
from lastkey.udfs.audit.rows import FileRead, Secret
from lastkey.udfs.storage import (
    exists,
    flush,
    flush_folder,
    make_folders,
    make_private,
    open_file,
    read_file,
    sizes_in,
    write_file,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_KEY: Final = struct.Struct("<QQ")


@dataclass(frozen=True)
class AuditRead:
    """Row of `audit_reads`: a stretch of one `.log` whose records are in `audit_records`."""

    read_id: int
    root: str  # URI that path is below
    path: str
    size_bytes: int  # of the .log when it was read
    mtime_ms: int
    topic: str
    partition: int
    start_offset: int  # records in [start_offset, end_offset)
    end_offset: int
    end_position: int  # in the .log, where the next stretch begins
    last_position: int  # of its last batch, -1: none that is whole, and its checksum
    last_crc: int
    n_partitions: int  # of the topic; only hidden keys depend on it
    keys_hidden: bool
    secret_id: str
    records: int
    problems: str  # JSON: a list of what could not be read
    file: str  # of `audit_records`; "": no record


def audit_secret(state: State) -> Secret:
    """Return the key of the hashes in the tables; make it once. Without it, what was read before is read again."""
    root = state.root
    if not exists(root, AUDIT_KEY):
        _make_secret(state)
    data = read_file(root, AUDIT_KEY)
    if len(data) != _KEY.size:
        raise DAMAGED_AUDIT(
            path=f"{root.uri}/{AUDIT_KEY}", expected=f"the {_KEY.size} bytes of a secret", found=f"{len(data)}"
        )
    low, high = _KEY.unpack(data)
    return low, high


def _make_secret(state: State) -> None:
    """Write a new key, whole or not at all. Another audit may do the same at the same time: one of the keys stays."""
    root, data = state.root, secrets.token_bytes(_KEY.size)
    if not root.is_local:
        write_file(root, AUDIT_KEY, data)
        return
    made = f"{AUDIT_KEY}.{uuid.uuid4().hex}"
    make_folders(Path(root.full("state")))
    make_private(root, made)
    write_file(root, made, data)
    with contextlib.suppress(FileExistsError):
        os.link(root.full(made), root.full(AUDIT_KEY))
    Path(root.full(made)).unlink()


def secret_id(secret: Secret) -> str:
    """Return a name of the key that does not tell it."""
    return hashlib.sha256(b"lastkey audit key\0" + _KEY.pack(*secret)).hexdigest()[:16]


def audit_reads(state: State) -> list[AuditRead]:
    """Return all reads that count."""
    return rows.from_arrow(AuditRead, state.rows(AUDIT_READS, rows.arrow_schema(AuditRead)))


def commit_reads(
    state: State, files: Sequence[FileRead], reads: Sequence[AuditRead], replaced: Collection[int]
) -> None:
    """Add files of records and their reads; drop the reads with the ids `replaced`, and files that none needs then."""
    written = [DataFile.counted(file.path, file.size, file.records) for file in files if file.path]
    if written:
        state.swap(AUDIT_RECORDS, RECORD_COLUMNS, lambda _: Change(written=written))
    maybe = {read.file for read in audit_reads(state) if read.read_id in replaced} - {""} if replaced else set()
    state.swap(AUDIT_READS, rows.arrow_schema(AuditRead), lambda version: _with(state, version, reads, replaced))
    if maybe:
        gone = maybe - {read.file for read in audit_reads(state)}
        state.swap(AUDIT_RECORDS, RECORD_COLUMNS, lambda version: Change(removed=gone & set(version.files())))


def _with(state: State, version: Version, reads: Sequence[AuditRead], replaced: Collection[int]) -> Change:
    schema = rows.arrow_schema(AuditRead)
    found = state.rows_in(version, schema)
    gone = pc.is_in(found["read_id"], pa.array(sorted(replaced), pa.int64()))
    touched = pc.unique(found.filter(gone)[FILE])
    kept = found.filter(pc.and_(pc.is_in(found[FILE], touched), pc.invert(gone))).select(schema.names)
    new = pa.concat_tables([kept, rows.to_arrow(AuditRead, reads)])
    return Change(added=in_files(new), removed=touched.to_pylist())


def records(spark: SparkSession, state: State, files: Collection[str]) -> DataFrame:
    """Return the rows of files of `audit_records`. A file that a vacuum has taken meanwhile raises in Spark."""
    if not files:
        return spark.createDataFrame(RECORD_COLUMNS.empty_table())
    folder = uri_for_spark(state.root, AUDIT_RECORDS)
    return _parquet(spark, from_arrow_schema(RECORD_COLUMNS), *(f"{folder}/{name}" for name in sorted(files)))


def _parquet(spark: SparkSession, schema: StructType, *uris: str) -> DataFrame:
    """Return the rows of files. Parquet's own checksums are off unless asked for; brackets in a path are no pattern."""
    reader = spark.read.schema(schema).option("parquet.page.verify-checksum.enabled", "true")
    return reader.option("__globPaths__", "false").parquet(*uris)


def lost_files(state: State, files: Collection[str]) -> set[str]:
    """Return those files of `audit_records` that are not as they were written: gone, or of another size."""
    there, sizes = sizes_in(state.root, table_folder(AUDIT_RECORDS)), state.head(AUDIT_RECORDS).sizes()
    return {name for name in files if name not in there or there[name] != sizes.get(name)}


def check_files(state: State, files: Collection[str]) -> None:
    """Raise DAMAGED_AUDIT for a file of `audit_records` whose pages do not fit their checksums."""
    for name in sorted(files):
        path = f"{table_folder(AUDIT_RECORDS)}/{name}"
        try:
            with open_file(state.root, path) as file:
                for _ in pq.ParquetFile(file, page_checksum_verification=True).iter_batches():
                    pass
        except (pa.ArrowException, OSError) as error:
            raise DAMAGED_AUDIT(
                path=f"{state.root.uri}/{path}", expected="rows of audits", found=in_one_line(str(error))
            ) from error


def results_folder(source: str) -> str:
    """Return a new folder for the results of an audit of a source, below a table's."""
    return f"{_of_source(source)}/{uuid.uuid4().hex}"


def _of_source(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def commit_results(state: State, name: str, source: str, schema: pa.Schema, written: Sequence[DataFile]) -> None:
    """Put files in place of those of the last audit of `source` in a table of results. delta-rs commits them: Spark's
    own first commit takes seconds.
    """

    def plan(version: Version) -> Change:
        old = [path for path in version.files() if path.startswith(f"{_of_source(source)}/")]
        return Change(written=written, removed=old)

    state.swap(name, schema, plan)


def replace_results(state: State, name: str, source: str, frame: DataFrame) -> DataFrame:
    """Put rows in place of those of the last audit of `source` in a table of results, and return them from there."""
    folder = results_folder(source)
    uri = f"{uri_for_spark(state.root, name)}/{folder}"
    frame.write.parquet(uri, compression="zstd")
    schema = pa.schema([column.with_nullable(True) for column in to_arrow_schema(frame.schema)])
    commit_results(state, name, source, schema, list(_written(state, name, folder)))
    return _parquet(frame.sparkSession, frame.schema, uri)


def _written(state: State, name: str, folder: str) -> Iterator[DataFile]:
    """Yield the files that Spark wrote to a folder of a table, flushed."""
    root, table = state.root, table_folder(name)
    for info in root.filesystem.get_file_info(pafs.FileSelector(root.full(f"{table}/{folder}"))):
        if info.base_name.endswith(".parquet"):
            path = f"{folder}/{info.base_name}"
            with open_file(root, f"{table}/{path}") as file:
                n_rows = pq.read_metadata(file).num_rows
            flush(root, f"{table}/{path}")
            yield DataFile.counted(path, info.size, n_rows)
    flush_folder(root, f"{table}/{folder}")


def delta_table(spark: SparkSession, uri: str) -> DataFrame:
    """Return a Delta table of a user's."""
    return spark.read.format("delta").load(uri)
