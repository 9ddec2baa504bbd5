"""Small Delta table of a store, changed by compare-and-swap and without Spark.

A writer reads the table's head, version n, plans on it, and puts version n + 1. Delta's log lets one process put it (a
hard link on disks, a conditional PUT in buckets); every other one is refused, reads the new head and plans again.
There is no lock.

    version = head(root, name)          read once
    change = plan(version)              rows to add, files to remove; raises if the change is impossible by now
    put(version, change)                new files, flushed; then the commit of version n + 1, never of another

A commit whose answer is lost may have been made, or may be made later. So each commit carries its own id, and after any
error the versions from n + 1 to the head are searched for that id: if it is found, the commit is done. If not, the
attempt on n can be repeated, for only one of the two can land; once another writer's n + 1 is there, neither can.

delta-rs commits by a hard link without flushing anything, so this module flushes: data before the commit; the commit
and the folder's names before success is reported, and before another commit is built upon it. So a power cut can leave
only the last commit empty or torn. Each commit says how many actions it holds, and a torn one counts as never made
(`jobs.store.torn`).
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow import fs as pafs

from lastkey.jobs.errors import DAMAGED_TABLE, UNSURE_COMMIT, ConflictError, FileSystemError, UsageError
from lastkey.jobs.store import commit_file
from lastkey.jobs.store.delta import READABLE, open_table, storage_options, uri_of
from lastkey.jobs.store.old_versions import forget
from lastkey.jobs.store.torn import COMMIT, commit_numbers, torn_set_aside
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.logformat.storage.buckets import is_bucket
from lastkey.logformat.storage.io_counts import count
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, exists, flush, flush_folder, make_folder, open_file, write_file

FILE: Final = "_file"  # column: the data file that holds the row
_FILE_FIELD: Final = pa.field(FILE, pa.string())
_READERS: Final = 8
Held = dict[str, pa.Table]  # rows by path of their data file: these files never change
_READER, _WRITER = 1, 2  # Delta's protocol, which delta-rs and delta-spark both read and write
_ATTEMPTS: Final = 200  # each lost to another writer's commit
_UNANSWERED: Final = 5  # attempts in which nobody committed: the store cannot be written
_FILE_ROWS: Final = 256  # of a data file: a change of a few rows rewrites a whole file
_CHECKPOINT_EVERY: Final = 20  # versions
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_OF_THE_DISK: Final = re.compile(r"LocalFileSystem|os error \d|[Tt]able location|No table metadata")
_UNFIT: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")  # delta-rs takes them for other names


@dataclass(frozen=True)
class Version:
    """Version of a table; number -1: there is no table yet."""

    root: Root
    name: str
    number: int
    delta: DeltaTable | None = None
    notes: tuple[str, ...] = ()  # about torn files that were set aside

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
    written: Sequence[AddAction] = ()
    removed: Collection[str] = ()
    metadata: dict[str, str] = field(default_factory=dict)


def check_fit(root: Root) -> None:
    """Raise UsageError if no table can lie there: delta-rs would take characters of the path for others."""
    if is_bucket(root.uri) and "//" in root.base:
        raise UsageError(message=f"{root.uri}: a store's URI cannot have an empty part (//) in it")
    if found := _UNFIT.search(root.base):
        raise UsageError(
            message=f"{root.uri}: a store's path cannot have {found[0]!r} in it: its tables would lie elsewhere; "
            "nothing was written: give another --store"
        )


def head(root: Root, name: str) -> Version:
    """Return the newest version; on a disk, set aside first what a power cut has torn.

    UsageError: the table has another protocol, which we must not write; FileSystemError: a disk cannot be read;
    DAMAGED_TABLE: delta-rs can read the files and finds no valid table.
    """
    notes = tuple(torn_set_aside(root, name)) if root.is_local else ()
    there = commit_numbers(root, name) if root.is_local else []
    try:
        table = _newest(root, name, max(there, default=-1))
    except TableNotFoundError:
        if there:  # delta-rs treats unreadable files as missing
            raise FileSystemError(path=f"{root.uri}/state/{name}", found="commits that could not be read") from None
        return Version(root, name, -1, notes=notes)
    except DeltaError as error:
        if not root.is_local:
            raise
        path, found = f"{root.uri}/state/{name}", in_one_line(str(error))
        has_gap = not there or there != list(range(there[0], there[-1] + 1))
        if _OF_THE_DISK.search(str(error)) or ("contiguous" in str(error) and not has_gap):
            raise FileSystemError(path=path, found=found) from error
        raise DAMAGED_TABLE(path=path, expected=READABLE, found=found) from error
    protocol = table.protocol()
    if (protocol.min_reader_version, protocol.min_writer_version) != (_READER, _WRITER):
        raise UsageError(
            message=f"{root.uri}/state/{name}: expected Delta's protocol {_READER}/{_WRITER}, found "
            f"{protocol.min_reader_version}/{protocol.min_writer_version}: something else, or a newer version of "
            "Lastkey, has changed this table"
        )
    return Version(root, name, table.version(), table, notes)


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
        data = _bytes_of(version.root, full)
    with _as_damage(version.root, full, pa.ArrowException, OSError):
        commit_file.check_name(path, data)
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


def _bytes_of(root: Root, path: str) -> bytes:
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
            now = _head_after(error, version)  # our attempt may have landed after we looked, and been built upon
            if (found := _search(last, now, tried)) is not None:
                return _settled(last, found)
            if now.number == last.number:
                raise UNSURE_COMMIT(path=f"{root.uri}/{last.folder}", found=in_one_line(str(error))) from error
            raise
        if change is None:
            return version.number
        last = version
        tried.add(own := uuid.uuid4().hex)
        added = [_write(version, table) for table in change.added]
        flush_folder(root, version.folder)
        _flush_commit(version, version.number)  # its writer may have died before the flush
        step("rows written")
        try:
            _commit(version, schema, [*added, *change.written], change, own)
        except (DeltaError, OSError) as error:
            version = _head_after(error, last)
            if (found := _search(last, version, tried)) is not None:
                return _settled(last, found)
            if version.number == last.number:
                unanswered += 1
                if unanswered >= _UNANSWERED:
                    raise
            else:
                for each in added:  # the attempt never lands
                    with contextlib.suppress(OSError):  # a file that stays costs its bytes until vacuum comes
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


def joined(found: pa.Table, keys: pa.Table, how: str) -> pa.Table:
    """Return the rows whose keys are among `keys` (how: left semi), or are not (left anti), with nested columns too:
    Arrow's own joins carry none.
    """
    numbered = found.select(keys.column_names).append_column("_row", pa.array(range(len(found)), pa.int64()))
    # No threads: a join of few rows is no faster by them, and waits for ever where none can be started
    return found.take(numbered.join(keys, keys.column_names, join_type=how, use_threads=False)["_row"])


def announced_deletions(version: Version, since: int) -> Iterator[str]:
    """Yield the marks of the commits above version `since`, up to this one. Raise ConflictError if a commit is gone."""
    for number in range(since + 1, version.number + 1):
        info = commit_info(version.root, version.name, number)
        if info is None:
            raise ConflictError(
                path=f"{version.root.uri}/{version.folder}",
                expected=f"version {number}, which this run has to check",
                found="none: its history was deleted; did the run take longer than the history is kept?",
            )
        if commit_file.MARK in info:
            yield info[commit_file.MARK]


def before_record(version: Version) -> int:
    """Return the version before the oldest commit that is still on record."""
    folder = version.root.full(f"{version.folder}/_delta_log")
    listed = version.root.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    found = [int(info.base_name[:20]) for info in listed if COMMIT.fullmatch(info.base_name)]
    return min(found, default=version.number + 1) - 1


def commit_info(root: Root, name: str, number: int) -> dict[str, Any] | None:
    """Return the commitInfo of a version; None if its file is gone. Raise DAMAGED_TABLE if it is not whole."""
    path = _commit_path(name, number)
    try:
        with root.filesystem.open_input_stream(root.full(path), compression=None) as stream:
            commit = stream.read()
    except FileNotFoundError:
        return None
    if not commit_file.is_whole(commit, name, number):  # commits below a checkpoint were not checked before
        raise DAMAGED_TABLE(path=f"{root.uri}/{path}", expected="a whole commit", found="a damaged one")
    actions = [json.loads(line) for line in commit.splitlines()]
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _commit_path(name: str, number: int) -> str:
    return f"state/{name}/_delta_log/{number:020}.json"


def _write(version: Version, table: pa.Table) -> AddAction:
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
    return add_action(path, data.size, len(table))


def add_action(path: str, size: int, n_rows: int) -> AddAction:
    """Return the action that adds a data file; path: below the table's folder."""
    return AddAction(path, size, {}, time.time_ns() // 1_000_000, True, json.dumps({"numRecords": n_rows}))


def _commit(version: Version, schema: pa.Schema, added: list[AddAction], change: Change, own: str) -> None:
    """Put version n + 1, once. After any error it may have been put all the same."""
    if not version.root.is_local:
        count(commit=1)
    now_ms = time.time_ns() // 1_000_000
    removed = [RemoveAction(quote(path), True, now_ms) for path in change.removed]
    told = commit_file.commit_metadata(
        own, version.name, version.number + 1, [each.path for each in added], change.removed, change.metadata
    )
    properties = CommitProperties(custom_metadata=told, max_commit_retries=0)
    delta_schema = Schema.from_arrow(schema)
    if version.delta is None:
        create_table_with_add_actions(
            uri_of(version.root, version.name), delta_schema, added, mode="error",
            storage_options=storage_options(version.root), commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        )  # fmt: skip
    else:
        version.delta.create_write_transaction(
            [*added, *removed], "append", delta_schema, commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        )  # fmt: skip


def _head_after(error: Exception, version: Version) -> Version:
    try:
        return head(version.root, version.name)
    except (DeltaError, OSError, FileSystemError) as unread:
        raise UNSURE_COMMIT(path=f"{version.root.uri}/{version.folder}", found=in_one_line(str(error))) from unread


def _search(version: Version, now: Version, tried: set[str]) -> int | None:
    """Return the version above `version` that is one of our attempts; None if there is none."""
    for number in range(version.number + 1, now.number + 1):
        if (commit_info(version.root, version.name, number) or {}).get(commit_file.ID) in tried:
            return number
    return None


def _settled(version: Version, made: int) -> int:
    """Flush and check our commit, and return its version. Now and then write a checkpoint, so that readers need fewer
    commits, and delete old files.
    """
    root = version.root
    _flush_commit(version, made)
    if root.is_local:
        commit_info(root, version.name, made)  # raises if it is not as it was put
    if made and made % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError, OSError, FileSystemError):  # failure costs only time
            checkpoint(version.root, version.name, made)
            now = head(root, version.name)
            forget(root, now.folder, now.files())
    return made


def _flush_commit(version: Version, number: int) -> None:
    path = _commit_path(version.name, number)
    if number >= 0 and exists(version.root, path):  # else another writer has cleaned it up behind a checkpoint
        flush(version.root, path)
        flush_folder(version.root, path.rpartition("/")[0])


def checkpoint(root: Root, name: str, number: int) -> None:
    """Write and flush Delta's checkpoint of a version, before anything relies on it."""
    table = open_table(root, name, number)
    table.create_checkpoint()
    log, made = f"state/{name}/_delta_log", f"{number:020}.checkpoint.parquet"
    with root.filesystem.open_input_stream(root.full(f"{log}/{made}"), compression=None) as stream:
        data = stream.read()
    flush(root, f"{log}/{made}")
    said = f"{log}/{commit_file.sum_of(made)}"
    if root.is_local:  # atomic: readers take a checkpoint with half a sum for a torn one
        write_file(root, f"{said}.tmp", commit_file.sum_line(data))
        Path(root.full(f"{said}.tmp")).replace(root.full(said))
    else:
        write_file(root, said, commit_file.sum_line(data))
    for path in (f"{log}/_last_checkpoint", log):
        flush(root, path)
