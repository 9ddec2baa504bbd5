"""Tables `audit_*` of a store: what audits have read of logs, and their results. They are no part of a generation.

`audit_entries` has what audits keep of keys and records, in files that the tasks write. `audit_reads` is the switch: a
row for each stretch of a log, with the id that its entries carry. Entries that no read counts do not exist: a killed
audit leaves such. Order: files of entries, then their reads; reads that others replace, then the files that no read
needs. Vacuum deletes these a week later, so an audit that is at work still finds them.

delta-rs commits (`jobs.store.table`); tasks read and write Parquet files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastkey.jobs.errors import DAMAGED_AUDIT, ConflictError
from lastkey.jobs.store import rows
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.paths import AUDIT_ENTRIES, AUDIT_KEY, AUDIT_READS, table_folder
from lastkey.jobs.store.table import FILE, Change, Version, in_files
from lastkey.jobs.store.tables import State
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.udfs.audit.entries import ENTRIES, FileRead, Secret
from lastkey.udfs.storage import exists, make_folders, make_private, open_file, read_file, sizes_in, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY: Final = struct.Struct("<QQ")
APART: Final = ""


@dataclass(frozen=True)
class AuditRead:
    """Row of `audit_reads`: a stretch of one `.log` whose records are in `audit_entries`. It counts as a whole."""

    read_id: int
    root: str  # URI that path is below
    path: str
    size_bytes: int  # size of the .log when it was read
    mtime_ms: int
    topic: str
    partition: int
    start_offset: int  # records in [start_offset, end_offset)
    end_offset: int
    end_position: int  # in the .log, where the next stretch begins
    last_position: int  # position of its last complete batch, -1: none, with its checksum
    last_crc: int
    n_partitions: int  # partitions of the topic; only hidden keys depend on it
    keys_hidden: bool
    secret_id: str
    problems: str  # JSON: a list of what could not be read
    file: str  # file of `audit_entries`; "": no record
    entries_id: int = 0  # id of its entries, shared with reads whose versions were added up with its own
    cuts: str = APART  # JSON: the offsets between which versions were added up; APART: each record is an entry
    entries: int = 0  # number of entries that begin in it
    first_offset: int = -1  # offset of its first record, like the next ones; -1: none
    last_offset: int = -1
    newest_ms: int = -1


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
    """Return an identifier of the key that does not reveal the key."""
    return hashlib.sha256(b"lastkey audit key\0" + _KEY.pack(*secret)).hexdigest()[:16]


def audit_reads(state: State) -> list[AuditRead]:
    """Return all reads that count."""
    return rows.from_arrow(AuditRead, state.rows(AUDIT_READS, rows.arrow_schema(AuditRead)))


def commit_reads(
    state: State, files: Sequence[FileRead], reads: Sequence[AuditRead], replaced: Collection[int]
) -> None:
    """Add files of entries and their reads; drop the reads with the ids `replaced`, and files that none needs then."""
    written = [DataFile.counted(file.path, file.size, file.entries) for file in files if file.path]
    if written:
        state.swap(AUDIT_ENTRIES, ENTRIES, lambda _: Change(written=written))
    maybe = {read.file for read in audit_reads(state) if read.read_id in replaced} - {""} if replaced else set()
    state.swap(AUDIT_READS, rows.arrow_schema(AuditRead), lambda version: _with(state, version, reads, replaced))
    if maybe:
        gone = maybe - {read.file for read in audit_reads(state)}
        state.swap(AUDIT_ENTRIES, ENTRIES, lambda version: Change(removed=gone & set(version.files())))


def _with(state: State, version: Version, reads: Sequence[AuditRead], replaced: Collection[int]) -> Change:
    schema = rows.arrow_schema(AuditRead)
    found = state.rows_in(version, schema)
    gone = pc.is_in(found["read_id"], pa.array(sorted(replaced), pa.int64()))
    touched = pc.unique(found.filter(gone)[FILE])
    kept = found.filter(pc.and_(pc.is_in(found[FILE], touched), pc.invert(gone))).select(schema.names)
    new = pa.concat_tables([kept, rows.to_arrow(AuditRead, reads)])
    return Change(added=in_files(new), removed=touched.to_pylist())


def lost_files(state: State, files: Collection[str]) -> set[str]:
    """Return the files of `audit_entries` that are missing, or differ in size from their rows."""
    there, sizes = sizes_in(state.root, table_folder(AUDIT_ENTRIES)), state.head(AUDIT_ENTRIES).sizes()
    return {name for name in files if name not in there or there[name] != sizes.get(name)}


def check_files(state: State, files: Collection[str]) -> None:
    """Raise DAMAGED_AUDIT for a file of `audit_entries` whose pages do not fit their checksums."""
    for name in sorted(files):
        path = f"{table_folder(AUDIT_ENTRIES)}/{name}"
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
    return f"{_source_folder(source)}/{uuid.uuid4().hex}"


def _source_folder(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def result_files(state: State, name: str, source: str) -> list[str]:
    """Return the files of the last audit of `source` in a table of results."""
    return _source_files(state.head(name), source)


def _source_files(version: Version, source: str) -> list[str]:
    return [path for path in version.files() if path.startswith(f"{_source_folder(source)}/")]


def commit_results(
    state: State, name: str, source: str, schema: pa.Schema, written: Sequence[DataFile], kept: Collection[str] = ()
) -> None:
    """Replace the files of the last audit of `source` in a table of results; some are kept. Raise ConflictError if
    another audit has replaced one that is kept.
    """

    def plan(version: Version) -> Change:
        old = _source_files(version, source)
        if not {*kept} <= {*old}:
            raise ConflictError(
                path=f"{state.root.uri}/{table_folder(name)}",
                expected=f"the results of {source} that this audit keeps",
                found="newer ones",
            )
        return Change(written=written, removed=[path for path in old if path not in kept])

    state.swap(name, schema, plan)


def delta_table(spark: SparkSession, uri: str) -> DataFrame:
    """Return a Delta table of a user's."""
    return spark.read.format("delta").load(uri)
