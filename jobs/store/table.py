"""Small Delta table of a store, changed by compare-and-swap and without Spark.

A writer reads the table's head, version n, plans on it, and puts version n + 1. Delta's log lets one process put it (a
hard link on disks, a conditional PUT in buckets); every other one is refused, reads the new head and plans again.
There is no lock.

    version = head(root, name)          read once
    change = plan(version)              rows to add, files to remove; raises if the change is impossible by now
    put(version, change)                new files, flushed; then the commit of version n + 1, never of another

delta-rs reads the tables. Lastkey puts the commits, by `udfs.storage.put_if_absent`, and so they are whole and flushed
once they have their names, and so are checkpoints on a disk: a power cut tears neither. An incomplete one was damaged
later, perhaps after its commit was reported, and is an error.

A commit whose answer is lost may have been made, or may be made later. So each commit carries its own id, and after any
error the versions from n + 1 to the head are searched for that id: if it is found, the commit is done. If not, the
attempt on n can be repeated, for only one of the two can land; once another writer's n + 1 is there, neither can.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs as pafs

from lastkey.jobs.errors import DAMAGED_TABLE, UNSURE_COMMIT, ConflictError, DataError, FileSystemError, UsageError
from lastkey.jobs.store.commit_file import (
    CHECKPOINT,
    COMMIT,
    ID,
    MARK,
    READER,
    WRITER,
    DataFile,
    check_name,
    checksum_name,
    created,
    encode_commit,
    is_whole,
    sum_line,
)
from lastkey.jobs.store.delta import READABLE, open_table
from lastkey.jobs.store.old_versions import forget
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.logformat.storage.buckets import is_bucket
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, exists, flush, flush_folder, make_folder, open_file, put_if_absent

FILE: Final = "_file"  # column: the data file that holds the row
_FILE_FIELD: Final = pa.field(FILE, pa.string())
_READERS: Final = 8
Held = dict[str, pa.Table]  # rows by path of their data file: these files never change
_ATTEMPTS: Final = 200  # each lost to another writer's commit
_UNANSWERED: Final = 4  # attempts without any commit: the store cannot be written
_FILE_ROWS: Final = 256  # rows of a data file: a change of a few rows rewrites a whole file
_CHECKPOINT_EVERY: Final = 20  # versions
_OF_THE_DISK: Final = re.compile(r"LocalFileSystem|os error \d|[Tt]able location|No table metadata")
_UNFIT: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")  # delta-rs takes them for other names


@dataclass(frozen=True)
class Version:
    """Version of a table; number -1: there is no table yet."""

    root: Root
    name: str
    number: int
    delta: DeltaTable | None = None

    @property
    def folder(self) -> str:
        """Folder of the table, below the store."""
        return f"state/{self.name}"

    def files(self) -> list[str]:
        """Return its data files, as paths below the table's folder."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Return the bytes of its data files, by their paths below the table's folder."""
        if self.delta is None:
            return {}
        added = pa.table(self.delta.get_add_actions())
        return dict(zip(map(unquote, added["path"].to_pylist()), added["size_bytes"].to_pylist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Change:
    """Rows to add (each file's worth a table), data files that tasks wrote and flushed, and data files to remove."""

    added: Sequence[pa.Table] = ()
    written: Sequence[DataFile] = ()
    removed: Collection[str] = ()
    metadata: dict[str, str] = field(default_factory=dict)


def check_fit(root: Root) -> None:
    """Raise UsageError if the path has characters that delta-rs would change."""
    if is_bucket(root.uri) and "//" in root.base:
        raise UsageError(message=f"{root.uri}: a store's URI cannot have an empty part (//) in it")
    if found := _UNFIT.search(root.base):
        raise UsageError(
            message=f"{root.uri}: a store's path cannot have {found[0]!r} in it: its tables would lie elsewhere; "
            "nothing was written: give another --store"
        )


def head(root: Root, name: str) -> Version:
    """Return the newest version.

    UsageError: the table has another protocol, which we must not write; FileSystemError: a disk cannot be read;
    DAMAGED_TABLE: the files can be read, and are no valid table.
    """
    numbers = _checked_log(root, name) if root.is_local else []
    try:
        table = _newest(root, name, max(numbers, default=-1))
    except TableNotFoundError:
        if numbers:  # delta-rs treats unreadable files as missing
            raise FileSystemError(path=f"{root.uri}/state/{name}", found="commits that could not be read") from None
        return Version(root, name, -1)
    except DeltaError as error:
        if not root.is_local:
            raise
        path, found = f"{root.uri}/state/{name}", in_one_line(str(error))
        has_gap = not numbers or numbers != list(range(numbers[0], numbers[-1] + 1))
        if _OF_THE_DISK.search(str(error)) or ("contiguous" in str(error) and not has_gap):
            raise FileSystemError(path=path, found=found) from error
        raise DAMAGED_TABLE(path=path, expected=READABLE, found=found) from error
    protocol = table.protocol()
    if (protocol.min_reader_version, protocol.min_writer_version) != (READER, WRITER):
        raise UsageError(
            message=f"{root.uri}/state/{name}: expected Delta's protocol {READER}/{WRITER}, found "
            f"{protocol.min_reader_version}/{protocol.min_writer_version}: something else, or a newer version of "
            "Lastkey, has changed this table"
        )
    return Version(root, name, table.version(), table)


def _checked_log(root: Root, name: str) -> list[int]:
    """Return the numbers of a table's commits on a disk, rising. Raise DAMAGED_TABLE unless the newest checkpoint
    and the commits after it are whole: delta-rs would leave out lines, or the whole table.
    """
    log = f"state/{name}/_delta_log"
    try:
        names = os.listdir(root.full(log))  # noqa: PTH208
    except FileNotFoundError:
        return []
    numbers = sorted(int(found[:20]) for found in names if COMMIT.fullmatch(found))
    newest = max(filter(CHECKPOINT.fullmatch, names), default="")
    with contextlib.suppress(FileNotFoundError):  # another process has deleted old files since, or has yet to put some
        if newest and checksum_name(newest) in names:  # else another writer, or an older version, has made it
            said = _read_bytes(root, f"{log}/{checksum_name(newest)}")
            if said.strip() != sum_line(_read_bytes(root, f"{log}/{newest}")).strip():
                raise _damaged_log(root, f"{log}/{newest}", "a checkpoint")
    since = int(newest[:20]) if newest else -1
    for number in numbers:
        if number > since:
            _commit_bytes(root, name, number)
    return numbers


def _newest(root: Root, name: str, least: int) -> DeltaTable:
    """Open the newest version. delta-rs treats unreadable commits as missing, and would return an older version than
    `least`, whose commit is there: raise FileSystemError then, the second time.
    """
    for _ in range(2):
        table = open_table(root, name)
        if table.version() >= least:
            return table
    path = f"{root.uri}/{_commit_path(name, table.version() + 1)}"
    raise FileSystemError(path=path, found="a commit that could not be read")


def rows(
    version: Version, schema: pa.Schema, held: Held | None = None, files: Collection[str] | None = None
) -> pa.Table:
    """Return the rows with these columns, null where a file lacks the column, and with FILE; files: of these alone."""
    held = {} if held is None else held
    wanted = sorted(version.files() if files is None else files)
    absent = [path for path in wanted if path not in held]
    with ThreadPoolExecutor(_READERS) as pool:
        held.update(zip(absent, pool.map(lambda path: _read(version, schema, path), absent), strict=True))
    return pa.concat_tables([schema.append(_FILE_FIELD).empty_table(), *(held[path] for path in wanted)])


def _read(version: Version, schema: pa.Schema, path: str) -> pa.Table:
    full = f"{version.folder}/{path}"
    with _as_damage(version.root, full, FileNotFoundError):  # any other is the file system's
        data = _read_bytes(version.root, full)
    with _as_damage(version.root, full, pa.ArrowException, OSError):
        check_name(path, data)
        parquet = pq.ParquetFile(pa.BufferReader(data))
        there = set(parquet.schema_arrow.names)
        found = parquet.read([name for name in schema.names if name in there], use_threads=False)
    columns = [_column(found, f) if f.name in there else pa.nulls(len(found), f.type) for f in schema]
    return pa.table([*columns, pa.repeat(path, len(found))], schema=schema.append(_FILE_FIELD))


def _column(table: pa.Table, wanted: pa.Field) -> pa.ChunkedArray:
    found = table[wanted.name]
    return found if found.type == wanted.type else found.cast(wanted.type)  # a cast to the same type costs as much


@contextlib.contextmanager
def _as_damage(root: Root, path: str, *kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        found = in_one_line(str(error))
        raise DAMAGED_TABLE(path=f"{root.uri}/{path}", expected="the rows of a table", found=found) from error


def _read_bytes(root: Root, path: str) -> bytes:
    """Read a file in one request, not one a column. Raise FileSystemError if closing fails: Arrow sets no errno."""
    try:
        opened = root.filesystem.open_input_file(root.full(path)) if root.is_local else open_file(root, path)
        with opened as file:
            return bytes(file.read())
    except OSError as error:
        if root.is_local and error.errno is None:
            raise FileSystemError(path=f"{root.uri}/{path}", found=in_one_line(str(error))) from error
        raise


def swap(
    root: Root, name: str, schema: pa.Schema, plan: Callable[[Version], Change | None], at: Version | None = None
) -> int:
    """Change a table by what `plan` returns for the head that it is given (None: no change). Return the version that
    was made, or found. at: the head, as far as the caller knows.

    `plan` is called again whenever another writer was first, and raises if the change is impossible by then.
    ConflictError: other writers were first every time; UNSURE_COMMIT: the store does not answer.
    """
    tried: set[str] = set()
    unanswered = 0
    version = last = at or head(root, name)
    for _ in range(_ATTEMPTS):
        try:
            change = plan(version)
        except Exception as error:
            if not tried:
                raise
            now = _head_after(error, version)  # our commit may exist by now, with later ones above it
            if (number := _search(last, now, tried)) is not None:
                return _settled(last, number)
            if now.number == last.number:
                raise UNSURE_COMMIT(path=f"{root.uri}/{last.folder}", found=in_one_line(str(error))) from error
            raise
        if change is None:
            return version.number
        last = version
        tried.add(own := uuid.uuid4().hex)
        added = [_write(version, table) for table in change.added]
        make_folder(root, log := f"{version.folder}/_delta_log")
        flush_folder(root, log)  # and the name of the commit before, whose writer may have died
        step("rows written")
        try:
            _commit(version, schema, [*added, *change.written], change, own)
        except OSError as error:
            version = _head_after(error, last)
            if (number := _search(last, version, tried)) is not None:
                return _settled(last, number)
            if version.number == last.number:
                unanswered += 1
                if unanswered >= _UNANSWERED:
                    raise
            else:
                for each in added:  # the attempt never lands
                    with contextlib.suppress(OSError):  # a file that remains takes space until a vacuum
                        root.filesystem.delete_file(root.full(f"{last.folder}/{each.path}"))
                time.sleep(random.uniform(0, 0.05))  # several losers need not collide again
        else:
            step("table committed")
            return _settled(last, last.number + 1)
    raise ConflictError(
        path=f"{root.uri}/state/{name}",
        expected="a turn to commit",
        found=f"{_ATTEMPTS} commits of other runs in a row",
    )


def in_files(table: pa.Table) -> list[pa.Table]:
    """Return rows cut into files that are cheap to rewrite."""
    return [table.slice(at, _FILE_ROWS) for at in range(0, len(table), _FILE_ROWS)]


def replaced(version: Version, keys: Sequence[str], new: pa.Table, held: Held) -> Change:
    """Return the change that puts `new` rows in place of those with the same keys.

    Files without such a row stay, except those that are less than half full.
    """
    schema = new.schema
    everything = rows(version, schema, held).select([*keys, FILE])
    touched = set(joined(everything, new.select(keys), "left semi")[FILE].to_pylist())
    sizes = {each["values"]: each["counts"] for each in everything[FILE].value_counts().to_pylist()}
    touched |= {path for path, n in sizes.items() if n < _FILE_ROWS // 2}
    old = rows(version, schema, held, touched)
    kept = joined(old, new.select(keys), "left anti")
    merged = pa.concat_tables([kept.select(schema.names), new])
    merged = merged.take(pc.sort_indices(merged, sort_keys=[(key, "ascending") for key in keys]))
    return Change(added=in_files(merged), removed=touched)


def joined(table: pa.Table, keys: pa.Table, how: str) -> pa.Table:
    """Return the rows whose keys are among `keys` (how: left semi), or are not (left anti), with nested columns too:
    Arrow's own joins carry none.
    """
    numbered = table.select(keys.column_names).append_column("_row", pa.array(range(len(table)), pa.int64()))
    # No threads: a join of few rows is no faster by them, and waits for ever where none can be started
    return table.take(numbered.join(keys, keys.column_names, join_type=how, use_threads=False)["_row"])


def announced_deletions(version: Version, since: int) -> Iterator[str]:
    """Yield marks of the commits above version `since`, up to this one. Raise ConflictError if a commit is missing."""
    for number in range(since + 1, version.number + 1):
        info = commit_info(version.root, version.name, number)
        if info is None:
            raise ConflictError(
                path=f"{version.root.uri}/{version.folder}",
                expected=f"version {number}, which this run has to check",
                found="none: its history was deleted; did the run take longer than the history is kept?",
            )
        if MARK in info:
            yield info[MARK]


def before_record(version: Version) -> int:
    """Return the version before the oldest commit that is still on record."""
    folder = version.root.full(f"{version.folder}/_delta_log")
    listed = version.root.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    found = [int(info.base_name[:20]) for info in listed if COMMIT.fullmatch(info.base_name)]
    return min(found, default=version.number + 1) - 1


def commit_info(root: Root, name: str, number: int) -> dict[str, Any] | None:
    """Return the commitInfo of a version; None if its file is missing. Raise DAMAGED_TABLE if it is not whole."""
    commit = _commit_bytes(root, name, number)
    actions = [json.loads(line) for line in commit.splitlines()]
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), None)


def _commit_bytes(root: Root, name: str, number: int) -> bytes:
    """Return a version's commit; no bytes if its file is missing. Raise DAMAGED_TABLE if it is not whole."""
    path = _commit_path(name, number)
    try:
        with root.filesystem.open_input_stream(root.full(path), compression=None) as stream:
            commit = bytes(stream.read())
    except FileNotFoundError:
        return b""
    if not is_whole(commit, name, number):
        raise _damaged_log(root, path, "a commit")
    return commit


def _damaged_log(root: Root, path: str, what: str) -> DataError:
    found = "one that is empty, cut short, changed or of another version"
    return DAMAGED_TABLE(path=f"{root.uri}/{path}", expected=f"{what} as it was put", found=found)


def _commit_path(name: str, number: int) -> str:
    return f"state/{name}/_delta_log/{number:020}.json"


def _write(version: Version, table: pa.Table) -> DataFile:
    """Write and flush one data file. Its name holds the CRC-32C of its bytes, for Parquet has none of its own."""
    made = pa.BufferOutputStream()
    pq.write_table(table, made, compression="zstd")
    data = made.getvalue()
    path = f"{uuid.uuid4().hex}-{google_crc32c.value(data.to_pybytes()):08x}.parquet"
    full = f"{version.folder}/{path}"
    make_folder(version.root, version.folder)
    with version.root.filesystem.open_output_stream(version.root.full(full), compression=None) as stream:
        stream.write(data)
    flush(version.root, full)
    return DataFile.counted(path, data.size, len(table))


def _commit(version: Version, schema: pa.Schema, added: list[DataFile], change: Change, own: str) -> None:
    """Put version n + 1, once. Raise FileExistsError if it is there. After any error it may have been put all the
    same.
    """
    if version.number >= 0 and not exists(version.root, _commit_path(version.name, version.number)):
        raise FileNotFoundError(errno.ENOENT, "no commit to build upon", f"{version.root.uri}/{version.folder}")
    actions = created(Schema.from_arrow(schema).to_json()) if version.delta is None else []
    actions += [each.added() for each in added]
    now_ms = time.time_ns() // 1_000_000
    for path in change.removed:
        actions.append({"remove": {"path": quote(path), "deletionTimestamp": now_ms, "dataChange": True}})
    number = version.number + 1
    commit = encode_commit(version.name, number, actions, {ID: own, **change.metadata})
    path = _commit_path(version.name, number)
    if not put_if_absent(version.root, path, commit):
        raise FileExistsError(errno.EEXIST, "another commit of this version", f"{version.root.uri}/{path}")


def _head_after(error: Exception, version: Version) -> Version:
    try:
        return head(version.root, version.name)
    except (DeltaError, OSError, FileSystemError) as unread:
        raise UNSURE_COMMIT(path=f"{version.root.uri}/{version.folder}", found=in_one_line(str(error))) from unread


def _search(version: Version, now: Version, tried: set[str]) -> int | None:
    """Return the version above `version` that is one of our attempts; None if no version is."""
    for number in range(version.number + 1, now.number + 1):
        if (commit_info(version.root, version.name, number) or {}).get(ID) in tried:
            return number
    return None


def _settled(version: Version, number: int) -> int:
    """Flush and check our commit, and return its version. Now and then write a checkpoint, so that readers need fewer
    commits, and delete old files.
    """
    root = version.root
    flush(root, f"{version.folder}/_delta_log")  # the error after which it was found may be the flush's
    if root.is_local:
        _commit_bytes(root, version.name, number)  # raises if it is not as it was put
    if number and number % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError, OSError, FileSystemError):  # failure costs only time
            checkpoint(version.root, version.name, number)
            now = head(root, version.name)
            forget(root, now.folder, now.files())
    return number


