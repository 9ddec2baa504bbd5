"""A small Delta table of a store, changed by compare-and-swap and without Spark.

Who changes a table reads its head, version n, plans on what it read, and puts version n + 1. Delta's log lets one
process put it (a hard link on disks, a conditional PUT in buckets); every other one is refused, reads the new head and
plans again. Nothing else excludes anybody: there is no lock.

    version = head(root, name)          read once
    change = plan(version)              what is to be added and removed; raises where it cannot be any more
    put(version, change)                new files, flushed; then the commit of version n + 1, never of another

A commit whose answer is lost may have been made, or may be made later. So each carries an id of its own, and after any
error the versions from n + 1 to the head are searched for it: found is done. An attempt on n that is not found can be
made again on n, for one of both lands at most; once another's n + 1 is there, it never lands.

delta-rs commits by a hard link without flushing anything, so what must survive a power cut is flushed here: data before
the commit, the commit and the folder's names before success is said, and before another commit is built upon it. So
only the last commit can be empty or torn, of a machine that lost its power; it counts as never made
(`jobs.store.torn`): each commit says how many actions it holds.
"""

from __future__ import annotations

import contextlib
import errno
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

from jobs.errors import ConflictError, DamagedTableError, FileSystemError, UnsureCommitError, UsageError
from jobs.store.commit_file import (
    ID,
    MARK,
    check_name,
    is_whole,
    stated,
    sum_line,
    sum_of,
)
from jobs.store.delta import READABLE, opened, storage_options, uri_of
from jobs.store.old_versions import forget
from jobs.store.torn import COMMIT, check_made, log_names, torn_set_aside
from logformat.s3_access import in_one_line
from udfs.storage import Root, exists, flush, flush_folder, write_file

FILE: Final = "_file"  # column: the data file in which a row lies
_FILE_FIELD: Final = pa.field(FILE, pa.string())
_READERS: Final = 8
Held = dict[str, pa.Table]  # data files never change: what was read of them, by path
_READER, _WRITER = 1, 2  # Delta's protocol: what delta-rs and delta-spark both read and write
_ATTEMPTS: Final = 200  # each one lost to another writer's commit
_UNANSWERED: Final = 5  # attempts without a commit of anybody's: the store cannot be written
_FILE_ROWS: Final = 256  # of a data file: a change of a few rows rewrites so many
_CHECKPOINT_EVERY: Final = 20  # versions
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_OF_THE_DISK: Final = re.compile(r"LocalFileSystem|os error \d|[Tt]able location|No table metadata")
_UNFIT: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")  # delta-rs takes them for other names


@dataclass(frozen=True)
class Version:
    """A table at one version; -1: there is no table yet."""

    root: Root
    name: str
    number: int
    delta: DeltaTable | None = None
    notes: tuple[str, ...] = ()  # what was found torn, and set aside

    @property
    def folder(self) -> str:
        """Of the table, below the store."""
        return f"state/{self.name}"

    def files(self) -> list[str]:
        """Its data files, below the table's folder."""
        if self.delta is None:
            return []
        return [unquote(path) for path in pa.table(self.delta.get_add_actions())["path"].to_pylist()]


@dataclass(frozen=True, kw_only=True)
class Change:
    """Rows to add (each file's worth a table) and data files to remove."""

    added: Sequence[pa.Table]
    removed: Collection[str] = ()
    whole: bool = False  # nothing that is there stays: `added` is the table, with its schema
    metadata: dict[str, str] = field(default_factory=dict)


def check_fit(root: Root) -> None:
    """That a table can lie there. UsageError: the path has characters that delta-rs takes for others."""
    if root.filesystem.type_name == "s3" and "?" in root.uri:
        raise UsageError(
            message=f"{root.uri}: a store's URI cannot have settings in it (?): give them by the environment "
            "(AWS_ENDPOINT_URL, AWS_REGION) or a profile (AWS_PROFILE)"
        )
    if root.filesystem.type_name == "s3" and "//" in root.base:
        raise UsageError(message=f"{root.uri}: a store's URI cannot have an empty part in it (//)")
    if found := _UNFIT.search(root.base):
        raise UsageError(
            message=f"{root.uri}: a store's path cannot have {found[0]!r} in it: its tables would lie elsewhere; "
            "nothing was written: give another --store"
        )


