"""Files below a root, of any kind and depth, that are searched for keys; and what was found there."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.errors import NO_POSITION, unreadable
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, folder_identity, is_link, no_files

FOUND: Final = "found"  # the key is there, to the last byte; of a hash: the hash is
MAY: Final = "may"  # a filter reports it, or a file contains its bytes, perhaps as part of other data

# Ways to search a file
Kind = Literal["log", "key_file", "filter", "table", "bytes"]


@dataclass(frozen=True)
class SearchFile:
    """A file as it was listed, and how to search it."""

    root: str  # URI that `path` is below
    path: str
    size: int  # bytes
    mtime_ms: int
    kind: Kind = "bytes"
    topic: str | None = None
    partition: int | None = None
    generation: int | None = None  # in a store: generation of the run that wrote it
    run_id: str | None = None
    state: str = (
        ""  # in a store: current, older, dead (of a run that no checkpoint names), unknown; else a suffix or mark
    )
    base_offset: int = 0  # base offset of a log, by its name
    index: str | None = None  # path of a log's offset index, to continue after bytes that are no batches
    max_batch_bytes: int = MAX_BATCH_BYTES  # maximum size of a batch in a log
    secret: str | None = None  # path of the file with the secret of the hashes; None: it is lost
    of_audits: bool = False  # a table of audits: keys stand in its column `key` alone
    may_hide: bool = False  # a table whose keys may be keyed hashes of keys
    checksum: tuple[int, int] | None = None  # for a key file: number of keys and CRC-32C, by the manifest

    @property
    def shown(self) -> str:
        """Its path as users see it."""
        return f"{self.root}/{self.path}"


def list_files(root: Root) -> tuple[list[SearchFile], list[Problem]]:
    """List all files below a root, by path, and the folders, names and entries that hide what they hold. A local folder
    that several names lead to counts once, under its own name.

    Raises FileNotFoundError if the root is no folder, AccessError if its bucket cannot be used.
    """
    found = root.filesystem.get_file_info(root.full("") or "/")
    if found.type != pafs.FileType.Directory:
        raise FileNotFoundError(root.uri)
    files, problems = list[SearchFile](), list[Problem]()
    if root.is_local:
        _walk(root, files, problems)
    else:
        everything = root.filesystem.get_file_info(pafs.FileSelector(root.full(""), recursive=True))
        _add(root, _text(root, "", everything, problems), files)
    files.sort(key=lambda file: file.path)
    return files, problems


def _walk(root: Root, files: list[SearchFile], problems: list[Problem]) -> None:
    seen: set[tuple[int, int] | None] = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)  # links last, so that folders keep their own names
        try:
            identity = folder_identity(root, folder)
            if identity in seen:
                continue
            seen.add(identity)
            listed = _text(root, folder, root.filesystem.get_file_info(pafs.FileSelector(root.full(folder))), problems)
            odd = no_files(root, folder, listed)
        except OSError as error:
            problems.append(Problem.of(unreadable(f"{root.uri}/{folder}".rstrip("/"), error, NO_POSITION)))
            continue
        for below in _add(root, listed, files):
            (links if is_link(root, below) else folders).append(below)
        for name, kind in odd.items():
            path = f"{root.uri}/{folder}/{name}" if folder else f"{root.uri}/{name}"
            problems.append(Problem("unreadable", path, NO_POSITION, "a file or a folder", kind))


def _text(root: Root, folder: str, listed: list[pafs.FileInfo], problems: list[Problem]) -> list[pafs.FileInfo]:
    """Return the entries whose names are text; the others, which cannot be opened here, are a problem."""
    entries, others = text_entries(listed)
    if others:
        path = f"{root.uri}/{folder}".rstrip("/")
        problems.append(Problem("unreadable", path, NO_POSITION, "names that are UTF-8", f"{others} that are not"))
    return entries


def _add(root: Root, listed: list[pafs.FileInfo], files: list[SearchFile]) -> list[str]:
    """Add the files of a listing; return the paths of its folders."""
    start = len(root.full("")) + 1 if root.full("") else 0
    folders = []
    for info in listed:
        path = info.path[start:] if start else info.path.lstrip("/")
        if info.type == pafs.FileType.Directory:
            folders.append(path)
        elif info.type == pafs.FileType.File:
            files.append(SearchFile(root.uri, path, int(info.size or 0), (info.mtime_ns or 0) // 1_000_000))
    return folders


_PACKED_ROWS: Final = 1 << 16

KINDS: Final = {
    "log": "records", "key_file": "key file", "filter": "filter", "table": "table", "bytes": "other file",
}  # fmt: skip

# A finding as a task returns it: a row of the key set, the number of the file in the task
_FINDINGS: Final = pa.schema(
    [
        pa.field("key", pa.int32(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("position", pa.int64()),  # position of the batch in a log, of the bytes elsewhere; null: none
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("tombstone", pa.bool_()),
        pa.field("may", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True)
class NotRead:
    """A place that was not read completely, so that it proves no absence."""

    file: int  # its number in the task
    problem: Problem
    stretch: str = ""  # range of bytes


@dataclass
class Found:
    """Findings of one task, packed as they come: a finding takes a few bytes."""

    n_keys: int  # number of keys of the set
    problems: list[NotRead] = field(default_factory=list)
    _file: int = 0  # number of the file that is searched
    _seen: np.ndarray = field(init=False)  # bool[n_keys]: found in that file
    _waiting: list[Any] = field(default_factory=list)  # record batches
    _n_waiting: int = 0
    _sink: io.BytesIO = field(default_factory=io.BytesIO)
    _writer: Any = None

    def __post_init__(self) -> None:
        self._seen = np.zeros(self.n_keys, np.bool_)

    def begin(self, file: int) -> None:
        """Continue with the next file."""
        self._file = file
        if self._seen.any():
            self._seen[:] = False

    def add(
        self,
        rows: np.ndarray,
        position: Any = None,
        offset: Any = None,
        timestamp_ms: Any = None,
        tombstone: Any = None,
        *,
        certainty: str = FOUND,
    ) -> None:
        """Add findings of the keys in these rows of the set, int64[n]. The others are pa.Array[n]; None: nulls."""
        n = len(rows)
        if not n:
            return
        self._seen[rows] = True
        given = (position, offset, timestamp_ms, tombstone)
        types = [_FINDINGS.field(i).type for i in range(2, 6)]
        columns = [pa.nulls(n, t) if c is None else c for c, t in zip(given, types, strict=True)]
        batch = pa.record_batch(
            [
                pa.array(rows.astype(np.int32)),
                pa.repeat(pa.scalar(self._file, pa.int32()), n),
                *columns,
                pa.repeat(certainty == MAY, n),
            ],
            schema=_FINDINGS,
        )
        self._waiting.append(batch)
        self._n_waiting += n
        if self._n_waiting >= _PACKED_ROWS:
            self._pack()

    def _pack(self) -> None:
        """Compress what waits as one batch: of a few rows each would cost more than to find them."""
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._writer = pa.ipc.new_stream(self._sink, _FINDINGS, options=options)
        self._writer.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
        self._waiting, self._n_waiting = [], 0

    @property
    def rows_of_file(self) -> np.ndarray:
        """Rows of the keys that were found in the current file so far: int64[], rising."""
        return np.flatnonzero(self._seen)

    def problem(self, problem: Problem, stretch: str = "") -> None:
        """Note what of the current file was not read."""
        self.problems.append(NotRead(self._file, problem, stretch))

    def packed(self) -> bytes:
        """Return all findings as a stream of Arrow batches; empty if there are none."""
        if self._waiting:
            self._pack()
        if self._writer is not None:
            self._writer.close()
        return self._sink.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the findings of a task as a pa.Table."""
    return pa.ipc.open_stream(data).read_all() if data else _FINDINGS.empty_table()


def finding_columns(part: Any, files: Sequence[SearchFile]) -> dict[str, Any]:
    """Return findings of a task, a pa.RecordBatch, as columns by name, without the key: where each one is."""
    number = part["file"]

    def by_file(values: list[Any], kind: Any) -> Any:
        return pa.array(values, kind).take(number)

    return {
        "root": by_file([f.root for f in files], pa.string()),
        "path": by_file([f.path for f in files], pa.string()),
        "searched_as": by_file([KINDS[f.kind] for f in files], pa.string()),
        "topic": by_file([f.topic for f in files], pa.string()),
        "partition": by_file([f.partition for f in files], pa.int32()),
        "generation": by_file([f.generation for f in files], pa.int64()),
        "run_id": by_file([f.run_id for f in files], pa.string()),
        "state": by_file([f.state for f in files], pa.string()),
        **{name: part[name] for name in ("position", "offset", "timestamp_ms", "tombstone")},
        "certainty": pa.array([FOUND, MAY]).take(part["may"].cast(pa.int8())),
    }