def checkpoint(root: Root, name: str, number: int) -> None:
    """Put Delta's checkpoint of a version, and on a disk its checksum before it."""
    if not root.is_local:
        open_table(root, name, number).create_checkpoint()
        return
    log, copy = f"state/{name}/_delta_log", f"{name}/.checkpoint"
    checkpoint_name = f"{number:020}.checkpoint.parquet"
    shutil.rmtree(root.full(f"state/{copy}"), ignore_errors=True)  # leftovers of a killed run
    make_folder(root, f"state/{copy}/_delta_log")
    try:  # delta-rs flushes no file: it writes into a copy of the log
        for found in os.listdir(root.full(log)):  # noqa: PTH208
            if COMMIT.fullmatch(found) or CHECKPOINT.fullmatch(found):
                os.link(root.full(f"{log}/{found}"), root.full(f"state/{copy}/_delta_log/{found}"))
        open_table(root, copy, number).create_checkpoint()
        data = _read_bytes(root, f"state/{copy}/_delta_log/{checkpoint_name}")
    finally:
        shutil.rmtree(root.full(f"state/{copy}"), ignore_errors=True)
    if put_if_absent(root, f"{log}/{checksum_name(checkpoint_name)}", sum_line(data)):
        put_if_absent(root, f"{log}/{checkpoint_name}", data)