def head(root: Root, name: str) -> Version:
    """The newest version there is; on a disk, what a power cut has torn is set aside first.

    UsageError: a table of a protocol that is not ours to write; FileSystemError: one on a disk that cannot be read;
    DamagedTableError: one that delta-rs can read and make nothing of.
    """
    notes = tuple(torn_set_aside(root, name)) if root.is_local else ()
    try:
        table = _newest(root, name)
    except TableNotFoundError:
        _refuse_unread(root, name)
        return Version(root, name, -1, notes=notes)
    except DeltaError as error:
        if not root.is_local:
            raise
        path, found = f"{root.uri}/state/{name}", in_one_line(str(error))
        if _OF_THE_DISK.search(str(error)) or ("contiguous" in str(error) and _has_no_gap(root, name)):
            raise FileSystemError(path=path, found=found) from error
        raise DamagedTableError(path=path, expected=READABLE, found=found) from error
    protocol = table.protocol()
    if (protocol.min_reader_version, protocol.min_writer_version) != (_READER, _WRITER):
        raise UsageError(
            message=f"{root.uri}/state/{name}: expected Delta's protocol {_READER}/{_WRITER}, found "
            f"{protocol.min_reader_version}/{protocol.min_writer_version}: something else, or a newer version of "
            "Lastkey, has changed this table"
        )
    return Version(root, name, table.version(), table, notes)


def _newest(root: Root, name: str) -> DeltaTable:
    """As delta-rs finds it; on a disk it takes a commit that it may not look at for one that is not there, and would
    give an older version for the newest.
    """
    number = -1
    while True:
        table = opened(root, name)
        above = _commit_path(name, table.version() + 1)
        if not root.is_local or not Path(root.full(above)).exists():
            return table
        if table.version() == number:
            raise FileSystemError(path=f"{root.uri}/{above}", found="a commit that could not be read")
        number = table.version()  # somebody has committed meanwhile, or it can be read now


def _commits_there(root: Root, name: str) -> list[str]:
    """Names of the commits on a disk, whether delta-rs may look at them or not."""
    return [found for found in log_names(Path(root.full(f"state/{name}/_delta_log"))) if COMMIT.fullmatch(found)]


def _has_no_gap(root: Root, name: str) -> bool:
    """Whether each commit between two is there: delta-rs leaves out names that it may not look at."""
    numbers = sorted(int(found[:20]) for found in _commits_there(root, name))
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _refuse_unread(root: Root, name: str) -> None:
    """Of a table that delta-rs finds none of: it takes names that it may not look at for such as are not there."""
    if root.is_local and _commits_there(root, name):
        raise FileSystemError(path=f"{root.uri}/state/{name}", found="commits that could not be read")


def rows(
    version: Version, schema: pa.Schema, held: Held | None = None, files: Collection[str] | None = None
) -> pa.Table:
    """The rows with these columns, null where a file has not the column, and with FILE; files: of these alone."""
    held = {} if held is None else held
    wanted = sorted(version.files() if files is None else files)
    absent = [path for path in wanted if path not in held]
    with ThreadPoolExecutor(_READERS) as pool:
        held.update(zip(absent, pool.map(lambda path: _read(version, schema, path), absent), strict=True))
    return pa.concat_tables([schema.append(_FILE_FIELD).empty_table(), *(held[path] for path in wanted)])


def _read(version: Version, schema: pa.Schema, path: str) -> pa.Table:
    full = f"{version.folder}/{path}"
    try:
        data = _bytes_of(version.root, full)
        check_name(path, data)
        parquet = pq.ParquetFile(pa.BufferReader(data))
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        found = parquet.read(names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        if not version.root.is_local or getattr(error, "errno", None) not in (None, errno.ENOENT):
            raise  # the file system's
        raise DamagedTableError(
            path=f"{version.root.uri}/{full}", expected="the rows of a table", found=in_one_line(str(error))
        ) from error
    columns = [
        found[f.name].cast(f.type) if f.name in found.column_names else pa.nulls(len(found), f.type) for f in schema
    ]
    return pa.table([*columns, pa.array([path] * len(found), pa.string())], schema=schema.append(_FILE_FIELD))


def _bytes_of(root: Root, path: str) -> bytes:
    """In one request, not one a column. FileSystemError: where a file does not close Arrow says no number."""
    try:
        with root.filesystem.open_input_file(root.full(path)) as file:
            return bytes(file.read())
    except OSError as error:
        if root.is_local and error.errno is None:
            raise FileSystemError(path=f"{root.uri}/{path}", found=in_one_line(str(error))) from error
        raise


def swap(
    root: Root, name: str, schema: pa.Schema, plan: Callable[[Version], Change | None], at: Version | None = None
) -> int:
    """Change a table: `plan` says what, on the head that it is given, or None for nothing. The version made, or found.
    at: its head, as far as the caller knows.

    `plan` is called again whenever another writer was first, and raises what is to be raised where the change cannot be
    any more. ConflictError: the others never stop; UnsureCommitError: the store does not answer.
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
            now = _head_after(error, version)  # an attempt may have been made after we looked, and been built upon
            if (found := _search(last, now, tried)) is not None:
                return _settled(last, found)
            if now.number == last.number:
                raise UnsureCommitError(path=f"{root.uri}/{last.folder}", found=in_one_line(str(error))) from error
            raise
        if change is None:
            return version.number
        last = version
        tried.add(own := uuid.uuid4().hex)
        added = [_write(version, table) for table in change.added]
        flush_folder(root, version.folder)
        _flush_commit(version, version.number)  # who put it may have died before that
        try:
            _commit(version, schema, added, change, own)
        except (DeltaError, OSError) as error:
            version = _head_after(error, last)
            if (found := _search(last, version, tried)) is not None:
                return _settled(last, found)
            if version.number == last.number:
                unanswered += 1
                if unanswered >= _UNANSWERED:
                    raise
            else:
                _remove(last, added)  # it never lands
                time.sleep(random.uniform(0, 0.05))  # several that lost at once need not meet again
        else:
            return _settled(last, last.number + 1)
    raise ConflictError(
        path=f"{root.uri}/state/{name}",
        expected="a commit between those of others",
        found=f"{_ATTEMPTS} commits of others, one after the other",
    )


def in_files(table: pa.Table) -> list[pa.Table]:
    """Rows cut for files of a size that is cheap to write again."""
    return [table.slice(at, _FILE_ROWS) for at in range(0, len(table), _FILE_ROWS)]


def replaced(version: Version, keys: Sequence[str], new: pa.Table, held: Held) -> Change:
    """The change that puts `new` rows in place of those with the same keys.

    Files without such a row stay, but for one that is less than half full.
    """
    schema = new.schema
    everything = rows(version, schema, held).select([*keys, FILE])
    touched = set(everything.join(new.select(keys), list(keys), join_type="left semi")[FILE].to_pylist())
    sizes = {each["values"]: each["counts"] for each in everything[FILE].value_counts().to_pylist()}
    touched |= {path for path, n in sizes.items() if n < _FILE_ROWS // 2}
    old = rows(version, schema, held, touched)
    numbered = old.select(keys).append_column("_row", pa.array(range(len(old)), pa.int64()))
    kept = numbered.join(new.select(keys), list(keys), join_type="left anti")["_row"]
    merged = pa.concat_tables([old.take(kept).select(schema.names), new])
    merged = merged.take(pc.sort_indices(merged, sort_keys=[(key, "ascending") for key in keys]))
    return Change(added=in_files(merged), removed=touched)


def marks(version: Version, since: int) -> Iterator[str]:
    """The marks of the commits above version `since`, up to this one. ConflictError: one is not there any more."""
    for number in range(since + 1, version.number + 1):
        info = commit_info(version.root, version.name, number)
        if info is None:
            raise ConflictError(
                path=f"{version.root.uri}/{version.folder}",
                expected=f"version {number}, which this run must know",
                found="it was cleaned away; did the run take longer than the history is kept?",
            )
        if MARK in info:
            yield info[MARK]


def before_record(version: Version) -> int:
    """The version before the oldest commit that is still on record."""
    folder = version.root.full(f"{version.folder}/_delta_log")
    listed = version.root.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    found = [int(info.base_name[:20]) for info in listed if COMMIT.fullmatch(info.base_name)]
    return min(found, default=version.number + 1) - 1


def commit_info(root: Root, name: str, number: int) -> dict[str, Any] | None:
    """What a version's commit says of itself; None where its file is not there. DamagedTableError."""
    path = _commit_path(name, number)
    try:
        with root.filesystem.open_input_stream(root.full(path), compression=None) as stream:
            commit = stream.read()
    except FileNotFoundError:
        return None
    if not is_whole(commit, name, number):  # below a checkpoint nobody has looked at it yet
        raise DamagedTableError(path=f"{root.uri}/{path}", expected="a whole commit", found="one that is not")
    actions = [json.loads(line) for line in commit.splitlines()]
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _commit_path(name: str, number: int) -> str:
    return f"state/{name}/_delta_log/{number:020}.json"


def _write(version: Version, table: pa.Table) -> AddAction:
    """One data file, flushed. Its name says the CRC-32C of its bytes, for Parquet has none of its own."""
    made = pa.BufferOutputStream()
    pq.write_table(table, made, compression="zstd")
    data = made.getvalue()
    path = f"{uuid.uuid4().hex}-{google_crc32c.value(data.to_pybytes()):08x}.parquet"
    full = f"{version.folder}/{path}"
    if version.root.is_local:
        version.root.filesystem.create_dir(version.root.full(version.folder))
    with version.root.filesystem.open_output_stream(version.root.full(full), compression=None) as stream:
        stream.write(data)
    flush(version.root, full)
    now_ms = time.time_ns() // 1_000_000
    return AddAction(path, data.size, {}, now_ms, True, json.dumps({"numRecords": len(table)}))


def _commit(version: Version, schema: pa.Schema, added: list[AddAction], change: Change, own: str) -> None:
    """Put version n + 1, once. Whatever is raised: it may have been put all the same."""
    now_ms = time.time_ns() // 1_000_000
    removed = [] if change.whole else [RemoveAction(quote(path), True, now_ms) for path in change.removed]
    gone = version.files() if change.whole else change.removed
    told = stated(own, version.name, version.number + 1, [each.path for each in added], gone, change.metadata)
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
            [*added, *removed], "overwrite" if change.whole else "append", delta_schema, commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        )  # fmt: skip


def _head_after(error: Exception, version: Version) -> Version:
    try:
        return head(version.root, version.name)
    except (DeltaError, OSError, FileSystemError) as unread:
        raise UnsureCommitError(path=f"{version.root.uri}/{version.folder}", found=in_one_line(str(error))) from unread


def _search(version: Version, now: Version, tried: set[str]) -> int | None:
    """The version above `version` that is one of ours."""
    for number in range(version.number + 1, now.number + 1):
        if (commit_info(version.root, version.name, number) or {}).get(ID) in tried:
            return number
    return None


def _remove(version: Version, added: list[AddAction]) -> None:
    for each in added:
        with contextlib.suppress(OSError):  # it costs its bytes until vacuum comes
            version.root.filesystem.delete_file(version.root.full(f"{version.folder}/{each.path}"))


def _settled(version: Version, made: int) -> int:
    """Our commit, once that is on the disk; now and then a checkpoint, which spares readers commits, and what is old
    goes.
    """
    root = version.root
    _flush_commit(version, made)
    check_made(root, _commit_path(version.name, made))
    if made and made % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError, OSError, FileSystemError):  # it costs time alone
            checkpoint(version.root, version.name, made)
            now = head(root, version.name)
            forget(root, now.folder, now.files())
    return made


def _flush_commit(version: Version, number: int) -> None:
    path = _commit_path(version.name, number)
    if number >= 0 and exists(version.root, path):  # else somebody has checkpointed and cleaned it meanwhile
        flush(version.root, path)
        flush_folder(version.root, path.rpartition("/")[0])


def checkpoint(root: Root, name: str, number: int) -> None:
    """Write Delta's checkpoint of a version, on the disk before anything relies on it."""
    table = opened(root, name, number)
    table.create_checkpoint()
    log, made = f"state/{name}/_delta_log", f"{number:020}.checkpoint.parquet"
    with root.filesystem.open_input_stream(root.full(f"{log}/{made}"), compression=None) as stream:
        data = stream.read()
    flush(root, f"{log}/{made}")
    said = f"{log}/{sum_of(made)}"
    if root.is_local:  # whole at once: readers take a checkpoint with half a sum for a torn one
        write_file(root, f"{said}.tmp", sum_line(data))
        Path(root.full(f"{said}.tmp")).replace(root.full(said))
    else:
        write_file(root, said, sum_line(data))
    for path in (f"{log}/_last_checkpoint", log):
        flush(root, path)
